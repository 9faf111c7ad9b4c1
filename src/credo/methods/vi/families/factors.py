"""Factors of their own shape for constrained parameters: gamma, beta and Dirichlet, in the user's space.

Draws are those of posterior/factors.py, differentiable in the parameters by implicit reparameterisation of the gamma
distribution (Figurnov, Mohamed & Mnih 2018), which ``jax.random.loggamma`` has. A tangent moves the logarithms of the
parameters, in coordinates of Fisher information one:

    Gamma, mean μ and shape α:  log μ ← log μ + a α^-½,  log α ← log α + b (α² ψ′(α) − α)^-½
    Dirichlet:  log α ← log α + L⁻ᵀ c,  L Lᵀ = diag(α) (diag ψ′(α) − ψ′(Σα) 11ᵀ) diag(α)
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import polygamma

from credo.methods.vi.families.family import Draw, Family
from credo.methods.vi.families.mean_field import CONTRACTION, LARGEST_GROWTH, positive, shortened
from credo.model.structure import Leaf, Structure
from credo.posterior.factors import LogGamma, Sticks, offset
from credo.status import CredoError

LONGEST = 1.0  # of a logarithm in one step, softly
POSITIVE = "positive", "nonnegative", "greater_than", "greater_than_eq"
INTERVAL = "unit_interval", "interval", "open_interval"


@dataclass(frozen=True)
class Gamma(Family):
    """Independent gamma distributions of positive parameters, or above a bound: exact where the posterior is gamma.

    Alone, or in ``Blocks`` beside other families. Raises CredoError, at the fit, for other supports.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> target = model.given(y=np.array([3, 5, 1, 4]))
    >>> posterior = credo.fit(target, credo.ADVI(family=credo.vi.Gamma()))
    >>> round(posterior.verdict.figures["pareto_k"], 1)  # the posterior is Gamma(15, 5)
    0.0
    """

    has_correlations: ClassVar[bool] = False

    def bound(self, structure: Structure) -> "Gamma":
        for leaf in structure.leaves:
            if leaf.support not in POSITIVE:
                raise CredoError(_refusal("Gamma", "positive numbers", leaf))
        return self

    def noise(self, key, num_samples: int, dim: int):
        return _keys(key, num_samples)

    def start(self, mean, sd) -> LogGamma:
        return LogGamma(mean, -2 * jnp.log(sd))

    def around(self, mean, precision) -> LogGamma:
        """That with this mode of log x and this curvature there, which is α."""
        return LogGamma(np.asarray(mean), np.log(positive(_diagonal(precision))))

    def center(self, q: LogGamma):
        return q.mean()

    def variances(self, q: LogGamma):
        return q.variances()

    def rest(self, q: LogGamma):
        return jnp.zeros_like(q.log_mean), jnp.zeros_like(q.log_shape)

    def draw(self, q: LogGamma, tangent, z) -> Draw:
        u = self.move(q, tangent).sample_u(jax.random.wrap_key_data(z))
        return Draw(u, q.log_prob_u(u))

    def entropy(self, q: LogGamma, tangent):
        return self.move(q, tangent).entropy()

    def log_probs(self, q: LogGamma, u):
        return q.log_probs(u)

    def natural(self, gradient, step_size):
        a, b = (step_size * g for g in gradient)
        return shortened(a), jnp.clip(b, -LARGEST_GROWTH, LARGEST_GROWTH)

    def contract(self, q: LogGamma) -> LogGamma:
        return LogGamma(q.log_mean, q.log_shape - 2 * np.log(CONTRACTION))

    def move(self, q: LogGamma, tangent) -> LogGamma:
        a, b = tangent
        shape = jnp.exp(q.log_shape)
        information = jnp.clip(shape**2 * polygamma(1, shape) - shape, 0.5, 1.0)  # its limits: α → ∞ and α → 0
        return LogGamma(q.log_mean + a / jnp.sqrt(shape), q.log_shape + _softly(b / jnp.sqrt(information)))


@dataclass(frozen=True)
class Shares(Family):
    """What Dirichlets of any size have in common. ``size``: K, the number of shares."""

    size: int
    has_correlations: ClassVar[bool] = False

    def noise(self, key, num_samples: int, dim: int):
        return _keys(key, num_samples)

    def start(self, mean, sd) -> Sticks:
        return Sticks(_alphas(mean, 1 / jnp.square(sd), self.size, jnp))

    def around(self, mean, precision) -> Sticks:
        """That with this mode of the position, and on average over its pieces this curvature there."""
        return Sticks(_alphas(np.asarray(mean), positive(_diagonal(precision)), self.size, np))

    def center(self, q: Sticks):
        return q.mean()

    def variances(self, q: Sticks):
        return q.variances()

    def rest(self, q: Sticks):
        return jnp.zeros_like(q.log_alpha)

    def draw(self, q: Sticks, tangent, z) -> Draw:
        u = self.move(q, tangent).sample_u(jax.random.wrap_key_data(z))
        return Draw(u, q.log_prob_u(u))

    def entropy(self, q: Sticks, tangent):
        return self.move(q, tangent).entropy()

    def log_probs(self, q: Sticks, u):
        return q.log_probs(u)

    def natural(self, gradient, step_size):
        return shortened(step_size * gradient)

    def contract(self, q: Sticks) -> Sticks:
        return Sticks(q.log_alpha - 2 * np.log(CONTRACTION))

    def move(self, q: Sticks, tangent) -> Sticks:
        log_alpha = jnp.asarray(q.log_alpha)

        def shift(log_alpha, c):
            alpha = jnp.exp(log_alpha)
            information = jnp.diag(alpha**2 * polygamma(1, alpha)) - polygamma(1, jnp.sum(alpha)) * jnp.outer(
                alpha, alpha
            )
            return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(information).T, c, lower=False)

        return Sticks(log_alpha + _softly(jax.vmap(shift)(log_alpha, tangent)))


@dataclass(frozen=True)
class Dirichlet(Shares):
    """Independent Dirichlet distributions of parameters that are shares of one: exact where the posterior is one.

    Every fit fills in ``size``, the number of shares. Raises CredoError, at the fit, for other supports.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"p": dist.Dirichlet(np.ones(3))}, lambda params, x: dist.Categorical(params["p"]))
    >>> target = model.given(y=np.array([0, 0, 1, 2, 0]))
    >>> posterior = credo.fit(target, credo.ADVI(family=credo.vi.Dirichlet()))
    >>> round(posterior.verdict.figures["pareto_k"], 1)  # the posterior is Dirichlet(4, 2, 2)
    0.0
    """

    size: int = 0

    def bound(self, structure: Structure) -> "Dirichlet":
        for leaf in structure.leaves:
            if leaf.support != "simplex":
                raise CredoError(_refusal("Dirichlet", "shares that sum to one", leaf))
        sizes = {leaf.shape[-1] for leaf in structure.leaves}
        if len(sizes) > 1:
            raise CredoError(f"Dirichlets of sizes {sorted(sizes)} stand in one block: give each a block of its own.")
        return replace(self, size=sizes.pop())


@dataclass(frozen=True)
class Beta(Shares):
    """Independent beta distributions of parameters on intervals: exact where the posterior is one.

    Raises CredoError, at the fit, for other supports.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"p": dist.Beta(1.0, 1.0)}, lambda params, x: dist.Bernoulli(params["p"]))
    >>> target = model.given(y=np.array([1, 1, 0, 1]))
    >>> posterior = credo.fit(target, credo.ADVI(family=credo.vi.Beta()))
    >>> round(posterior.verdict.figures["pareto_k"], 1)  # the posterior is Beta(4, 2)
    0.0
    """

    size: int = 2

    def bound(self, structure: Structure) -> "Beta":
        for leaf in structure.leaves:
            if leaf.support not in INTERVAL:
                raise CredoError(_refusal("Beta", "numbers on an interval", leaf))
        return self


def _refusal(name: str, what: str, leaf: Leaf) -> str:
    return f"{name}() is a family of {what}, and {leaf.name!r} has support {leaf.support}: use MeanField() for it."


def _keys(key, num_samples: int):
    return jax.random.key_data(jax.random.split(key, num_samples))


def _softly(step):
    return step / jnp.sqrt(1 + jnp.square(step / LONGEST))


def _diagonal(precision):
    precision = np.asarray(precision)
    return np.diagonal(precision) if precision.ndim == 2 else precision


def _alphas(mode, curvature, size: int, library):
    """log α = log α₀ + log x of the mode x; the curvature of piece k is α₀ times x_k x_{>k} / (x_k + x_{>k})."""
    v = library.reshape(mode, (-1, size - 1)) - offset(size, mode.dtype)[None]
    log_z, log_left = -library.logaddexp(0.0 * v, -v), -library.logaddexp(0.0 * v, v)
    before = library.cumsum(log_left, axis=1)
    nothing = 0.0 * v[:, :1]
    log_x = library.concatenate([log_z, nothing], axis=1) + library.concatenate([nothing, before], axis=1)
    own = library.concatenate([nothing, before[:, :-1]], axis=1) + log_z + log_left  # x_k x_{>k} / (x_k + x_{>k})
    log_total = library.mean(library.log(library.reshape(curvature, v.shape)) - own, axis=1)
    return log_x + log_total[:, None]
