"""Is the point where the optimiser stopped a mode? If not: at infinity, on a boundary, a saddle or a ridge, and whose.

A mode at infinity shows as Newton steps that keep their length and direction while the gradient fades (separable
classes: the gradient halves with each step and the steps stay), and as a density that is no lower ten times further
out, under a prior that does not fall on the way to a million times as far. A boundary shows as a transformed coordinate
(log σ, logit p) that runs off.
"""

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpyro.distributions.transforms import IdentityTransform, IndependentTransform

from credo.compiling import TINY, brief
from credo.diagnose.verdict import RULES, judge
from credo.methods.optimise.newton import Optimum, Solver, Status
from credo.methods.optimise.spectrum import Spectrum
from credo.model.distributions import has_kink, transform_to
from credo.model.structure import scalar_names
from credo.model.target import Target
from credo.posterior.marginals import report_positions
from credo.status import Verdict, VerdictStatus
from credo.traced import by_shapes

FAR = 30.0  # of a log or logit: a number of 1e-13 beside 1
FURTHER, FARTHEST = 10.0, 1e6  # times as far out
CARRIED = 1e-2  # of a direction: what is less of it may be the search's noise
FALLEN = 1.0  # nats
ROUNDINGS, MOST_ROUNDING = 4.0, 1e-2  # of a position by its dtype; in posterior sds
FADED = 1e-3  # relative length of a last Newton step that is no rounding error
CLASSES = ("bernoulli", "binomial", "categorical")
STALLED = (
    "Second derivatives were used by products only, and rounding ended the ascent before the gradient did: the "
    "parameters may differ too much in scale."
)
CREEPING = (
    "The last steps by second derivatives gained next to nothing of what these promised, as where the density has "
    "kinks that they do not see (of a ReLU, a maximum or an absolute value): go on by gradients alone "
    "(MAP(optimiser=optax.adam(...)), start=posterior), or take a smooth function in their place (softplus, tanh)."
)


class Diagnosis(NamedTuple):
    """Figures for the verdict and sentences that name the parameter. ``spectrum``: None where A was not formed."""

    figures: dict[str, float | None]
    sentences: tuple[str, ...]
    spectrum: Spectrum | None
    at_best: VerdictStatus = "pass"

    def verdict(self, **more: float | None) -> Verdict:
        """``more``: figures of the method's own."""
        figures = self.figures | more
        if not (figures["mode_at_infinity"] or figures["mode_on_boundary"]):
            return judge(figures, self.sentences, at_best=self.at_best)
        consequences = ("gradient_norm", "min_curvature", "pareto_k")  # true, but no news
        judged = judge({name: value for name, value in figures.items() if name not in consequences}, self.sentences)
        known = {name: np.nan if value is None else float(value) for name, value in figures.items()}
        return replace(judged, figures=known)


def diagnose(target: Target, objective, optimum: Optimum, solver: Solver) -> Diagnosis:
    """What ``optimum`` of ``objective`` (an ``Objective``) over the flat ``target`` is."""
    is_transformed = transformed(target)
    figures: dict[str, float | None] = {
        "gradient_norm": _distance(optimum),
        "mode_at_infinity": 0.0,
        "mode_on_boundary": 0.0,
        "num_iterations": float(optimum.num_gradients),
        "position_norm": float(np.max(np.abs(optimum.position))),
    }
    sentences = []
    # where time ended the ascent it was on its way, and nobody knows where to
    is_cut = optimum.status is Status.TIME
    runaway = None if is_cut else _runaway(objective, optimum, solver, is_transformed)
    if runaway is not None:
        name, before, after = _named(target, optimum.position, runaway, optimum.newton)
        if is_transformed[runaway] and not abs(after) > abs(before) * (1 + 1e-6):
            figures["mode_on_boundary"] = 1.0
            sentences.append(f"{name} is {before:.3g} and still on its way to the boundary of its support.")
        else:
            figures["mode_at_infinity"] = 1.0
            sentences.append(f"{name} is {before:.3g} and still on its way to infinity.")
            if target.head is not None and target.head.name in CLASSES:
                sentences.append(
                    "The inputs separate the classes (almost) perfectly: ever larger coefficients fit ever better."
                )
    spectrum = None
    if optimum.curvature is not None:
        spectrum = Spectrum(optimum.curvature, float(np.finfo(optimum.position.dtype).eps))
        smallest, coordinate = spectrum.smallest
        # one unit of a log or a logit that changes nothing
        is_flat = is_transformed & (np.abs(np.diagonal(optimum.curvature)) <= _rounding(optimum))
        if is_flat.any() and smallest > 0:
            smallest, coordinate = 0.0, int(np.argmax(is_flat))
        figures["min_curvature"] = smallest
        if smallest <= 0 and runaway is None:
            name = coordinate_names(target)[coordinate]
            shape = "rises" if smallest < 0 else "is flat"
            sentences.append(f"The density {shape} to both sides along a direction led by {name}.")
    elif optimum.status is Status.STALLED:
        sentences.append(STALLED)
    if optimum.status is Status.CREEPING:
        sentences.append(CREEPING)
    if is_cut:
        sentences.append("The time limit ended the ascent before the mode was found.")
    if RULES["gradient_norm"].status(_distance(optimum)) != "pass":
        sentences.extend(kinks(target))
    return Diagnosis(figures, tuple(sentences), spectrum)


