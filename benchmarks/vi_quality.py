"""Can the verdict of a variational fit be believed? False passes and false alarms on posteriors with known moments.

A pass is false where a mean is off by more than 0.1 sd of the reference, or an sd by more than 10 %, beyond three
standard errors of the reference itself (``--keys 3``, ``--models``, ``--methods``: beginnings of names). An alarm is
false where all means and sds lie within these bounds, by as much, and the verdict is no pass. The reference is a grid
where the posterior has one or two parameters, and otherwise a long run of NUTS, on a form that it samples well.
"""

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from posteriors import breast_cancer, eight_schools, radon
from verdicts import centred_schools, of_page, poisson, separated_modes

import credo
from credo.diagnose.convergence import mcse_mean

MEAN_OFF, SD_OFF = 0.1, 0.1
SURE = 3.0  # standard errors of the reference


class Moments(NamedTuple):
    """Means and sds of all scalars (K,), and their standard errors."""

    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray


class Entry(NamedTuple):
    """``reference``: another form of the same posterior for NUTS. ``grid``: bounds. ``names``: what is compared."""

    target: Callable
    reference: Callable | None = None
    grid: dict | None = None
    names: tuple[str, ...] | None = None


# targets --------------------------------------------------------------------------------------------------------------


def linear(params, x):
    return dist.Normal(x @ params["w"], params["sigma"])


def student(params, x):
    return dist.StudentT(4.0, x @ params["w"], params["sigma"])


def logistic(params, x):
    return dist.BernoulliLogits(x @ params["w"])


def rate(params, x):
    return dist.Poisson(params["rate"])


def two_near(params):
    return jnp.logaddexp(-0.5 * (params["x"] + 1.5) ** 2, -0.5 * (params["x"] - 1.5) ** 2)


def two_apart(params):
    return jnp.logaddexp(2 - 0.5 * (params["x"] - 10) ** 2, -0.5 * ((params["x"] + 13) / 1.3) ** 2)


def gaussian(params):
    y = params["x"]
    return -0.5 * (1.2 * jnp.sum(y**2) - 0.6 * jnp.sum(y[1:] * y[:-1]))


def diabetes():
    from sklearn.datasets import load_diabetes

    x, y = (np.asarray(each) for each in load_diabetes(return_X_y=True))
    x, y = x / x.std(axis=0), (y - y.mean()) / y.std()
    prior = {"w": dist.Normal(0.0, 1.0).expand([10]), "sigma": dist.HalfNormal(1.0)}
    return credo.Model(prior, linear).given(x, y)


def robust():
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(80), rng.normal(size=(80, 3))])
    y = x @ np.array([1.0, 0.5, -0.5, 0.0]) + 0.7 * rng.standard_t(4, size=80)
    prior = {"w": dist.Normal(0.0, 2.0).expand([4]), "sigma": dist.HalfNormal(2.0)}
    return credo.Model(prior, student).given(x, y)


def wide_logistic():
    """As many rows as sonar's table, and its 60 columns, neighbours correlated."""
    rng = np.random.default_rng(208)
    x = np.zeros((208, 60))
    x[:, 0] = rng.normal(size=208)
    for j in range(1, 60):
        x[:, j] = 0.8 * x[:, j - 1] + 0.6 * rng.normal(size=208)
    y = rng.random(208) < 1 / (1 + np.exp(-x[:, ::6] @ rng.normal(size=10)))
    return credo.Model({"w": dist.Normal(0.0, 1.0).expand([60])}, logistic).given(x, y.astype(int))


def few_counts():
    return credo.Model({"rate": dist.Gamma(0.5, 0.2)}, rate).given(y=np.array([0, 1, 0]))


def small_funnel():
    prior = {"v": dist.Normal(0.0, 1.0), "x": lambda v: dist.Normal(0.0, jnp.exp(v)).expand([4])}
    return credo.Model(prior, None).given()


def small_funnel_uncentred():
    prior = {"v": dist.Normal(0.0, 1.0), "z": dist.Normal(0.0, 1.0).expand([4])}
    derived = {"x": lambda v, z: jnp.exp(v) * z}
    return credo.Model(prior, None, derived=derived).given()


def near_modes():
    return credo.Model.from_log_density(two_near, {"x": dist.constraints.real}, {"x": ()}).given()


def unlike_modes():
    """One of 15 %, 23 sds away from the other and wider."""
    return credo.Model.from_log_density(two_apart, {"x": dist.constraints.real}, {"x": ()}).given()


def chain_gaussian():
    return credo.Model.from_log_density(gaussian, {"x": dist.constraints.real_vector}, {"x": (20,)}).given()


def schools():
    return of_page(eight_schools)


ENTRIES = {
    "eight schools": Entry(schools),
    "eight schools, centred": Entry(centred_schools, schools, names=("mu", "tau", "theta")),
    "breast cancer": Entry(lambda: of_page(breast_cancer)),
    "diabetes": Entry(diabetes),
    "radon": Entry(lambda: of_page(radon)),
    "logistic, 60 columns": Entry(wide_logistic),
    "Poisson regression": Entry(poisson),
    "Student-t regression": Entry(robust),
    "few counts": Entry(few_counts, grid={"rate": (1e-9, 15.0)}),
    "funnel, 5 parameters": Entry(small_funnel, small_funnel_uncentred, names=("v", "x")),
    "two modes near": Entry(near_modes, grid={"x": (-8.0, 8.0)}),
    "chain of Gaussians": Entry(chain_gaussian),
    "two modes of unlike width": Entry(unlike_modes, grid={"x": (-30.0, 30.0)}),
    "two modes apart": Entry(lambda: separated_modes(1), grid={"x": (-12.0, 12.0)}),
}


