"""Generalised linear models of standardised features, with weakly informative priors scaled to the data.

Coefficients act on features of mean 0 and sd 1. The likelihoods are module-level functions, so that every fit of a
family with the same shapes reuses one compiled program.
"""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from credo.model.model import Model
from credo.models.table import Family
from credo.status import CredoError

PRIOR_SD = 2.5  # of a coefficient in link units per sd of its feature (Gelman, Jakulin, Pittau & Su, 2008)


class Standardiser:
    """Features to mean 0 and sd 1 as seen in training; a constant feature becomes 0."""

    def __init__(self, x: np.ndarray):
        self.mean = x.mean(axis=0)
        sd = x.std(axis=0)
        self.sd = np.where(sd > 0, sd, 1.0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return (x - self.mean) / self.sd


def regression(family: Family, num_features: int, y: np.ndarray) -> Model:
    """The model of ``y`` given standardised features: intercept, coefficients and, for gaussian, the noise sd."""
    if family == "gaussian":
        unit = float(np.std(y)) or 1.0
        prior = {
            "intercept": dist.Normal(float(np.mean(y)), PRIOR_SD * unit),
            "coefficients": dist.Normal(0.0, PRIOR_SD * unit).expand([num_features]),
            "noise_sd": dist.Exponential(1.0 / unit),
        }
        return Model(prior, gaussian)
    if family == "bernoulli":
        return Model(_linear_prior(num_features), bernoulli)
    if family == "poisson":
        return Model(_linear_prior(num_features, centre=float(np.log(np.mean(y) + 0.5))), poisson)
    if family == "categorical":
        num_classes = int(np.max(y)) + 1
        prior = {
            "intercept": dist.Normal(0.0, PRIOR_SD).expand([num_classes]),
            "coefficients": dist.Normal(0.0, PRIOR_SD).expand([num_features, num_classes]),
        }
        return Model(prior, categorical)
    raise CredoError(f"family={family!r} is unknown.")


def _linear_prior(num_features: int, centre: float = 0.0) -> dict:
    return {
        "intercept": dist.Normal(centre, 2 * PRIOR_SD),
        "coefficients": dist.Normal(0.0, PRIOR_SD).expand([num_features]),
    }


def linear_predictor(params, x):
    return params["intercept"] + x @ params["coefficients"]


def gaussian(params, x):
    return dist.Normal(linear_predictor(params, x), params["noise_sd"])


def bernoulli(params, x):
    return dist.BernoulliLogits(linear_predictor(params, x))


def poisson(params, x):
    return dist.Poisson(jnp.exp(linear_predictor(params, x)))


def categorical(params, x):
    return dist.CategoricalLogits(linear_predictor(params, x))
