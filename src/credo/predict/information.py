"""What an outcome would tell of the parameters: I(y; θ | x, D), the mutual information of each row.

    I = H(E[p(y | θ)]) − E[H(p(y | θ))] = E_y KL(p(θ | y) ‖ p(θ)),

the expected gain of information by seeing y (Lindley 1956; MacKay 1992 for experiments; BALD, Houlsby et al. 2011).
Where a law is a mixture Σ_s w_s p_s of the conditional distributions, by draws or by nodes,

    I = Σ_s w_s Σ_k p_s(k) log(p_s(k) / p(k))                          over the classes k, exact for the mixture,
    I = E_y Σ_s ρ_s(y) log(p_s(y) / p(y)),   ρ_s(y) = w_s p_s(y) / p(y)    over outcomes y drawn from it.

Both are sums of terms that are not negative, so no entropies of like size are subtracted. A normal outcome with
linearised location and log scale, and a t, have closed conditional entropies; that of the marginal is an integral over
a line; of several normal columns by draws of their outcomes. With a known scale σ it is ½ log(1 + s²/σ²).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import digamma, entr, gammaln, kl_div

from credo.algorithm import as_key, streams
from credo.compiling import sound
from credo.linalg.dense import root
from credo.model.observed import observed, rows_of
from credo.normals import normal
from credo.predict.linearised import NUM_NODES, ProjectedLaw
from credo.predict.links import LINKS, REACH
from credo.predict.monte_carlo import MixtureLaw
from credo.predict.outcome import Outcome, log_prob, moments, over
from credo.predict.probit import ProbitLaw
from credo.predict.projection import Projection
from credo.predict.undefined import drawn, is_hole
from credo.status import CredoError

NUM_OUTCOMES = 512  # drawn a row, where the outcome is no class: an error of 5 to 15 % of the information
FEW_AT_ONCE = 1  # rows, where all distributions behind more would not fit
NUM_LINE = 256  # nodes of an outcome's line


def information(predictive, part: str | None, outcome: Outcome, key) -> np.ndarray:
    """I (M,) in nats of one outcome. CredoError where rows have no outcome of their own."""
    named = "" if part is None else f" {part!r}"
    check_apart(outcome, named)
    law: Any = predictive._stream.law
    if not isinstance(law, MixtureLaw | ProjectedLaw | ProbitLaw):
        raise CredoError(
            f"The mutual information is not known for {type(law).__name__}: predict by MonteCarlo() or Linearised()."
        )
    if len(outcome.shape) == 1 and outcome.is_of_classes:
        found = np.maximum(predictive._compute(functools.partial(_of_classes, part=part)), 0.0)
        return np.where(are_seen(predictive, part, outcome), found, 0.0)
    if isinstance(law, ProjectedLaw) and law.head.name in ("normal", "student_t"):
        return np.maximum(predictive._compute(_of_line), 0.0)
    if isinstance(law, ProjectedLaw) and law.head.column == "normal":
        if law.num_nodes == 1:
            return np.maximum(predictive._compute(_of_known_noise), 0.0)
        return np.maximum(predictive._compute(_of_normal_columns, key=key), 0.0)
    few = FEW_AT_ONCE if getattr(law, "is_streamed", False) else None
    return predictive._compute(functools.partial(_of_draws, part=part), key=key, chunk=few)


def check_apart(outcome: Outcome, named: str) -> None:
    """CredoError where rows have no outcome of their own."""
    if outcome.is_joint:
        raise CredoError(
            f"The outcome{named} is one draw for all rows together, so that a row has no mutual information of its own."
        )


def are_seen(predictive, part: str | None, outcome: Outcome) -> np.ndarray:
    """Which rows (M,) have an outcome that no mask of the likelihood hides."""
    blank = np.zeros(outcome.shape, int)
    return rows_of(observed(predictive._target, blank if part is None else {part: blank}), outcome.shape[0])


def _of_draws(law: Any, rows, *, key, part: str | None):
    return of_keys(law, rows, streams(key, NUM_OUTCOMES), part)


@functools.partial(sound, static_argnames=("part",))
def _of_classes(law: Any, rows, part: str | None):
    if isinstance(law, MixtureLaw):
        if law.is_streamed:
            mean = over(lambda triple: triple[0], law.moments(rows))
            mean: Any = _both(mean if part is None else mean[part])
            return law.expected(lambda d: kl_div(_both(moments(_part(d, part))[0]), mean).sum(axis=-1), rows)
        log_weights = law.log_weights[:, None]
        p = law._each(lambda d: moments(_part(d, part))[0], rows)  # (S, M) or (S, M, K)
    else:
        rows = law.full(rows)
        beside = law._beside(rows) if isinstance(law, ProjectedLaw) else None
        number = law.num_nodes if isinstance(law, ProjectedLaw) else NUM_NODES
        mixture, log_weights = LINKS[law.head.name].components(rows.mean, rows.covariance, beside, None, number)
        p = moments(mixture)[0]
    p = jnp.stack([1.0 - p, p], axis=-1) if p.ndim == 2 else p
    weights = jnp.exp(log_weights)[..., None]
    mean = jnp.sum(weights * p, axis=0)
    found = jnp.sum(weights * kl_div(p, mean), axis=(0, 2))
    if isinstance(law, ProbitLaw):  # the formula's entropy may fall below the integral's share
        found = jnp.minimum(found, entropy(law.moments(rows)[0]))
    return found


def told(terms, log_weights):
    """Σ_s ρ_s log(p_s / p) over the first axis, at outcomes y of log probabilities ``terms`` = log p_s(y)."""
    marginal = jax.nn.logsumexp(terms + log_weights, axis=0)
    share = jnp.exp(terms + log_weights - marginal)
    return jnp.sum(jnp.where(share > 0, share * (terms - marginal), 0.0), axis=0)


def _both(probs):
    """Probabilities (…, K) of classes; those of 0 and 1 where ``probs`` (…,) is that of 1 alone."""
    return jnp.stack([1.0 - probs, probs], axis=-1) if probs.ndim == 1 else probs


def entropy(probs):
    """−Σ p log p in nats of classes (M, K), or of 1 and 0 with ``probs`` (M,) of 1."""
    return jnp.sum(entr(_both(probs)), axis=-1)


@sound
def _of_line(law: ProjectedLaw, rows: Projection):
    """H(y) − E[H(y | θ)] of a location and log scale that are normal: E[log scale] is the log scale's mean."""
    rows = law.full(rows)
    variance, spread = rows.covariance[:, 0, 0], rows.covariance[:, 1, 1]
    log_scale = rows.mean[:, 1]
    if law.head.name == "normal":
        if law.num_nodes == 1:
            return 0.5 * jnp.log1p(variance * jnp.exp(-2.0 * log_scale))
        given = 0.5 * math.log(2.0 * math.pi * math.e)
        reach = jnp.full_like(variance, 2.0 * REACH)  # sds of the outcome
    else:
        df = jnp.broadcast_to(law._beside(rows).df, variance.shape)
        half = 0.5 * (df + 1.0)
        given = half * (digamma(half) - digamma(0.5 * df)) + 0.5 * jnp.log(df)
        given = given + gammaln(0.5 * df) + gammaln(0.5) - gammaln(half)
        reach = 2.0 * REACH * jnp.exp(jnp.minimum(36.0 / df, 300.0))  # the tail falls as |y|^−df
    # trapezoidal in x, y = m + a sinh(x): a is about the narrowest width of the outcome, the ends its widest
    a = jnp.sqrt(variance + jnp.exp(2.0 * log_scale - 4.0 * jnp.sqrt(spread)))
    widest = reach * jnp.sqrt(variance + jnp.exp(2.0 * log_scale + 2.0 * REACH * jnp.sqrt(spread)))
    end = jnp.arcsinh(widest / a)
    t = np.linspace(-1.0, 1.0, NUM_LINE)

    def term(t):
        density = law.log_prob(rows, rows.mean[:, 0] + a * jnp.sinh(end * t))
        share = jnp.exp(density) * a * jnp.cosh(end * t)
        return jnp.where((share > 0) | jnp.isnan(density), -density * share, 0.0)

    marginal = jax.lax.map(term, t).sum(axis=0) * end * (t[1] - t[0])
    return marginal - (given + log_scale)


