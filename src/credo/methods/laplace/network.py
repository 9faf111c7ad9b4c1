"""Laplace of a network: training, curvature and hyperparameters in turns, and what can be said of the result.

The weights are trained by Adam on minibatches from where the model starts, and polished by L-BFGS on all data
(polish.py). Hyperparameters, by the evidence (evidence.py), and weights, at their mode given them, take turns.
"""

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from credo.algorithm import Options
from credo.diagnose.startup import explain
from credo.diagnose.verdict import RULES
from credo.linalg.blocks import BlockDiagonal
from credo.linalg.dense import Dense as DenseScale
from credo.methods.laplace.curvature import Curvature
from credo.methods.laplace.evidence import Evidence, Found, Linearised, at, linearise, maximum, num_moved
from credo.methods.laplace.gram import Gram
from credo.methods.laplace.kronecker import Kronecker
from credo.methods.laplace.look import Look, at_rest, choose
from credo.methods.laplace.pieces import groups_of
from credo.methods.laplace.polish import White, polish
from credo.methods.laplace.prior_gain import Told, of_known_precision, of_tuned_precisions, prior_precision
from credo.methods.laplace.structure import Dense, Shape, Structure
from credo.methods.laplace.subset import All
from credo.methods.optimise import training
from credo.methods.optimise.diagnosis import kinks
from credo.methods.optimise.hyperparameters import (
    INFINITE,
    among,
    holding,
    is_infinite_at_zero,
    look_at,
    num_before,
    num_hyperparameters,
)
from credo.methods.optimise.minibatch import Ascended, ascend
from credo.methods.optimise.objective import Objective, chunk_size
from credo.model.target import Target
from credo.posterior.kinds import Gaussian
from credo.status import CredoError

if TYPE_CHECKING:
    from credo.methods.laplace.laplace import Laplace

BATCH_SIZE = 128
LEAST_SHARE = 0.1  # of the way to where hyperparameters are best for weights that stay
CUT = "The time limit came before training or tuning had ended: raise time_limit."
INDEFINITE = (
    "Gauss-Newton leaves out a part of the likelihood's curvature, which may bend the other way. This may be a mode "
    "for all that: curvature=ExactHessian() tells."
)


class Fitted(NamedTuple):
    """``mode_distance`` in posterior sds; ``evidence`` log p(D), None where ``shape`` says it; its ``path`` by turns.

    ``value``: log p(u, D) at the centre.
    """

    kind: Gaussian
    value: float
    mode_distance: float
    shape: Shape
    evidence: float | None
    path: tuple[float, ...]
    structure: Structure
    num_updates: int
    num_gradients: int
    is_complete: bool
    sentences: tuple[str, ...]


def train(target: Target, u: np.ndarray, num_steps: int | None, key, options: Options) -> tuple[Ascended, int]:
    """Adam from ``u``; hyperparameters of the prior stay, which would run away with the weights.

    (what was reached, updates wanted). CredoError where there is no mode to be near to.
    """
    if is_infinite_at_zero(target):
        raise CredoError(INFINITE)
    if num_steps == 0:
        return Ascended(u, 0), 0
    batch = BATCH_SIZE if target.num_terms == target.size and target.size > 4 * BATCH_SIZE else None
    wanted = num_steps or training.default_num_steps(target, batch)
    before, slopes = look_at(target, u)
    if np.isposinf(before):
        raise CredoError("The density is infinite at the start. " + INFINITE)
    found = ascend(target, holding(training.adam(wanted), among(target, slopes)), batch, wanted, key, u, options)
    trained = found.of_finite_density(target)
    after, _ = look_at(target, trained)
    best = trained if float(after) > float(before) or not np.isfinite(before) else u
    return found._replace(position=best), wanted


# the turns -----------------------------------------------------------------------------------------------------------


