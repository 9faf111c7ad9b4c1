"""What the data say of a network's weights beside their prior N(0, 1/τ), read off the Gaussian N(ŵ, A⁻¹) at the mode.

With A = H + τ I in a basis in which it is diagonal, r = τ / A the share of a direction's prior variance that is left:

    γ = Σ (1 − r)                                      the number of determined weights (MacKay 1992, eq. 4.10)
    log p(D | sτ) − log p(D | τ) = ½ Σ [log s − log q − (s − 1) τ w̃² / q],    q = 1 + (s − 1) r

exact where the model is linear in the weights and its noise normal: the likelihood is then that of N(ŵ, A⁻¹) over the
prior, whose product with another normal is known. There τ w̃² is (1 − r) [(1 − r) / s + r] times a χ² of one degree
under the prior of precision sτ. Flat directions of a network, r near 1, can lie far beyond, where its curvature changes
or the mode was not quite reached, and would count any number of nats: what exceeds ``MOST_LIKELY`` times it is cut off,
and where the weights lie d sds of the Gaussian from the mode, √τ w̃ counts as d √r nearer to zero for a weaker prior and
further off for a stronger one.
Where another precision would undo most of what the data determined, the curvature at the mode says nothing of it.
"""

from typing import NamedTuple

import jax
import numpy as np
from numpyro.distributions import Normal

from credo.linalg.blocks import BlockDiagonal
from credo.linalg.dense import Dense
from credo.linalg.kronecker import Kronecker
from credo.linalg.operator import ScaleOperator
from credo.model.distributions import is_distribution, unwrapped
from credo.model.prior import Prior
from credo.model.target import Target

WIDEST = np.log(1e6)  # factors of the precision that are looked at, either way
MOST_LIKELY = 10.0  # of a χ² of one degree: exceeded by one direction of 600
NUM_FACTORS = 41  # each twice the one before
DECISIVE = 5.0  # nats: very strong evidence (Kass & Raftery 1995, section 3.2)
SURE = 0.1  # of an output: what one of them determines is next to 1 where data are many
NONE = 1e-6  # weights: less than rounding leaves of one
MANY, MOST = 2**22, 1_500  # weights above which looking takes seconds, by factors and by a matrix


Told = tuple[dict[str, float], tuple[str, ...]]  # figures and sentences of a verdict


class Share(NamedTuple):
    """``r`` and ``v`` = τ w̃², of each direction of the weights; ``distance`` of the mode, in posterior sds."""

    r: np.ndarray
    v: np.ndarray
    distance: float = 0.0


def prior_precision(target: Target) -> float | None:
    """τ, where it is a number and the same for every weight; None elsewhere, as where it is unknown."""
    prior, name = target.model.prior, target.model.weights_name
    if not isinstance(prior, Prior) or prior.names is None or name not in prior.names:
        return None
    found: set[float] = set()
    for law in jax.tree.leaves(prior.trees[prior.names.index(name)], is_leaf=is_distribution):
        law = unwrapped(law) if is_distribution(law) else law
        if not isinstance(law, Normal) or np.any(np.asarray(law.loc) != 0):
            return None
        found |= set(np.unique(np.asarray(law.scale, float)).tolist())
    return found.pop() ** -2.0 if len(found) == 1 else None


def share_of(scale: ScaleOperator, mean: np.ndarray, num_fixed: int, tau: float) -> Share | None:
    """Of the weights, the coordinates from ``num_fixed`` on.

    None where the Gaussian's directions are not known, depend on others, or leave out correlations that decide.
    """
    mean = np.asarray(mean, float)
    if isinstance(scale, BlockDiagonal) and scale.spans == (((0, num_fixed),), ((num_fixed, len(mean)),)):
        return share_of(scale.blocks[1], mean[num_fixed:], 0, tau)  # hyperparameters beside the weights
    if isinstance(scale, Dense):
        lower = np.asarray(scale.lower, float)
        if len(lower) > MOST or np.any(lower[num_fixed:, :num_fixed]):
            return None
        own = lower[num_fixed:, num_fixed:]
        values, vectors = np.linalg.eigh(own @ own.T)
        return Share(np.clip(tau * values, 0.0, 1.0), tau * np.square(vectors.T @ mean[num_fixed:]))
    if not isinstance(scale, Kronecker) or scale.dim > MANY or all(block.is_diagonal for block in scale.blocks):
        return None
    shares = []
    for block in scale.blocks:
        index = np.asarray(block.index)
        is_weight = index >= num_fixed
        turned = np.asarray(block.rotate_back(mean[index]))
        shares.append((np.square(np.asarray(block.sd, float))[is_weight], np.square(turned)[is_weight]))
    r, v = (tau * np.concatenate(each) for each in zip(*shares, strict=True))
    return Share(np.minimum(r, 1.0), v)  # but for rounding, no direction is wider than its prior


