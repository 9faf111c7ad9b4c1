"""The perceptron estimators at their defaults, beside a fixed prior scale of 1 and scikit-learn's own.

    python benchmarks/estimators.py            # five seeds: a few minutes on two quiet cores

A seed draws the table or its split, and is the ``random_state``. Columns are standardised for everybody. Of new rows:
R², the mean log score of a normal distribution with the mean and sd that are given, and the share within its 90 %
intervals; accuracy and log loss. scikit-learn's perceptron has no sd: that of its training residuals stands for it.
"""

import argparse
import functools
import warnings
from collections.abc import Callable
from time import perf_counter

import numpy as np
from processes import machine, say
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_wine, make_friedman1
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import table

WITHIN = 1.6448536269514722  # sds of a normal distribution that hold 90 %


def wave(seed: int):
    random = np.random.default_rng(seed)
    x = random.uniform(-2.0, 2.0, (1_200, 1))
    return split(x, np.sin(5 * x[:, 0]) + random.normal(0.0, 0.1, len(x)), 200, seed)


def linear(seed: int):
    random = np.random.default_rng(seed)
    x = random.normal(size=(560, 8))
    return split(x, 2 * x[:, 0] + random.normal(size=len(x)), 60, seed)


def friedman(seed: int):
    return split(*make_friedman1(1_500, noise=1.0, random_state=seed), 500, seed)


def bundled(load: Callable) -> Callable:
    return lambda seed: split(*load(return_X_y=True), 0.75, seed)


def split(x, y, size, seed: int):
    is_classes = y.dtype.kind in "iu"
    return train_test_split(x, y, train_size=size, random_state=seed, stratify=y if is_classes else None)


REGRESSIONS = {"sin(5x), 200 rows": wave, "linear, 60 rows": linear, "Friedman 1, 500 rows": friedman}
REGRESSIONS |= {"diabetes": bundled(load_diabetes)}
CLASSES = {"digits": load_digits, "iris": load_iris, "wine": load_wine}


SCALES = {"Credo": None, "Credo, prior scale 1": 1.0}


def regressors(seed: int) -> dict[str, Callable]:
    """name -> ((x, y, new x) -> (mean, sd) of the new rows)."""
    from credo.estimators import BayesianMLPRegressor

    def ours(x, y, new, scale):
        return BayesianMLPRegressor(prior_scale=scale, random_state=seed).fit(x, y).predict(new, return_std=True)

    def theirs(x, y, new):
        perceptron = MLPRegressor(hidden_layer_sizes=(50,), max_iter=2_000, random_state=seed)
        unit = y.std()
        fitted = make_pipeline(StandardScaler(), perceptron).fit(x, y / unit)
        spread = np.std(y / unit - fitted.predict(x))
        return unit * fitted.predict(new), np.full(len(new), unit * spread)

    own = {name: functools.partial(ours, scale=scale) for name, scale in SCALES.items()}
    return {**own, "scikit-learn MLPRegressor": theirs}


def classifiers(seed: int) -> dict[str, Callable]:
    """name -> ((x, y, new x) -> probabilities)."""
    from credo.estimators import BayesianMLPClassifier

    def ours(x, y, new, scale):
        return BayesianMLPClassifier(prior_scale=scale, random_state=seed).fit(x, y).predict_proba(new)

    def theirs(x, y, new, model):
        return make_pipeline(StandardScaler(), model).fit(x, y).predict_proba(new)

    peers = (
        MLPClassifier(hidden_layer_sizes=(50,), max_iter=2_000, random_state=seed),
        LogisticRegression(max_iter=5_000),
    )
    own = {name: functools.partial(ours, scale=scale) for name, scale in SCALES.items()}
    return {**own, **{f"scikit-learn {type(m).__name__}": functools.partial(theirs, model=m) for m in peers}}


def of_numbers(found, y) -> tuple[float, ...]:
    mean, sd = found
    log_score = -0.5 * np.log(2 * np.pi) - np.log(sd) - 0.5 * ((y - mean) / sd) ** 2
    return 1 - np.mean((y - mean) ** 2) / np.var(y), np.mean(log_score), np.mean(np.abs(y - mean) < WITHIN * sd)


def of_classes(probs, y) -> tuple[float, ...]:
    return np.mean(probs.argmax(axis=1) == y), log_loss(y, probs)


def measured(problem: Callable, methods: Callable, figures: Callable, seeds: int) -> dict[str, list[tuple[float, ...]]]:
    """Figures and seconds by method, one for each seed."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for seed in range(seeds):
        x, new, y, outcomes = problem(seed)
        for name, method in methods(seed).items():
            begun = perf_counter()
            predicted = method(x, y, new)
            seconds = perf_counter() - begun
            found.setdefault(name, []).append((*figures(predicted, outcomes), seconds))
            say(f"{name}, seed {seed}: {found[name][-1]}")
    return found


def shown(found: dict[str, list[tuple[float, ...]]], headings: list[str]) -> str:
    rows = []
    for name, runs in found.items():
        values = np.array(runs)
        errors = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros(values.shape[1])
        cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in zip(values.mean(axis=0)[:-1], errors, strict=False)]
        rows.append([name, *cells, f"{np.median(values[:, -1]):.1f}"])
    return table(["method", *headings, "median s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    print(f"# Perceptrons as estimators\n\n{machine()}", flush=True)
    for name, problem in REGRESSIONS.items():
        found = measured(problem, regressors, of_numbers, seeds)
        print(f"\n## {name}\n\n" + shown(found, ["R²", "log score", "within 90 %"]), flush=True)
    for name, load in CLASSES.items():
        found = measured(bundled(load), classifiers, of_classes, seeds)
        print(f"\n## {name}\n\n" + shown(found, ["accuracy", "log loss"]), flush=True)


if __name__ == "__main__":
    main()
