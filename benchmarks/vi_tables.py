"""The tables of ``vi.py`` and its bars."""

import math
import statistics

from tables import table

BARS = {"mean-field": 5.0, "full-rank": 5.0, "low-rank": 1.0, "flow": 1.0}  # times faster than the best peer
FEWER = 10.0  # gradients of BatchAndMatch, against full-rank ADVI
COLUMNS = [
    *("by", "**to the mark: wall s**", "fit: wall s", "CPU s", "compiled fit: wall s", "CPU s"),
    *("gradients", "below the best (nats)", "reached"),
]


def family_table(family: str, model: str, result: dict) -> str:
    """One row a fit, and how much faster Credo's best is than the best peer."""
    rows = []
    for name, fit in (*result["credo"].items(), *result["peers"].items()):
        if "error" in fit:
            rows.append([name, fit["error"].replace("|", "/"), *[""] * (len(COLUMNS) - 2)])
            continue
        rate = f" (Adam {fit['rate']:g})" if "rate" in fit else ""
        rows.append(
            [
                *(name + rate, f"**{fit['to_mark']:.2f}**", f"{fit['wall']:.2f}", f"{fit['cpu']:.2f}"),
                *(f"{fit['compiled_wall']:.2f}", f"{fit['compiled_cpu']:.2f}"),
                *(f"{fit['gradients']:,.0f}", f"{result['best'] - fit['elbo']:.3f}"),
                "yes" if fit["reached"] else "no",
            ]
        )
    return f"\n## {family}: {model} (best ELBO {result['best']:.2f})\n\n" + table(COLUMNS, rows)


def times_faster(result: dict, name: str, figure: str) -> tuple[float, str]:
    """(best peer's figure over that of Credo's method ``name``, how it is to be read).

    Where no peer reached the mark the ratio is a lower bound: the largest that any of them spent in vain.
    """
    own = result["credo"][name]
    peers = {peer: fit for peer, fit in result["peers"].items() if "error" not in fit}
    if "error" in own or not own["reached"]:
        return 0.0, "Credo did not reach the mark"
    if not peers:
        return math.nan, "no peer has a figure"
    reached = {peer: fit[figure] for peer, fit in peers.items() if fit["reached"]}
    if reached:
        best = min(reached, key=reached.__getitem__)
        return reached[best] / own[figure], best
    return max(fit[figure] for fit in peers.values()) / own[figure], "at least: no peer reached the mark"


def chosen(models: dict[str, dict]) -> str:
    """One method for all models: the one whose least ratio is largest."""
    names = next(iter(models.values()))["credo"]

    def least(name: str) -> float:
        ratios = [times_faster(result, name, "to_mark")[0] for result in models.values()]
        return min((r for r in ratios if not math.isnan(r)), default=0.0)

    return max(names, key=least)


def bars(results: dict[str, dict[str, dict]]) -> str:
    lines = ["\n## Bars\n"]
    for family, models in results.items():
        if models:
            lines += _family_bar(family, models)
    if results.get("full-rank"):
        lines += _gradient_bar(results["full-rank"])
    return "\n".join(lines)


def _family_bar(family: str, models: dict[str, dict]) -> list[str]:
    name, rows, ratios = chosen(models), [], []
    for model, result in models.items():
        cells = []
        for figure in ("to_mark", "wall", "cpu", "compiled_wall", "gradients"):
            ratio, against = times_faster(result, name, figure)
            cells.append(f"{ratio:.1f}")
            if figure == "to_mark":
                ratios.append(ratio)
                peer = against
        rows.append([model, *cells, peer])
    known = [r for r in ratios if not math.isnan(r)]
    holds = bool(known) and min(known) >= BARS[family]
    mean = statistics.geometric_mean([max(r, 1e-9) for r in known]) if known else math.nan
    columns = ["model", "**to the mark**", "fit", "CPU", "compiled fit", "gradients", "best peer to the mark"]
    return [
        f"{family}, {name}: {'holds' if holds else 'FAILS'}: at least {BARS[family]:g} times faster than the best peer "
        f"on every model (least {min(known, default=math.nan):.2f}, geometric mean {mean:.2f}). How many times less:\n",
        table(columns, rows) + "\n",
    ]


def _gradient_bar(models: dict[str, dict]) -> list[str]:
    """BatchAndMatch against the peers' full-rank ADVI, each at its first checkpoint at the mark."""
    rows, least = [], math.inf
    for model, result in models.items():
        own = result.get("matched", {"error": "not there"})
        if "error" in own:
            rows.append([model, own["error"], ""])
            least = 0.0
            continue
        ratios = {
            name + ("" if fit["reached"] else ", not there yet"): fit["gradients"] / own["gradients"]
            for name, fit in result["peers"].items()
            if "error" not in fit
        }
        least = min([least, *ratios.values()])
        row = "; ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items())
        rows.append([model, f"{own['gradients']:,.0f}", row or "no peer has a figure"])
    holds = math.isfinite(least) and least >= FEWER
    return [
        f"BatchAndMatch: {'holds' if holds else 'FAILS'}: at least {FEWER:g} times fewer gradients to the mark than a "
        "peer's full-rank ADVI, each at its first checkpoint there. How many times fewer:\n",
        table(["model", "its gradients", "times fewer than"], rows),
    ]
