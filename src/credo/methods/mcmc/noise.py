"""Random numbers of one transition of a Hamiltonian sampler, from one call of the generator.

Each call is a loop of its own in the compiled program; one for all numbers keeps the program small.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credo.noise import Noise


def start_of_transition(key, dim: int, shape: tuple[int, ...], dtype) -> Noise:
    """Standard normal numbers (dim,), uniform ones of ``shape``; ``key`` itself where it is ``Noise`` drawn before.

    Normal by inversion, z = √2 erf⁻¹(2u − 1), as ``jax.random.normal`` does.
    """
    if isinstance(key, Noise):
        return key
    u = jax.random.uniform(key, (dim + int(np.prod(shape)),), dtype)
    lowest = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    z = np.sqrt(2).astype(dtype) * lax.erf_inv(jnp.maximum(2 * u[:dim] - 1, lowest))
    # the barrier keeps XLA from computing z anew in every loop that reads it
    return Noise(lax.optimization_barrier(z), u[dim:].reshape(shape))
