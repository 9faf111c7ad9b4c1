"""Layers of flows: each a bijection whose inverse and log-determinant are right, over a table of constructors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.linalg.dense import Dense
from credo.posterior.flow.affine import AffineCoupling
from credo.posterior.flow.layer import is_moved
from credo.posterior.flow.spline import SplineCoupling
from credo.posterior.kinds import Flow, Gaussian
from credo.precision import double

pytestmark = pytest.mark.usefixtures("strict")

LAYERS = {
    "affine": lambda dim, number: AffineCoupling.identity(dim, number, 8, float),
    "spline": lambda dim, number: SplineCoupling.identity(dim, number, 8, float, 6, 3.0),
}
POINTS = np.concatenate([np.random.default_rng(0).normal(size=(20, 5)) * 2, [[3.0] * 5, [-3.0] * 5, [0.0] * 5]])


def bent(layer, size=1.0, seed=0):
    """The same with random weights."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: size * generator.normal(size=leaf.shape), layer)


@pytest.fixture(params=[(name, dim) for name in LAYERS for dim in (1, 2, 5)], ids=str)
def layer(request):
    name, dim = request.param
    with double():
        yield LAYERS[name](dim, 3), POINTS[:, :dim]


def test_layers_begin_as_the_identity(layer):
    straight, points = layer
    u, log_det = jax.jit(jax.vmap(straight.forward))(points)
    np.testing.assert_allclose(u, points, atol=1e-12)
    np.testing.assert_allclose(log_det, 0, atol=1e-12)


def test_inverse_undoes_forward_and_log_dets_are_those_of_autodiff(layer):
    curved, points = bent(layer[0], 0.5), layer[1]  # three wilder ones amplify rounding

    @jax.jit
    def everything(layer, points):
        u, log_det = jax.vmap(layer.forward)(points)
        back, log_det_back = jax.vmap(layer.inverse)(u)
        forward = jax.vmap(jax.jacfwd(lambda z: layer.forward(z)[0]))(points)
        inverse = jax.vmap(jax.jacfwd(lambda u: layer.inverse(u)[0]))(u)
        return u, log_det, back, log_det_back, jnp.linalg.slogdet(forward), jnp.linalg.slogdet(inverse)

    u, log_det, back, log_det_back, forward, inverse = everything(curved, points)
    assert np.max(np.abs(u - points)) > 0.1, "it does bend"
    np.testing.assert_allclose(back, points, atol=1e-9)
    np.testing.assert_allclose(log_det, forward.logabsdet, atol=1e-9)
    np.testing.assert_allclose(log_det_back, inverse.logabsdet, atol=1e-9)
    np.testing.assert_allclose(log_det, -log_det_back, atol=1e-9)


def test_a_spline_increases_and_leaves_what_is_outside():
    with double():
        curved = bent(SplineCoupling.identity(1, 1, 4, float, 6, 3.0), 2.0)
        z = np.linspace(-4.0, 4.0, 4001)[:, None]
        u = np.asarray(jax.jit(jax.vmap(curved.forward))(z)[0])
    assert np.all(np.diff(u[:, 0]) > 0)
    np.testing.assert_allclose(u[np.abs(z) > 3], z[np.abs(z) > 3])


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 8])
def test_any_two_coordinates_are_on_different_sides_of_some_layer(dim):
    num_layers = 2 * max(1, int(np.ceil(np.log2(dim))))
    apart = np.eye(dim, dtype=bool)
    for index in range(num_layers):
        moves = is_moved(dim, index)
        assert moves.any()
        apart |= moves[:, None] & ~moves
    assert apart.all(), "each coordinate is moved by each other"


@pytest.mark.slow
def test_the_density_of_a_flow_is_that_of_its_draws():
    """By the change of variables with the Jacobian of autodiff, and E_q[r/q] = 1 for a narrow density r."""
    with double():
        layers = tuple(bent(LAYERS[name](2, i), 0.2, i) for name, i in [("affine", 1), ("spline", 2), ("affine", 3)])
        q = Flow(layers, Gaussian(np.array([1.0, -2.0]), Dense(np.array([[2.0, 0.0], [0.5, 0.3]]))))

        @jax.jit
        def everything(q):
            z = jax.random.normal(jax.random.key(1), (4_000, 2))
            u = jax.vmap(lambda z: q.forward(z)[0])(z)
            jacobian = jax.vmap(jax.jacfwd(lambda z: q.forward(z)[0]))(z)
            expected = -0.5 * jnp.sum(z**2, axis=1) - jnp.log(2 * jnp.pi) - jnp.linalg.slogdet(jacobian)[1]
            return u, expected, jax.vmap(q.log_prob_u)(u), jax.vmap(q.inverse)(u)[0], z

        u, expected, log_q, back, z = jax.tree.map(np.asarray, everything(q))
    np.testing.assert_allclose(back, z, atol=1e-8)
    np.testing.assert_allclose(log_q, expected, atol=1e-8)
    sd = 0.4 * u.std(axis=0)
    log_r = np.sum(-0.5 * ((u - u.mean(axis=0)) / sd) ** 2 - np.log(sd), axis=1) - np.log(2 * np.pi)
    weights = np.exp(log_r - log_q)
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(len(weights))
