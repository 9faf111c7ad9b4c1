"""What an outcome would tell of the parameters beside those of other rows: I(y_m; θ | y_C, x, D).

By the chain rule such gains, each row given those before it, add up to what a batch of outcomes tells together (Lindley
1956; BatchBALD, Kirsch, van Amersfoort & Gal 2019):

    I(y_m; θ | y_C) = E_{y_C} I_ρ(y_m; θ),    ρ(θ) = p(θ | y_C, x, D)

with I_ρ that of a row alone (information.py) under ρ, which the outcomes y_C would leave.
*By draws* of the parameters ρ_s = w_s Π_{c∈C} p_s(y_c) / p(y_C). NUM_OUTCOMES of y_C are drawn, each with the draw s it
came from, which then gives y_m too.
*Of linearised outputs* z ~ N(m, C), C = J Σ Jᵀ over all rows, ρ is the Gaussian of the next Laplace approximation: with
the expected information W of the outcomes C about their outputs

    C_{mm|C} = C_mm − B_m,    B_m = C_mC R (I + Rᵀ C_CC R)⁻¹ Rᵀ C_Cm,    R Rᵀ = W = E_z[−E_y ∂² log p(y | z)]

and its mean is m + δ by what y_C is, δ ~ N(0, B_m) since variances add up: I_ρ is averaged over NUM_MOVES of δ. It is
exact of normal outcomes with known noise, which tell the same wherever the mean is.
"""

import dataclasses
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import ndtri

from credo.algorithm import as_key, stream, streams
from credo.linalg.dense import root
from credo.model.heads import Head
from credo.posterior.kinds import Gaussian
from credo.predict.information import NUM_OUTCOMES, entropy, told
from credo.predict.linearised import ProjectedLaw
from credo.predict.monte_carlo import MixtureLaw, outputs_at
from credo.predict.outcome import Outcome, log_prob, moments
from credo.predict.projection import Projection, centre_of
from credo.predict.stream import MEMORY
from credo.predict.undefined import drawn, is_hole
from credo.status import CredoError

NUM_PLACES = 128  # at which the information of an outcome about its outputs is averaged
NUM_MOVES = 8  # of the means, an even number
FEWER, LEAST_NODES = 4, 16  # nodes of the rule at each
LEAST = 10.0  # times e^I draws that outcomes leave: of small information then a tenth is missed


def conditional_information(predictive, outcome: Outcome, chosen: np.ndarray, key) -> np.ndarray:
    """I (M,) in nats, given the outcomes of the rows ``chosen``, one at least."""
    law: Any = predictive._stream.law
    if isinstance(law, MixtureLaw):
        return _of_mixture(predictive, outcome, chosen, key)
    if isinstance(law, ProjectedLaw) and not law.how.is_drawn:
        return _of_outputs(predictive, chosen)
    how = "a covariance without a matrix" if isinstance(law, ProjectedLaw) else type(law).__name__
    raise CredoError(
        f"What rows tell together is not known for {how}: predict by MonteCarlo(), or by Linearised() of one Gaussian."
    )


# by draws -------------------------------------------------------------------------------------------------------------


