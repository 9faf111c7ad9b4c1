"""Time from call to trusted posterior: Credo beside NumPyro, BlackJAX and nutpie; MAP and Laplace beside the classics.

``mcmc.py`` measures the sampling half more strictly and in more respects; the search is the same code.

    python benchmarks/road.py              # ten keys a setting: about an hour on two quiet cores
    python benchmarks/road.py --quick      # three keys

README.md beside this file states the protocol. Each fit runs in a process of its own, with no compiled program on
disk; libraries take turns within every key, so that a busy minute of the machine hits all of them.
"""

import argparse
import json
from pathlib import Path

from processes import machine, run_fit, say
from search import Store, in_turns, search, warm
from tables import point_table, ratio_table, sampling_table

MODELS = ("eight_schools", "breast_cancer", "radon")
LIBRARIES = ("credo", "numpyro", "numpyro-vectorized", "blackjax", "blackjax-sharded", "nutpie", "nutpie-jax")
POINT_PROBLEMS = ("logistic", "ridge", "flat")
POINT_LIBRARIES = ("credo MAP()", "credo Laplace()", "scikit-learn", "statsmodels")


# MAP and Laplace --------------------------------------------------------------------------------------------------


def point_fits(problem: str, options: argparse.Namespace) -> dict[str, list[dict]]:
    fits: dict[str, list[dict]] = {name: [] for name in POINT_LIBRARIES}
    for turn in range(options.keys):
        shift = turn % len(POINT_LIBRARIES)
        for name in POINT_LIBRARIES[shift:] + POINT_LIBRARIES[:shift]:
            fit = run_fit("points", name, problem, timeout=options.timeout)
            fits[name].append(fit)
            say(f"{problem} {name}: {fit.get('error') or format(fit['total'], '.3f') + ' s'}")
    return fits


# ------------------------------------------------------------------------------------------------------------------


def header(options: argparse.Namespace) -> str:
    return (
        f"# From call to trusted posterior\n\n{machine()} Four chains, library defaults, {options.keys} keys; trusted: "
        f"R-hat ≤ 1.01 and bulk ESS ≥ 400 for every parameter.\nTimes are medians over keys. A fit starts from an "
        f"empty disk cache.\nfloat32 is NumPyro's and BlackJAX's default; Credo and nutpie compute in float64."
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three keys in place of ten")
    parser.add_argument("--keys", type=int, help="keys a setting (default 10)")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=MODELS)
    parser.add_argument("--libraries", nargs="*", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--points", nargs="*", choices=POINT_PROBLEMS, default=POINT_PROBLEMS, help="MAP and Laplace")
    parser.add_argument("--max-draws", type=int, default=8_000)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a fit may take")
    parser.add_argument(
        "--retime", action="store_true", help="time the settings found once more, all libraries side by side"
    )
    parser.add_argument("--json", type=Path, help="write every fit here")
    options = parser.parse_args()
    options.min_ess_tail, options.halve_warmup = 0, False
    options.keys = options.keys or (3 if options.quick else 10)
    return options


def main() -> None:
    options = arguments()
    sampling, points = {}, {}

    def show(text: str) -> None:
        print(text, flush=True)
        if options.json:  # after every table, so that an interrupted run keeps what it measured
            options.json.write_text(json.dumps({"sampling": sampling, "points": points}))

    show(header(options))
    for model in options.models:
        sampling[model] = search(model, list(options.libraries), options, Store())
        if options.retime:
            found = {name: r["setting"] for name, r in sampling[model].items() if "fits" in r}
            for name, fits in in_turns("nuts", model, found, options, Store(), may_fail=options.keys).items():
                sampling[model][name]["fits"] = fits
        # a user of nutpie comes back to the disk cache that numba keeps of itself
        own_cache = {name: r for name, r in sampling[model].items() if name == "nutpie"}
        warm(model, own_cache, options, Store(), options.keys)
        show(sampling_table(model, sampling[model]))
    if sampling:
        show(ratio_table(sampling))
    for problem in options.points:
        points[problem] = point_fits(problem, options)
        show(point_table(problem, points[problem]))


if __name__ == "__main__":
    main()
