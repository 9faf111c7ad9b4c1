"""What the equations of traced programs are taken for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.equations import runs_along

ROWS = 5
ALONG = {  # of an array (rows, 3): whether the rows may come together
    "repeated": (lambda x: jnp.tile(x, (2, 1)), True),
    "wider": (lambda x: jnp.tile(x, (1, 2)), False),
    "beside themselves": (lambda x: jnp.stack([x, x], axis=1), False),
    "behind themselves": (lambda x: jnp.stack([x, x]), True),
    "apart": (jnp.unstack, True),
    "columns apart": (lambda x: jnp.unstack(x, axis=1), False),
    "summed": (lambda x: x.sum(axis=0), True),
    "each summed": (lambda x: x.sum(axis=1), False),
}


@pytest.mark.parametrize("name", ALONG)
def test_what_may_bring_rows_together(name):
    function, expected = ALONG[name]
    equations = jax.make_jaxpr(function)(np.ones((ROWS, 3), np.float32)).eqns
    assert any(runs_along(each, ROWS) for each in equations) == expected
