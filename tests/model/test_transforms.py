"""Positions and parameters: log-Jacobians against autodiff, round trips, densities, for every support.

One model holds them all, so that one program answers; the tests read off its parts.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions.transforms import AffineTransform, OrderedTransform, SigmoidTransform

from credo.model.model import Model
from credo.precision import double, to_numpy


def everything(value):
    return jnp.ravel(value)


def all_but_last(value):
    """A simplex: its last entry is one minus the others."""
    return jnp.ravel(value[..., :-1])


def below_diagonal(matrix):
    """Correlations: the diagonal follows from the rest."""
    return matrix[np.tril_indices(matrix.shape[-1], -1)]


def lower_triangle(matrix):
    return matrix[np.tril_indices(matrix.shape[-1])]


def transformed(shape, *transforms):
    return dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand(shape), list(transforms))


# name: prior, and the entries of the parameter that are free; made in double precision, since numpyro keeps arrays
with double():
    SUPPORTS = {
        "real": (dist.Normal(1.0, 2.0).expand([2]), everything),
        "real_vector": (dist.MultivariateNormal(np.zeros(2), np.array([[2.0, 0.5], [0.5, 1.0]])), everything),
        "positive": (dist.Gamma(2.0, 1.0).expand([3]), everything),
        "greater_than": (dist.TruncatedNormal(0.0, 1.0, low=1.5), everything),
        "less_than": (dist.TruncatedNormal(0.0, 1.0, high=-0.5), everything),
        "unit_interval": (dist.Beta(2.0, 3.0), everything),
        "interval": (dist.Uniform(-1.0, 3.0).expand([2, 2]), everything),
        "simplex": (dist.Dirichlet(np.array([2.0, 3.0, 4.0])), all_but_last),
        "simplices": (dist.Dirichlet(np.ones(3)).expand([2]), all_but_last),
        "ordered": (dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([3]), OrderedTransform()), everything),
        "ordered_apart": (transformed([3], AffineTransform(1.0, 2.0), OrderedTransform()), everything),
        "logit_normal": (transformed([3], SigmoidTransform()).expand([2, 3]).to_event(1), everything),
        "log_normal": (dist.LogNormal(0.5, 2.0).expand([2]), everything),
        "corr_cholesky": (dist.LKJCholesky(3, 2.0), below_diagonal),
        "corr_matrix": (dist.LKJ(3, 2.0), below_diagonal),
        "positive_definite": (dist.Wishart(4.0, np.eye(2)), lower_triangle),
        "lower_cholesky": (dist.WishartCholesky(4.0, np.eye(2)), lower_triangle),
        # supports that depend on earlier parameters
        "below_positive": (lambda positive: dist.Uniform(0.0, positive), everything),
        "above_real": (lambda real: dist.TruncatedNormal(0.0, 1.0, low=real[0]).expand([2]), everything),
    }
MODEL = Model({name: prior for name, (prior, _) in SUPPORTS.items()}, None)


def free(params):
    return jnp.concatenate([entries(params[name]) for name, (_, entries) in SUPPORTS.items()])


@jax.jit
def answers(target, u):
    parts, position = {}, target.structure.unravel(u)

    def value(name, distribution, index):
        return dist.biject_to(distribution.support)(position[name])

    def see(name, distribution, value):
        transform = dist.biject_to(distribution.support)
        log_jacobian = jnp.sum(transform.log_abs_det_jacobian(position[name], value))
        parts[name] = (jnp.sum(distribution.log_prob(value)), log_jacobian, jnp.all(distribution.support(value)))

    target.prior.visit(value, see)
    params = target.constrain(u)
    return {
        "parts": parts,
        "jacobian": jax.jacfwd(lambda u: free(target.constrain(u)))(u),
        "log_prior": target.log_prior(u),
        "log_jacobian": target.log_jacobian(u),
        "back": target.unconstrain(params),
    }


@functools.cache
def evaluated():
    """A random position and, there, the Jacobian of all free entries and the parts of the log density."""
    with double():
        target = MODEL.given().flat()
        u = np.random.default_rng(3).normal(size=target.dim)
        return u, target.structure, to_numpy(answers(target, u))


def block(structure, name, matrix):
    """The part of the Jacobian that belongs to one parameter."""
    start = 0
    for leaf in structure.leaves:
        if leaf.name == name:
            return matrix[start : start + leaf.size, start : start + leaf.size]
        start += leaf.size
    raise KeyError(name)


@pytest.mark.parametrize("name", SUPPORTS)
def test_log_jacobian_is_that_of_autodiff(name):
    """The transform's own log-determinant against slogdet of the Jacobian of the free entries."""
    _, structure, answer = evaluated()
    _, log_jacobian, is_inside = answer["parts"][name]
    _, expected = np.linalg.slogdet(block(structure, name, answer["jacobian"]))
    np.testing.assert_allclose(log_jacobian, expected, rtol=1e-10, atol=1e-10)
    assert is_inside


def test_log_prior_is_density_plus_log_jacobian():
    """Of the whole map: a support that depends on earlier parameters leaves it triangular."""
    _, _, answer = evaluated()
    _, expected = np.linalg.slogdet(answer["jacobian"])
    np.testing.assert_allclose(answer["log_jacobian"], expected, rtol=1e-10)
    density = sum(log_prob for log_prob, _, _ in answer["parts"].values())
    np.testing.assert_allclose(answer["log_prior"], density + expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["ordered", "ordered_apart", "logit_normal", "log_normal"])
def test_density_keeps_the_digits_that_the_value_loses(name):
    """In single precision exp(−20) beside 4 is nothing, and a sigmoid of 20 is one: that was NaN, or off by units."""
    u = np.array([4.0, -20.0, 20.0, 30.0, -30.0, 17.0])
    target = Model({"v": SUPPORTS[name][0]}, None).given().flat()
    u = u[: target.dim]
    with double():
        expected = jax.jit(target.log_density)(u)
    np.testing.assert_allclose(jax.jit(target.log_density)(u.astype(np.float32)), expected, rtol=1e-5)


def test_positions_round_trip():
    u, _, answer = evaluated()
    np.testing.assert_allclose(answer["back"], u, rtol=1e-8, atol=1e-8)


def test_shapes_and_names():
    structure = MODEL.structure
    free = {leaf.name: (leaf.shape, leaf.free_shape) for leaf in structure.leaves}
    assert free["simplices"] == ((2, 3), (2, 2))
    assert free["corr_cholesky"] == ((3, 3), (3,))
    assert free["positive_definite"] == ((2, 2), (3,))
    assert [n for n in structure.scalar_names() if n.startswith("interval")] == [
        "interval[0,0]",
        "interval[0,1]",
        "interval[1,0]",
        "interval[1,1]",
    ]
    elementwise = {leaf.name for leaf in structure.leaves if leaf.is_elementwise}
    assert {"real", "positive", "interval"} <= elementwise
    assert not elementwise & {"simplex", "ordered", "corr_cholesky", "below_positive"}
