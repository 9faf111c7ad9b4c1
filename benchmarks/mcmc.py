"""Credo's NUTS beside NumPyro, BlackJAX, nutpie, PyMC and Stan: time to trust, cost of a gradient, and the bars.

    python benchmarks/mcmc.py                      # ten keys a setting: hours on two quiet cores
    python benchmarks/mcmc.py --quick              # three keys
    python benchmarks/mcmc.py --models radon --libraries credo nutpie --json radon.json
    python benchmarks/mcmc.py --resume all.json    # what the file holds is not measured again

README.md beside this file states the protocol.
"""

import argparse
import signal
import sys
from pathlib import Path
from statistics import median

from bars import bars
from posteriors import POSTERIORS
from processes import machine, say, seconds_to_import
from samplers import SAMPLERS, VECTORIZED
from search import Store, search, usual, warm
from tables import gradient_table, sampling_table

LIBRARIES = [name for name in SAMPLERS if name not in ("credo-vectorized", "nutpie-jax")]  # the libraries' own choices
LANES = 32
LANE_DRAWS = 1_000  # Credo's default; warm-up is each library's own
LANE_MODELS = ("eight_schools", "breast_cancer", "radon")  # the others take long in vectorised peers
IMPORTS = {"credo": "import credo", "jax and numpyro.distributions": "import jax, numpyro.distributions"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three keys in place of ten")
    parser.add_argument("--keys", type=int, help="keys a setting (default 10)")
    parser.add_argument("--models", nargs="*", choices=POSTERIORS, default=list(POSTERIORS), metavar="MODEL")
    parser.add_argument("--libraries", nargs="*", choices=SAMPLERS, default=LIBRARIES, metavar="LIBRARY")
    parser.add_argument("--max-draws", type=int, default=8_000, help="where the doubling of draws ends")
    parser.add_argument("--no-halving", action="store_true", help="leave warm-up at the libraries' defaults")
    parser.add_argument("--warm-keys", type=int, help="keys timed with a warm compilation cache (default 5 at most)")
    parser.add_argument(
        "--lanes", nargs="*", choices=POSTERIORS, default=LANE_MODELS, help=f"models for {LANES} chains"
    )
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a fit may take")
    parser.add_argument("--json", type=Path, help="write every fit here, while the run goes on")
    parser.add_argument("--resume", type=Path, help="take the fits that this file holds, and add to it")
    options = parser.parse_args()
    options.keys = options.keys or (3 if options.quick else 10)
    options.warm_keys = min(5, options.keys) if options.warm_keys is None else options.warm_keys
    options.json = options.json or options.resume
    options.min_ess_tail, options.halve_warmup = 400, not options.no_halving
    return options


def many_chains(models, libraries, options: argparse.Namespace, store: Store) -> dict[str, dict]:
    """Gradients used and executed where many chains run in one program."""
    found = {}
    asked = {f"{name}-vectorized" if name == "credo" else name for name in libraries}
    for model in models:
        found[model] = {}
        for name in VECTORIZED:
            if name in asked:
                fit = store.fit("lanes", name, model, 0, LANE_DRAWS, LANES, timeout=options.timeout)
                found[model][name] = fit
                say(f"{model} {name}, {LANES} chains: {fit}")
    return found


def import_seconds() -> dict[str, float]:
    """Medians of seven turns, the first of which fills the disk cache and does not count."""
    turns = [{name: seconds_to_import(statement) for name, statement in IMPORTS.items()} for _ in range(8)][1:]
    return {name: median(turn[name] for turn in turns) for name in IMPORTS}


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the process of a fit ends too
    store = Store(options.json, options.resume)
    results, floors = {}, {}

    def show(text: str) -> None:
        print(text, flush=True)
        store.save()

    store.facts = {"machine": machine(), "keys": options.keys}
    show(
        f"# Samplers side by side\n\n{machine()}\nFour chains, library defaults, {options.keys} keys; trusted: R-hat ≤ "
        "1.01, bulk and tail ESS ≥ 400 for every parameter.\nTimes and figures are medians over keys. float32 is "
        "NumPyro's and BlackJAX's default precision; the others compute in float64."
    )
    for model in options.models:
        results[model] = search(model, list(options.libraries), options, store)
        if options.warm_keys:
            warm(model, results[model], options, store, options.warm_keys)
        usual(model, results[model], options, store)
        floors[model] = store.fit("floor", "-", model, timeout=options.timeout)
        show(sampling_table(model, results[model]))
        for of in ("fits", "usual"):
            show(gradient_table(results[model], floors[model], of))
    lanes = many_chains(options.lanes, options.libraries, options, store)
    show(bars(results, floors, lanes, import_seconds()))


if __name__ == "__main__":
    main()
