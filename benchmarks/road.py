"""Time from call to trusted posterior: Credo beside NumPyro, BlackJAX and nutpie; MAP and Laplace beside the classics.

    python benchmarks/road.py              # ten keys a setting: about an hour on two quiet cores
    python benchmarks/road.py --quick      # three keys

README.md beside this file states the protocol. Each fit runs in a process of its own, with no compiled program on
disk; libraries take turns within every key, so that a busy minute of the machine hits all of them.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tables import point_table, ratio_table, sampling_table

MODELS = ("eight_schools", "breast_cancer", "radon")
LIBRARIES = (
    "credo",
    "numpyro",
    "numpyro-vectorized",
    "blackjax",
    "blackjax-sharded",
    "nutpie",
    "nutpie-cached",
    "nutpie-jax",
)
POINT_PROBLEMS = ("logistic", "ridge", "flat")
POINT_LIBRARIES = ("credo MAP()", "credo Laplace()", "scikit-learn", "statsmodels")
FIRST_DRAWS = 250
HERE = Path(__file__).parent


# processes --------------------------------------------------------------------------------------------------------


def run_fit(kind: str, library: str, problem: str, *numbers: int, timeout: float, cache: str | None = None) -> dict:
    """The JSON of one fit in a fresh process, or {"error": its last words}. ``cache``: a folder that outlives it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = cache or scratch
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "NUMBA_", "PYTENSOR"))}
        environment |= {
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            "NUMBA_CACHE_DIR": folder,
            "PYTENSOR_FLAGS": f"base_compiledir={folder}",
        }
        command = [sys.executable, str(HERE / "one_fit.py"), kind, library, problem, *map(str, numbers)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"error": f"no answer in {timeout:g} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# sampling ---------------------------------------------------------------------------------------------------------


def is_trusted(fit: dict) -> bool:
    return "error" not in fit and fit["max_r_hat"] <= 1.01 and fit["min_ess_bulk"] >= 400


def search(model: str, libraries: list[str], options: argparse.Namespace) -> dict[str, dict]:
    """For each library the fewest draws that are trusted in 8 of 10 keys, and every fit of that setting."""
    needed = math.ceil(0.8 * options.keys)
    result: dict[str, dict] = {name: {"tried": {}} for name in libraries}
    searching, draws = list(libraries), FIRST_DRAWS
    with tempfile.TemporaryDirectory() as cache:
        if "nutpie-cached" in searching:
            run_fit("nuts", "nutpie", model, 999, FIRST_DRAWS, timeout=options.timeout, cache=cache)
        while searching and draws <= options.max_draws:
            fits = in_turns(model, dict.fromkeys(searching, draws), options.keys - needed, options, cache)
            for name in list(searching):
                passed = sum(map(is_trusted, fits[name]))
                result[name]["tried"][draws] = f"{passed} of {len(fits[name])}"
                result[name]["last"] = fits[name]
                if passed >= needed:
                    result[name] |= {"draws": draws, "fits": fits[name]}
                    searching.remove(name)
                elif all("error" in f for f in fits[name]):
                    result[name]["error"] = fits[name][0]["error"]
                    searching.remove(name)
            draws *= 2
        if options.retime:
            settings = {name: r["draws"] for name, r in result.items() if "draws" in r}
            for name, again in in_turns(model, settings, options.keys, options, cache).items():
                result[name]["fits"] = again
    return result


def in_turns(
    model: str, settings: dict[str, int], may_fail: int, options: argparse.Namespace, cache: str
) -> dict[str, list[dict]]:
    """Fits at {library: draws}, libraries taking turns within each key; given up after more than ``may_fail``."""
    fits: dict[str, list[dict]] = {name: [] for name in settings}
    names = list(settings)
    for key in range(options.keys):
        turn = key % len(names) if names else 0
        for name in names[turn:] + names[:turn]:
            if sum(not is_trusted(f) for f in fits[name]) > may_fail:
                continue
            is_cached = name == "nutpie-cached"
            fit = run_fit(
                *("nuts", "nutpie" if is_cached else name, model, key, settings[name]),
                timeout=options.timeout,
                cache=cache if is_cached else None,
            )
            fits[name].append(fit)
            say(f"{model} {name} draws={settings[name]} key={key}: {line(fit)}")
    return fits


def line(fit: dict) -> str:
    if "error" in fit:
        return f"FAILED: {fit['error']}"
    return f"{fit['total']:.2f} s, R-hat {fit['max_r_hat']:.4f}, bulk ESS {fit['min_ess_bulk']:.0f}"


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
    def of(name: str) -> str:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            return f"{name} absent"

    names = ("credo", "jax", "numpyro", "blackjax", "nutpie", "pymc", "scikit-learn", "statsmodels", "arviz-stats")
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"# From call to trusted posterior\n\nPython {platform.python_version()}; {'; '.join(map(of, names))}.\n"
        f"{os.cpu_count()} cores; load before the run {load}. Four chains, library defaults, {options.keys} keys; "
        f"trusted: R-hat ≤ 1.01 and bulk ESS ≥ 400 for every parameter.\n"
        f"Times are medians over keys. A fit starts from an empty disk cache, except that of nutpie-cached, which an "
        f"earlier process filled.\nfloat32 is NumPyro's and BlackJAX's default precision; Credo and nutpie compute in "
        f"float64."
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
        sampling[model] = search(model, list(options.libraries), options)
        show(sampling_table(model, sampling[model]))
    if sampling:
        show(ratio_table(sampling))
    for problem in options.points:
        points[problem] = point_fits(problem, options)
        show(point_table(problem, points[problem]))


if __name__ == "__main__":
    main()
