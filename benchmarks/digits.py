"""Digits 0 to 4 are learned, 5 to 9 are shown: how well does each posterior of one network say so?

    python benchmarks/digits.py                       # five seeds of every method: minutes on two cores
    python benchmarks/digits.py --methods ensemble laplace --seeds 10 --json digits.json

scikit-learn's digits; a network 64-50-50-5 with tanh units, weights of prior precision 1. A seed splits the five
learned digits into 600 rows of training and the rest (about 300), starts the weights and is the method's key. Accuracy,
NLL and ECE are of the held-out rows; AUROC is of telling the 896 rows of new digits from them by the entropy of the
predictive. Differences from MAP are paired over seeds; those within two standard errors are called noise.
"""

import argparse
import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
from processes import machine, say
from tables import table

SIZES = (64, 50, 50, 5)
NUM_TRAINING = 600
FIGURES = ("accuracy", "NLL", "ECE", "AUROC")


def methods() -> dict[str, Callable]:
    import credo
    from credo.laplace import Diagonal, GaussNewton, Kronecker, LastLayer

    def laplace(structure=None, **more):
        return credo.Laplace(structure=structure or Kronecker(), curvature=GaussNewton(), **more)

    return {
        "MAP": lambda: credo.MAP(batch_size=100),
        "Laplace, last layer": lambda: credo.Laplace(subset=LastLayer()),
        "Laplace, diagonal": lambda: laplace(Diagonal()),
        "Laplace, Kronecker": lambda: laplace(),
        "mean-field VI": lambda: credo.ADVI(batch_size=100),
        "natural gradient": lambda: credo.NaturalGradient(batch_size=100),
        "variational last layer": lambda: credo.VBLL(),
        "MC dropout": lambda: credo.MCDropout(),
        "SWAG": lambda: credo.SWAG(batch_size=100),
        "snapshots": lambda: credo.StochasticWeightSnapshots(batch_size=100),
        "ensemble": lambda: credo.DeepEnsemble(members=5, batch_size=100),
        "SGHMC": lambda: credo.SGHMC(batch_size=100),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", nargs="*", metavar="METHOD", help="all where left out; MAP is always among them")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="every figure is kept here, and a run goes on from what it finds")
    return parser.parse_args()


def split(seed: int):
    """(x, y) of training, of the held-out rows, and the x of digits that were not learned."""
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    x, rng = (images / 16).astype(np.float32), np.random.default_rng(seed)
    known = rng.permutation(np.flatnonzero(y < SIZES[-1]))
    train, test = known[:NUM_TRAINING], known[NUM_TRAINING:]
    return (x[train], y[train]), (x[test], y[test]), x[y >= SIZES[-1]]


def network(seed: int):
    import jax.numpy as jnp

    import credo

    rng = np.random.default_rng(seed)
    layers = [
        {"w": (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32), "b": np.zeros(shape[1], np.float32)}
        for shape in pairwise(SIZES)
    ]

    def apply(layers, x):
        for layer in layers[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x @ layers[-1]["w"] + layers[-1]["b"]

    return credo.nn.BayesianNetwork(apply, layers, head=credo.nn.Categorical())


def measure(make: Callable, seed: int) -> dict:
    import credo

    (x, y), (x_test, y_test), x_new = split(seed)
    target, begun = network(seed).given(x, y), perf_counter()
    posterior = credo.fit(target, make(), key=seed, precision="float32", progress=False)
    fitted = perf_counter()
    known, new = posterior.predict(x_test), posterior.predict(x_new)
    probs = np.asarray(known.probs)
    scores = [credo.diagnose.novelty_scores(each)["entropy"] for each in (known, new)]
    return {
        "accuracy": float(np.mean(probs.argmax(axis=1) == y_test)),
        "NLL": credo.diagnose.negative_log_likelihood(probs, y_test),
        "ECE": credo.diagnose.calibration_error(probs, y_test).value,
        "AUROC": credo.diagnose.auroc(np.concatenate(scores), np.repeat([0, 1], [len(x_test), len(x_new)])).value,
        "fit": fitted - begun,
        "predict": perf_counter() - fitted,
        "verdict": posterior.verdict.status,
    }


def shown(values: list[float], reference: list[float] | None = None) -> str:
    """Mean ± standard error; a star where the paired difference from ``reference`` is beyond two standard errors."""
    text = f"{np.mean(values):.3f} ± {error_of(values):.3f}"
    if reference is None:
        return text
    change = np.subtract(values, reference)
    return text + (" *" if abs(change.mean()) > 2 * error_of(change) else "")


def error_of(values) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def main() -> None:
    options = arguments()
    found: dict[str, dict] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    asked = methods()
    if options.methods is not None:
        asked = {name: make for name, make in asked.items() if name == "MAP" or name in options.methods}
    print(f"# Digits that were not learned\n\n{machine()}", flush=True)
    for seed in range(options.seeds):
        for name, make in asked.items():
            own = found.setdefault(name, {})
            if str(seed) in own:
                continue
            own[str(seed)] = measure(make, seed)
            say(f"{name}, seed {seed}: {own[str(seed)]}")
            if options.json:
                options.json.write_text(json.dumps(found, indent=1))
    rows = []
    for name in asked:
        runs, base = ([found[each][str(s)] for s in range(options.seeds)] for each in (name, "MAP"))
        cells = [shown([run[f] for run in runs], None if name == "MAP" else [run[f] for run in base]) for f in FIGURES]
        times = [f"{np.median([run[phase] for run in runs]):.1f}" for phase in ("fit", "predict")]
        verdicts = [run["verdict"] for run in runs]
        rows.append([name, *cells, *times, max(set(verdicts), key=verdicts.count)])
    print("\n" + table(["method", *FIGURES, "fit s", "predictive s", "verdict"], rows))
    print(f"\nMean ± standard error over {options.seeds} seeds. *: differs from MAP by more than noise, two standard "
          "errors of the paired difference; all other differences from MAP are within noise.")  # fmt: skip


if __name__ == "__main__":
    main()
