"""Discrete parameters: whole numbers in the position, with a density of their own; methods but Gibbs refuse them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

import credo
from credo import CredoError, Model
from credo.methods.mcmc.start import start_chains
from credo.precision import double

Y = np.array([1.3, -0.4, 2.2])
MODEL = Model(
    {
        "rate": dist.Gamma(2.0, 1.0),
        "count": lambda rate: dist.Poisson(rate),
        "labels": dist.Categorical(probs=np.array([0.2, 0.5, 0.3])).expand([3]),
    },
    lambda params, x: dist.Normal(params["count"] + params["labels"], 1.0),
)


def test_density_is_that_of_whole_numbers():
    target = MODEL.given(y=Y).flat()
    rate, count, labels = 1.7, 4, np.array([2, 0, 1])
    expected = (
        stats.gamma(2.0).logpdf(rate)
        + np.log(rate)  # the Jacobian of exp; the discrete coordinates have none
        + stats.poisson(rate).logpmf(count)
        + np.log([0.3, 0.2, 0.5]).sum()
        + stats.norm(count + labels).logpdf(Y).sum()
    )
    with double():
        u = np.array([np.log(rate), count, *labels], float)
        np.testing.assert_allclose(target.log_density(u), expected, rtol=1e-12)
        np.testing.assert_allclose(target.unconstrain({"rate": rate, "count": count, "labels": labels}), u)
        params = jax.tree.map(np.asarray, target.constrain(u + 0.3))
        assert params["count"] == 4
        assert np.issubdtype(params["labels"].dtype, np.integer)
        np.testing.assert_array_equal(params["labels"], labels)
        np.testing.assert_allclose(target.log_jacobian(u), np.log(rate))
    assert target.structure.discrete_names == ("count", "labels")
    assert target.dim == 5


@pytest.mark.parametrize(("count", "label"), [(-1, 0), (4, 3), (4, -1)])
def test_outside_the_support_the_density_is_zero(count, label):
    """NumPyro's own log density takes the last category for one that is too large."""
    with double():
        log_density = jax.jit(lambda u: MODEL.given(y=Y).flat().log_density(u))
        assert log_density(np.array([0.0, count, 0, label, 0])) == -np.inf


@pytest.mark.slow
def test_prior_draws_are_whole_numbers_in_the_support():
    draws = MODEL.sample_prior(0, 400)
    assert np.issubdtype(draws["labels"].dtype, np.integer)
    assert set(np.unique(draws["labels"])) == {0, 1, 2}
    assert np.all(draws["count"] >= 0)
    data = MODEL.sample_prior_predictive(0, None, 5)
    assert data.shape == (5, 3)


class _Start(NamedTuple):
    position: Any
    log_density: Any


class Bare:
    """A kernel whose state is its position."""

    def initial(self, target, given, key, position):
        return _Start(position, target.log_density(position))

    def __hash__(self):
        return 0

    def __eq__(self, other):
        return isinstance(other, Bare)


@pytest.mark.parametrize("model", ["drawn", "flat", "unbounded"])
def test_chains_start_inside_the_support(model):
    def density(params):
        return -0.1 * jnp.sum(params["k"] ** 2) - params["a"] ** 2

    supports = {"flat": constraints.integer_interval(3, 7), "unbounded": constraints.positive_integer}
    if model == "drawn":
        target = MODEL.given(y=Y).flat()
    else:
        bare = Model.from_log_density(density, {"a": constraints.real, "k": supports[model]}, {"k": (2,)})
        target = bare.given().flat()
    with double():
        states = start_chains(target, None, jax.random.key(1), 20, Bare(), {})
        values = [target.constrain(state.position) for state in states]
    assert all(np.isfinite(state.log_density) for state in states)
    if model == "drawn":
        assert len({int(v["count"]) for v in values}) > 1
        assert {int(k) for v in values for k in v["labels"]} == {0, 1, 2}
    if model == "flat":
        assert {int(k) for v in values for k in v["k"]} == {3, 4, 5, 6, 7}


@pytest.mark.parametrize(
    "method",
    [credo.NUTS(), credo.HMC(), credo.MAP(), credo.Laplace(), credo.ADVI(), credo.Grid(), credo.Exact()],
    ids=lambda method: type(method).__name__,
)
def test_methods_that_cannot_move_them_say_so(method):
    sentence = rf"'count' is discrete, and {type(method).__name__}\(\) moves continuous parameters only: fit Gibbs\(\)"
    with pytest.raises(CredoError, match=sentence):
        credo.fit(MODEL.given(y=Y), method)
