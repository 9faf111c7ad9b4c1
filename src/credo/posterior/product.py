"""Independent named distributions in the user's space: conjugate answers and coordinate ascent."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution, biject_to
from scipy import special

from credo.linalg.diagonal import Diagonal
from credo.model.distributions import bare, in_jax
from credo.model.structure import Structure
from credo.posterior.kinds import Gaussian, Kind


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


def as_gaussian(kind: Kind) -> Kind:
    """``kind``; a product of normal distributions as the Gaussian that it is."""
    if not isinstance(kind, Product) or not all(type(bare(d)) is dist.Normal for d in kind.distributions.values()):
        return kind
    moments = moments_of(kind.distributions)
    mean, sd = (kind.structure.ravel({name: jnp.asarray(each[i]) for name, each in moments.items()}) for i in (0, 1))
    return Gaussian(np.asarray(mean), Diagonal(np.asarray(sd)))


def moments_of(distributions: Mapping[str, Distribution]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(mean, sd) by name; NaN or inf where the integral does not exist."""
    laws = {name: in_jax(d) for name, d in distributions.items()}
    return {name: (np.asarray(d.mean), np.asarray(jnp.sqrt(d.variance))) for name, d in laws.items()}


def quantiles_of(distributions: Mapping[str, Distribution], p: np.ndarray) -> dict[str, np.ndarray]:
    """Marginal quantiles (*p.shape, *shape) of those whose formula is known."""
    found = {}
    for name, d in distributions.items():
        of, shape = MARGINALS.get(type(bare(d))), d.batch_shape + d.event_shape
        if of is not None:
            values = of(bare(d), np.reshape(p, (*p.shape, *(1,) * len(shape))))
            found[name] = np.broadcast_to(values, (*p.shape, *shape)).copy()
    return found


def _dirichlet(d, p):
    own = np.asarray(d.concentration)
    return special.betaincinv(own, own.sum(axis=-1, keepdims=True) - own, p)


MARGINALS: dict[type, Callable[[Any, np.ndarray], np.ndarray]] = {
    dist.Normal: lambda d, p: d.loc + d.scale * special.ndtri(p),
    dist.MultivariateNormal: lambda d, p: d.mean + np.sqrt(d.variance) * special.ndtri(p),
    dist.Gamma: lambda d, p: special.gammaincinv(d.concentration, p) / d.rate,
    dist.InverseGamma: lambda d, p: d.rate / special.gammainccinv(d.concentration, p),
    dist.Beta: lambda d, p: special.betaincinv(d.concentration1, d.concentration0, p),
    dist.Dirichlet: _dirichlet,
}
