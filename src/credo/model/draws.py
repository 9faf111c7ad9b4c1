"""Draws of outcomes, of what numpyro draws and of counts over categories whose totals differ from row to row.

numpyro draws a multinomial as so many labels, and must know the largest total before a program is compiled. One
category after the other needs none, nor memory for labels:

    c_k | c_1 … c_{k−1} ~ Binomial(n − c_1 − … − c_{k−1},  π_k / (π_k + … + π_K))
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import (
    Dirichlet,
    DirichletMultinomial,
    Distribution,
    MultinomialLogits,
    MultinomialProbs,
)

from credo.model.distributions import CENSORED, is_distribution, unwrapped
from credo.precision import double
from credo.status import CredoError


class Counts(Distribution):
    """What is drawn in place of a multinomial of numpyro's, or of one whose probabilities are Dirichlet."""

    arg_constraints = {}
    pytree_data_fields = ("base_dist",)

    def __init__(self, base_dist: Any):
        self.base_dist = base_dist
        super().__init__(base_dist.batch_shape, base_dist.event_shape)

    def sample(self, key: Any, sample_shape=()):
        shape = (*sample_shape, *self.batch_shape)
        if isinstance(self.base_dist, DirichletMultinomial):
            own, key = jax.random.split(key)
            probs = Dirichlet(self.base_dist.concentration).expand(self.batch_shape).sample(own, sample_shape)
        else:
            probs = jnp.broadcast_to(self.base_dist.probs, (*shape, *self.event_shape))
        beyond = jnp.cumsum(probs[..., ::-1], axis=-1)[..., ::-1]  # of this category and those after it
        share = jnp.clip(probs / jnp.where(beyond > 0, beyond, 1.0), 0.0, 1.0)  # the last's is one

        def next_category(left, given):
            own, share = given
            count = jax.random.binomial(own, left, share).astype(left.dtype)
            return left - count, count

        totals = jnp.broadcast_to(jnp.asarray(self.base_dist.total_count), shape)
        keys = jax.random.split(key, probs.shape[-1])
        _, counts = jax.lax.scan(next_category, totals, (keys, jnp.moveaxis(share, -1, 0)))
        return jnp.moveaxis(counts, 0, -1)


MULTINOMIAL = MultinomialProbs, MultinomialLogits, DirichletMultinomial


def draw(distribution: Distribution, key, shape: tuple[int, ...] = ()):
    """``shape`` draws of it, (*shape, *batch, *event). CredoError where it has none."""
    drawable: Any = distribution
    if any(map(_is_multinomial, jax.tree.leaves(distribution, is_leaf=_is_multinomial))):
        # only then: a user's own distribution may have attributes that its pytree lacks
        drawable = jax.tree.map(
            lambda node: Counts(node) if _is_multinomial(node) else node, distribution, is_leaf=_is_multinomial
        )
    try:
        return drawable.sample(key, shape)
    except ImportError as error:  # truncated t: its quantile function is that of another package
        raise CredoError(
            f"numpyro cannot draw from {type(distribution).__name__} as it stands ({str(error).rstrip('.')}): install "
            "that, or ask for quantiles and log probabilities, which need no draws."
        ) from error
    except NotImplementedError as error:
        raise CredoError(
            f"{type(unwrapped(distribution)).__name__} has no draws: give it sample(self, key, sample_shape=()), or "
            "ask for log probabilities, which need none."
        ) from error


def _is_multinomial(node) -> bool:
    return isinstance(node, MULTINOMIAL)


def check_drawable(model: Any) -> None:
    """CredoError where the likelihood reads the outcomes that would be drawn: an adapted program's may."""
    with double():
        is_leaning = getattr(model.prior, "reads_outcomes", bool)()
    if is_leaning:
        raise CredoError(
            "The distribution of the outcomes is computed from the outcomes seen (their lags, or another observed "
            "site), so that data drawn row by row would be of no model: draw them one after the other, as by "
            "numpyro.infer.Predictive of a program that samples each from those before it."
        )


def check_replicable(model: Any, x) -> None:
    """CredoError where data drawn from ``model``'s likelihood at ``x`` are not of the kind that is observed."""
    check_drawable(model)
    found: list[Distribution] = []

    def look(u):
        outcome = model.likelihood(model.prior.constrain(model.structure.unravel(u)), x)
        found.extend(map(unwrapped, jax.tree.leaves(outcome, is_leaf=is_distribution)))

    with double():
        jax.eval_shape(look, np.zeros(model.structure.dim))
    for distribution in found:
        if isinstance(distribution, CENSORED):
            raise CredoError(
                f"The outcomes are censored ({type(distribution).__name__}), and data drawn from it are not, since it "
                "does not know when a row would have been: compare by predict(x).log_prob(y), which counts censored "
                "rows as the fit does, or draw from the distribution within and censor the draws yourself."
            )
