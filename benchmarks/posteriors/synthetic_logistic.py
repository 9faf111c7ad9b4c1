"""Logistic regression on a tall synthetic table: 10,000 rows, 50 parameters; the model of ``breast_cancer``.

    x_ij ~ N(0, 1),  w_true ~ N(0, 0.3² I),  w ~ N(0, 2.5² I),  y_i ~ Bernoulli(σ(x_iᵀ w))

Gradients are dear and the posterior is nearly Gaussian: what counts is the price of a gradient.
"""

import numpy as np

from posteriors.breast_cancer import credo_target, log_density, numpyro_model, pymc_model, stan_program

__all__ = ["credo_target", "data", "log_density", "numpyro_model", "pymc_model", "stan_program"]

NUM_ROWS, NUM_COLUMNS = 10_000, 50


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(10_000)
    x = rng.normal(size=(NUM_ROWS, NUM_COLUMNS))
    w = 0.3 * rng.normal(size=NUM_COLUMNS)
    y = rng.random(NUM_ROWS) < 1 / (1 + np.exp(-x @ w))
    return {"x": x, "y": y.astype(np.int64)}
