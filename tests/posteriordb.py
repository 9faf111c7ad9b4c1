"""The ten models with published reference draws, written as a user would write them.

Each function takes the published data and returns (target, report), where ``report(draws)`` gives the published
scalars by Stan's names from the posterior's draws.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from credo import Model

FLAT = dist.ImproperUniform(constraints.real, (), ())
POSITIVE = dist.ImproperUniform(constraints.positive, (), ())


def _flat(n):
    return dist.ImproperUniform(constraints.real, (n,), ())


def by_name(draws, **names):
    """Scalars under Stan's names, which count from 1: ``theta="theta_raw"`` renames."""
    scalars = {}
    for stan, credo in names.items():
        values = np.asarray(draws[credo])
        if values.ndim == 2:
            scalars[stan] = values
        else:
            flat = values.reshape(*values.shape[:2], -1)
            scalars |= {f"{stan}[{i + 1}]": flat[..., i] for i in range(flat.shape[-1])}
    return scalars


def eight_schools_centered(data):
    model = Model(
        {
            "mu": dist.Normal(0.0, 5.0),
            "tau": dist.HalfCauchy(5.0),
            "theta": lambda mu, tau: dist.Normal(mu, tau).expand([8]),
        },
        lambda params, sd: dist.Normal(params["theta"], sd),
    )
    target = model.given(np.array(data["sigma"]), np.array(data["y"]))
    return target, lambda d: by_name(d, mu="mu", tau="tau", theta="theta")


def eight_schools_noncentered(data):
    model = Model(
        {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(5.0), "z": dist.Normal(0.0, 1.0).expand([8])},
        lambda params, sd: dist.Normal(params["mu"] + params["tau"] * params["z"], sd),
        derived={"theta": lambda mu, tau, z: mu + tau * z},
    )
    target = model.given(np.array(data["sigma"]), np.array(data["y"]))
    return target, lambda d: by_name(d, mu="mu", tau="tau", theta="theta")


def garch(data):
    def log_density(params, data):
        y, sd_1 = data

        def step(variance, y_before):
            variance = params["alpha0"] + params["alpha1"] * (y_before - params["mu"]) ** 2 + params["beta1"] * variance
            return variance, variance

        _, rest = jax.lax.scan(step, sd_1**2, y[:-1])
        variance = jnp.concatenate([jnp.reshape(sd_1**2, 1), rest])
        return dist.Normal(params["mu"], jnp.sqrt(variance)).log_prob(y).sum()

    model = Model.from_log_density(
        log_density,
        {
            "mu": constraints.real,
            "alpha0": constraints.positive,
            "alpha1": constraints.unit_interval,
            "beta1": lambda alpha1: constraints.interval(0.0, 1.0 - alpha1),
        },
    )
    target = model.given((np.array(data["y"]), np.float64(data["sigma1"])))
    return target, lambda d: by_name(d, mu="mu", alpha0="alpha0", alpha1="alpha1", beta1="beta1")


def gaussian_process(data):
    def likelihood(params, x):
        distance = x[:, None] - x[None, :]
        kernel = params["alpha"] ** 2 * jnp.exp(-0.5 * (distance / params["rho"]) ** 2)
        covariance = kernel + params["sigma"] * jnp.eye(len(x))
        return dist.MultivariateNormal(jnp.zeros(len(x)), covariance_matrix=covariance)

    prior = {"rho": dist.Gamma(25.0, 4.0), "alpha": dist.HalfNormal(2.0), "sigma": dist.HalfNormal(1.0)}
    target = Model(prior, likelihood).given(np.array(data["x"], float), np.array(data["y"], float))
    return target, lambda d: by_name(d, rho="rho", alpha="alpha", sigma="sigma")


