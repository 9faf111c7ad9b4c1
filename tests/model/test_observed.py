"""Which outcomes are data: those that no mask around the likelihood's distributions hides."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.model.observed import observed, rows_of

ROWS, ENTRIES = np.array([True, False, True, True]), np.arange(12).reshape(4, 3) % 5 != 1
PRIOR = {"w": dist.Normal(0.0, 1.0)}
LOGITS = np.zeros((4, 3))

LIKELIHOODS = {
    "no mask": (lambda p, x: dist.Normal(p["w"] * x, 1.0), np.ones(4, bool)),
    "of nothing": (lambda p, x: dist.Normal(p["w"] * x, 1.0).mask(True), np.ones(4, bool)),
    "of everything": (lambda p, x: dist.Normal(p["w"] * x, 1.0).mask(False), np.zeros(4, bool)),
    "of rows": (lambda p, x: dist.Normal(p["w"] * x, 1.0).mask(jnp.asarray(ROWS)), ROWS),
    "by a column": (lambda p, x: dist.Normal(p["w"] * x, 1.0).mask(x != 1), np.arange(4) != 1),
    "compiled": (jax.jit(lambda p, x: dist.Normal(p["w"] * x, 1.0).mask(x != 1)), np.arange(4) != 1),
    "twice": (lambda p, x: dist.Normal(p["w"] * x, 1.0).mask(x != 1).mask(x != 2), np.isin(np.arange(4), [0, 3])),
    "of entries": (
        lambda p, x: dist.Normal(p["w"], 1.0).expand([4, 3]).mask(jnp.asarray(ENTRIES)).to_event(1),
        ENTRIES,
    ),
    "of events": (
        lambda p, x: dist.Dirichlet(jnp.exp(LOGITS + p["w"])).mask(jnp.asarray(ROWS)),
        np.repeat(ROWS[:, None], 3, axis=1),
    ),
    "by name": (
        lambda p, x: {"a": dist.Normal(p["w"] * x, 1.0), "b": dist.Poisson(jnp.exp(p["w"] * x)).mask(x != 1)},
        {"a": np.ones(4, bool), "b": np.arange(4) != 1},
    ),
}


def outcomes(expected):
    shapes = jax.tree.map(np.shape, expected, is_leaf=lambda node: isinstance(node, np.ndarray))
    if isinstance(expected, dict):
        return {name: np.zeros(shape, int) for name, shape in shapes.items()}
    return np.full(shapes, 1.0 / (shapes[-1] if len(shapes) > 1 else 1))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_what_no_mask_hides(name):
    likelihood, expected = LIKELIHOODS[name]
    y = outcomes(expected)
    jax.tree.map(
        np.testing.assert_array_equal, observed(credo.Model(PRIOR, likelihood).given(np.arange(4), y), y), expected
    )


def test_a_row_counts_if_a_part_of_it_does():
    np.testing.assert_array_equal(rows_of(ENTRIES & ROWS[:, None], 4), ROWS)
    np.testing.assert_array_equal(rows_of({"a": ROWS, "b": ~ROWS}, 4), np.ones(4, bool))
    np.testing.assert_array_equal(rows_of({"a": ROWS, "b": np.zeros(3, bool)}, 1), [True])


def test_a_mask_by_the_parameters_is_refused():
    target = credo.Model(PRIOR, lambda p, x: dist.Normal(p["w"] * x, 1.0).mask(p["w"] * x > 0)).given(
        np.ones(4), np.ones(4)
    )
    with pytest.raises(credo.CredoError, match="mask changes with the parameters.*by a column of x"):
        observed(target, target.y)
