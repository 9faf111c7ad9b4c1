"""Affine coupling, "real NVP" (Dinh, Sohl-Dickstein & Bengio 2017, equations 7 and 8).

g(z; s, t) = z exp(s) + t,   s = LIMIT · tanh(s' / LIMIT),  (s', t) made by the network
"""

import jax.numpy as jnp

from credo.posterior.flow.layer import Coupling, identity_networks

NUM_PARAMETERS = 2
LIMIT = 3.0  # of a layer's |log scale|: a factor of twenty


class AffineCoupling(Coupling):
    """Scales and shifts half of the coordinates by functions of the others: tails stay Gaussian given those."""

    @classmethod
    def identity(cls, dim: int, num_layers: int, width: int, dtype) -> "AffineCoupling":
        """Layers that change nothing yet."""
        return cls(*identity_networks(dim, num_layers, NUM_PARAMETERS, width, dtype))

    def bend(self, theta, z):
        s, t = _scale_and_shift(theta)
        return z * jnp.exp(s) + t, s

    def unbend(self, theta, u):
        s, t = _scale_and_shift(theta)
        return (u - t) * jnp.exp(-s), -s


def _scale_and_shift(theta):
    return LIMIT * jnp.tanh(theta[:, 0] / LIMIT), theta[:, 1]
