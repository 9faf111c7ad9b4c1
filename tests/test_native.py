"""Native functions compute what XLA's kernels compute, and step aside where they cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from credo import native
from credo.native import jit
from credo.precision import double

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="native functions are for the CPU")

RNG = np.random.default_rng(0)
VECTOR, OTHER, MATRIX = RNG.normal(size=40), RNG.normal(size=40), RNG.normal(size=(30, 40))
MANY = RNG.normal(size=5_000)  # more than XLA adds up by itself
GROUP = RNG.integers(0, 40, 100).astype(np.int32)


def written(rows, v):
    """What a loop does with its draws."""
    rows = lax.fori_loop(0, 9, lambda i, rows: lax.dynamic_update_index_in_dim(rows, i * v, i, 0), rows)
    return lax.dynamic_slice_in_dim(rows, 0, 9)


# user code of many kinds: (function of VECTOR, whether one native function is right for it)
PROGRAMS = {
    "elementwise": (lambda v: jnp.exp(jnp.sin(v)) + jnp.log1p(v * v) - jnp.tanh(v) ** 3, True),
    "special": (lambda v: lax.lgamma(v * v + 1) + lax.digamma(v * v + 1) + lax.erf(v) + lax.erf_inv(jnp.tanh(v)), True),
    "gamma": (lambda v: lax.igamma(v * v + 1, OTHER**2), True),
    "matrix times vector": (lambda v: jnp.asarray(MATRIX) @ v, True),
    "logsumexp": (lambda v: jax.nn.logsumexp(jnp.asarray(MATRIX) * v, axis=1), True),
    "cumulative": (lambda v: jnp.cumsum(v) + lax.cumlogsumexp(v), True),
    "gather": (lambda v: v[GROUP], True),
    "write": (lambda v: v.at[3].set(7.0).at[1:4].add(v[:3]), True),
    "scan": (lambda v: lax.scan(lambda c, x: (0.9 * c + x, jnp.tanh(c)), 0.0, v)[1], True),
    "branch": (lambda v: lax.cond(v[0] > 0, jnp.sin, lambda v: v - 1, v), True),
    "random": (lambda v: v + jax.random.normal(jax.random.key(1), v.shape), True),
    "concatenation": (lambda v: jnp.concatenate([v[::-1], jnp.pad(v, 2)]).reshape(2, -1).T, True),
    "clipping": (lambda v: jnp.clip(v, -0.5, 0.5) + jnp.sign(v) + jnp.floor(v) + jnp.where(v > 0, v, jnp.nan), True),
    "batched product": (lambda v: jnp.einsum("bi,bi->b", v.reshape(4, 10), v.reshape(4, 10)), True),
    "sort": (lambda v: jnp.sort(v), False),
    "factorisation": (lambda v: jnp.linalg.cholesky(jnp.eye(5) + jnp.outer(v[:5], v[:5])), False),
    "matrix product": (lambda v: jnp.asarray(MATRIX) @ jnp.asarray(MATRIX).T * v[0], False),
    "fourier": (lambda v: jnp.abs(jnp.fft.fft(v)), False),
    "many writes": (lambda v: jnp.zeros(40).at[GROUP].max(v[GROUP]), False),
    "sum of many": (lambda v: jnp.sum(jnp.sin(v[0] * MANY)) + jnp.max(jnp.cos(v[1] * MANY)), True),
    "large buffer": (lambda v: written(jnp.zeros((6_000, 40)), v), True),
    "large": (lambda v: jnp.sum(jnp.ones(300_000) * v[0]), False),
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_same_numbers(name):
    function, is_native = PROGRAMS[name]

    def repeated(v):  # a loop, which is what natives are for
        return lax.fori_loop(0, 3, lambda i, total: total + function(v + 0.1 * i), jnp.zeros_like(function(v)))

    with double():
        program = jit(repeated)
        np.testing.assert_allclose(program(VECTOR), jax.jit(repeated)(VECTOR), rtol=1e-12, atol=1e-14)
        text = program.native.lower(VECTOR).as_text()
    assert not program.refused
    assert ("xla_cpu_small_call" in text) is is_native


def test_what_the_compiler_refuses_is_compiled_as_usual(monkeypatch, capfd):
    monkeypatch.setattr(native, "WITH_KERNELS", frozenset())
    program = jit(lambda v: jnp.sort(v))
    v = VECTOR.astype(np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(program(v), np.sort(v))
    assert len(program.refused) == 1
    capfd.readouterr()  # XLA grumbles on standard error


def test_arguments_that_the_optimiser_finds_unused():
    """XLA aborts the whole process at a native function with such an argument."""

    def zero(v, w, n):
        return jnp.sin(v) + jnp.broadcast_to(jnp.zeros_like(w)[0], v.shape) + 0 * n

    def untaken(v, w, n):
        return lax.cond(n * 0 == 0, lambda: jnp.sin(v), lambda: w)

    with double():
        for function in (zero, untaken):
            program = jit(function)
            np.testing.assert_allclose(program(VECTOR, OTHER, 1), np.sin(VECTOR), rtol=1e-12)
            assert not program.refused


def test_empty_and_boolean_arguments():
    program = jit(lambda v, empty, flag: jnp.where(flag, v, -v) + jnp.sum(empty))
    v = VECTOR.astype(np.float32)
    np.testing.assert_array_equal(program(v, np.zeros((3, 0), np.float32), False), -v)
    assert not program.refused


def test_static_arguments_and_structures():
    program = jit(lambda tree, *, power: {"y": tree["x"] ** power}, static_argnames=("power",))
    assert program({"x": np.float32(3)}, power=2)["y"] == 9
    assert program({"x": np.float32(3)}, power=3)["y"] == 27
