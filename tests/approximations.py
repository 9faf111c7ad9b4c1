"""Posteriors that cost nothing to make: one logistic regression as a Gaussian, as draws of it and as a point."""

import functools

import numpy as np
import numpyro.distributions as dist

import credo
from credo.diagnose.verdict import judge
from credo.linalg.dense import Dense
from credo.posterior.kinds import Draws, Gaussian, Point

MEAN, SCALE = np.array([0.4, 1.2, -0.8]), np.array([[0.3, 0.0, 0.0], [0.1, 0.4, 0.0], [0.0, -0.3, 0.2]])
LABELS = {"w[0]": "intercept", "w[1]": "dose <mg>", "w[2]": "age & sex"}


def logits(params, x):
    return dist.BernoulliLogits(x @ params["w"])


MODEL = credo.Model({"w": dist.Normal(0.0, 2.5).expand([3])}, logits)


@functools.cache
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
    return x, (rng.uniform(size=200) < 1 / (1 + np.exp(-x @ MEAN))).astype(int)


@functools.cache
def approximations() -> dict[str, credo.Posterior]:
    target = MODEL.given(*table())
    z = np.random.default_rng(1).normal(size=(4, 500, 3))
    path = np.stack([np.arange(80), -150.0 + 20 * (1 - np.exp(-np.arange(80) / 10))])
    chains = judge({"max_r_hat": 1.002, "min_ess_bulk": 1_900.0, "num_divergences": 0})
    return {
        "advi": credo.Posterior(
            Gaussian(MEAN, Dense(SCALE)),
            target,
            verdict=judge({"pareto_k": 0.86, "elbo": -130.0}),
            info={"elbo_path": path, "seconds": {"compile": 1.0, "total": 1.5}},
            log_evidence=credo.Estimate(-130.0, 0.03, "lower bound"),
        ),
        "nuts": credo.Posterior(Draws(MEAN + z @ SCALE.T), target, verdict=chains, info={"seconds": {"total": 2.0}}),
        "map": credo.Posterior(Point(MEAN), target, verdict=judge({}, ("A point.",), at_best="doubtful")),
    }
