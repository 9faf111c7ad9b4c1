"""Independent named distributions in the user's space: conjugate answers and coordinate ascent."""

import equinox as eqx
import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution, biject_to

from credo.model.structure import Structure
from credo.posterior.kinds import Kind


class Product(Kind):
    """One numpyro distribution a parameter, by leaf name, independent of each other.

    Positions follow the supports of these distributions, which must be those of the prior.
    """

    distributions: dict[str, Distribution]
    structure: Structure = eqx.field(static=True)

    def sample_u(self, key):
        keys = jax.random.split(key, len(self.distributions))
        draws = {name: d.sample(k) for k, (name, d) in zip(keys, self.distributions.items(), strict=True)}
        return self.structure.ravel({n: biject_to(d.support)._inverse(draws[n]) for n, d in self.distributions.items()})

    def log_prob_u(self, u):
        position = self.structure.unravel(u)
        total = jnp.zeros(())
        for name, d in self.distributions.items():
            transform = biject_to(d.support)
            value = transform(position[name])
            log_jacobian = transform.log_abs_det_jacobian(position[name], value)
            total = total + jnp.sum(d.log_prob(value)) + jnp.sum(log_jacobian)
        return total
