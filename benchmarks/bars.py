"""The bars of the sampling measurement: Credo against the best peer of each model, reached or not."""

import math
import statistics
from collections.abc import Callable

from tables import (
    cpu_per_gradient,
    ess_per_cpu,
    ess_per_cpu_judged,
    ess_per_gradient,
    executed,
    gradients,
    median,
    table,
)

TIE = 1.05  # a tie within 5 % is not longer
CORRELATED = "rotated_gaussian"
USUAL = "1,000 draws after each library's own warm-up"
SHORTEST = "at the shortest trusted setting"


def values(result: dict[str, dict], figure: Callable[[list[dict]], float], of: str = "fits") -> dict[str, float]:
    """library -> its figure, of those that have one."""
    found = {name: figure(r[of]) for name, r in result.items() if of in r}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def total(fits: list[dict]) -> float:
    return median(fits, "total")


class Ratios:
    """How many times better Credo is than the best peer, by model. Below one: worse."""

    def __init__(self):
        self.ratios: dict[str, float] = {}
        self.rows: list[list] = []
        self.missing: list[str] = []

    def add(self, model: str, own: float | None, peers: dict[str, float], *, is_time: bool) -> None:
        if own is None or not peers:
            self.missing.append(f"{model}, where {'Credo has no figure' if peers else 'no peer has a figure'}")
            self.ratios |= {model: 0.0} if peers else {}  # a model that Credo alone cannot do fails its bar
            return
        best = (min if is_time else max)(peers, key=peers.__getitem__)
        self.ratios[model] = peers[best] / own if is_time else own / peers[best]
        self.rows.append([model, own, best, peers[best]])

    @property
    def mean(self) -> float:
        if not self.ratios:
            return math.nan
        return 0.0 if self.least == 0 else statistics.geometric_mean(self.ratios.values())

    @property
    def least(self) -> float:
        return min(self.ratios.values(), default=math.nan)

    def says(self) -> str:
        worst = min(self.ratios, key=self.ratios.__getitem__, default="–")
        absent = f"; without {', '.join(self.missing)}" if self.missing else ""
        return f"geometric mean {self.mean:.2f}, least {self.least:.2f} ({worst}){absent}"


def against_peers(results: dict[str, dict], figure, *, is_time: bool, own: str = "fits", peer: str = "fits") -> Ratios:
    ratios = Ratios()
    for model, result in results.items():
        if "credo" not in result:
            continue
        peers = values({name: r for name, r in result.items() if not name.startswith("credo")}, figure, peer)
        ratios.add(model, values(result, figure, own).get("credo"), peers, is_time=is_time)
    return ratios


def ratio_page(title: str, ratios: Ratios) -> str:
    rows = [[m, f"{own:.4g}", best, f"{its:.4g}", f"**{ratios.ratios[m]:.2f}**"] for m, own, best, its in ratios.rows]
    return f"\n## {title}\n\n" + table(["model", "Credo", "best peer", "its", "**times better**"], rows)


def bars(results: dict[str, dict], floors: dict[str, dict], lanes: dict[str, dict], imports: dict[str, float]) -> str:
    """The pages of ratios, then the bars. ``lanes``: model -> library -> one fit of many chains."""
    cold = against_peers(results, total, is_time=True)
    cached = against_peers(results, total, is_time=True, own="warm", peer="warm")
    cached_cold = against_peers(results, total, is_time=True, own="warm", peer="fits")
    per_cpu, per_cpu_judged, per_gradient = (
        against_peers(results, figure, is_time=False, own="usual", peer="usual")
        for figure in (ess_per_cpu, ess_per_cpu_judged, ess_per_gradient)
    )
    per_cpu_shortest = against_peers(results, ess_per_cpu, is_time=False)
    per_gradient_shortest = against_peers(results, ess_per_gradient, is_time=False)
    pages = [
        ratio_page("Seconds to a trusted posterior, compile in", cold),
        ratio_page("The same with a warm compilation cache, everybody's", cached),
        ratio_page("Credo with a warm compilation cache, peers without", cached_cold),
        ratio_page(f"ESS per CPU second without compile, {USUAL}", per_cpu),
        ratio_page(f"ESS per gradient, warm-up counted, {USUAL}", per_gradient),
        ratio_page(f"ESS per CPU second without compile, {SHORTEST}", per_cpu_shortest),
        ratio_page(f"ESS per gradient, warm-up counted, {SHORTEST}", per_gradient_shortest),
    ]
    over_floor = {}
    for model, result in results.items():
        own = values(result, cpu_per_gradient, "usual").get("credo", math.nan)
        over_floor[model] = own / floors.get(model, {}).get("cpu", math.nan)
    correlated = per_gradient.ratios.get(CORRELATED, math.nan)
    shares = lane_shares(lanes)
    least_share = min(
        (s for model in shares.values() for n, s in model.items() if n == "credo-vectorized"), default=math.nan
    )
    widest = max((r for r in over_floor.values() if math.isfinite(r)), default=math.nan)
    said_floor = ", ".join(f"{model} {ratio:.1f}" for model, ratio in over_floor.items())
    said_lanes = "; ".join(
        f"{model}: {', '.join(f'{name} {share:.2f}' for name, share in found.items())}"
        for model, found in shares.items()
    )
    cost, allowed = imports.get("credo", math.nan), imports.get("jax and numpyro.distributions", math.nan)
    rows = [
        ["time, compile in: ≥ 3× in the mean, nowhere longer", cold.says(), cold.mean >= 3 and cold.least >= 1 / TIE],
        ["time, warm cache against warm cache: ≥ 10×", cached.says(), cached.mean >= 10],
        ["(time, Credo's cache warm, peers' cold)", cached_cold.says(), cached_cold.mean >= 10],
        ["ESS per CPU second without compile: ≥ 2× on each", per_cpu.says(), per_cpu.least >= 2],
        ["(the same, with Credo's verdict)", per_cpu_judged.says(), per_cpu_judged.least >= 2],
        [f"(the same, {SHORTEST})", per_cpu_shortest.says(), per_cpu_shortest.least >= 2],
        ["ESS per gradient: ≥ 1.3× in the mean", per_gradient.says(), per_gradient.mean >= 1.3],
        [f"(the same, {SHORTEST})", per_gradient_shortest.says(), per_gradient_shortest.mean >= 1.3],
        ["ESS per gradient on the correlated Gaussian: ≥ 3×", f"{correlated:.2f}", correlated >= 3],
        ["time per gradient: within 3× of the floor", said_floor, widest <= 3],
        ["useful over executed gradients, 32 chains: ≥ 0.9", said_lanes or "nan", least_share >= 0.9],
        [
            "`import credo` no dearer than jax and numpyro.distributions",
            f"{cost:.2f} s beside {allowed:.2f} s",
            cost <= TIE * allowed,
        ],
    ]
    marked = [[bar, said, mark(said, is_reached)] for bar, said, is_reached in rows]
    return "\n".join(pages) + "\n\n## The bars\n\n" + table(["bar", "measured", ""], marked)


def mark(said: str, is_reached: bool) -> str:
    return "not measured" if "nan" in said else "reached" if is_reached else "**not reached**"


def lane_shares(lanes: dict[str, dict]) -> dict[str, dict[str, float]]:
    """model -> library -> gradients that were of use, of those executed."""
    shares = {}
    for model, fits in lanes.items():
        shares[model] = {}
        for name, fit in fits.items():
            if "error" not in fit:
                shares[model][name] = gradients(fit) / executed(fit)
    return shares
