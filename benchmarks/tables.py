"""The tables that ``mcmc.py`` and ``road.py`` print: medians over keys, in Markdown."""

import math
import statistics
from collections.abc import Callable

import numpy as np
from points import PROBLEMS, truth


def good(fits: list[dict]) -> list[dict]:
    return [f for f in fits if "error" not in f]


def median(fits: list[dict], name: str) -> float:
    """NaN where no fit has the figure."""
    values = [f[name] for f in good(fits) if f.get(name) is not None]
    return statistics.median(values) if values else math.nan


def per(fits: list[dict], over: Callable[[dict], float]) -> float:
    values = [over(f) for f in good(fits) if f["gradients"]["warmup"] is not None]
    return statistics.median(values) if values else math.nan


def gradients(fit: dict) -> int:
    """Warm-up counted, those that nobody uses left out."""
    return fit["gradients"]["warmup"] + fit["gradients"]["sampling"]


def cpu(fit: dict) -> float:
    """Processor seconds without compiling, and without the verdict, which Credo alone gives; NaN where unknown."""
    seconds = fit["warm_cpu"] - fit.get("warm_verdict_cpu", 0.0)
    return seconds if seconds > 0 else math.nan


def ess_per_cpu(fits: list[dict]) -> float:
    return per(fits, lambda f: f["warm_ess_bulk"] / cpu(f))


def ess_per_cpu_judged(fits: list[dict]) -> float:
    return per(fits, lambda f: f["warm_ess_bulk"] / f["warm_cpu"] if f["warm_cpu"] > 0 else math.nan)


def ess_per_gradient(fits: list[dict]) -> float:
    return per(fits, lambda f: f["warm_ess_bulk"] / gradients(f))


def cpu_per_gradient(fits: list[dict]) -> float:
    return per(fits, lambda f: cpu(f) / gradients(f))


def executed(fit: dict) -> int:
    """With those that chains evaluate while they wait for others."""
    return fit["gradients"]["executed"]


def part(fits: list[dict], name: str) -> str:
    values = [f["parts"].get(name) for f in good(fits)]
    return "–" if None in values else f"{statistics.median(values):.2f}"


def spread(fits: list[dict]) -> str:
    totals = [f["total"] for f in good(fits)]
    return f"{min(totals):.2f}–{max(totals):.2f}"


def table(columns: list[str], rows: list[list]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("nan", "–") for cell in line) + " |" for line in lines)


def unreached(name: str, r: dict, num_columns: int) -> list[str]:
    why = r.get("error") or f"not reached ({', '.join(f'{d}: {p}' for d, p in r['tried'].items())})"
    return [name, why.replace("|", "/"), *[""] * (num_columns - 2)]


def warm_cache(r: dict) -> list[str]:
    return [f"{median(r.get('warm', []), name):.2f}" for name in ("total", "cpu")]


def sampling_table(model: str, result: dict[str, dict]) -> str:
    """Times of the settings found."""
    columns = ["library", "precision", "draws", "warm-up", "keys trusted", "**total s**", "min–max", "CPU s", "model s"]
    columns += [
        "compile s",
        "warm cache s",
        "its CPU s",
        "second fit s",
        "import s",
        "bulk ESS",
        "tail ESS",
        "off by (sd)",
    ]
    reference = {name: posterior_mean(r["fits"]) for name, r in result.items() if "fits" in r}
    rows = []
    for name, r in result.items():
        if "fits" not in r:
            rows.append(unreached(name, r, len(columns)))
            continue
        fits = r["fits"]
        others = [m for other, m in reference.items() if other != name]
        rows.append(
            [
                *(name, good(fits)[0]["precision"], r["setting"].draws, good(fits)[0]["num_warmup"], r["trusted"]),
                *(f"**{median(fits, 'total'):.2f}**", spread(fits), f"{median(fits, 'cpu'):.2f}"),
                *(part(fits, "model"), part(fits, "compile"), *warm_cache(r)),
                *(f"{median(fits, 'warm'):.2f}", f"{median(fits, 'import'):.2f}"),
                *(f"{median(fits, 'min_ess_bulk'):.0f}", f"{median(fits, 'min_ess_tail'):.0f}"),
                f"{off_by(reference[name], others):.2f}",
            ]
        )
    return f"\n## {model}\n\n" + table(columns, rows)


