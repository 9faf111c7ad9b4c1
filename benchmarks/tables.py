"""The tables that ``road.py`` prints: medians over keys, in Markdown."""

import math
import statistics

import numpy as np
from points import PROBLEMS, truth


def median(fits: list[dict], name: str) -> float:
    return statistics.median(f[name] for f in fits if "error" not in f)


def part(fits: list[dict], name: str) -> str:
    values = [f["parts"].get(name) for f in fits if "error" not in f]
    return "–" if None in values else f"{statistics.median(values):.2f}"


def spread(fits: list[dict]) -> str:
    totals = [f["total"] for f in fits if "error" not in f]
    return f"{min(totals):.2f}–{max(totals):.2f}"


def sampling_table(model: str, result: dict[str, dict]) -> str:
    columns = "| library | precision | draws | keys trusted | **total s** | min–max | model | compile | CPU s "
    rows = [columns + "| second fit s | import s | bulk ESS | off by (sd) |", "|---" * 13 + "|"]
    reference = {name: posterior_mean(r["fits"]) for name, r in result.items() if "fits" in r}
    for name, r in result.items():
        if "fits" not in r:
            why = r.get("error") or f"not reached ({', '.join(f'{d}: {p}' for d, p in r['tried'].items())})"
            rows.append(f"| {name} | {why} |" + " |" * 11)
            continue
        fits = r["fits"]
        others = [m for other, m in reference.items() if other != name]
        ess = statistics.median(f["min_ess_bulk"] for f in fits if "error" not in f)
        cells = [
            *(name, next(f["precision"] for f in fits if "error" not in f), r["draws"], r["tried"][r["draws"]]),
            *(f"**{median(fits, 'total'):.2f}**", spread(fits), part(fits, "model"), part(fits, "compile")),
            *(f"{median(fits, column):.2f}" for column in ("cpu", "warm", "import")),
            *(f"{ess:.0f}", f"{off_by(reference[name], others):.2f}"),
        ]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return f"\n## {model}\n\n" + "\n".join(rows)


def posterior_mean(fits: list[dict]) -> tuple[dict, np.ndarray, np.ndarray]:
    """Names with shapes, and mean and sd of each scalar averaged over keys."""
    fits = [f for f in fits if "error" not in f]
    return fits[0]["names"], *(np.mean([f[name] for f in fits], axis=0) for name in ("mean", "sd"))


def off_by(own, others) -> float:
    """Largest distance of a posterior mean from the other libraries', in posterior sds: do all sample one posterior?"""
    others = [o for o in others if o[0] == own[0]]
    if not others:
        return math.nan
    mean, sd = (np.mean([o[i] for o in others], axis=0) for i in (1, 2))
    return float(np.max(np.abs(own[1] - mean) / sd))


def ratio_table(results: dict[str, dict]) -> str:
    rows = [
        "| model | Credo s | best peer | its s | **Credo / best** | best with a disk cache | its s | Credo / it |",
        "|---" * 8 + "|",
    ]
    ratios = []
    for model, result in results.items():
        times = {name: median(r["fits"], "total") for name, r in result.items() if "fits" in r}
        own = times.pop("credo", math.nan)
        cold = {name: t for name, t in times.items() if name != "nutpie-cached"}
        if not cold:
            continue
        best, best_any = min(cold, key=cold.__getitem__), min(times, key=times.__getitem__)
        if math.isfinite(own):
            ratios.append(own / cold[best])
        row = (
            f"| {model} | {own:.2f} | {best} | {cold[best]:.2f} | **{own / cold[best]:.2f}** "
            f"| {best_any} | {times[best_any]:.2f} | {own / times[best_any]:.2f} |"
        )
        rows.append(row.replace("nan", "–"))
    if ratios:
        rows.append(
            f"\nGeometric mean of Credo / best peer: {statistics.geometric_mean(ratios):.2f} (below 1: faster)."
        )
    return "\n## Credo beside the best peer\n\n" + "\n".join(rows)


def point_table(problem: str, fits: dict[str, list[dict]]) -> str:
    mean, sd = truth(PROBLEMS[problem]())
    columns = "| library | **total ms** | min–max | compile | second fit ms | import s "
    rows = [columns + "| mean off by (sd) | sd off by (relative) |", "|---" * 8 + "|"]
    for name, all_fits in fits.items():
        good = [f for f in all_fits if "error" not in f]
        if not good:
            rows.append(f"| {name} | {all_fits[0]['error']} |" + " |" * 6)
            continue
        totals = [1e3 * f["total"] for f in good]
        off_mean = np.max(np.abs(np.asarray(good[0]["mean"]) - mean) / sd)
        off_sd = "–" if good[0]["sd"] is None else f"{np.max(np.abs(np.asarray(good[0]['sd']) / sd - 1)):.1e}"
        compile_ms = [1e3 * f["parts"].get("compile", math.nan) for f in good]
        rows.append(
            f"| {name} | **{statistics.median(totals):.1f}** | {min(totals):.1f}–{max(totals):.1f} "
            f"| {statistics.median(compile_ms):.1f} | {1e3 * median(good, 'warm'):.2f} | {median(good, 'import'):.2f} "
            f"| {off_mean:.1e} | {off_sd} |"
        )
    return f"\n## MAP and Laplace: {problem}\n\n" + "\n".join(rows).replace("| nan |", "| – |")
