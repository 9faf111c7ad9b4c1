"""Random numbers of one transition of a Hamiltonian sampler, from one call of the generator.

Each call is a loop of its own in the compiled program; one for all numbers keeps the program small.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def start_of_transition(key, dim: int, shape: tuple[int, ...], dtype):
    """(standard normal numbers (dim,), uniform numbers on [0, 1) of ``shape``).

    Normal by inversion, z = √2 erf⁻¹(2u − 1), as ``jax.random.normal`` does.
    """
    u = jax.random.uniform(key, (dim + int(np.prod(shape)),), dtype)
    lowest = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    z = np.sqrt(2).astype(dtype) * lax.erf_inv(jnp.maximum(2 * u[:dim] - 1, lowest))
    # the barrier keeps XLA from computing z anew in every loop that reads it
    return lax.optimization_barrier(z), u[dim:].reshape(shape)
