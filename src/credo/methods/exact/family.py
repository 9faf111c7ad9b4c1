"""What every exact family answers: posterior, posterior predictive and log evidence, in float64 NumPy.

A family is frozen. ``update`` returns the same type, in which the posterior has become the next prior and
``log_evidence`` has grown by log p(new data | earlier data), so that any split of the data gives the same answer.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from numpyro.distributions import Distribution

from credo.arguments import as_key, check_count
from credo.model.distributions import in_jax
from credo.model.draws import draw
from credo.model.prior import Prior
from credo.precision import in_double
from credo.status import Estimate

NO_DATA = Estimate(0.0, 0.0, "exact")  # p(no data) = 1


class Family(abc.ABC):
    """The interface of the exact families."""

    log_evidence: Estimate  #: log p(all data seen so far), 0 before any

    @property
    @abc.abstractmethod
    def distributions(self) -> dict[str, Distribution | Callable[..., Distribution]]:
        """The current posterior in the spelling of a Credo prior: parameter name -> distribution.

        Where parameters depend on one another the later one is a callable that names the earlier, so that the
        dict is the joint distribution and can be given to ``Model(prior=…)`` as it is.
        """

    @property
    def marginals(self) -> dict[str, Distribution]:
        """The posterior of each parameter with the others integrated out."""
        return self.distributions  # type: ignore[return-value]  # families with dependent parameters say otherwise

    @in_double
    def mean(self) -> dict[str, Any]:
        """Posterior means, by parameter name; NaN or inf where the integral does not exist."""
        return {name: in_jax(marginal).mean for name, marginal in self.marginals.items()}

    @in_double
    def sd(self) -> dict[str, Any]:
        """Posterior standard deviations, by parameter name; NaN or inf where the integral does not exist."""
        return {name: jnp.sqrt(in_jax(marginal).variance) for name, marginal in self.marginals.items()}

    @in_double
    def sample(self, key: int | jax.Array, n: int) -> dict[str, Any]:
        """``n`` independent draws of the parameters from the posterior, each (n, …)."""
        check_count(n)
        prior = Prior(self.distributions)
        return jax.vmap(lambda k: prior.sample(k)[0])(jax.random.split(as_key(key), n))


@dataclass(frozen=True, eq=False)
class Predictive:
    """A posterior predictive distribution whose parameters have been integrated out in closed form.

    ``distribution`` is the numpyro distribution; the methods here answer in float64 NumPy. ``density`` is log p(y)
    where numpyro's own has too few digits: JAX's log B(a, b) is off by 2e-7 for a, b above 8, in float64 too.
    """

    distribution: Distribution
    density: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)

    @property
    @in_double
    def mean(self) -> np.ndarray:
        """E[y* | y], with the batch and event shape of the distribution."""
        return in_jax(self.distribution).mean  # type: ignore[return-value]

    @property
    @in_double
    def variance(self) -> np.ndarray:
        """Var[y* | y]: noise and parameter uncertainty together."""
        return in_jax(self.distribution).variance  # type: ignore[return-value]

    @in_double
    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y* | y), one a batch entry."""
        y = np.asarray(y)
        support: Any = self.distribution.support
        is_inside = np.asarray(support(y))
        if support.is_discrete:
            is_whole = y == np.floor(y)
            is_inside &= is_whole if not support.event_dim else np.all(is_whole, axis=-1)
            y = y.astype(np.int64) if np.all(np.isfinite(y)) else y
        if self.density is None:
            return np.where(is_inside, self.distribution.log_prob(y), -np.inf)
        return np.where(is_inside, self.density(np.where(is_inside, y, 0)), -np.inf)

    @in_double
    def sample(self, key: int | jax.Array, n: int) -> np.ndarray:
        """``n`` draws (n, …)."""
        check_count(n)
        return draw(self.distribution, as_key(key), (n,))  # type: ignore[return-value]


@in_double
def distribution(constructor: Callable[..., Distribution], *args: Any, **kwargs: Any) -> Distribution:
    """The numpyro distribution with float64 NumPy parameters, whatever the caller's JAX precision."""
    return constructor(*args, **kwargs)


def extend(log_evidence: Estimate, increment: float) -> Estimate:
    """log p(D₁, D₂) = log p(D₁) + log p(D₂ | D₁)."""
    return Estimate(log_evidence.value + float(increment), 0.0, "exact")


def settle(family: Family, **values: Any) -> None:
    """Store checked values on a frozen family, from its ``__post_init__`` only."""
    for name, value in values.items():
        object.__setattr__(family, name, value)
