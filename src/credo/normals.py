"""Standard normal numbers at the price of one pass over memory.

JAX compiles Threefry (Salmon, Moraes, Dror & Shaw 2011) for a CPU as a loop over its rounds, which writes all numbers
to memory in between. Here the rounds stand one after the other, so that they and the inverse of the normal distribution
function become one kernel. The numbers are those of ``jax.random.normal``, to the last bit; they take half the time.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = np.uint32(0x1BD11BDA)
LAYOUT = {np.dtype(np.float32): (np.uint32, 9, 0x3F800000), np.dtype(np.float64): (np.uint64, 12, 0x3FF << 52)}


def normal(key, shape: tuple[int, ...], dtype=None) -> jax.Array:
    """``jax.random.normal(key, shape, dtype)``."""
    kind = np.dtype(jax.dtypes.canonicalize_dtype(float if dtype is None else dtype))
    number = math.prod(shape)
    is_usual = kind not in LAYOUT or jax.default_backend() != "cpu" or number >= 2**32 or not _is_threefry(key)
    if is_usual:
        return jax.random.normal(key, shape, kind)
    first, second = _threefry(jax.random.key_data(key), jnp.arange(number, dtype=jnp.uint32))
    whole, shift, one = LAYOUT[kind]
    bits = first ^ second if kind == np.float32 else (first.astype(whole) << whole(32)) | second.astype(whole)
    uniform = jax.lax.bitcast_convert_type((bits >> whole(shift)) | whole(one), kind) - kind.type(1)  # in [0, 1)
    low = np.nextafter(kind.type(-1), kind.type(0))
    uniform = jnp.maximum(low, uniform * (kind.type(1) - low) + low)
    return (kind.type(np.sqrt(2)) * jax.lax.erf_inv(uniform)).reshape(shape)


def normal_apart(key, shape: tuple[int, ...], dtype, count) -> jax.Array:
    """``normal``, in a kernel of its own. ``count``: any traced number that is never negative.

    XLA fuses the numbers with what reads them, and a loop that also puts a gradient together from its parts has
    branches and no vector instructions: five times the time. It does not fuse across a conditional.
    """
    return jax.lax.cond(count >= 0, lambda: normal(key, shape, dtype), lambda: jnp.zeros(shape, dtype))


def fold_in(key, number) -> jax.Array:
    """``jax.random.fold_in`` of a whole number below 2³², of which JAX makes a loop of small kernels on a CPU."""
    if jax.default_backend() != "cpu" or not _is_threefry(key):
        return jax.random.fold_in(key, number)
    words = _threefry(jax.random.key_data(key), jnp.asarray(number).astype(jnp.uint32))
    return jax.random.wrap_key_data(jnp.stack(words), impl=_name(key))


def split(key) -> tuple[jax.Array, jax.Array]:
    """``jax.random.split(key)``, likewise."""
    if jax.default_backend() != "cpu" or not _is_threefry(key):
        return tuple(jax.random.split(key))
    return fold_in(key, 0), fold_in(key, 1)


def below(key, stop: int) -> jax.Array:
    """``jax.random.randint(key, (), 0, stop)``, likewise."""
    is_usual = jax.default_backend() != "cpu" or not _is_threefry(key) or jnp.result_type(int) != jnp.int32
    if is_usual or not 0 < stop < 2**31:
        return jax.random.randint(key, (), 0, stop)
    span = np.uint32(stop)
    words = [_threefry(jax.random.key_data(each), jnp.uint32(0)) for each in split(key)]
    high, low = (first ^ second for first, second in words)
    factor = np.uint32((2**16 % stop) ** 2 % 2**32 % stop)  # in place of 2³² modulo the span, as JAX has it
    return ((high % span * factor + low % span) % span).astype(jnp.int32)


def _is_threefry(key) -> bool:
    """Whether JAX would make these numbers by counters from 0 on under Threefry."""
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return (
        is_typed
        and key.ndim == 0
        and _name(key) == "threefry2x32"
        and getattr(jax.config, "jax_threefry_partitionable", False)
    )


def _name(key) -> str:
    return str(jax.random.key_impl(key))


def _threefry(key, counter):
    """Both words of 20 rounds on (0, ``counter``)."""
    words = key[0], key[1], key[0] ^ key[1] ^ PARITY
    a, b = jnp.broadcast_to(words[0], counter.shape), counter + words[1]
    for i in range(5):
        for rotation in ROTATIONS[i % 2]:
            a = a + b
            b = ((b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation))) ^ a
        a, b = a + words[(i + 1) % 3], b + words[(i + 2) % 3] + np.uint32(i + 1)
    return a, b
