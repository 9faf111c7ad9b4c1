"""A Gaussian of 100 dimensions and condition 10⁴: no likelihood, strong correlations, scales from 1 to 100.

    x ~ N(0, Q diag(λ) Qᵀ),  λ log-spaced from 1 to 10⁴,  Q a random rotation

Every library evaluates −½ xᵀ P x, one product with the precision matrix P, under flat priors.
"""

import numpy as np

DIM, CONDITION = 100, 1e4


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100)
    q, r = np.linalg.qr(rng.normal(size=(DIM, DIM)))
    q = q * np.sign(np.diag(r))  # uniform over orthogonal matrices (Mezzadri 2007)
    precision = (q / np.geomspace(1.0, CONDITION, DIM)) @ q.T
    return {"precision": (precision + precision.T) / 2}


# Credo ------------------------------------------------------------------------------------------------------------


def log_factor(params, data):
    x = params["x"]
    return -0.5 * x @ (data["precision"] @ x)


def credo_target(data):
    import numpyro.distributions as dist

    import credo

    model = credo.Model.from_log_density(log_factor, {"x": dist.constraints.real}, {"x": (DIM,)})
    return model.given(data)


# NumPyro ----------------------------------------------------------------------------------------------------------


def numpyro_model(precision):
    import numpyro
    import numpyro.distributions as dist

    x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (DIM,)))
    numpyro.factor("density", -0.5 * x @ (precision @ x))


# BlackJAX ---------------------------------------------------------------------------------------------------------


def log_density(data):
    """(dim, log density of a flat unconstrained position, position -> named parameters)."""
    import jax.numpy as jnp

    precision = jnp.asarray(data["precision"])
    return DIM, lambda x: -0.5 * x @ (precision @ x), lambda x: {"x": x}


# PyMC, also for nutpie --------------------------------------------------------------------------------------------


def pymc_model(data):
    import pymc as pm

    with pm.Model() as model:
        x = pm.Flat("x", shape=DIM)
        pm.Potential("density", -0.5 * pm.math.dot(x, pm.math.dot(data["precision"], x)))
    return model


# Stan -------------------------------------------------------------------------------------------------------------

STAN = """
data { int d; matrix[d, d] precision; }
parameters { vector[d] x; }
model { target += -0.5 * dot_product(x, precision * x); }
"""


def stan_program(data):
    """(program, its data)."""
    return STAN, {"d": DIM, "precision": data["precision"].tolist()}
