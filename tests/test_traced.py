"""What tracing found is kept by structure, shapes and dtypes, and nothing else is."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.precision import double
from credo.traced import MOST, by_shapes


class Counted:
    """A function of a pytree that says how often it was asked."""

    def __init__(self):
        self.count = 0

        @by_shapes
        def look(tree, *, scale: int = 1):
            self.count += 1
            out = jax.eval_shape(lambda tree: scale * jnp.sum(tree["a"]), tree)
            return out.dtype, scale

        self.look = look


def test_answers_are_kept_whatever_the_values():
    counted = Counted()
    first = counted.look({"a": np.zeros(3, np.float32)})
    assert counted.look({"a": np.ones(3, np.float32)}) == first
    assert counted.look({"a": jnp.ones(3, jnp.float32)}) == first
    assert counted.count == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda look: look({"a": np.zeros(4, np.float32)}),
        lambda look: look({"a": np.zeros(3, np.int32)}),
        lambda look: look({"a": np.zeros(3, np.float32), "b": 1.0}),
        lambda look: look({"a": np.zeros(3, np.float32)}, scale=2),
    ],
    ids=["shape", "dtype", "structure", "setting"],
)
def test_what_else_is_found_anew(change):
    counted = Counted()
    counted.look({"a": np.zeros(3, np.float32)})
    change(counted.look)
    assert counted.count == 2


def test_precision_is_part_of_what_was_asked():
    """The same float64 array is another to a program outside of the 64-bit context."""
    counted, x = Counted(), {"a": np.zeros(3)}
    with double(False):
        narrow, _ = counted.look(x)
    with double():
        wide, _ = counted.look(x)
    assert (narrow, wide) == (np.float32, np.float64)
    with jax.default_matmul_precision("highest"):
        counted.look(x)
    assert counted.count == 3


def test_what_is_traced_is_not_kept():
    """A tracer that outlived its trace would be an error in the next one."""
    kept = by_shapes(lambda x: 2.0 * x)
    for _ in range(2):
        assert jax.jit(lambda x: kept(x) + 1.0)(1.0) == 3.0
    assert jax.grad(kept)(1.0) == 2.0


def test_errors_are_not_kept():
    calls = []

    @by_shapes
    def fails_first(x):
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")
        return len(calls)

    with pytest.raises(ValueError, match="once"):
        fails_first(np.zeros(2))
    assert fails_first(np.zeros(2)) == 2


def test_the_store_is_bounded_and_holds_no_array():
    counted = Counted()
    x = np.zeros(5, np.float32)
    gone = weakref.ref(x)
    counted.look({"a": x})
    del x
    gc.collect()
    assert gone() is None
    for size in range(10, 10 + MOST):
        counted.look({"a": np.zeros(size, np.float32)})
    counted.look({"a": np.zeros(5, np.float32)})  # the first has made room for the last
    assert counted.count == MOST + 2


def test_settings_that_have_no_hash_are_asked_anew():
    counted = Counted()
    for _ in range(2):
        counted.look({"a": np.zeros(3)}, scale=np.ones(1))  # type: ignore[arg-type]
    assert counted.count == 2
