"""The posterior on a grid, for up to three dimensions: the exact reference of small examples.

The trapezoid rule over the whole of R^d, u = c + A k with k ∈ Z^d, converges faster than any power of its spacing h
for smooth densities (Trefethen & Weideman 2014): by Poisson's sum formula its error is the Fourier transform of the
density at the dual lattice, 1e-16 for a Gaussian at h = 0.7 standard deviations. The lattice is rotated (box.py), so
that no two nodes share a coordinate: marginal quantiles are then as fine as all nodes together, not as one side.

    log p(D) = log Σ_k p(u_k, D) + log |det A|

Halving h until the evidence stands still gives the error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from credo.algorithm import Options
from credo.diagnose.verdict import judge
from credo.memory import Need, budget, require
from credo.methods.exact.beyond import variance_beyond
from credo.methods.exact.box import SIDE, Box, Density, TimeIsUpError, between, find_box
from credo.methods.particles.importance import has_evidence
from credo.model.target import Target
from credo.posterior.kinds import Draws
from credo.posterior.marginals import report_positions
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Estimate, Verdict

MAX_DIM = 3
FINE = {1: 4_097, 2: 257, 3: 65}  # nodes a side, at least: quantiles interpolate between nodes
FINEST = {1: 65_537, 2: 1_025, 3: 129}  # and at most: two million nodes
NEAR = 25.0  # log density below the largest round which a last grid, twice as fine, has nodes
MOST = 4_000_000  # such nodes
ENOUGH = 1e-10  # nats by which the evidence may still move when h is halved
COARSE = 1e-6  # nats above which the grid does not count as exact
MISSED = 0.1  # and above which it says little of the mass: a spike between the nodes may hold it
CUT = 1e-6  # of mass at the boundary above which the evidence is that of the box (the verdict's limit too)
OUTSIDE = 32  # the boundary is this part of the box on each side at most, whatever the spacing
NODE = 250  # bytes at the peak, with its places, position, densities and parameters: 180 to 220 were measured
DROPPED = 1e-11  # of mass and of every variance: what the nodes that are not stored may hold


class Sum(NamedTuple):
    """A grid summed up: nodes, log weights (normalised), log evidence, and mass near the faces of the box."""

    nodes: Float[np.ndarray, "nodes dim"]
    log_weights: Float[np.ndarray, " nodes"]
    log_evidence: float
    boundary_mass: float


@dataclass(frozen=True)
class Grid:
    """Weighted nodes (1, nodes, dim): means and sds to many digits, and the evidence with its error.

    ``num_points``: nodes a side; None refines until the evidence stands still to 1e-10. ``bounds``: name -> (low, high)
    in the user's space, arrays of the parameter's shape or numbers; the box of the other parameters is found, as all
    of it is with None. The figure ``grid_boundary_mass`` says what mass the box cuts off,
    and ``grid_variance_beyond`` what variance. The error of the evidence is what
    halving h last changed, far above what is still missing; where the box cuts mass off, the evidence is a lower bound
    of unknown slack (error NaN). Quantiles are good to about 0.005 sd in three dimensions, and to many digits in one.
    Raises CredoError above three dimensions, and for bounds that are none (equal, reversed, NaN).

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> target = model.given(y=np.array([3, 5, 1, 4]))
    >>> posterior = credo.fit(target, credo.Grid())
    >>> round(float(posterior.mean()["rate"]), 6), round(posterior.log_evidence.value, 4)
    (3.0, -8.7077)
    """

    num_points: int | None = None
    bounds: Mapping[str, tuple[Any, Any]] | None = None

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        self._check(target, options.max_memory)
        density = Density(target, options)
        box = find_box(density, target, key, start)
        box = box if self.bounds is None else between(self.bounds, box, target)
        side = self.num_points or SIDE[target.dim]
        now, before, change, is_complete = add_up(density, box, side), None, np.nan, True
        if not np.isfinite(now.log_evidence):
            raise CredoError(
                f"The density is zero at all {len(now.nodes):,} nodes of the grid, as round a spike (a scale that the "
                "data let go to zero): raise num_points, or leave it out."
            )
        try:
            change = _change(density, box, side, now)
            while not (
                self.num_points or (side >= FINE[target.dim] and change <= ENOUGH) or side >= FINEST[target.dim]
            ):
                finer = add_up(density, box, 2 * side - 1)
                # every other node of an odd grid is the grid of twice the spacing, which is there already
                change, side = abs(finer.log_evidence - now.log_evidence), 2 * side - 1
                before, now = now, finer
            places = _around(now, side, target.dim) if change > COARSE and not self.num_points else None
            if places is not None and places.shape[1] <= MOST:  # does it stand still? Its tails lie in the whole grid
                change = abs(add_up(density, box, 2 * side - 1, places).log_evidence - now.log_evidence)
        except TimeIsUpError:
            is_complete = False
        is_enough = before is not None and len(before.nodes) >= FINE[target.dim] ** target.dim and _is_same(before, now)
        kept = before if before is not None and is_enough else now
        reported = report_positions(target, kept.nodes)
        nodes, log_weights = _that_count(kept, reported)
        figures = {"grid_boundary_mass": now.boundary_mass, "num_draws": len(now.nodes)}
        if is_complete:
            try:
                p = np.exp(kept.log_weights)
                beyond = variance_beyond(density, target, box, reported, p, kept.log_evidence)
                figures["grid_variance_beyond"] = beyond
            except TimeIsUpError:
                is_complete = False
        return Posterior(
            Draws(nodes[None], log_weights[None]),
            target,
            verdict=_verdict(figures, change, side, is_complete),
            info={"num_points": side, "num_densities": density.count, "is_complete": is_complete},
            log_evidence=_evidence(now, change) if has_evidence(target) else None,
        )

    def _check(self, target: Target, max_memory: int | None) -> None:
        if target.dim > MAX_DIM:
            raise CredoError(
                f"Grid() is for up to {MAX_DIM} unconstrained dimensions and this model has {target.dim}: use NUTS()."
            )
        if self.num_points is not None and self.num_points < 5:
            raise CredoError(f"num_points is {self.num_points}: give 5 or more a side, or None to have it found.")
        if self.num_points is not None:
            fitting = int((budget(max_memory) / NODE) ** (1 / target.dim))
            sides = (self.num_points, fitting)
            wanted, less = (Need(f"Grid(num_points={side})", float(side) ** target.dim * NODE) for side in sides)
            require(wanted, f"{self.num_points**target.dim:,} nodes", max_memory, (less,))
        for leaf in target.structure.leaves:
            if self.bounds is not None and leaf.name in self.bounds:
                _check_bounds(leaf.name, self.bounds[leaf.name], leaf.shape)


def _check_bounds(name: str, bounds: Any, shape: tuple[int, ...]) -> None:
    try:
        low, high = (np.broadcast_to(np.asarray(end, np.float64), shape) for end in bounds)
    except (TypeError, ValueError) as error:
        raise CredoError(
            f"The bounds of {name!r} are {bounds!r}: give (low, high), numbers or arrays of its shape {shape}."
        ) from error
    if not np.all(low < high):  # False for NaN
        raise CredoError(f"The bounds of {name!r} are {bounds!r}: give (low, high), with low below high.")


def _evidence(found: Sum, change: float) -> Estimate:
    """That of the box is a lower bound of the whole, as far as the box cuts mass off."""
    is_cut = not found.boundary_mass <= CUT
    return Estimate(found.log_evidence, np.nan if is_cut else change, "lower bound" if is_cut else "exact")


def add_up(density: Density, box: Box, side: int, places=None) -> Sum:
    """The trapezoid rule on ``side`` nodes in each direction: nodes on a face of the box count half.

    ``places``: of the nodes, where all others count as nothing; None for all.
    """
    nodes = box.nodes(side, places)
    log_p = density(nodes) - np.log(2.0) * box.faces(side, 0, places).sum(axis=(0, 1))
    total: Any = logsumexp(log_p)
    log_weights = log_p - total if np.isfinite(total) else log_p  # a coarse grid may miss all there is
    # what may lie beyond the faces: as much as the last part of the box holds, or as the whole width would hold at the
    # density of the faces, whichever is less. A steep side may have much of its mass in that part, and none beyond it.
    within, on = (box.faces(side, depth, places).any(axis=(0, 1)) for depth in (side // OUTSIDE, 0))
    boundary_mass = min(np.exp(log_weights[within]).sum(), 2 * (side - 1) * np.exp(log_weights[on]).sum())
    return Sum(nodes, log_weights, float(total) + box.log_cell(side), float(boundary_mass))


def _around(found: Sum, side: int, dim: int) -> np.ndarray:
    """Places (dim, nodes) on the grid of half the spacing at and beside the nodes of a whole grid that count."""
    near = np.zeros((2 * side - 1,) * dim, bool)
    near[(slice(None, None, 2),) * dim] = (found.log_weights > np.max(found.log_weights) - NEAR).reshape((side,) * dim)
    for axis in range(dim):
        along = np.moveaxis(near, axis, 0)
        own = along.copy()
        along[1:] |= own[:-1]
        along[:-1] |= own[1:]
    return np.stack(np.nonzero(near))


def _is_same(coarse: Sum, fine: Sum) -> bool:
    """Whether the grid of twice the spacing gives the same evidence, means and covariances: then its nodes will do."""
    if not abs(fine.log_evidence - coarse.log_evidence) <= ENOUGH:
        return False
    (mean, covariance), (other, other_covariance) = _moments(coarse), _moments(fine)
    sd = np.sqrt(np.diagonal(covariance))
    shift = np.max(np.abs(mean - other) / sd)
    return bool(max(shift, np.max(np.abs(covariance - other_covariance) / np.outer(sd, sd))) <= ENOUGH)


def _moments(found: Sum) -> tuple[np.ndarray, np.ndarray]:
    p = np.exp(found.log_weights)
    mean = p @ found.nodes
    return mean, (found.nodes - mean).T @ (p[:, None] * (found.nodes - mean))


def _that_count(found: Sum, reported: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The nodes, and log weights, that are left when those of least account are dropped.

    A node counts by its weight p, and by its part p (f − E f)² / Var f of the variance of each scalar f in the user's
    space. What is dropped sums to DROPPED at most, in each of them: of the mass, of each variance (relative), and by
    Cauchy and Schwarz of each mean in sds. (Mass alone would not do: beyond z = 7 a log-normal variable with log-sd 1
    has 1e-12 of its mass and 3e-7 of its second moment.)
    """
    p = np.exp(found.log_weights)
    account = p.copy()
    for values in reported.values():
        f = np.asarray(values, np.float64).reshape(len(p), -1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # NaN: a constant, or no number
            square = (f - p @ f) ** 2
            account = np.fmax(account, np.max(p[:, None] * square / (p @ square), axis=1, initial=0.0))
    order = np.argsort(account)
    keep = np.sort(order[np.cumsum(account[order]) > DROPPED])
    return found.nodes[keep], found.log_weights[keep] - logsumexp(found.log_weights[keep])


def _change(density: Density, box: Box, side: int, fine: Sum) -> float:
    """How far the evidence on half the nodes is from that on all."""
    return abs(fine.log_evidence - add_up(density, box, (side + 1) // 2).log_evidence)


def _verdict(figures: Mapping[str, float], change: float, side: int, is_complete: bool) -> Verdict:
    if not is_complete:
        sentence = (
            f"The time limit came while the grid of {side} nodes a side was refined: quantiles are coarse, and the "
            f"evidence is known to {change:.1e} nats. Raise time_limit."
        )
        return judge(figures, (sentence,), at_best="doubtful")
    if not change <= COARSE:
        sentence = (
            f"Halving the spacing of the grid still moved the log evidence by {change:.1e} nats (1e-6 passes): the "
            "density is rougher than the grid, has a spike (a scale that the data let go to zero), or its tails are "
            "too heavy for any box (those of an improper posterior, or of one without a variance). Raise num_points, "
            "give bounds round the mass, or proper priors that keep away from the spike."
        )
        return judge(figures, (sentence,), at_best="doubtful" if change <= MISSED else "failed")
    return judge(figures)
