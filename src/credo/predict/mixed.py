"""Prediction by a mixture of posteriors: the rule around each component, and what comes of them mixed.

    p(y | x, D) = Σ_k w_k p_k(y | x, D)
    E[y] = Σ_k w_k m_k,  aleatoric Σ_k w_k a_k,  epistemic Σ_k w_k (e_k + (m_k − E[y])²)       law of total variance
    I(y; θ) = Σ_k w_k I_k(y; θ) + I(y; k),  I(y; k) = E_y Σ_k ρ_k(y) log(p_k(y) / p(y)),  ρ_k(y) = w_k p_k(y) / p(y)

with m_k, a_k and e_k the mean and the variances of component k's own predictive p_k, and I_k its mutual information.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import kl_div
from jaxtyping import Array, Float

from credo.algorithm import stream, streams
from credo.compiling import sound
from credo.linalg.operator import Stored
from credo.posterior.kinds import Mixture
from credo.predict.information import told
from credo.predict.inputs import Table, widened
from credo.predict.linearised import Linearised, Quadrature
from credo.predict.monte_carlo import MixtureLaw
from credo.predict.outcome import Outcome
from credo.predict.probit import Probit
from credo.predict.stream import Law

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

OF_ONE = (Linearised, Probit, Quadrature)  # rules that integrate over one Gaussian
NUM_OUTCOMES = 512  # drawn a row for I(y; k), where the outcome is no class


def law_of(rule, posterior: "Posterior", table: Table, key) -> tuple[Law, Any]:
    """That of ``rule``; where it takes one Gaussian and the posterior is a mixture, of each component, mixed."""
    kind = posterior.kind
    if not isinstance(kind, Mixture) or not isinstance(rule, OF_ONE):
        return rule.law(posterior, table, key)
    parts = []
    for i, component in enumerate(kind.components):
        part = type(posterior)(component, posterior.target, verdict=posterior.verdict)
        parts.append(rule.law(part, table, stream(key, 5, i)))
    laws, rows = zip(*parts, strict=True)
    log_weights = np.asarray(widened(kind.log_weights))
    log_weights = log_weights - np.logaddexp.reduce(log_weights)
    can_stream = all(isinstance(law, MixtureLaw) for law in laws)
    return MixedLaw(tuple(laws), log_weights, is_streamed=False if can_stream else None), tuple(rows)


class MixedLaw(eqx.Module):
    """Σ_k exp(log_weights_k) law_k. The rows are a tuple, each law's own. ``is_streamed``: of laws that can be."""

    laws: tuple[Any, ...]
    log_weights: Float[Stored, " component"]
    batch: int = eqx.field(static=True, default=1)
    is_streamed: bool | None = eqx.field(static=True, default=None)

    @property
    def width(self) -> int:
        return sum(law.width for law in self.laws)

    def likelihood(self, rows, index):
        """That of the first; all are evaluated, for those who count what they take."""
        first, *_ = [law.likelihood(own, index) for law, own in self._parts(rows)]
        return first

    def mean(self, rows):
        parts = self._parts(rows)
        each = [law.mean(own) if hasattr(law, "mean") else law.moments(own)[0] for law, own in parts]
        return self._average(jnp.stack(each))

    def moments(self, rows):
        """(mean, aleatoric, epistemic) by the law of total variance."""
        means, within, between = map(jnp.stack, zip(*(law.moments(own) for law, own in self._parts(rows)), strict=True))
        mean = self._average(means)
        return mean, self._average(within), self._average(between + (means - mean) ** 2)

    def log_prob(self, rows, y) -> Float[Array, " M"]:
        return jax.nn.logsumexp(self.log_probs(rows, y) + self.log_weights[:, None], axis=0)

    def log_probs(self, rows, y) -> Float[Array, "component M"]:
        """log p_k(y | x, D)."""
        return jnp.stack([law.log_prob(own, y) for law, own in self._parts(rows)])

    def cdf(self, rows, part: str | None):
        each = [law.cdf(own, part) for law, own in self._parts(rows)]
        return lambda y: self._average(jnp.stack([function(y) for function in each]))

    def shared(self, generator: np.random.Generator, n: int) -> Any:
        """Which component each of the n comes from, each by its weight and all of them evenly; and what those share."""
        cumulative = np.cumsum(np.exp(np.asarray(self.log_weights)))
        levels = (generator.permutation(n) + generator.uniform(size=n)) / n * cumulative[-1]
        which = np.minimum(np.searchsorted(cumulative, levels, side="right"), len(cumulative) - 1).astype(np.int32)
        return which, tuple(law.shared(generator, n) for law in self.laws)

    def sample(self, rows, shared, keys):
        """(n, M, …): in each of the n one component for all rows."""

        def draw(law, own, i: int):
            return lambda shared, key: law.sample(own, shared[i][None], key[None])[0]

        branches = [draw(law, own, i) for i, (law, own) in enumerate(self._parts(rows))]
        return jax.lax.map(lambda each: jax.lax.switch(each[0], branches, each[1], each[2]), (*shared, keys))

    def _parts(self, rows) -> list[tuple[Any, Any]]:
        if self.is_streamed is None:
            return list(zip(self.laws, rows, strict=True))
        how: Any = {"batch": self.batch, "is_streamed": self.is_streamed}
        return [(dataclasses.replace(law, **how), own) for law, own in zip(self.laws, rows, strict=True)]

    def _average(self, each) -> Array:
        return jnp.tensordot(jnp.exp(self.log_weights), each, axes=1)


def mixed_information(predictive, outcome: Outcome, key) -> np.ndarray:
    """I(y; θ) (M,) in nats of a ``MixedLaw``: of classes exact given the components', of others by draws of y."""
    law, rows = predictive._stream.law, predictive._stream.rows
    within = 0.0
    for i, (weight, part, own) in enumerate(zip(np.exp(np.asarray(law.log_weights)), law.laws, rows, strict=True)):
        alone = type(predictive)(part, own, predictive._table, stream(key, i), predictive._fitted)
        within = within + weight * alone.mutual_information
    if len(outcome.shape) == 1 and outcome.is_of_classes:
        return within + np.maximum(predictive._compute(_of_classes), 0.0)
    key = stream(key, len(law.laws))
    shared = law.shared(np.random.default_rng(stream(key, 0).tolist()), NUM_OUTCOMES)
    return within + predictive._compute(functools.partial(_of_draws, shared=shared), key=stream(key, 1))


@sound
def _of_classes(law: MixedLaw, rows):
    """Σ_k w_k KL(p_k ‖ p)."""
    p = jnp.stack([part.mean(own) if hasattr(part, "mean") else part.moments(own)[0] for part, own in law._parts(rows)])
    p = jnp.stack([1.0 - p, p], axis=-1) if p.ndim == 2 else p
    return law._average(kl_div(p, law._average(p)).sum(axis=-1))


def _of_draws(law: MixedLaw, rows, *, key, shared):
    return _gains(law, rows, shared, streams(key, NUM_OUTCOMES))


@sound
def _gains(law: MixedLaw, rows, shared, keys):
    def gain(y):
        return told(law.log_probs(rows, y), law.log_weights[:, None])

    return jnp.maximum(jax.lax.map(gain, law.sample(rows, shared, keys)).mean(axis=0), 0.0)
