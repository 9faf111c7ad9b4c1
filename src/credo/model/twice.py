"""A function traced twice, to see whether it stays the same.

What NumPy or Python draw at random while JAX traces is a constant of that program, and another one in the next: a fit
and each shape of a prediction would have models of their own. Within a function that its user compiles it is drawn once
a shape, and is not seen here.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from credo.equations import constants
from credo.status import CredoError


def traced(what: str, function: Callable, *arguments) -> tuple[jex.ClosedJaxpr, Any]:
    """(program of ``function``, shapes of what it gives); CredoError where its next trace is another program."""
    (program, found), (again, _) = (_trace(function, arguments) for _ in range(2))
    seen = _difference(program, again)
    if seen is not None:
        raise CredoError(
            f"{what} changes from one trace to the next ({seen}): it, or a network in it, draws random numbers of "
            "NumPy's or Python's, other ones for each compiled program. Leave dropout out, and draw random features "
            "once, outside of it."
        )
    return program, found


def _trace(function: Callable, arguments: tuple) -> tuple[jex.ClosedJaxpr, Any]:
    return jax.make_jaxpr(lambda *given: function(*given), return_shape=True)(*arguments)  # JAX keeps traces by object


def _difference(one: jex.ClosedJaxpr, other: jex.ClosedJaxpr) -> str | None:
    """The first, in words."""
    lines = zip(*(re.sub(r"0x[0-9a-f]+", "", str(program)).splitlines() for program in (one, other)), strict=False)
    for a, b in lines:
        if a != b:
            return f"{a.strip()[:80]!r}, then {b.strip()[:80]!r}"
    for a, b in zip(constants(one), constants(other), strict=True):
        if a is b:
            continue
        a, b = map(_numbers, (a, b))
        if not np.array_equal(a, b, equal_nan=True):
            place = np.unravel_index(np.argmax(a != b), a.shape)
            return f"an array of shape {a.shape} holds {a[place]:.3g}, then {b[place]:.3g}"
    return None


def _numbers(constant) -> np.ndarray:
    is_key = jnp.issubdtype(constant.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(constant) if is_key else constant)
