"""The Bayesian mixture of Gaussians against scikit-learn's: time a sweep, and time to scikit-learn's final bound.

    python benchmarks/mixture.py [--rows 100000] [--columns 10] [--components 20] [--repeats 3]
    python benchmarks/mixture.py --peer-sweeps 15 --repeats 1   # a look: scikit-learn is stopped early

Same data, same prior, same start (labels of one k-means). scikit-learn sweeps until its own test ends it; Credo's plain
sweeps go on until the bound, worked out for both answers by one function, is no lower. The last line is Credo's own way
from the rows alone, starts included, to be held against k-means and sweeps of scikit-learn together. Wall-clock times
depend on what else the machine does: the load is printed.
"""

import argparse
import os
import statistics
import time
import warnings

import numpy as np
from tables import table

from credo.methods.vi.cavi.mixture import Full, GaussianMixture, MixturePosterior, NormalWishart
from credo.methods.vi.cavi.mixture.priors import Units
from credo.methods.vi.cavi.mixture.responsibilities import Rows

SEPARATIONS = {"apart": 1.5, "touching": 0.7, "overlapping": 0.4}  # sds of the centres; each cluster's own are about 1


def clusters(num_rows: int, num_columns: int, num_components: int, separation: float, seed: int) -> np.ndarray:
    """Rows of so many Gaussian clusters of unequal size and shape."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(num_components, 5.0))
    labels = rng.choice(num_components, num_rows, p=weights)
    centres = separation * rng.normal(size=(num_components, num_columns))
    roots = rng.normal(size=(num_components, num_columns, num_columns)) / np.sqrt(num_columns)
    roots += 0.5 * np.eye(num_columns)
    noise = rng.normal(size=(num_rows, num_columns))
    x = np.empty_like(noise)
    for k in range(num_components):
        x[labels == k] = centres[k] + noise[labels == k] @ roots[k].T
    return x


def prior_of(x: np.ndarray, num_components: int) -> NormalWishart:
    """scikit-learn's own default."""
    return NormalWishart(
        concentration=1 / num_components,
        mean=x.mean(axis=0),
        mean_precision=1.0,
        degrees_of_freedom=float(x.shape[1]),
        scale=np.cov(x.T),
    )


def bound_of_peer(x: np.ndarray, peer, prior: NormalWishart) -> float:
    """The ELBO at scikit-learn's answer, its best responsibilities included, by the function that judges ours."""
    units = Units(np.zeros(x.shape[1]), np.ones(x.shape[1]))
    features = Full().features(x.shape[1])
    factor = prior.factor(features, len(peer.means_), x, units)
    beta, m = peer.mean_precision_, peer.means_
    second = peer.covariances_ * peer.degrees_of_freedom_[:, None, None] - factor.scale
    second += beta[:, None, None] * m[:, :, None] * m[:, None, :] - factor.beta * np.outer(factor.m, factor.m)
    i, j = features.pairs
    counts = peer.weight_concentration_ - factor.alpha
    first = beta[:, None] * m - factor.beta * factor.m
    return bound(factor, np.column_stack([counts, first, second[:, i, j]]), Rows(x, features))


def bound(factor, T: np.ndarray, rows: Rows) -> float:
    coefficients, divergence = factor.coefficients(T)
    with rows:
        return rows.sweep(coefficients)[1] - divergence


def bound_of_ours(x: np.ndarray, posterior: MixturePosterior) -> float:
    rows = Rows(posterior.units.standard(x), posterior.factor.features)
    return bound(posterior.factor, posterior.statistics, rows) - len(x) * posterior.units.log_jacobian


def timed(call):
    began = time.perf_counter()
    answer = call()
    return time.perf_counter() - began, answer


def labels_of(x: np.ndarray, num_components: int) -> np.ndarray:
    """The division that scikit-learn's mixture begins with."""
    from sklearn.cluster import KMeans

    return KMeans(n_clusters=num_components, n_init=1, random_state=0).fit(x).labels_


def fit_peer(x: np.ndarray, labels: np.ndarray, num_components: int, max_sweeps: int):
    from sklearn.mixture import BayesianGaussianMixture

    peer = BayesianGaussianMixture(
        n_components=num_components,
        weight_concentration_prior_type="dirichlet_distribution",
        max_iter=max_sweeps,
        random_state=0,
    )
    peer._initialize_parameters = lambda x, state, xp=None: peer._initialize(x, np.eye(num_components)[labels])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peer.fit(x)


def compare(name: str, x: np.ndarray, num_components: int, repeats: int, peer_sweeps: int) -> tuple[list, list]:
    """A line of times a sweep and to the bound, and one of the fits from the rows alone."""
    prior = prior_of(x, num_components)
    seconds_start, labels = timed(lambda: labels_of(x, num_components))
    theirs, ours, alone = [], [], []
    for _ in range(repeats):  # in turns, so that a busy minute meets all
        seconds, peer = timed(lambda: fit_peer(x, labels, num_components, peer_sweeps))
        theirs.append(seconds)
        target = bound_of_peer(x, peer, prior)
        # the path is that of the same sweeps: as many reach their bound, and one more what their reg_covar adds
        mixture = GaussianMixture(
            num_components, prior, max_sweeps=peer.n_iter_ + 1, tolerance=0.0, relative_tolerance=0.0
        )
        seconds, fit = timed(lambda mixture=mixture: mixture.fit(x, start=labels))
        ours.append(seconds)
        own_seconds, own = timed(lambda: GaussianMixture(num_components, prior).fit(x))
        alone.append(own_seconds)
    found, best = bound_of_ours(x, fit), bound_of_ours(x, own)
    t, s, a = (statistics.median(each) for each in (theirs, ours, alone))
    num = peer.n_iter_
    return (
        [name, num, f"{1e3 * t / num:.0f}", f"{1e3 * s / num:.1f}", f"{t:.2f}", f"{s:.2f}", f"{t / s:.1f}",
         f"{target:.2f}", f"{found - target:+.3f}"],
        [name, f"{seconds_start + t:.2f}", f"{a:.2f}", f"{(seconds_start + t) / a:.1f}", f"{best - target:+.1f}"],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-sweeps", type=int, default=1_000, help="scikit-learn's max_iter")
    parser.add_argument("--only", choices=SEPARATIONS, default=None)
    asked = parser.parse_args()
    same, own = [], []
    for name, separation in SEPARATIONS.items():
        if asked.only in (None, name):
            x = clusters(asked.rows, asked.columns, asked.components, separation, seed=1)
            lines = compare(name, x, asked.components, asked.repeats, asked.peer_sweeps)
            same.append(lines[0])
            own.append(lines[1])
    print(f"N = {asked.rows:,}, D = {asked.columns}, K = {asked.components}; {os.cpu_count()} cores, load "
          f"{os.getloadavg()[0]:.1f}; seconds, medians of {asked.repeats}\n")  # fmt: skip
    print("From the same start to scikit-learn's final bound:\n")
    print(table(["clusters", "sweeps", "ms a sweep, scikit-learn", "Credo", "s, scikit-learn", "Credo", "ratio",
                 "bound, scikit-learn", "Credo's less that"], same))  # fmt: skip
    print("\nFrom the rows alone: k-means and sweeps, against Credo's own starts and sweeps:\n")
    print(table(["clusters", "s, scikit-learn", "Credo", "ratio", "Credo's bound less scikit-learn's"], own))


if __name__ == "__main__":
    main()
