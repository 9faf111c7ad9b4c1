"""What an outcome would tell beside those of other rows, of linearised outputs z ~ N(m, C), C = J Σ Jᵀ over all rows.

Where a row c has been seen, what is left of the outputs of any other is on average, by the law of total variance,

    E[Cov(z_m | y_c)] = C_mm − C_mc G_c C_cm,    G_c = C_cc⁻¹ Cov(E[z_c | y_c]) C_cc⁻¹

since z_m given z_c is a line and noise. Of classes, G_c is had from draws of z_c; of other outcomes, with the expected
information W(z) = −E_y ∂² log p(y | z), it is E_z[(W(z)⁻¹ + C_cc)⁻¹], which of a normal outcome with known noise is the
same. And so on with the next row, given those before it. B_m is what all of them take together. What they leave has the
mean m + δ, by what the outcomes are, with δ ~ N(0, B_m): the information of a row alone under N(m + δ, C_mm − B_m) is
averaged over NUM_MOVES of δ. It is exact of normal outcomes with known noise, which tell the same wherever the mean is.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri, softmax

from credo.compiling import sound
from credo.linalg.dense import root
from credo.model.heads import Head
from credo.posterior.kinds import Gaussian
from credo.predict.linearised import ProjectedLaw
from credo.predict.monte_carlo import outputs_at
from credo.predict.projection import Projection, centre_of
from credo.predict.stream import MEMORY
from credo.status import CredoError

CLASSES = "bernoulli", "categorical"
NUM_DRAWS = 4_096  # of the outputs of a row chosen, where these are classes'
NUM_PLACES = 128  # over which what another row leaves is averaged
NUM_MOVES = 8  # of the means, in mirrored pairs; half of them where outputs are more than two
LEAST_NODES = 8  # of the rule at each
MOST = 1e11  # variances of its noise that an output may vary by: beyond, what is left of it is rounding


def of_outputs(predictive, chosen: np.ndarray) -> np.ndarray:
    """I (M,) in nats, given the outcomes of the rows ``chosen``, of a predictive by a ``ProjectedLaw``."""
    law = predictive._stream.law
    mean, covariance = predictive._compute(_outputs)
    explained = np.zeros_like(covariance)
    if isinstance(law.how.kind, Gaussian):
        explained = _explained(predictive, Projection(None, mean, covariance), chosen)
    rows = Projection(predictive._stream.rows.x, mean, covariance - explained)
    if law.num_nodes == 1:  # a closed form, the same at any mean
        return _alone(predictive, law, rows)
    num_moves = NUM_MOVES
    if mean.shape[1] > 2:  # where nodes fill as many dimensions
        num_moves = NUM_MOVES // 2
        law = dataclasses.replace(law, num_nodes=max(LEAST_NODES, law.num_nodes // 2))
    ways = _root(explained)
    moved = (rows._replace(mean=mean + ways @ place) for place in _places(num_moves, mean.shape[1]))
    return np.mean([_alone(predictive, law, each) for each in moved], axis=0)


def _alone(predictive, law: ProjectedLaw, rows: Projection) -> np.ndarray:
    made = type(predictive)(law, rows, predictive._table, predictive._key, predictive._fitted)
    return np.asarray(made.mutual_information)


def _explained(predictive, outputs: Projection, chosen: np.ndarray) -> np.ndarray:
    """B (M, K, K)."""
    law, x = predictive._stream.law, predictive._stream.rows.x
    size, num_outputs = len(chosen), outputs.mean.shape[1]
    chosen = np.append(chosen, np.repeat(chosen[:1], (1 << (size - 1).bit_length()) - size))  # few programs in all
    rows, taken = (outputs._replace(x=x), chosen)
    if law.how.is_cut:
        rows, taken = jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], rows), np.arange(len(chosen))
    among = np.asarray(_crossed(law, rows.x, rows.x, taken))[taken][:size, :size].swapaxes(2, 3)
    chosen = chosen[:size]
    if law.head.name in CLASSES:
        gains = [functools.partial(_gain_of_classes, each) for each in outputs.mean[chosen]]
    else:
        gains = _gains_by_information(law, rows, taken, outputs.covariance[chosen])
    num_numbers = len(taken) * num_outputs
    root_of_all = np.zeros((num_numbers, num_numbers))
    root_of_all[: size * num_outputs, : size * num_outputs] = _root_of_gains(among, gains)
    chunk = max(1, MEMORY // (4 * 8 * num_outputs * num_numbers))
    return predictive._compute(lambda law, own: _taken(law, own.x, rows.x, taken, root_of_all), chunk=chunk)


def _gains_by_information(law: ProjectedLaw, rows: Projection, taken, covariance) -> list[Callable]:
    known = np.asarray(_information(law, rows, taken))[:, : len(covariance)]
    most = MOST / np.maximum(np.diagonal(covariance, axis1=1, axis2=2).max(axis=1), 1e-300)
    if law.num_nodes == 1 and np.any(known > most[:, None, None]):
        raise CredoError(
            f"The noise of rows chosen is less than {MOST**-0.5:.0e} of how far their means may lie: what they leave "
            "open is rounding. Choose rows one at a time, and fit again after each."
        )
    known = np.clip(np.nan_to_num(known, nan=0.0, posinf=np.inf), -most[:, None, None], most[:, None, None])
    return [functools.partial(_gain_by_information, known[:, i]) for i in range(len(covariance))]


def _root_of_gains(among: np.ndarray, gains: Sequence[Callable]) -> np.ndarray:
    """F with B_m = (C_mc F)(C_mc F)ᵀ over the outputs of all rows chosen, one row after the other.

    ``among``: their covariances (n, n, K, K). ``gains``: by row, what is left of its covariance -> a root of G.
    """
    n, _, K, _ = among.shape
    C, F = among.transpose(0, 2, 1, 3).reshape(n * K, n * K), np.zeros((n * K, n * K))
    for i, gain in enumerate(gains):
        own, before = slice(i * K, (i + 1) * K), slice(0, i * K)
        weights = -F[:, before] @ (F[:, before].T @ C[:, own])  # of all z in what the rows before leave of z_i
        weights[own] = np.eye(K)
        left = C[own] @ weights
        F[:, own] = weights @ gain(0.5 * (left + left.T))
    return F


def _gain_by_information(known: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Of G = E[(W⁻¹ + C)⁻¹] = E[R (I + Rᵀ C R)⁻¹ Rᵀ], R Rᵀ = W (place, K, K), which may be singular."""
    R = _root(known)
    transposed = R.swapaxes(1, 2)
    inner = np.eye(len(left)) + transposed @ left @ R
    return _root(np.mean(R @ np.linalg.solve(inner, transposed), axis=0))


