"""Radon-like: intercepts that vary by county, non-centred; synthetic, with the shape of Gelman & Hill's table.

919 rows, 85 counties of very unequal size, 89 parameters:

    a ~ N(0, 10),  s ~ HalfNormal(1),  z_c ~ N(0, 1),  b ~ N(0, 2),  σ ~ HalfNormal(1.5)
    α_c = a + s z_c,  y_i ~ N(α_c(i) + b floor_i, σ)

The criterion covers intercept a, county_sd s, z, floor_effect b, sigma and alpha.
"""

import numpy as np

NUM_ROWS, NUM_COUNTIES = 919, 85


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(919)
    share = rng.lognormal(0.0, 1.0, NUM_COUNTIES)
    more = rng.choice(NUM_COUNTIES, NUM_ROWS - NUM_COUNTIES, p=share / share.sum())
    county = np.sort(np.concatenate([np.arange(NUM_COUNTIES), more]))  # every county has a row
    floor = (rng.random(NUM_ROWS) < 0.17).astype(np.float64)
    alpha = 1.5 + 0.35 * rng.normal(size=NUM_COUNTIES)
    y = alpha[county] - 0.65 * floor + 0.75 * rng.normal(size=NUM_ROWS)
    return {"county": county, "floor": floor, "y": y}


# Credo ------------------------------------------------------------------------------------------------------------


def alpha(intercept, county_sd, z):
    return intercept + county_sd * z


def likelihood(params, x):
    import numpyro.distributions as dist

    intercepts = alpha(params["intercept"], params["county_sd"], params["z"])
    return dist.Normal(intercepts[x["county"]] + params["floor_effect"] * x["floor"], params["sigma"])


def credo_target(data):
    import numpyro.distributions as dist

    import credo

    prior = {
        "intercept": dist.Normal(0.0, 10.0),
        "county_sd": dist.HalfNormal(1.0),
        "z": dist.Normal(0.0, 1.0).expand([NUM_COUNTIES]),
        "floor_effect": dist.Normal(0.0, 2.0),
        "sigma": dist.HalfNormal(1.5),
    }
    model = credo.Model(prior, likelihood, derived={"alpha": alpha})
    return model.given({"county": data["county"], "floor": data["floor"]}, data["y"])


# NumPyro ----------------------------------------------------------------------------------------------------------


def numpyro_model(county, floor, y):
    import numpyro
    import numpyro.distributions as dist

    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    county_sd = numpyro.sample("county_sd", dist.HalfNormal(1.0))
    floor_effect = numpyro.sample("floor_effect", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.5))
    with numpyro.plate("counties", NUM_COUNTIES):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        alpha = numpyro.deterministic("alpha", intercept + county_sd * z)
    with numpyro.plate("row", NUM_ROWS):
        numpyro.sample("obs", dist.Normal(alpha[county] + floor_effect * floor, sigma), obs=y)


# BlackJAX ---------------------------------------------------------------------------------------------------------


def log_density(data):
    """(dim, log density of a flat unconstrained position, position -> named parameters)."""
    import jax.numpy as jnp
    from jax.scipy import stats

    county, floor, y = (jnp.asarray(data[name]) for name in ("county", "floor", "y"))

    def log_density(u):
        intercept, log_county_sd, floor_effect, log_sigma, z = u[0], u[1], u[2], u[3], u[4:]
        county_sd, sigma = jnp.exp(log_county_sd), jnp.exp(log_sigma)
        log_prior = stats.norm.logpdf(intercept, 0.0, 10.0) + stats.norm.logpdf(floor_effect, 0.0, 2.0)
        log_prior += stats.norm.logpdf(county_sd, 0.0, 1.0) + log_county_sd
        log_prior += stats.norm.logpdf(sigma, 0.0, 1.5) + log_sigma
        log_prior += stats.norm.logpdf(z).sum()
        mean = intercept + county_sd * z[county] + floor_effect * floor
        return log_prior + stats.norm.logpdf(y, mean, sigma).sum()

    def constrain(u):
        intercept, county_sd, z = u[0], jnp.exp(u[1]), u[4:]
        named = {"intercept": intercept, "county_sd": county_sd, "floor_effect": u[2], "sigma": jnp.exp(u[3])}
        return {**named, "z": z, "alpha": intercept + county_sd * z}

    return 4 + NUM_COUNTIES, log_density, constrain


# PyMC, also for nutpie --------------------------------------------------------------------------------------------


def pymc_model(data):
    import pymc as pm

    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, 10.0)
        county_sd = pm.HalfNormal("county_sd", 1.0)
        floor_effect = pm.Normal("floor_effect", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 1.5)
        z = pm.Normal("z", 0.0, 1.0, shape=NUM_COUNTIES)
        alpha = pm.Deterministic("alpha", intercept + county_sd * z)
        pm.Normal("obs", alpha[data["county"]] + floor_effect * data["floor"], sigma, observed=data["y"])
    return model


# Stan -------------------------------------------------------------------------------------------------------------

STAN = """
data { int n; int num_counties; array[n] int county; vector[n] on_floor; vector[n] y; }
parameters {
  real intercept;
  real<lower=0> county_sd;
  real floor_effect;
  real<lower=0> sigma;
  vector[num_counties] z;
}
transformed parameters { vector[num_counties] alpha = intercept + county_sd * z; }
model {
  intercept ~ normal(0, 10);
  county_sd ~ normal(0, 1);
  floor_effect ~ normal(0, 2);
  sigma ~ normal(0, 1.5);
  z ~ std_normal();
  y ~ normal(alpha[county] + floor_effect * on_floor, sigma);
}
"""


def stan_program(data):
    """(program, its data)."""
    rows = {"county": (data["county"] + 1).tolist(), "on_floor": data["floor"].tolist(), "y": data["y"].tolist()}
    return STAN, {"n": NUM_ROWS, "num_counties": NUM_COUNTIES, **rows}