def methods() -> dict[str, Callable]:
    """Name -> method; of those that this version has."""
    vi = credo.vi
    found = {
        "Laplace": credo.Laplace,
        "mean field": credo.ADVI,
        "full rank": lambda: credo.ADVI(family=credo.FullRank()),
    }
    for name in ("DADVI", "BatchAndMatch", "NaturalGradient", "Pathfinder"):
        if hasattr(vi, name):
            found[name] = getattr(vi, name)
    if hasattr(vi, "LowRank"):
        found["low rank"] = lambda: credo.ADVI(family=vi.LowRank(2))
    if hasattr(vi, "Flow"):
        found["flow"] = lambda: credo.ADVI(family=vi.Flow())
    return found


# what is compared -----------------------------------------------------------------------------------------------------


def flat(values: dict, names) -> np.ndarray:
    return np.concatenate([np.ravel(values[name]) for name in names])


def reference(entry: Entry, names: tuple[str, ...]) -> Moments:
    """Exact to rounding by a grid, else by 16,000 draws."""
    if entry.grid is not None:
        posterior = credo.fit(entry.target(), credo.Grid(bounds=entry.grid, num_points=4_001), progress=False)
        mean, sd = flat(posterior.mean(), names), flat(posterior.sd(), names)
        return Moments(mean, sd, np.zeros_like(mean), np.zeros_like(sd))
    target = (entry.reference or entry.target)()
    posterior = credo.fit(target, credo.NUTS(num_warmup=1_000, num_draws=4_000), key=9_999, progress=False)
    if posterior.verdict.status != "pass":
        print(f"The reference is {posterior.verdict.status}: {posterior.verdict.sentences}", flush=True)
    draws = posterior.draws
    values = np.concatenate([draws[name].reshape(*draws[name].shape[:2], -1) for name in names], axis=-1)
    mean, sd = values.mean(axis=(0, 1)), values.std(axis=(0, 1))
    return Moments(mean, sd, mcse_mean(values), mcse_mean((values - mean) ** 2) / (2 * sd))


class Compared(NamedTuple):
    """The worst mean in sds and the worst relative sd; whether one is wrong, and whether all are right, for sure."""

    mean_off: float
    sd_off: float
    is_wrong: bool
    is_right: bool


def compare(posterior, truth: Moments, names: tuple[str, ...]) -> Compared:
    mean, sd = flat(posterior.mean(), names), flat(posterior.sd(), names)
    off, ratio = np.abs(mean - truth.mean) / truth.sd, np.abs(sd / truth.sd - 1)
    of_mean, of_sd = SURE * truth.mean_error / truth.sd, SURE * truth.sd_error / truth.sd
    is_wrong = np.any(off - of_mean > MEAN_OFF) or np.any(ratio - of_sd > SD_OFF)
    is_right = np.all(off + of_mean <= MEAN_OFF) and np.all(ratio + of_sd <= SD_OFF)
    return Compared(float(off.max()), float(ratio.max()), bool(is_wrong), bool(is_right))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--models", nargs="*", help="beginnings of names")
    parser.add_argument("--methods", nargs="*", help="beginnings of names")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| posterior | fit | pass, doubtful, failed | worst mean, sd | worst sd | false passes | false alarms | s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    total = Counter()
    for name, entry in ENTRIES.items():
        if options.models and not any(name.startswith(wanted) for wanted in options.models):
            continue
        target = entry.target()
        names = entry.names or tuple(leaf.name for leaf in target.structure.leaves)
        truth = reference(entry, names)
        for label, method in methods().items():
            if options.methods and not any(label.startswith(wanted) for wanted in options.methods):
                continue
            seen, worst, began = Counter(), [], time.perf_counter()
            for key in range(options.keys):
                try:
                    posterior = credo.fit(target, method(), key=key, progress=False)
                except credo.CredoError as error:
                    print(f"{name}, {label}: {error}", flush=True)
                    seen["refused"] += 1
                    continue
                found, status = compare(posterior, truth, names), posterior.verdict.status
                worst.append(found[:2])
                seen[status] += 1
                seen["false pass"] += status == "pass" and found.is_wrong
                seen["false alarm"] += status != "pass" and found.is_right
                seen["right"] += found.is_right
                seen["wrong"] += found.is_wrong
            total.update(seen)
            if not worst:
                continue
            off, ratio = np.max(worst, axis=0)
            counts = ", ".join(str(seen[status]) for status in ("pass", "doubtful", "failed"))
            seconds = (time.perf_counter() - began) / options.keys
            cells = [name, label, counts, f"{off:.2f}", f"{ratio:.0%}", seen["false pass"], seen["false alarm"]]
            print(f"| {' | '.join(map(str, cells))} | {seconds:.1f} |", flush=True)
    print(
        f"\nFalse passes: {total['false pass']} of {total['wrong']} fits that are wrong. "
        f"False alarms: {total['false alarm']} of {total['right']} fits that are right."
    )


if __name__ == "__main__":
    main()
