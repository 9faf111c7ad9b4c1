"""Eight schools (Rubin, 1981), non-centred; 10 parameters.

    μ ~ N(0, 5),  τ ~ HalfCauchy(5),  z_j ~ N(0, 1),  θ_j = μ + τ z_j,  y_j ~ N(θ_j, σ_j)

The criterion covers mu, tau, z and theta.
"""

import numpy as np


def data() -> dict[str, np.ndarray]:
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    return {"y": y, "sigma": sigma}


# Credo ------------------------------------------------------------------------------------------------------------


def likelihood(params, x):
    import numpyro.distributions as dist

    return dist.Normal(params["mu"] + params["tau"] * params["z"], x["sigma"])


def theta(mu, tau, z):
    return mu + tau * z


def credo_target(data):
    import numpyro.distributions as dist

    import credo

    prior = {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(5.0), "z": dist.Normal(0.0, 1.0).expand([8])}
    return credo.Model(prior, likelihood, derived={"theta": theta}).given({"sigma": data["sigma"]}, data["y"])


# NumPyro ----------------------------------------------------------------------------------------------------------


def numpyro_model(y, sigma):
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


# BlackJAX ---------------------------------------------------------------------------------------------------------


def log_density(data):
    """(dim, log density of a flat unconstrained position, position -> named parameters)."""
    import jax.numpy as jnp
    from jax.scipy import stats

    y, sigma = jnp.asarray(data["y"]), jnp.asarray(data["sigma"])

    def log_density(u):
        mu, log_tau, z = u[0], u[1], u[2:]
        tau = jnp.exp(log_tau)
        log_prior = stats.norm.logpdf(mu, 0.0, 5.0) + stats.cauchy.logpdf(tau, 0.0, 5.0) + log_tau
        log_prior += stats.norm.logpdf(z).sum()
        return log_prior + stats.norm.logpdf(y, mu + tau * z, sigma).sum()

    def constrain(u):
        mu, tau, z = u[0], jnp.exp(u[1]), u[2:]
        return {"mu": mu, "tau": tau, "z": z, "theta": mu + tau * z}

    return 10, log_density, constrain


# PyMC, also for nutpie --------------------------------------------------------------------------------------------


def pymc_model(data):
    import pymc as pm

    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        z = pm.Normal("z", 0.0, 1.0, shape=8)
        theta = pm.Deterministic("theta", mu + tau * z)
        pm.Normal("obs", theta, data["sigma"], observed=data["y"])
    return model


# Stan -------------------------------------------------------------------------------------------------------------

STAN = """
data { vector[8] y; vector<lower=0>[8] sigma; }
parameters { real mu; real<lower=0> tau; vector[8] z; }
transformed parameters { vector[8] theta = mu + tau * z; }
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  z ~ std_normal();
  y ~ normal(theta, sigma);
}
"""


def stan_program(data):
    """(program, its data)."""
    return STAN, {name: values.tolist() for name, values in data.items()}