@by_shapes
def kinks(target: Target) -> tuple[str, ...]:
    """A sentence for a search that found no mode, where a prior has a kink."""
    found: list[str] = []

    def see(name, distribution, value):
        found.extend([name] if has_kink(distribution) else [])

    target.prior.survey(see)
    if not found:
        return ()
    names = ", ".join(map(repr, found[:3])) + (" and others" if len(found) > 3 else "")
    return (
        f"The prior of {names} has a kink and no curvature beside it: at a mode in the kink no gradient vanishes, "
        "however long the search, and no Gaussian is near. Use NUTS() or a variational fit, or take a normal prior.",
    )


def transformed(target: Target) -> np.ndarray:
    """Which coordinates (dim,) pass through a transform that is not the identity."""
    parts = {}

    def see(name, distribution, value):
        transform = transform_to(distribution)
        while isinstance(transform, IndependentTransform):
            transform = transform.base_transform
        parts[name] = not isinstance(transform, IdentityTransform)

    target.prior.survey(see)
    return np.concatenate([np.full(leaf.size, parts[leaf.name]) for leaf in target.structure.leaves])


def coordinate_names(target: Target) -> list[str]:
    """A name for each coordinate: that of the scalar it moves, where there is one."""
    names = []
    for leaf in target.structure.leaves:
        scalars = scalar_names(leaf.name, leaf.free_shape)
        names += scalars if leaf.is_elementwise else [f"{name} (unconstrained)" for name in scalars]
    return names


def _runaway(objective, optimum: Optimum, solver: Solver, is_transformed) -> int | None:
    """The coordinate that leads the way to infinity or to a boundary; None if the point stays where it is."""
    u, step = optimum.position, np.nan_to_num(optimum.newton)
    far = is_transformed & (np.abs(u) > FAR)
    if optimum.curvature is not None and optimum.status is Status.CONVERGED:
        far &= np.abs(np.diagonal(optimum.curvature)) <= _rounding(optimum)
    if far.any():
        return int(np.argmax(np.where(far, np.abs(u), 0.0)))
    leader = int(np.argmax(np.abs(step)))
    if optimum.status is Status.CONVERGED and not _is_drifting(u, step, optimum.previous, leader):
        return None
    if abs(step[leader]) <= FADED * abs(u[leader]) and optimum.status is Status.CONVERGED:
        return None
    size = max(float(np.max(np.abs(u))), 1.0)
    least = optimum.value - _rounding(optimum)
    for direction in (step, u):
        length = float(np.max(np.abs(direction)))
        if length == 0:
            continue
        leader, way = int(np.argmax(np.abs(direction))), direction * (size / length)
        there = [u + (factor * way).astype(u.dtype) for factor in (1.0, FURTHER)]
        values = [solver.evaluate(objective.function, objective.args, v, np.inf, None).value for v in there]
        if all(value >= least for value in values) and not _falls(objective, u, np.where(is_transformed, 0.0, way)):
            return leader
    return None


def _falls(objective, u, way) -> bool:
    """Whether the prior, or all of a bare density, falls along ``way``, where it may have a mode after all."""
    way = FARTHEST * np.where(np.abs(way) < CARRIED * np.max(np.abs(way)), 0.0, way)
    near, far = (float(_log_prior(objective.log_prior, objective.args, v)) for v in (u, u + way.astype(u.dtype)))
    return far < near - FALLEN  # what is no number tells nothing


@functools.partial(brief, static_argnames="log_prior", options=TINY)
def _log_prior(log_prior, args, u):
    return log_prior(args, u)


def _is_drifting(u, step, previous, leader: int) -> bool:
    """Whether the last Newton steps went the same way, no shorter, and far for the place they are at."""
    lengths = float(np.linalg.norm(step)), float(np.linalg.norm(previous))
    if abs(step[leader]) <= FADED * abs(u[leader]) or lengths[0] < 0.9 * lengths[1]:
        return False
    return lengths[1] == 0 or float(step @ previous) > 0.9 * lengths[0] * lengths[1]


def _distance(optimum: Optimum) -> float:
    """From the mode, in posterior sds, less what rounding of the position and of sums over data comes to (random signs:
    √(Σ_i A_ii δ_i²) for errors δ of each coordinate), which no iteration mends."""
    if optimum.curvature is None or not np.isfinite(optimum.gradient_norm):
        return optimum.gradient_norm
    steepness = np.maximum(np.diagonal(optimum.curvature).astype(float), 0.0)
    size = np.sqrt(np.sum(steepness * optimum.position.astype(float) ** 2) + optimum.position.size)
    rounding = ROUNDINGS * float(np.finfo(optimum.position.dtype).eps) * size
    return max(0.0, optimum.gradient_norm - min(rounding, MOST_ROUNDING))


def _rounding(optimum: Optimum) -> float:
    return 10 * float(np.finfo(optimum.position.dtype).eps) * max(1.0, abs(optimum.value))


def _named(target: Target, u, coordinate: int, step) -> tuple[str, float, float]:
    """The scalar that the coordinate moves, its value at u and one unit further on."""
    names = coordinate_names(target)
    direction = np.zeros_like(u)
    direction[coordinate] = np.sign(u[coordinate]) or np.sign(step[coordinate])
    start, leaf = 0, target.structure.leaves[0]
    for candidate in target.structure.leaves:
        if start <= coordinate < start + candidate.size:
            leaf = candidate
            break
        start += candidate.size
    # one position a call: the program that posterior.mean() uses later
    values = [np.ravel(report_positions(target, v[None])[leaf.name]) for v in (u, u + direction)]
    # where a coordinate moves several scalars, the one nearest to the boundary speaks for them
    index = coordinate - start if leaf.is_elementwise else int(np.argmin(np.abs(values[0])))
    scalars = scalar_names(leaf.name, leaf.shape)
    name = names[coordinate] if leaf.is_elementwise else scalars[index]
    return name, float(values[0][index]), float(values[1][index])
