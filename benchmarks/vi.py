"""Credo's variational fits beside NumPyro's guides and PyMC's ADVI: time and gradients to the family's best ELBO.

    python benchmarks/vi.py                                  # four models, every family: minutes on two quiet cores
    python benchmarks/vi.py --models radon --families full-rank --keys 3 --json radon.json

README.md beside this file states the protocol.
"""

import argparse
import json
import math
import signal
import sys
from pathlib import Path
from statistics import median

from approximators import FAMILIES, PEERS, RATES
from approximators.credo_fits import METHODS
from posteriors import POSTERIORS
from processes import machine, run_program, say
from vi_tables import bars, family_table

MODELS = ("eight_schools", "breast_cancer", "synthetic_logistic", "radon")
SHORT = {"low-rank": ("breast_cancer", "radon"), "flow": ("eight_schools",)}  # models of a family by default
NEAR = 0.1  # nats from the family's best


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=POSTERIORS, metavar="MODEL")
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--keys", type=int, default=1, help="keys a fit, medians of which are shown (default 1)")
    parser.add_argument("--budget", type=float, default=15.0, help="seconds of steps that a peer may take a fit")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a process may take, imports included")
    parser.add_argument("--json", type=Path, help="write every fit here")
    return parser.parse_args()


def ask(options, library: str, **what) -> dict:
    found = run_program("one_approximation.py", [json.dumps(what)], library, options.timeout)
    say(f"{what}: {found}")
    return found


def middle(fits: list[dict]) -> dict:
    """Medians over keys of numbers; ``reached`` where at least half of the keys did."""
    good = [fit for fit in fits if "error" not in fit]
    if not good:
        return fits[0]
    numbers = ("wall", "to_mark", "cpu", "compiled_wall", "compiled_cpu", "gradients", "elbo")
    return {
        **good[0],
        **{name: median(fit[name] for fit in good) for name in numbers},
        "reached": 2 * sum(fit.get("reached", False) for fit in good) >= len(fits),
    }


def credo_fits(options, model: str, family: str) -> dict[str, dict]:
    """name -> figures of each of Credo's methods."""
    return {
        name: middle(
            [
                ask(options, "credo", kind="credo", problem=model, family=family, name=name, key=key)
                for key in range(options.keys)
            ]
        )
        for name in METHODS[family]
    }


def peer_fits(options, model: str, family: str, mark: float) -> dict[str, dict]:
    """name -> figures of each peer at the best of its rates: the least wall time on the first key."""
    found = {}
    for name in PEERS[family]:
        what = {"kind": "peer", "problem": model, "family": family, "name": name}
        what |= {"mark": mark, "budget": options.budget}
        tried = []
        for rate in RATES:  # the smallest, which takes the most steps, where no other reaches the mark
            if rate > min(RATES) or not any(fit.get("reached") for fit in tried):
                tried.append(ask(options, name, **what, key=0, rate=rate))
        best = min(tried, key=rank)
        more = [] if "error" in best else range(1, options.keys)
        found[name] = middle([best, *(ask(options, name, **what, key=key, rate=best["rate"]) for key in more)])
    return found


def middle_gradients(fits: list[dict]) -> dict:
    reached = [fit["gradients"] for fit in fits if fit.get("reached")]
    return {"gradients": median(reached)} if 2 * len(reached) >= len(fits) else {"error": "mark not reached"}


def rank(fit: dict) -> tuple:
    """Those that reached the mark by their time, then the others by how near they came, then failures."""
    if "error" in fit:
        return 2, 0.0
    return (0, fit["wall"]) if fit["reached"] else (1, -fit["elbo"])


def compare(options, model: str, family: str) -> dict:
    own = credo_fits(options, model, family)
    ends = [fit["elbo"] for fit in own.values() if "error" not in fit]
    if family == "flow":  # the libraries' flows are different families: the mark is Credo's own end
        best = max(ends, default=-math.inf)
    else:
        long = ask(options, "credo", kind="long", problem=model, family=family)
        best = max([long.get("elbo", -math.inf), *ends])
    if not math.isfinite(best):
        return {"best": best, "credo": own, "peers": {}}
    peers = peer_fits(options, model, family, best - NEAR)
    best = max([best, *(fit["elbo"] for fit in peers.values() if "error" not in fit)])
    for fit in own.values():
        fit["reached"] = "error" not in fit and fit["elbo"] >= best - NEAR
    if "Credo BatchAndMatch" in own:
        asked = {"kind": "match", "problem": model, "family": family, "mark": best - NEAR}
        fits = [ask(options, "credo", **asked, key=key) for key in range(options.keys)]
        return {"best": best, "credo": own, "peers": peers, "matched": middle_gradients(fits)}
    return {"best": best, "credo": own, "peers": peers}


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the process of a fit ends too
    print(
        f"# Variational fits side by side\n\n{machine()}\n{options.keys} keys; the mark is {NEAR} nats below the "
        "family's best ELBO. Credo's fits run to their own end, which is their time to the mark, and then to their "
        "verdict; peers to the first checkpoint at the mark, at the best of Adam's step sizes "
        f"{', '.join(map(str, RATES))}, {options.budget:g} s of steps at most.",
        flush=True,
    )
    results: dict[str, dict[str, dict]] = {}
    for family in options.families:
        results[family] = {}
        for model in options.models or SHORT.get(family, MODELS):
            results[family][model] = compare(options, model, family)
            print(family_table(family, model, results[family][model]), flush=True)
            if options.json:
                options.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1))
    print(bars(results))


if __name__ == "__main__":
    main()