@sound
def _of_known_noise(law: ProjectedLaw, rows: Projection):
    """½ log |I + Σ^−½ C Σ^−½| of several columns with noise Σ, a diagonal matrix."""
    rows = law.full(rows)
    precision = jnp.exp(-rows.mean[:, 1::2])
    ratio = precision[:, :, None] * rows.covariance[:, ::2, ::2] * precision[:, None, :]
    return 0.5 * jnp.sum(jnp.log1p(jnp.maximum(jnp.linalg.eigvalsh(ratio), 0.0)), axis=1)


def _of_normal_columns(law: ProjectedLaw, rows, *, key):
    return _of_log_scales(law, rows, streams(key, NUM_OUTCOMES))


@sound
def _of_log_scales(law: ProjectedLaw, rows: Projection, keys):
    """H(y) − E[H(y | θ)] of several columns whose log scales a are normal too: E[H(y | θ)] = Σ E a + D/2 log 2πe.

    H(y) is that of the normal of y's own mean and covariance V, less E log p(y) − log N(y; m, V), by draws of y.
    """
    rows = law.full(rows)
    mean, log_scale = rows.mean[:, ::2], rows.mean[:, 1::2]
    noise = jnp.exp(2.0 * (log_scale + jnp.diagonal(rows.covariance[:, 1::2, 1::2], axis1=1, axis2=2)))
    V = rows.covariance[:, ::2, ::2] + noise[..., None] * jnp.eye(mean.shape[1])
    _, sample, mixture = _by_output(law, rows, len(keys))
    near = dist.MultivariateNormal(mean, V)

    def excess(data):
        y = sample(None, data)
        terms, weights = mixture(y)
        return jax.nn.logsumexp(terms + weights, axis=0) - near.log_prob(y)

    return 0.5 * jnp.linalg.slogdet(V)[1] - log_scale.sum(axis=1) - jax.lax.map(excess, keys).mean(axis=0)