def gradient_table(result: dict[str, dict], floor: dict, of: str) -> str:
    """What the fits ``of`` a result cost apart from compiling, beside the floor."""
    columns = ["library", "gradients (thousands)", "of them warm-up", "executed (thousands)", "ESS / CPU s"]
    columns += ["with its verdict", "ESS / 1,000 gradients", "µs / gradient", "× floor"]
    floor_us = 1e6 * floor.get("cpu", math.nan)
    rows = []
    for name, r in result.items():
        fits = r.get(of, [])
        if not good(fits):
            continue
        us = 1e6 * cpu_per_gradient(fits)
        warmup = per(fits, lambda f: f["gradients"]["warmup"] / gradients(f))
        rows.append(
            [
                *(name, f"{per(fits, gradients) / 1e3:.1f}", f"{warmup:.0%}", f"{per(fits, executed) / 1e3:.1f}"),
                *(f"{ess_per_cpu(fits):.0f}", f"{ess_per_cpu_judged(fits):.0f}"),
                *(f"{1e3 * ess_per_gradient(fits):.1f}", f"{us:.1f}"),
                f"{us / floor_us:.1f}",
            ]
        )
    found = f"{floor_us:.2f} µs of processor time" if "cpu" in floor else f"not measured ({floor.get('error')})"
    which = "the settings above" if of == "fits" else "1,000 draws after each library's own warm-up"
    return f"\nOf {which}; a bare leapfrog step takes {found}.\n\n" + table(columns, rows)


def posterior_mean(fits: list[dict]) -> tuple[dict, np.ndarray, np.ndarray]:
    """Names with shapes, and mean and sd of each scalar averaged over keys."""
    fits = good(fits)
    return fits[0]["names"], *(np.mean([f[name] for f in fits], axis=0) for name in ("mean", "sd"))


def off_by(own, others) -> float:
    """Largest distance of a posterior mean from the other libraries', in posterior sds: do all sample one posterior?"""
    others = [o for o in others if o[0] == own[0]]
    if not others:
        return math.nan
    mean, sd = (np.mean([o[i] for o in others], axis=0) for i in (1, 2))
    return float(np.max(np.abs(own[1] - mean) / sd))


def ratio_table(results: dict[str, dict]) -> str:
    rows, ratios = [], []
    for model, result in results.items():
        times = {name: median(r["fits"], "total") for name, r in result.items() if "fits" in r}
        own = times.pop("credo", math.nan)
        if not times:
            continue
        best = min(times, key=times.__getitem__)
        if math.isfinite(own):
            ratios.append(own / times[best])
        rows.append([model, f"{own:.2f}", best, f"{times[best]:.2f}", f"**{own / times[best]:.2f}**"])
    mean = f"\n\nGeometric mean: {statistics.geometric_mean(ratios):.2f} (below 1: faster)." if ratios else ""
    heading = "\n## Credo beside the best peer\n\n"
    return heading + table(["model", "Credo s", "best peer", "its s", "**Credo / best**"], rows) + mean


def point_table(problem: str, found: dict[str, list[dict]]) -> str:
    mean, sd = truth(PROBLEMS[problem]())
    columns = "| library | **total ms** | min–max | compile | second fit ms | import s "
    rows = [columns + "| mean off by (sd) | sd off by (relative) |", "|---" * 8 + "|"]
    for name, all_fits in found.items():
        fits = good(all_fits)
        if not fits:
            rows.append(f"| {name} | {all_fits[0]['error']} |" + " |" * 6)
            continue
        totals = [1e3 * f["total"] for f in fits]
        off_mean = np.max(np.abs(np.asarray(fits[0]["mean"]) - mean) / sd)
        off_sd = "–" if fits[0]["sd"] is None else f"{np.max(np.abs(np.asarray(fits[0]['sd']) / sd - 1)):.1e}"
        compile_ms = [1e3 * f["parts"].get("compile", math.nan) for f in fits]
        rows.append(
            f"| {name} | **{statistics.median(totals):.1f}** | {min(totals):.1f}–{max(totals):.1f} "
            f"| {statistics.median(compile_ms):.1f} | {1e3 * median(fits, 'warm'):.2f} | {median(fits, 'import'):.2f} "
            f"| {off_mean:.1e} | {off_sd} |"
        )
    return f"\n## MAP and Laplace: {problem}\n\n" + "\n".join(rows).replace("| nan |", "| – |")
