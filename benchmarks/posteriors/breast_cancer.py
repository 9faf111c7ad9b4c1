"""Malignancy by logistic regression: scikit-learn's Wisconsin table, standardised, with an intercept.

569 rows, 31 parameters:  w ~ N(0, 2.5² I),  y_i ~ Bernoulli(σ(x_iᵀ w))
"""

import numpy as np

PRIOR_SD = 2.5


def data() -> dict[str, np.ndarray]:
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    x = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    return {"x": np.column_stack([np.ones(len(x)), x]), "y": 1 - table.target}


# Credo ------------------------------------------------------------------------------------------------------------


def likelihood(params, x):
    import numpyro.distributions as dist

    return dist.BernoulliLogits(x @ params["w"])


def credo_target(data):
    import numpyro.distributions as dist

    import credo

    prior = {"w": dist.Normal(0.0, PRIOR_SD).expand([data["x"].shape[1]])}
    return credo.Model(prior, likelihood).given(data["x"], data["y"])


# NumPyro ----------------------------------------------------------------------------------------------------------


def numpyro_model(x, y):
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0.0, PRIOR_SD).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("row", len(y)):
        numpyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


# BlackJAX ---------------------------------------------------------------------------------------------------------


def log_density(data):
    """(dim, log density of a flat unconstrained position, position -> named parameters)."""
    import jax
    import jax.numpy as jnp
    from jax.scipy import stats

    x, sign = jnp.asarray(data["x"]), jnp.asarray(2.0 * data["y"] - 1.0)

    def log_density(w):
        return stats.norm.logpdf(w, 0.0, PRIOR_SD).sum() + jax.nn.log_sigmoid(sign * (x @ w)).sum()

    return data["x"].shape[1], log_density, lambda w: {"w": w}


# PyMC, also for nutpie --------------------------------------------------------------------------------------------


def pymc_model(data):
    import pymc as pm

    with pm.Model() as model:
        w = pm.Normal("w", 0.0, PRIOR_SD, shape=data["x"].shape[1])
        pm.Bernoulli("obs", logit_p=pm.math.dot(data["x"], w), observed=data["y"])
    return model


# Stan -------------------------------------------------------------------------------------------------------------

STAN = """
data { int n; int d; matrix[n, d] x; array[n] int<lower=0, upper=1> y; real<lower=0> prior_sd; }
parameters { vector[d] w; }
model {
  w ~ normal(0, prior_sd);
  y ~ bernoulli_logit_glm(x, 0.0, w);
}
"""


def stan_program(data):
    """(program, its data)."""
    n, d = data["x"].shape
    return STAN, {"n": n, "d": d, "x": data["x"].tolist(), "y": data["y"].tolist(), "prior_sd": PRIOR_SD}