def fit_network(
    laplace: "Laplace",
    objective: Objective,
    target: Target,
    u: np.ndarray,
    curvature: Curvature,
    key,
    options: Options,
    *,
    is_begun: bool = False,
) -> Fitted:
    """A Gaussian at the mode that training finds, hyperparameters tuned on the way.

    ``is_begun``: the weights were trained elsewhere, and are polished from there.
    """
    deadline, is_trained = options.deadline(), laplace.num_steps == 0
    trained, wanted = Ascended(u, 0), 0
    if laplace.prior is None and not is_begun:
        trained, wanted = train(target, u, laplace.num_steps, key, options)
    u, num_updates = trained.position, trained.num_updates
    chunk = chunk_size(target, options.max_memory)
    look, sentences = choose(laplace, target, curvature, chunk, u, options.max_memory)
    if trained.failure:
        sentences = (trained.failure, *sentences)
    tune, evidence, num_fixed = _tuning(laplace, target), None, 0
    path: tuple[float, ...] = ()
    linear = metric = None
    if tune is not None:
        try:
            linear = _linearised(look.tunable(), target, u, num_hyperparameters(target))
        except CredoError as error:
            if laplace.tune is not None:
                raise
            sentences = (*sentences, f"Noise and precisions are parameters like the weights, not tuned. {error}")
    told: Told = {}, ()
    if tune is None or linear is None:
        u, shape, metric, count = _approach(objective, look, u, is_trained, deadline)
    else:
        u, path, count, linear, found = _turns(tune, objective, look, linear, target, u, is_trained, deadline)
        num_fixed = len(found.theta)  # θ is where the evidence has it, not the density
        scale = linear.pieces.scale(found.c, found.P, found.covariance)
        shape = Shape(scale, linear.pieces.least(found.c, found.P), num_fixed)
        evidence = found.value + 0.5 * num_fixed * float(np.log(2 * np.pi))
        evidence += 0.5 * float(np.linalg.slogdet(found.covariance)[1])
        tuned_by = look.tunable().structure
        if not look.is_tunable:
            name = Dense.__name__ if isinstance(tuned_by, Gram) else type(tuned_by).__name__
            sentences = (*sentences, f"Noise and prior precisions are tuned by the evidence of {name}().")
        sentences = (*sentences, *_said_of_factors(tuned_by, target, u, num_fixed))
        if not look.is_tunable and isinstance(look.subset, All):
            shape = _beside(found.covariance, look, objective, u)
            evidence = evidence if isinstance(tuned_by, Gram) and isinstance(look.structure, Kronecker) else None
        elif not look.is_tunable:
            shape, evidence = look(objective, u), None
        if prior_precision(target) is None:  # else the noise alone was tuned
            told = of_tuned_precisions(scale, found.P, num_fixed, num_moved(target, u, num_fixed))
    white = White(objective, u, metric or shape.scale, num_fixed, deadline)
    value, slope, _ = white.at(np.zeros(len(u)))
    if not np.isfinite(value):
        raise CredoError(explain(target, u))
    distance = float(np.linalg.norm(slope))
    kinked = kinks(target) if distance > RULES["mode_distance"].passes else ()
    is_mode = distance <= RULES["mode_distance"].doubtful and shape.min_curvature > 0
    if laplace.prior is None and is_mode and time.monotonic() <= deadline:
        known = of_known_precision(shape.scale, u, num_before(target), target, distance)
        told = {**told[0], **known[0]}, (*told[1], *known[1])
    is_complete = (num_updates == wanted or bool(trained.failure)) and time.monotonic() <= deadline
    if not is_complete:
        sentences = (CUT, *sentences)
    return Fitted(
        Gaussian(u, shape.scale),
        value,
        distance,
        shape._replace(figures={**shape.figures, **told[0]}),
        evidence,
        path,
        look.structure,
        num_updates,
        count,
        is_complete,
        (*told[1], *(INDEFINITE,) * (shape.min_curvature <= 0), *kinked, *sentences, *shape.sentences),
    )


def _beside(covariance: np.ndarray, look: Look, objective: Objective, u: np.ndarray) -> Shape:
    """The weights given the hyperparameters, which have ``covariance`` and are independent of them."""
    k = len(covariance)
    weights = np.arange(k, u.size)
    shape = look.structure.shape(look.curvature, objective, look.target, at_rest(u), look.chunk, True, weights)
    blocks = DenseScale(np.linalg.cholesky(covariance)), shape.scale
    scale = BlockDiagonal(blocks, (((0, k),), ((k, u.size),)))
    return shape._replace(scale=scale, coordinate=k + shape.coordinate)


