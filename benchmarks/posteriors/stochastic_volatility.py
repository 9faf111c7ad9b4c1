"""Stochastic volatility as Stan's user's guide has it (Kim, Shephard & Chib 1998), non-centred; T = 500, synthetic.

    μ ~ Cauchy(0, 10),  φ ~ Uniform(−1, 1),  σ ~ HalfCauchy(5),  z_t ~ N(0, 1)
    h_1 = μ + σ z_1 / √(1 − φ²),  h_t = μ + φ (h_{t−1} − μ) + σ z_t,  y_t ~ N(0, exp(h_t / 2))

All take the recursion as it stands: by a loop in Stan, by ``scan`` in PyMC and JAX. (Its solution by nine shifts and
additions of whole vectors takes all three JAX libraries 1.4 to 1.6 times as long.)

503 parameters. The criterion covers mu, phi, sigma, z and h.
"""

import numpy as np

NUM_STEPS = 500


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(500)
    mu, phi, sigma = -1.0, 0.95, 0.25
    z = rng.normal(size=NUM_STEPS)
    h = np.empty(NUM_STEPS)
    h[0] = mu + sigma * z[0] / np.sqrt(1 - phi**2)
    for t in range(1, NUM_STEPS):
        h[t] = mu + phi * (h[t - 1] - mu) + sigma * z[t]
    return {"y": np.exp(h / 2) * rng.normal(size=NUM_STEPS)}


def log_variance(mu, phi, sigma, z):
    """h of one path, for JAX."""
    import jax.numpy as jnp
    from jax import lax

    def step(before, z):
        path = phi * before + z
        return path, path

    first = z[0] / jnp.sqrt(1 - phi**2)
    rest = lax.scan(step, first, z[1:])[1]
    return mu + sigma * jnp.concatenate([first[None], rest])


# Credo ------------------------------------------------------------------------------------------------------------


def likelihood(params, x):
    import jax.numpy as jnp
    import numpyro.distributions as dist

    return dist.Normal(0.0, jnp.exp(log_variance(**params) / 2))


def credo_target(data):
    import numpyro.distributions as dist

    import credo

    prior = {
        "mu": dist.Cauchy(0.0, 10.0),
        "phi": dist.Uniform(-1.0, 1.0),
        "sigma": dist.HalfCauchy(5.0),
        "z": dist.Normal(0.0, 1.0).expand([NUM_STEPS]),
    }
    return credo.Model(prior, likelihood, derived={"h": log_variance}).given(y=data["y"])


# NumPyro ----------------------------------------------------------------------------------------------------------


def numpyro_model(y):
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Cauchy(0.0, 10.0))
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
    with numpyro.plate("time", NUM_STEPS):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        h = numpyro.deterministic("h", log_variance(mu, phi, sigma, z))
        numpyro.sample("obs", dist.Normal(0.0, jnp.exp(h / 2)), obs=y)


# BlackJAX ---------------------------------------------------------------------------------------------------------


def log_density(data):
    """(dim, log density of a flat unconstrained position, position -> named parameters)."""
    import jax
    import jax.numpy as jnp
    from jax.scipy import stats

    y = jnp.asarray(data["y"])

    def split(u):
        return u[0], 2 * jax.nn.sigmoid(u[1]) - 1, jnp.exp(u[2]), u[3:]

    def log_density(u):
        mu, phi, sigma, z = split(u)
        log_prior = stats.cauchy.logpdf(mu, 0.0, 10.0) + stats.cauchy.logpdf(sigma, 0.0, 5.0) + u[2]
        log_prior += jax.nn.log_sigmoid(u[1]) + jax.nn.log_sigmoid(-u[1]) + stats.norm.logpdf(z).sum()
        return log_prior + stats.norm.logpdf(y, 0.0, jnp.exp(log_variance(mu, phi, sigma, z) / 2)).sum()

    def constrain(u):
        mu, phi, sigma, z = split(u)
        return {"mu": mu, "phi": phi, "sigma": sigma, "z": z, "h": log_variance(mu, phi, sigma, z)}

    return 3 + NUM_STEPS, log_density, constrain


# PyMC, also for nutpie --------------------------------------------------------------------------------------------


def pymc_model(data):
    import pymc as pm
    import pytensor

    with pm.Model() as model:
        mu = pm.Cauchy("mu", 0.0, 10.0)
        phi = pm.Uniform("phi", -1.0, 1.0)
        sigma = pm.HalfCauchy("sigma", 5.0)
        z = pm.Normal("z", 0.0, 1.0, shape=NUM_STEPS)
        first = z[0] / pm.math.sqrt(1 - phi**2)
        rest, _ = pytensor.scan(
            lambda z, before, phi: phi * before + z, sequences=[z[1:]], outputs_info=[first], non_sequences=[phi]
        )
        h = pm.Deterministic("h", mu + sigma * pm.math.concatenate([first[None], rest]))
        pm.Normal("obs", 0.0, pm.math.exp(h / 2), observed=data["y"])
    return model


# Stan -------------------------------------------------------------------------------------------------------------

STAN = """
data { int T; vector[T] y; }
parameters { real mu; real<lower=-1, upper=1> phi; real<lower=0> sigma; vector[T] z; }
transformed parameters {
  vector[T] h = z * sigma;
  h[1] /= sqrt(1 - phi * phi);
  h += mu;
  for (t in 2:T) h[t] += phi * (h[t - 1] - mu);
}
model {
  mu ~ cauchy(0, 10);
  sigma ~ cauchy(0, 5);
  z ~ std_normal();
  y ~ normal(0, exp(h / 2));
}
"""


def stan_program(data):
    """(program, its data)."""
    return STAN, {"T": NUM_STEPS, "y": data["y"].tolist()}