def _of_mixture(predictive, outcome: Outcome, chosen: np.ndarray, key) -> np.ndarray:
    law = predictive._stream.law
    index = _evenly(np.exp(np.asarray(law.log_weights)))
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], predictive._stream.rows)
    log_rho = np.asarray(_weights_after(law, rows, index, streams(stream(key, 2), NUM_OUTCOMES)))
    if len(outcome.shape) == 1 and outcome.is_of_classes:
        width = 8 * (NUM_OUTCOMES + law.width) * (outcome.num_classes or 2)
        of_classes = functools.partial(_of_classes, log_rho=log_rho)
        found = np.maximum(predictive._compute(of_classes, chunk=max(1, MEMORY // (2 * width))), 0.0)
    else:
        of_outcomes = functools.partial(_of_outcomes, index=index, log_rho=log_rho)
        found = predictive._compute(of_outcomes, key=stream(key, 3), chunk=1 if law.is_streamed else None)
    left = np.median(1.0 / np.sum(np.exp(2.0 * log_rho), axis=1))
    if left < min(LEAST * np.exp(np.max(found)), 0.5 * law.width):
        warnings.warn(
            f"The outcomes of {len(chosen)} rows would leave about {left:.0f} of {law.width:,} draws of the "
            "parameters: what further rows tell is then told too low, and never more than the log of that. Label these "
            "first, or predict by more draws, MonteCarlo(num_draws=…), or by Linearised().",
            stacklevel=5,
        )
    return found


def _evenly(weights: np.ndarray) -> np.ndarray:
    """NUM_OUTCOMES of the draws, each as often as its weight says."""
    levels = (np.arange(NUM_OUTCOMES) + 0.5) / NUM_OUTCOMES
    return np.minimum(np.searchsorted(np.cumsum(weights), levels), len(weights) - 1)


@jax.jit
def _weights_after(law: MixtureLaw, rows, index, keys):
    """log ρ (outcome, draw) after outcomes of the ``rows``, drawn from the index-th of the draws."""
    components = law._each(lambda d: d, rows)

    def after(pair):
        y = drawn(_component(components, pair[0]), as_key(pair[1]))
        terms = jax.vmap(lambda d: log_prob(d, y))(components)
        return jax.nn.log_softmax(terms.sum(axis=1) + law.log_weights)

    return jax.lax.map(after, (index, keys))


@jax.jit
def _of_classes(law: MixtureLaw, rows, *, log_rho):
    p, rho = law._each(lambda d: moments(d)[0], rows), jnp.exp(log_rho)
    marginal = jnp.tensordot(rho, p, axes=1)  # (outcome, M, …)
    return jax.vmap(entropy)(marginal).mean(axis=0) - rho.mean(axis=0) @ jax.vmap(entropy)(p)


def _of_outcomes(law: MixtureLaw, rows, *, key, index, log_rho):
    return _told(law, rows, index, log_rho, streams(key, NUM_OUTCOMES))


@jax.jit
def _told(law: MixtureLaw, rows, index, log_rho, keys):
    components = law._each(lambda d: d, rows)

    def gain(given):
        i, log_weights, data = given
        y = drawn(_component(components, i), as_key(data))
        terms = jax.vmap(lambda d: log_prob(d, y))(components)
        is_undefined = is_hole(y).reshape(len(y), -1).any(axis=1)
        return jnp.where(is_undefined, jnp.nan, told(terms, log_weights[:, None]))

    return jnp.maximum(jax.lax.map(gain, (index, log_rho, keys)).mean(axis=0), 0.0)


def _component(components, i):
    return jax.tree.map(lambda leaf: leaf[i], components)


# of linearised outputs -----------------------------------------------------------------------------------------------


def _of_outputs(predictive, chosen: np.ndarray) -> np.ndarray:
    law, rows = predictive._stream.law, predictive._stream.rows
    mean, covariance = predictive._compute(_outputs)
    explained = np.zeros_like(covariance)
    if isinstance(law.how.kind, Gaussian):
        others = jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], Projection(rows.x, mean, covariance))
        information = np.asarray(_root_of_information(law, others))  # R (chosen, K, K)
        cross = predictive._compute(functools.partial(_crossed, others=others.x))  # (M, chosen, K, K)
        cross = np.einsum("mckj,ckl->mclj", cross, information)
        size = information[..., 0].size
        seen = np.einsum("cdkj,cjl->cldk", cross[chosen], information).reshape(size, size)
        lower = cholesky(np.eye(size) + 0.5 * (seen + seen.T), lower=True)
        known = solve_triangular(lower, cross.reshape(len(mean), size, -1).swapaxes(0, 1).reshape(size, -1), lower=True)
        known = known.reshape(size, *mean.shape)
        explained = np.einsum("smk,sml->mkl", known, known)
    covariance, num_moves = covariance - explained, NUM_MOVES
    if law.num_nodes == 1:  # a closed form, the same at any mean
        num_moves, places = 1, np.zeros((1, mean.shape[1]))
    else:
        law = dataclasses.replace(law, num_nodes=max(LEAST_NODES, law.num_nodes // FEWER))
        places = _places(mean.shape[1])
    moves, total = np.asarray(root(explained)), 0.0
    for place in places:
        after = Projection(rows.x, mean + moves @ place, covariance)
        moved = type(predictive)(law, after, predictive._table, predictive._key, predictive._fitted)
        total = total + moved.mutual_information / num_moves
    return np.asarray(total)


def _places(size: int) -> np.ndarray:
    """NUM_MOVES places of a standard normal distribution (place, ``size``), in mirrored pairs and evenly in each
    coordinate."""
    half = ndtri(0.5 + (np.arange(NUM_MOVES // 2) + 0.5) / NUM_MOVES)
    half /= np.sqrt(np.mean(half**2))
    random = np.random.default_rng(0)
    drawn = np.stack([random.permutation(half) * random.choice([-1, 1], len(half)) for _ in range(size)], axis=1)
    return np.concatenate([drawn, -drawn])


@jax.jit
def _outputs(law: ProjectedLaw, rows: Projection):
    rows = law.full(rows)
    return rows.mean, rows.covariance


@jax.jit
def _root_of_information(law: ProjectedLaw, rows: Projection):
    """R (M, K, K) of the expected information of a row's outcome, over its outputs at some places of their Gaussian."""
    head, beside, spread = law.head, law._beside(rows), root(rows.covariance)
    assert isinstance(head, Head)  # others are drawn
    drawn = np.random.default_rng(0).normal(size=(NUM_PLACES // 2, rows.mean.shape[1]))

    def at(z):
        return head.fisher(rows.mean + jnp.einsum("mij,j->mi", spread, z), beside)

    mean = jax.lax.map(at, jnp.concatenate([drawn, -drawn])).mean(axis=0)
    return root(mean)


@jax.jit
def _crossed(law: ProjectedLaw, rows: Projection, *, others):
    """Covariances (M, others, K, K) of the outputs of ``others``, first, with those of ``rows``: J_c Σ J_mᵀ."""
    target, kind = law.how.target, law.whole or law.how.kind
    assert isinstance(kind, Gaussian)
    centre = centre_of(kind)

    def outputs(x):
        return lambda u: outputs_at(target, law.head, u, x)

    first, pull = jax.vjp(outputs(others), centre)

    def along(entry):
        (slope,) = pull(jnp.zeros(first.size).at[entry].set(1.0).reshape(first.shape))
        way = kind.scale.matvec(kind.scale.transpose_matvec(slope))
        return jax.jvp(outputs(rows.x), (centre,), (way,))[1]

    found = jax.lax.map(along, jnp.arange(first.size))  # (others · K, M, K)
    return jnp.moveaxis(found.reshape(*first.shape, *found.shape[1:]), 2, 0)