def _gain_of_classes(mean: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Of G = C⁻¹ Cov(E[z | y]) C⁻¹, z = m + L ε with L Lᵀ = C: L⁻ᵀ Cov(E[ε | y]) L⁻¹, where C may be singular."""
    values, vectors = np.linalg.eigh(left)
    sd = np.sqrt(np.maximum(values, 0.0))
    places = _places(NUM_DRAWS, len(mean))
    z = mean + places * sd @ vectors.T
    p = softmax(np.concatenate([np.zeros_like(z), z], axis=1) if len(mean) == 1 else z, axis=1)
    share = np.maximum(p.mean(axis=0), np.finfo(float).tiny)
    of_class = p.T @ places / (len(places) * share[:, None])  # E[ε | y]
    inverse = np.divide(1.0, sd, out=np.zeros_like(sd), where=sd > 1e-6 * sd.max())
    return (vectors * inverse) @ _root(of_class.T @ (share[:, None] * of_class))


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]


def _places(number: int, size: int) -> np.ndarray:
    """Of a standard normal distribution (``number``, ``size``): in mirrored pairs, and evenly in each coordinate."""
    half = ndtri(0.5 + (np.arange(number // 2) + 0.5) / number)
    half /= np.sqrt(np.mean(half**2))
    random = np.random.default_rng(0)
    drawn = np.stack([random.permutation(half) * random.choice([-1, 1], len(half)) for _ in range(size)], axis=1)
    return np.concatenate([drawn, -drawn])


@sound
def _outputs(law: ProjectedLaw, rows: Projection):
    rows = law.full(rows)
    return rows.mean, rows.covariance


@sound
def _information(law: ProjectedLaw, rows: Projection, taken):
    """W (place, taken, K, K) of outcomes about their outputs, at places of these."""
    head, beside, spread = law.head, law._beside(rows), root(rows.covariance)
    assert isinstance(head, Head)  # others are drawn

    def at(place):
        return head.fisher(rows.mean + jnp.einsum("mij,j->mi", spread, place), beside)[taken]

    return jax.lax.map(at, jnp.asarray(_places(NUM_PLACES, rows.mean.shape[1])))


@sound
def _crossed(law: ProjectedLaw, x, others, taken):
    """Covariances (M, taken, K, K) of the outputs of the rows ``taken`` of ``others``, first, with those at ``x``."""
    target, kind = law.how.target, law.whole or law.how.kind
    assert isinstance(kind, Gaussian)
    centre = centre_of(kind)
    first, pull = jax.vjp(lambda u: outputs_at(target, law.head, u, others)[taken], centre)

    def along(entry):
        (slope,) = pull(jnp.zeros(first.size).at[entry].set(1.0).reshape(first.shape))
        way = kind.scale.matvec(kind.scale.transpose_matvec(slope))
        return jax.jvp(lambda u: outputs_at(target, law.head, u, x), (centre,), (way,))[1]

    found = jax.lax.map(along, jnp.arange(first.size))  # (taken · K, M, K)
    return jnp.moveaxis(found.reshape(*first.shape, *found.shape[1:]), 2, 0)


@sound
def _taken(law: ProjectedLaw, x: Any, others, taken, root_of_all):
    """B (M, K, K) of the rows at ``x``."""
    cross = _crossed(law, x, others, taken)
    known = jnp.einsum("mcj,cs->mjs", cross.reshape(len(cross), len(root_of_all), -1), root_of_all)
    return known @ known.swapaxes(1, 2)
