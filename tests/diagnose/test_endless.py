"""Posteriors without an integral, told by draws that went far out."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo.diagnose.endless import endless_draws_sentence

RNG = np.random.default_rng(0)
Y = RNG.normal(size=40)


def of_a_sum(params, y):
    return dist.Normal(params["a"] + params["b"], 1.0).log_prob(y).sum()


def far_out(length):
    """Draws of a and b of which the data know the sum."""
    along, across = length * RNG.normal(size=(2, 50)), 0.1 * RNG.normal(size=(2, 50))
    return np.stack([along + across, across - along], axis=-1)


@pytest.mark.parametrize("length", [1e3, 1e8])
def test_a_difference_that_the_data_say_nothing_of_is_improper(length):
    """Draws know its direction to 1e-9 of their length: a thousand lengths farther out that is 100 sds of the sum."""
    flat = credo.Model.from_log_density(of_a_sum, {"a": constraints.real, "b": constraints.real}).given(Y)
    said = "does not fall along 'a' and 'b' together: the posterior is improper. Give one of them a proper prior."
    assert said in str(endless_draws_sentence(flat, far_out(length)))


@pytest.mark.parametrize("sd", [1e3, 1e9])
def test_a_wide_prior_is_proper(sd):
    prior = {"a": dist.Normal(0.0, sd), "b": dist.Normal(0.0, sd)}
    wide = credo.Model(prior, lambda p, x: dist.Normal(p["a"] + p["b"], 1.0)).given(y=Y)
    assert endless_draws_sentence(wide, far_out(sd)) is None


def test_a_density_without_a_derivative_is_asked_for_none():
    def on_host(params, y):
        shape = jax.ShapeDtypeStruct((), jnp.result_type(float))
        return jax.pure_callback(lambda u, y: -0.5 * np.sum((y - u) ** 2), shape, params["a"] + params["b"], y)

    flat = credo.Model.from_log_density(on_host, {"a": constraints.real, "b": constraints.real}).given(Y)
    assert endless_draws_sentence(flat, far_out(1e8)) is None


def test_draws_whose_squares_overflow():
    """Warnings are errors."""
    flat = credo.Model.from_log_density(lambda params: 0.0 * params["a"], {"a": constraints.real}).given()
    draws = 1e200 * np.linspace(-1.0, 1.0, 40).reshape(2, 20, 1)
    assert "does not fall along 'a'" in str(endless_draws_sentence(flat, draws))
