"""Densities that jump are told from those that are steep, and the place and the size of the jump are given."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo.diagnose import jumps
from credo.diagnose.jumps import jump_sentence

RANDOM = np.random.default_rng(11)
T = np.arange(40.0)
COUNTS = RANDOM.poisson(np.where(T < 24, 3.0, 1.3))


def change_point(params, t):
    return dist.Poisson(jnp.where(t < params["tau"], params["before"], params["after"]))


RATES = {"after": dist.Exponential(0.3), "before": dist.Exponential(0.3)}
CHANGE = credo.Model(RATES | {"tau": dist.Uniform(0.0, 40.0)}, change_point).given(T, COUNTS)


def bare(log_density, num: int = 2):
    return credo.Model.from_log_density(log_density, {"x": constraints.real}, {"x": (num,)}).given()


def rounded(params):
    """Whose last digits are noise, as of a Gaussian process that is all but singular."""
    return -jnp.sum(params["x"] ** 2) + 5.0 * jnp.sin(1e17 * params["x"][0])


def draws(num: int = 2) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, 250, num))


def test_a_change_point_is_named_before_all_else():
    posterior = credo.fit(CHANGE, credo.HMC(num_warmup=100, num_draws=200), key=1, progress=False)
    first = posterior.verdict.sentences[0]
    assert first.startswith("The log density jumps by ")
    assert "Slice()" in first
    place = float(first.split("where tau is ")[1].split(",")[0])
    assert place == pytest.approx(round(place), abs=1e-6)


def test_the_size_of_a_jump():
    def log_density(params):
        return -0.5 * jnp.sum(params["x"] ** 2) + 3.0 * (params["x"][1] > 0.25)

    said = jump_sentence(bare(log_density), draws())
    assert said.startswith("The log density jumps by 3 where x[1] is 0.25, ")


@pytest.mark.parametrize(
    "log_density",
    [
        lambda params: -0.5 * jnp.sum(params["x"] ** 2),
        lambda params: -50.0 * jnp.sum(jnp.abs(params["x"])),  # a kink
        lambda params: -jnp.sum(jnp.abs(params["x"]) ** 0.5),  # of no finite slope
        lambda params: 3.0 * jax.nn.sigmoid(1e4 * (params["x"][0] - 0.25)) - jnp.sum(params["x"] ** 2),
        lambda params: jnp.where(params["x"][0] > 0, -jnp.sum(params["x"] ** 2), -jnp.inf),  # an edge, which is no jump
        lambda params: -50.0 * jnp.log(jnp.abs(params["x"][0])) - 25.0 / params["x"][0] ** 2,  # a scale |x|, or x²
        rounded,
    ],
    ids=["smooth", "kink", "cusp", "steep", "edge", "scale", "rounding"],
)
def test_continuous_densities_do_not_jump(log_density):
    assert jump_sentence(bare(log_density), draws()) is None


def test_draws_far_away_do_not_jump():
    """Where numbers next to each other are far apart: of an improper posterior, or to infinity."""
    separable = bare(lambda params: -jnp.sum(jax.nn.softplus(-params["x"] * np.array([1.0, 2.0]))))
    for scale in (1e9, 1e26, np.inf):
        assert jump_sentence(separable, scale * np.abs(draws())) is None


def test_an_improper_posterior_is_called_that():
    x = np.linspace(-1.0, 1.0, 20)
    flat = dist.ImproperUniform(constraints.real, (), ())
    model = credo.Model({"a": flat, "b": flat}, lambda p, x: dist.Bernoulli(logits=p["a"] + p["b"] * x))
    method = credo.NUTS(num_warmup=200, num_draws=300)
    posterior = credo.fit(model.given(x, (x > 0).astype(int)), method, key=0, progress=False)
    assert "the posterior is improper" in posterior.verdict.sentences[0]


def test_what_would_take_too_long_is_not_looked_at(monkeypatch):
    def log_density(params):
        return -jnp.sum(params["x"] ** 2) + 3.0 * (params["x"][0] > 0)

    assert jump_sentence(bare(log_density, 21), draws(21)) is None
    assert jump_sentence(bare(log_density), draws()) is not None
    with monkeypatch.context() as patch:
        patch.setattr(jumps, "PATIENCE", -1.0)
        assert jump_sentence(bare(log_density), draws()) is None
    with monkeypatch.context() as patch:
        patch.setattr(jumps, "MOST_ROWS", 39)
        assert jump_sentence(CHANGE, draws(3)) is None

    def looping(params):
        return log_density(params) + jax.lax.while_loop(lambda i: i > 0.5, lambda i: 0.5 * i, params["x"][0])

    assert jump_sentence(bare(looping), draws()) is None
