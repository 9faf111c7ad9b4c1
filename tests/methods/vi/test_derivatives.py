"""The one program of a small deterministic fit: what it gives at many positions, on one core or all."""

import functools

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.methods.vi.deterministic import derivatives
from credo.methods.vi.deterministic.derivatives import AtPositions
from credo.methods.vi.start import density_of
from credo.precision import double

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 3))


def target():
    model = credo.Model({"w": dist.Normal(0, 2).expand([3])}, lambda params, x: dist.Poisson(np.e ** (x @ params["w"])))
    return model.given(X, RANDOM.poisson(1.0, size=40)).flat()


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(("chunk", "block"), [(1, 1), (2, 1), (2, 3)])
def test_values_gradients_and_hessians_of_more_positions_than_a_call_takes(monkeypatch, cores, chunk, block):
    monkeypatch.setattr(derivatives, "num_cores", lambda: cores)
    monkeypatch.setattr(derivatives, "LARGE", 0)
    monkeypatch.setattr(derivatives, "BUFFER", 16)
    program, at = AtPositions(length=4, chunk=chunk, block=block), RANDOM.normal(size=(37, 3)) / 3
    with double():
        given = target()
        objective = density_of(given)

        def density(u):
            return objective.function(objective.args, u)

        found = program.derivatives(objective.function, objective.args, at, with_hessians=True)
        few = program.derivatives(objective.function, objective.args, at, with_hessians=False)
        values = program.values(objective.function, objective.args, at)
        for each, expected in ((found.values, jax.vmap(density)), (found.gradients, jax.vmap(jax.grad(density)))):
            np.testing.assert_allclose(each, expected(at), rtol=1e-10)
        np.testing.assert_allclose(found.hessians, jax.vmap(jax.hessian(density))(at), rtol=1e-9, atol=1e-12)
    assert few.hessians is None
    np.testing.assert_allclose(values, few.values, rtol=1e-13)  # a value alone is a program of its own
    same = np.testing.assert_array_equal if block == 1 else functools.partial(np.testing.assert_allclose, rtol=1e-10)
    same(few.values, found.values)
    same(few.gradients, found.gradients)


def test_positions_read_large_data_together(monkeypatch):
    """As many at once as memory is there for, and one by one where data are small."""
    given = target()
    assert AtPositions.suited(given, 64).block == 1
    monkeypatch.setattr(derivatives, "TOGETHER", (8, 100))
    assert AtPositions.suited(given, 64).block == 8
    assert AtPositions.suited(given, 5).block == 5


def test_after_the_deadline_nothing_more_begins(monkeypatch):
    monkeypatch.setattr(derivatives, "BUFFER", 16)
    with double():
        objective = density_of(target())
        values = AtPositions(4, 1).values(objective.function, objective.args, np.zeros((64, 3)), deadline=0.0)
    assert len(values) == 16


def test_the_search_for_a_mode_sees_minus_the_hessian_and_only_where_it_looks():
    at = RANDOM.normal(size=3) / 3
    with double():
        objective, program = density_of(target()), AtPositions(4, 1)
        seen = program.evaluate(objective.function, objective.args, at, -np.inf, None)
        higher = program.evaluate(objective.function, objective.args, at, seen.value + 1.0, None)
        hessian = jax.jit(jax.hessian(lambda u: objective.function(objective.args, u)))(at)
    np.testing.assert_allclose(seen.curvature, -hessian, rtol=1e-9)
    np.testing.assert_array_equal(higher.curvature, 0.0)  # below what was asked for: no Hessian is worked out