def _said_of_factors(tuned_by: Structure, target: Target, u: np.ndarray, num_fixed: int) -> tuple[str, ...]:
    """Where hyperparameters are tuned by factors that count more directions than the data have outputs."""
    if not isinstance(tuned_by, Kronecker):
        return ()
    num_weights, outputs = target.dim - num_fixed, target.size * num_moved(target, u, num_fixed)
    if num_weights <= outputs:
        return ()
    return (
        f"The evidence by which noise and prior precisions are tuned is that of Kronecker factors: of {num_weights:,} "
        f"weights they count more directions than the {outputs:,} outputs of the data can tell, and may take for noise "
        "what the weights explain. Hold predictions against data left out, or those of a noise that is a number.",
    )


def _approach(objective: Objective, look: Look, u, is_trained: bool, deadline: float):
    """(position, shape there, the scale in which its distance from the mode is measured, gradients), in two turns at
    most: the metric that was found away from the mode is found again there."""
    if is_trained:
        shape = look(objective, u)
        return u, shape, shape.scale, 0
    metric, count = look.metric(u), 0
    shape = metric(objective, u)
    for _ in range(2):
        u, distance, more = polish(objective, u, shape.scale, 0, look.target.size, deadline)
        shape, count = metric(objective, u), count + more
        if distance <= RULES["mode_distance"].passes or time.monotonic() > deadline:
            break
    return u, shape if metric is look else look(objective, u), shape.scale, count


def _turns(
    tune: Evidence,
    objective: Objective,
    look: Look,
    linear: Linearised,
    target: Target,
    u,
    is_trained: bool,
    deadline: float,
) -> tuple[np.ndarray, tuple[float, ...], int, Linearised, Found]:
    """Hyperparameters at the maximum of the evidence, weights at their mode given them, until neither moves.

    Weights follow the hyperparameters, and curvature follows the weights, so that a turn may lose evidence. The next
    then goes half as far from the best so far, to the other side, as evidence that falls this way may rise there.
    Of the best turn: (position, log evidences by turns, gradients, what the last was computed from, what it was).
    """
    k, count, path, share = num_hyperparameters(target), 0, [], 1.0
    best, found = (u, linear, None), maximum(linear, u[:k], deadline)
    for _ in range(1 if is_trained else tune.num_rounds):
        u, linear, before = best
        theta = u[:k] + share * (found.theta - u[:k])
        u = np.concatenate([theta, u[k:]]).astype(u.dtype)
        if not is_trained and time.monotonic() <= deadline:
            there = found if share == 1 else at(linear, theta)._replace(covariance=found.covariance)
            scale = linear.pieces.scale(there.c, there.P, there.covariance)
            u, _, more = polish(objective, u, scale, k, target.size, deadline)
            linear, count = _linearised(look.tunable(), target, u, k), count + more
        now = at(linear, u[:k])._replace(covariance=found.covariance)
        path.append(now.value)
        gain = np.inf if before is None else now.value - before.value
        if gain > 0:
            best = u, linear, now
        share = share if gain > 0 else -0.5 * share
        if is_trained or 0 <= gain < tune.tolerance or abs(share) < LEAST_SHARE or time.monotonic() > deadline:
            break
        if gain > 0:
            found = maximum(linear, u[:k], deadline)
    u, linear, now = best
    assert now is not None
    for _ in range(0 if is_trained or time.monotonic() > deadline else 2):  # to the mode itself, θ where it is
        scale = linear.pieces.scale(now.c, now.P, now.covariance)
        if White(objective, u, scale, k, deadline).distance() <= RULES["mode_distance"].passes:
            break
        u, _, more = polish(objective, u, scale, k, target.size, deadline)
        linear, count = _linearised(look.tunable(), target, u, k), count + more
        now = at(linear, now.theta)._replace(covariance=now.covariance)
    return u, tuple(path), count, linear, now


def _tuning(laplace: "Laplace", target: Target) -> Evidence | None:
    """How to tune, None where nothing is to be."""
    if laplace.tune is False or laplace.prior is not None:
        return None
    if num_hyperparameters(target):
        return laplace.tune if isinstance(laplace.tune, Evidence) else Evidence()
    if laplace.tune is not None:
        raise CredoError(
            "The network has nothing to tune: noise and prior precision are known numbers. Give priors of them, such "
            "as prior=credo.nn.Isotropic(dist.LogNormal(0.0, 3.0))."
        )
    return None


def _linearised(look: Look, target: Target, u, k: int) -> Linearised:
    """What the evidence needs at ``u``."""
    return linearise(target, u, k, lambda precisions: look.pieces(u, k, groups_of(precisions)))
