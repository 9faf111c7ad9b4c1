"""What fixed draws average exactly is not counted as their error (response.py)."""

import jax.numpy as jnp
import numpy as np
import pytest

from credo.algorithm import stream
from credo.methods.optimise.newton import Optimum
from credo.methods.vi.deterministic.derivatives import AtPositions
from credo.methods.vi.deterministic.draws import fixed_draws, has_unit_squares, is_quadrature
from credo.methods.vi.deterministic.gaussian import FixedDraws, Gaussians
from credo.methods.vi.deterministic.response import _gradients
from credo.precision import double


def cubic(args, u):
    """Its gradient is quadratic in the draws."""
    return jnp.sum(-0.5 * u**2 + args * u**3)


@pytest.mark.parametrize(("num_pairs", "is_full"), [(4, False), (40, True)])
def test_quadratics_leave_no_spread(num_pairs, is_full):
    dim, rng = 6, np.random.default_rng(0)
    with double():
        z = fixed_draws(stream(np.array([1, 2], np.uint32), 0), num_pairs, dim, is_whitened=True)
        assert has_unit_squares(z)
        assert is_quadrature(z) == is_full
        coordinates = Gaussians(rng.normal(size=dim), np.diag(rng.uniform(0.5, 1.5, dim)), is_diagonal=True)
        draws = FixedDraws(coordinates, z, AtPositions(2 * num_pairs, 1), np.dtype(np.float64))
        point = np.concatenate([rng.normal(size=dim), rng.uniform(0.5, 1.5, dim)])
        args = rng.uniform(0.1, 0.3, dim)
        at = draws.evaluate(cubic, args, point, -np.inf, None)
        optimum = Optimum(**{name: None for name in Optimum._fields} | {"position": point, "curvature": at.curvature})
        each, taken = _gradients(draws, cubic, args, optimum)
    assert np.all(each.std(axis=0) > 0.01)
    np.testing.assert_allclose((each - taken).std(axis=0), 0.0, atol=1e-10)