def gain(share: Share, log_factor: float) -> float:
    """Nats of evidence that a precision ``exp(log_factor)`` times as large would add."""
    more = np.expm1(log_factor)
    q = 1 + more * share.r
    expected = (1 - share.r) * ((1 - share.r) * np.exp(-log_factor) + share.r)
    off = np.sign(log_factor) * share.distance * np.sqrt(share.r)
    v = np.minimum(np.square(np.maximum(np.sqrt(share.v) + off, 0.0)), MOST_LIKELY * expected)
    return 0.5 * float(np.sum(log_factor - np.log(q) - more * v / q))


def of_known_precision(
    scale: ScaleOperator, mean: np.ndarray, num_fixed: int, target: Target, distance: float = 0.0
) -> Told:
    """Whether another precision is far more likely. Of a Gaussian at the mode, or at that ``distance`` from it."""
    tau = prior_precision(target)
    share = None if tau is None else share_of(scale, mean, num_fixed, tau)
    if share is None:
        return {}, ()
    factor, nats = better_precision(share._replace(distance=distance))
    figures = {"num_determined": float(np.sum(1 - share.r)), "prior_gain": nats}
    if figures["num_determined"] < NONE:
        return figures, (
            "The data determine no weight: the outputs do not change with them, as after jnp.round, jnp.argmax or "
            "stop_gradient, and the posterior is the prior.",
        )
    if not nats >= DECISIVE:
        return figures, ()
    left = float(np.sum(1 - factor * share.r / (1 + (factor - 1) * share.r)))  # determined under that precision
    if left < 0.5 * figures["num_determined"]:  # the weights held near zero: nothing at the mode tells the likelihood
        return {"num_determined": figures["num_determined"]}, ()
    sentence = (
        f"The log evidence would be some {nats:.0f} nats higher with a prior precision {factor:.2g} times the one "
        f"given, {tau:.3g}. Leave it unknown, prior=credo.nn.PerLayer(dist.LogNormal(0.0, 2.0)), and it is found."
    )
    return figures, (sentence,)


def of_tuned_precisions(scale: ScaleOperator, P: np.ndarray, num_fixed: int, num_outputs: int) -> Told:
    """Whether the evidence was highest where no more is known than of a network whose outputs are constants.

    ``P``: of each weight.
    """
    number = float(np.sum(1 - P * np.asarray(scale.diagonal(), float)[num_fixed:]))
    if number > num_outputs - SURE:
        return {"num_determined": number}, ()
    sentence = (
        f"The evidence was highest where the prior holds the weights near zero: the data determine {number:.2g} of "
        f"{len(P):,} weights, fewer than there are outputs, and predictions may hardly depend on x. Hold them against "
        "those of a precision that is a number, prior=credo.nn.Isotropic(1.0)."
    )
    return {"num_determined": number}, (sentence,)


def better_precision(share: Share) -> tuple[float, float]:
    """(the best factor, nats): of a grid, since there may be several maxima, and from there. A factor of 1 gains 0."""
    from scipy.optimize import minimize_scalar

    grid = np.linspace(-WIDEST, WIDEST, NUM_FACTORS)
    best = int(np.argmax([gain(share, log) for log in grid]))
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, NUM_FACTORS - 1)]
    found = minimize_scalar(lambda log: -gain(share, log), bounds=bounds, method="bounded")
    return (float(np.exp(found.x)), -float(found.fun)) if found.fun < 0 else (1.0, 0.0)
