"""Credo's stochastic-gradient sampling and mean-field networks beside other libraries': steps a CPU second.

    python benchmarks/sgmcmc.py                              # minutes; libraries that are not installed are named
    python benchmarks/sgmcmc.py --tasks vi --libraries credo numpyro --keys 3 --json vi.json

Every library takes the same updates from the same start in float32, a fresh process each; torch's loops, which Python
runs, take fewer of them. README.md beside this file states the protocol.
"""

import argparse
import json
import math
from pathlib import Path
from statistics import median

from processes import machine, run_program, say
from tables import table

TASKS = {
    "sgld logistic": ("credo", "blackjax", "posteriors"),
    "sgld mlp": ("credo", "blackjax", "posteriors"),
    "vi mlp": ("credo", "numpyro", "bayesian-torch", "pyro"),
}
WHAT = {
    "sgld logistic": "SGLD, logistic regression, N = 100,000, D = 50, 256 rows a step",
    "sgld mlp": "SGLD, digits, MLP 64-50-50-10, 128 rows a step",
    "vi mlp": "Mean-field VI, digits, MLP 64-50-50-10, 128 rows a step",
}
BAR, COMPILE_BAR = 1.5, 2.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="*", choices=sorted({task.split()[0] for task in TASKS}), default=None)
    parser.add_argument("--libraries", nargs="*", default=None)
    parser.add_argument("--keys", type=int, default=1, help="runs of each, the medians of which are shown (default 1)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a process may take")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def measure(options, task: str, library: str) -> dict:
    runs = []
    for key in range(options.keys):
        found = run_program("one_stochastic.py", [task, library, str(key)], library, options.timeout)
        say(f"{task}, {library}: {found}")
        runs.append(found)
    good = [run for run in runs if "error" not in run]
    return {name: median(run[name] for run in good) for name in good[0]} if good else runs[0]


def task_table(task: str, found: dict[str, dict]) -> str:
    own = found.get("credo", {}).get("rate", math.nan)
    rows = []
    for library, run in found.items():
        if "error" in run:
            rows.append([library, run["error"].replace("|", "/"), "", "", ""])
            continue
        ratio = f"{own / run['rate']:.2f}"
        rows.append([library, f"{run['rate']:,.0f}", f"{run['compile']:.2f}", f"{run['steps']:,.0f}", ratio])
    columns = ["library", "**steps / CPU s**", "compile CPU s", "steps measured", "Credo / it"]
    return f"\n## {WHAT[task]}\n\n" + table(columns, rows)


def bar(task: str, found: dict[str, dict]) -> str:
    peers = {name: run["rate"] for name, run in found.items() if name != "credo" and "rate" in run}
    own = found.get("credo", {})
    if not peers or "rate" not in own:
        return f"- {task}: not measured."
    best = max(peers, key=peers.__getitem__)
    ratio = own["rate"] / peers[best]
    said = f"- {task}: {ratio:.2f} × {best} (bar {BAR}: {'met' if ratio >= BAR else 'missed'})"
    if task.startswith("vi"):
        is_met = own["compile"] < COMPILE_BAR
        said += f"; compile {own['compile']:.2f} CPU s (bar {COMPILE_BAR}: {'met' if is_met else 'missed'})"
    return said + "."


def main() -> None:
    options = arguments()
    print(f"# Steps on minibatches\n\n{machine()}", flush=True)
    results = {}
    for task, libraries in TASKS.items():
        if options.tasks and task.split()[0] not in options.tasks:
            continue
        chosen = [library for library in libraries if not options.libraries or library in options.libraries]
        results[task] = {library: measure(options, task, library) for library in chosen}
        print(task_table(task, results[task]), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1))
    print("\n" + "\n".join(bar(task, found) for task, found in results.items()))


if __name__ == "__main__":
    main()
