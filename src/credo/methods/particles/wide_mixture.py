"""A mixture of Gaussians some of whose draws reach far, for what lies between and beyond its components.

With the white coordinates z_k of component k, s = 2, 4, 8, 16 and a share a of the draws,

    r(u) = Σ_k π_k N(z_k; 0, I) / |S_k| ((1 − a) + a/4 Σ_s N(z_k; 0, s²I) / N(z_k; 0, I))

a defensive mixture (Hesterberg 1995). Where a component of the data is empty, its parameters go where the prior lets
them: a part of the posterior that no Gaussian around a mode is near, and that draws of the mixture itself never meet.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from credo.linalg.operator import Stored
from credo.normals import normal
from credo.posterior.kinds import Gaussian, Kind, Mixture

WIDE = np.array([2.0, 4.0, 8.0, 16.0])  # times the sds: they reach a mass ten sds away


class WideMixture(Kind):
    """Σ_k exp(log_weights_k) component_k, of whose draws the ``share`` has sds 2, 4, 8 and 16 times as large."""

    log_weights: Float[Stored, " component"]
    components: tuple[Gaussian, ...]
    share: float = eqx.field(static=True)

    @classmethod
    def of(cls, kind: Kind, share: float) -> "WideMixture | None":
        """None where ``kind`` is no mixture of Gaussians, in which all coordinates vary."""
        if not isinstance(kind, Mixture):
            return None
        gaussians = tuple(each for each in kind.components if isinstance(each, Gaussian))
        whole = tuple(each for each in gaussians if each.scale.rank == each.mean.size)
        return cls(kind.log_weights, whole, share) if len(whole) == len(kind.components) else None

    def sample_u(self, key):
        k_component, k_scale, k_noise = jax.random.split(key, 3)
        choice = jax.random.categorical(k_component, jnp.asarray(self.log_weights))
        shares = jnp.asarray([1 - self.share, *np.full(len(WIDE), self.share / len(WIDE))])
        s = jnp.asarray([1.0, *WIDE])[jax.random.categorical(k_scale, jnp.log(shares))]
        z = s * normal(k_noise, self.components[0].mean.shape, self.components[0].mean.dtype)
        return jax.lax.switch(choice, [lambda z, q=q: q.mean + q.scale.matvec(z) for q in self.components], z)

    def log_prob_u(self, u):
        return self.log_probs(u)[0]

    def log_probs(self, u):
        """log r and log q, of the mixture itself."""
        plain, widening = [], []
        for q in self.components:
            square = jnp.sum(jnp.square(q.scale.solve(u - q.mean)))
            by_scale = 0.5 * square * (1 - 1 / WIDE**2) - u.size * np.log(WIDE)
            of_wide = jax.nn.logsumexp(by_scale) - np.log(len(WIDE))
            widening.append(jnp.logaddexp(np.log1p(-self.share), np.log(self.share) + of_wide))
            plain.append(-0.5 * square - q.scale.log_det() - 0.5 * u.size * jnp.log(2.0 * jnp.pi))
        log_q = jax.nn.log_softmax(jnp.asarray(self.log_weights)) + jnp.stack(plain)
        return jax.nn.logsumexp(log_q + jnp.stack(widening)), jax.nn.logsumexp(log_q)
