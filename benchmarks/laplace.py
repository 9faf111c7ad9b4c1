"""Credo's Laplace beside laplace-torch (default and BackPACK backends) and laplax, at the same trained weights.

    python benchmarks/laplace.py                       # three networks, four structures: minutes on two quiet cores
    python benchmarks/laplace.py --networks mlp --structures kronecker diagonal

Each fit runs in a fresh process: the first fit and the predictive of 1,000 rows, compilation in, then both again
without it (medians of a few); the verdict of Credo's fits apart; and the memory held beyond that of imports and data.
The predictive is that of the linearised network: class probabilities by the probit approximation, variances in
regression. README.md beside this file says more.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np
from laplaces import LIBRARIES, STRUCTURES
from laplaces.networks import NETWORKS
from processes import machine, run_program, say
from tables import table

PREDICTIVE_BAR = {"kronecker": 20.0, "diagonal": 20.0}  # times faster than the best peer, predictive alone
TOGETHER_BAR = {"full": 3.0, "last layer": 3.0}  # fit and predictive
WARM = ("fit again", "predict again")
COLD = ("fit", "predict")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--structures", nargs="*", choices=STRUCTURES, default=list(STRUCTURES), metavar="STRUCTURE")
    parser.add_argument("--libraries", nargs="*", choices=LIBRARIES, default=list(LIBRARIES), metavar="LIBRARY")
    parser.add_argument("--keys", type=int, default=3, help="processes a fit, the quickest of which counts (default 3)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a process may take, imports included")
    parser.add_argument("--json", type=Path, help="write every figure here")
    return parser.parse_args()


def measure(options, network: str, structure: str, folder: str) -> dict[str, dict]:
    """library -> figures; the libraries take turns."""
    runs: dict[str, list[dict]] = {library: [] for library in options.libraries}
    for _ in range(options.keys):
        for library, found in runs.items():
            if any("error" in run or "lacking" in run for run in found):
                continue
            run = run_program("one_laplace.py", [library, network, structure, folder], library, options.timeout)
            say(f"{network} {structure} {library}: { {k: v for k, v in run.items() if k != 'answer'} }")
            found.append(run)
    return {library: quickest(found) for library, found in runs.items()}


def quickest(runs: list[dict]) -> dict:
    """The least of every figure over processes: other work on the machine only adds."""
    good = [run for run in runs if "fit" in run]
    if not good:
        return runs[-1]
    found = dict(good[0])
    for phase in (*COLD, *WARM):
        found[phase] = {unit: min(run[phase][unit] for run in good) for unit in ("wall", "verdict", "cpu")}
    found["memory"] = min(run["memory"] for run in good)
    return found


def seconds(found: dict, phases: tuple[str, ...], unit: str = "wall") -> float:
    return sum(found[phase][unit] for phase in phases) if "fit" in found else math.nan


def network_table(structure: str, found: dict[str, dict]) -> str:
    columns = ["library", "first fit s", "first predictive s", "fit s", "its verdict s", "**predictive s**"]
    columns += ["CPU s of all", "MB"]
    columns += ["evidence and slope ms", "off from Credo"]
    own = found.get("credo", {}).get("answer")
    rows = []
    for library, run in found.items():
        if "fit" not in run:
            why = run.get("lacking") or run.get("error", "no answer")
            rows.append([library, why.replace("|", "/"), *[""] * (len(columns) - 2)])
            continue
        off = "–" if own is None else f"{np.max(np.abs(np.subtract(run['answer'], own))):.0e}"
        evidence = run.get("evidence", {}).get("wall", math.nan)
        rows.append(
            [
                *(library, f"{run['fit']['wall']:.2f}", f"{run['predict']['wall']:.2f}"),
                *(f"{run['fit again']['wall']:.3f}", f"{run['fit again']['verdict']:.3f}"),
                f"**{run['predict again']['wall']:.4f}**",
                *(f"{seconds(run, WARM, 'cpu'):.3f}", f"{run['memory']:.0f}", f"{1e3 * evidence:.1f}", off),
            ]
        )
    return f"\n### {structure}\n\n" + table(columns, rows)


def ratio(own: dict, peers: list[dict], phases: tuple[str, ...], also: str | None = None) -> float:
    """The best peer's time over Credo's; ``also``: "verdict" to count that too."""
    times = [seconds(peer, phases) for peer in peers if "fit" in peer]
    if not times or "fit" not in own:
        return math.nan
    return min(times) / (seconds(own, phases) + (0.0 if also is None else seconds(own, phases, also)))


def bars(results: dict[str, dict[str, dict]]) -> str:
    rows = []
    for network, structures in results.items():
        for structure, found in structures.items():
            own, peers = found.get("credo", {}), [run for library, run in found.items() if library != "credo"]
            predictive, both = ratio(own, peers, WARM[1:]), ratio(own, peers, WARM)
            judged = ratio(own, peers, WARM, "verdict")
            memory = [peer["memory"] for peer in peers if "fit" in peer]
            rows.append(
                [
                    *(network, structure, mark(predictive, PREDICTIVE_BAR.get(structure))),
                    *(mark(both, TOGETHER_BAR.get(structure)), mark(judged, None)),
                    mark(ratio(own, peers, COLD, "verdict"), 1.0),
                    mark(min(memory) / own["memory"], 1.0) if memory and "fit" in own else "–",
                ]
            )
    columns = [
        "network",
        "structure",
        "predictive",
        "fit + predictive",
        "with the verdict",
        "all, compile in",
        "memory",
    ]
    text = "\n## Times that the best peer takes of what Credo takes; a bar where one is set\n\n"
    return text + table(columns, rows)


def mark(value: float, bar: float | None) -> str:
    if not math.isfinite(value):
        return "no peer"
    return f"{value:.2f}" if bar is None else f"{value:.2f} ({'reaches' if value >= bar else 'below'} {bar:g})"


def main() -> None:
    options = arguments()
    print(f"# Laplace side by side\n\n{machine()}", flush=True)
    results: dict[str, dict[str, dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for network in options.networks:
            say(f"training {network}")
            trained = run_program("one_laplace.py", ["train", network, folder], "credo", 10 * options.timeout)
            if "error" in trained:
                raise SystemExit(f"{network} could not be trained: {trained['error']}")
            print(f"\n## {network}", flush=True)
            results[network] = {}
            for structure in options.structures:
                results[network][structure] = measure(options, network, structure, folder)
                print(network_table(structure, results[network][structure]), flush=True)
                if options.json:
                    options.json.write_text(json.dumps({"machine": machine(), "results": results}))
    print(bars(results))


if __name__ == "__main__":
    main()