@functools.partial(sound, static_argnames=("part",))
def of_keys(law: Any, rows, keys, part: str | None, log_rho=None):
    """By outcomes drawn from the keys. ``log_rho`` (outcome, draw): log weights of the draws that differ by outcome."""
    is_mixture = isinstance(law, MixtureLaw)
    index, sample, mixture = by_draws(law, rows, len(keys), part) if is_mixture else _by_output(law, rows, len(keys))

    def gain(given):
        i, data, log_weights = given
        y = sample(i, data)
        terms, own = mixture(y)
        found = told(terms, own if log_weights is None else log_weights[:, None])
        return jnp.where(is_hole(y).reshape(len(y), -1).any(axis=1), jnp.nan, found)

    return jnp.maximum(jax.lax.map(gain, (index, keys, log_rho)).mean(axis=0), 0.0)


def by_draws(law: MixtureLaw, rows, number: int, part: str | None):
    """(index (number,), an outcome by the index-th of the draws, its log probabilities by all and their weights)."""
    components = law._each(lambda d: _part(d, part), rows)
    # each draw of the parameters as often as its weight says, and all of them evenly
    levels = (jnp.arange(number) + 0.5) / number
    index = jnp.minimum(jnp.searchsorted(jnp.cumsum(jnp.exp(law.log_weights)), levels), law.width - 1)

    def sample(i, data):
        return drawn(jax.tree.map(lambda leaf: leaf[i], components), as_key(data))

    def mixture(y):
        return jax.vmap(lambda d: log_prob(d, y))(components), law.log_weights[:, None]

    return index, sample, mixture


def _by_output(law: ProjectedLaw, rows: Projection, number: int):
    """The same by nodes of the outputs of each row."""
    rows = law.full(rows)
    beside, spread = law._beside(rows), root(rows.covariance)

    def sample(i, data):
        k_output, k_outcome = jax.random.split(as_key(data))
        z = rows.mean + jnp.einsum("mij,mj->mi", spread, normal(k_output, rows.mean.shape))
        return drawn(law.head.join(z, beside), k_outcome)

    def mixture(y):
        found, weights = law._components(rows, beside, y)
        return found.log_prob(y), weights

    return jnp.arange(number), sample, mixture


def _part(d, part: str | None):
    return d if part is None else d[part]