def gauss_mix(data):
    def log_density(params, y):
        components = dist.Normal(params["mu"], params["sigma"]).log_prob(y[:, None])
        prior = (
            dist.Normal(0.0, 2.0).log_prob(params["mu"]).sum() + dist.HalfNormal(2.0).log_prob(params["sigma"]).sum()
        )
        prior += dist.Beta(5.0, 5.0).log_prob(params["theta"])
        weights = jnp.stack([jnp.log(params["theta"]), jnp.log1p(-params["theta"])])
        return prior + jax.nn.logsumexp(components + weights, axis=1).sum()

    support = {"mu": constraints.ordered_vector, "sigma": constraints.positive, "theta": constraints.unit_interval}
    model = Model.from_log_density(log_density, support, {"mu": (2,), "sigma": (2,)})
    return model.given(np.array(data["y"])), lambda d: by_name(d, mu="mu", sigma="sigma", theta="theta")


def _linear(params, x):
    return dist.Normal(x @ params["beta"], params["sigma"])


def kidscore_interaction(data):
    hs, iq = np.array(data["mom_hs"], float), np.array(data["mom_iq"])
    x = np.column_stack([np.ones(len(hs)), hs, iq, hs * iq])
    model = Model({"beta": _flat(4), "sigma": dist.HalfCauchy(2.5)}, _linear)
    return model.given(x, np.array(data["kid_score"])), lambda d: by_name(d, beta="beta", sigma="sigma")


def logmesquite(data):
    d = {k: np.array(v, float) for k, v in data.items() if isinstance(v, list)}
    x = np.column_stack(
        [
            np.ones(len(d["weight"])),
            np.log(d["diam1"] * d["diam2"] * d["canopy_height"]),
            np.log(d["diam1"] * d["diam2"]),
            np.log(d["diam1"] / d["diam2"]),
            np.log(d["total_height"]),
            np.log(d["density"]),
            d["group"],
        ]
    )
    model = Model({"beta": _flat(7), "sigma": POSITIVE}, _linear)
    return model.given(x, np.log(d["weight"])), lambda d: by_name(d, beta="beta", sigma="sigma")


def autoregression(data):
    y = np.array(data["y"])
    lags = np.column_stack([y[5 - k : len(y) - k] for k in range(1, 6)])
    model = Model(
        {
            "alpha": dist.Normal(0.0, 10.0),
            "beta": dist.Normal(0.0, 10.0).expand([5]),
            "sigma": dist.HalfCauchy(2.5),
        },
        lambda params, x: dist.Normal(params["alpha"] + x @ params["beta"], params["sigma"]),
    )
    return model.given(lags, y[5:]), lambda d: by_name(d, alpha="alpha", beta="beta", sigma="sigma")


def linear_regression(data):
    model = Model({"beta": dist.Normal(0.0, 10.0).expand([5]), "sigma": dist.HalfNormal(10.0)}, _linear)
    return model.given(np.array(data["X"]), np.array(data["y"])), lambda d: by_name(d, beta="beta", sigma="sigma")


def hidden_markov(data):
    def log_density(params, y):
        emission = dist.Normal(params["mu"], 1.0).log_prob(y[:, None])
        transition = jnp.log(jnp.stack([params["theta1"], params["theta2"]]))

        def step(alpha, log_emission):
            return jax.nn.logsumexp(alpha[:, None] + transition, axis=0) + log_emission, None

        alpha, _ = jax.lax.scan(step, emission[0], emission[1:])
        return dist.Normal(jnp.array([3.0, 10.0]), 1.0).log_prob(params["mu"]).sum() + jax.nn.logsumexp(alpha)

    support = {
        "theta1": constraints.simplex,
        "theta2": constraints.simplex,
        "mu": constraints.positive_ordered_vector,
    }
    model = Model.from_log_density(log_density, support, {"theta1": (2,), "theta2": (2,), "mu": (2,)})
    return model.given(np.array(data["y"])), lambda d: by_name(d, theta1="theta1", theta2="theta2", mu="mu")


MODELS = {
    "arK-arK": autoregression,
    "eight_schools-eight_schools_centered": eight_schools_centered,
    "eight_schools-eight_schools_noncentered": eight_schools_noncentered,
    "garch-garch11": garch,
    "gp_pois_regr-gp_regr": gaussian_process,
    "hmm_example-hmm_example": hidden_markov,
    "kidiq-kidscore_interaction": kidscore_interaction,
    "low_dim_gauss_mix-low_dim_gauss_mix": gauss_mix,
    "mesquite-logmesquite_logvas": logmesquite,
    "sblrc-blr": linear_regression,
}
