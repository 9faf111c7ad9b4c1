"""Gradient ascent of several members at once: one compiled program, each member with its own start and order of data.

An update sees the next window of rows (model/windows.py): an epoch is a pass from a random place of the shuffled data
on. Over an epoch the noise of such windows cancels, which is good for a mode and bad for a path whose width should be
that of independent batches: these are windows from a random place each. What is maximised is the density in the user's
space, a datum, so that step sizes mean the same for any N:

    (log p(u, D) − log |∂θ/∂u|) / N,   estimated on the window

A member whose loss or gradient is not finite stays where it was from then on, and says at which update.
"""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from credo.algorithm import Options, as_key, stream, streams
from credo.compiling import sound
from credo.convolutions import canonical
from credo.course import Course
from credo.diagnose.startup import check_finite_start, explain
from credo.memory import Need, budget, require
from credo.methods.optimise.starts import fresh_positions
from credo.methods.optimise.training import (
    NOT_FINITE,
    STEP_SIZE,
    Training,
    adam,
    batch_of,
    default_num_steps,
    which_batch,
    without_density,
)
from credo.model.blocks import SMALL_DIM, row_bytes
from credo.model.target import Target
from credo.model.windows import place_of, rows_at, shuffled, window
from credo.status import CredoError

COPIES = 8  # of a member's weights that training holds: gradients, an optimiser's memory, a step back
MEMORY = 2**30  # bytes of members trained together
ENDS = 4  # and of each position and snapshot that is kept: itself, its place in a result, and what is made of it
STREAM = 1 << 20
FAR = 0.6  # of what the optimiser's steps can add up to


class Trained(NamedTuple):
    """``positions`` (member, dim) at the end; ``snapshots`` (member, snapshot, dim) at the times asked for.

    ``failed_at``: (member,), −1 where all went well. ``num_updates``: of each member; ``cut``: what to say where the
    time limit came before all of them were done; ``on_its_way``: where the steps were too short for a mode;
    ``failed_on``: which rows the first that failed had seen. ``mean``, ``variance``: of all snapshots, (member, dim),
    also where no more than the last of them are kept; (member, 0) without any.
    """

    positions: np.ndarray
    snapshots: np.ndarray
    failed_at: np.ndarray
    num_updates: int
    mean: np.ndarray
    variance: np.ndarray
    cut: str = ""
    on_its_way: str = ""
    failed_on: str = ""

    @property
    def is_complete(self) -> bool:
        return not self.cut

    def sentences(self) -> list[str]:
        """What went wrong, in single members or all."""
        ended = ", ".join(f"{i} (update {at + 1:,})" for i, at in enumerate(self.failed_at) if at >= 0)
        failure = (
            f"The loss or its gradient was not finite in member {ended}, which stays where it was finite the last "
            f"time{self.failed_on}: {NOT_FINITE}"
        )
        return [each for each in (self.cut, self.on_its_way, failure if ended else "") if each]

    def of_finite_density(self, target: Target) -> np.ndarray:
        """The positions, for what goes on from there. CredoError where a member failed and all data have no density."""
        for i in np.flatnonzero(self.failed_at >= 0):
            if why := without_density(target, self.positions[i]):
                raise CredoError(f"{self.sentences()[-1]} {why}")
        return self.positions


def train_members(
    target: Target,
    members: int,
    init: Callable | None,
    optimiser: optax.GradientTransformation | None,
    batch_size: int | None,
    num_steps: int | None,
    key,
    options: Options,
    *,
    may_be_cut: bool = False,
) -> Trained:
    """Each from its own initialisation, by the settings of ``DeepEnsemble``."""
    batch = batch_of(target, batch_size)
    num_steps = num_steps or default_num_steps(target, batch)
    positions = fresh_positions(target, members, init, key).astype(jnp.result_type(float), copy=False)
    key, steps = stream(key, 1), optimiser or adam(num_steps)
    trained = train(target, steps, batch, positions, key, options, num_steps=num_steps, may_be_cut=may_be_cut)
    if optimiser is not None or trained.cut:
        return trained
    return trained._replace(on_its_way=_on_its_way(positions[: len(trained.positions)], trained.positions, num_steps))


def _on_its_way(begun: np.ndarray, ended: np.ndarray, num_steps: int) -> str:
    """A sentence where some coordinate went about as far as Adam's steps, of their length each at most, carry it."""
    reach = 0.5 * STEP_SIZE * num_steps  # the sum of a cosine's steps
    moved = float(np.max(np.abs(ended - begun)))
    if not moved > FAR * reach:
        return ""
    return (
        f"A parameter moved by {moved:.3g} in training, and {num_steps:,} steps of Adam carry it no further than "
        f"{reach:.3g}: the members may be on their way yet, and no modes. Standardise outcomes and inputs, raise "
        "num_steps, or give an optimiser with longer steps."
    )


def train(
    target: Target,
    optimiser: optax.GradientTransformation,
    batch_size: int | None,
    positions: Float[np.ndarray, "member dim"],
    key,
    options: Options,
    *,
    num_steps: int,
    snapshots: tuple[int, ...] = (),
    step_size: float = 1.0,
    is_independent: bool = False,
    keep: int | None = None,
    name: str = "training",
    setting: str = "num_steps",
    may_be_cut: bool = False,
) -> Trained:
    """``num_steps`` updates from each of ``positions``, with snapshots after so many updates, in rising order.

    Members train together where memory allows, else one group after another; the answer is the same.
    ``step_size``: a factor of the optimiser's updates, an argument of the compiled program. ``is_independent``: batches
    are independent of each other, and not passes through the data. ``keep``: the last so many snapshots; None for all.
    ``name``: of the course in the checkpoint. ``setting``: what the user lowers for fewer updates. ``may_be_cut``:
    whether members that the time limit left on their way are an answer; those that had not begun are left out.
    CredoError where no member has a finite first gradient, where some rows have none at the start, or where the time
    limit came first and they may not.
    """
    num, dim = positions.shape
    number, kept = positions.itemsize, min(keep or len(snapshots), len(snapshots))
    rows = batch_size or target.rows_at_once or target.size
    activations = 3 * rows * row_bytes(target) if dim > SMALL_DIM else 0.0
    each = COPIES * number * dim + activations
    at_end = ENDS * number * dim * (1 + kept)
    what = f"{dim:,} weights" + (f" and {kept} snapshots" if kept else "")
    others = [Need("one member", each + at_end)] if num > 1 else []
    require(
        Need(f"Training {num} members" if num > 1 else "Training", each + num * at_end),
        what,
        options.max_memory,
        others,
    )
    together = int(np.clip(min(MEMORY, budget(options.max_memory) // 2) // each, 1, num))
    data = shuffled(target, batch_size, np.random.default_rng(stream(key, STREAM)))
    advance = functools.partial(
        _advance, jax.device_put(data), optimiser=optimiser, batch_size=batch_size, is_independent=is_independent
    )
    orders = streams(key, num, STREAM, 1)
    deadline = options.deadline()
    parts = []
    for first in range(0, num, together):
        rows = slice(first, first + together)
        begun = _begun(optimiser, positions[rows], bool(snapshots))
        course = Course(name if together == num else f"{name}-of-{first}", begun, options)
        parts.append(_train(course, advance, orders[rows], num_steps, snapshots, deadline, step_size, keep))
        if may_be_cut and time.monotonic() > deadline:
            break
    joined = _joined(parts)
    if np.all(joined.failed_at == 0):
        raise CredoError(explain(target, positions[0]))
    if np.any(joined.failed_at >= 0):  # where rows are at fault, no step size mends them
        first = int(np.argmax(joined.failed_at >= 0))
        check_finite_start(target, positions[first])
        rows = _rows(target, batch_size, key, orders[first], int(joined.failed_at[first]), is_independent)
        joined = joined._replace(failed_on=f" (member {first} failed on {rows})" if rows else "")
    missing = num - len(joined.positions)
    if joined.num_updates == num_steps and not missing:
        return joined
    remedy = "(credo.resume continues it)"
    if not options.checkpoint:
        remedy = f"(with checkpoint= it could be continued), or lower {setting}"
    before = f", before {missing} more members had begun" if missing else ""
    cut = (
        f"The time limit of {options.limit:g} s came after {joined.num_updates:,} of {num_steps:,} updates"
        f"{'' if len(parts) == 1 else ' of the last members'}{before}"
        f": raise time_limit {remedy}."
    )
    if not may_be_cut:
        raise CredoError(cut)
    return joined._replace(cut=cut)


def _rows(target: Target, batch_size: int | None, key, order, i: int, is_independent: bool) -> str:
    """Which of them update ``i`` of a member saw."""
    if batch_size is None:
        return ""
    random = np.random.default_rng(stream(key, STREAM))
    rows = rows_at(target, batch_size, random, as_key(order), i, is_independent=is_independent)
    return which_batch(target, rows, 1 if is_independent else target.size // batch_size, i)


def _joined(parts: list[Trained]) -> Trained:
    """All members, as far as the group of them that was trained least."""
    if len(parts) == 1:  # else by copies
        return parts[0]
    least = min(part.num_updates for part in parts)
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("positions", "snapshots", "failed_at", "mean", "variance")
    }
    return parts[0]._replace(num_updates=least, **arrays)


class Path(NamedTuple):
    """Members on their way, and of the snapshots behind them ``mean`` and ``squares``, Σ (x − mean)²."""

    members: Training
    mean: Float[np.ndarray, "member dim"]
    squares: Float[np.ndarray, "member dim"]


def _train(course: Course, advance, orders, num_steps, snapshots, deadline, step_size, keep) -> Trained:
    members = course.state.members
    num, dim = members.position.shape
    factor = np.asarray(step_size, members.position.dtype)
    counts = {stop: i for i, stop in enumerate(snapshots)}
    num_kept = min(keep or len(snapshots), len(snapshots))
    shots = np.empty((num, num_kept, dim), members.position.dtype)
    first = len(snapshots) - num_kept
    for stop in snapshots[first:]:
        if stop <= course.done:
            shots[:, counts[stop] - first] = course.kept(stop)

    def ahead(path: Path, begin: int, end: int) -> Path:
        return path._replace(members=advance(path.members, orders, factor, begin, end))

    def at_stop(path: Path, stop: int) -> Path:
        at, count = np.asarray(path.members.position), counts[stop] + 1 if stop in counts else 0
        if count > first:
            shots[:, count - 1 - first] = at
            course.keep(stop, at)
        if not count:
            return path
        with np.errstate(over="ignore", invalid="ignore"):  # of steps that ran away
            off = at - path.mean
            np.add(path.mean, off / count, out=path.mean)  # in place, Welford (1962)
            off *= at - path.mean
            np.add(path.squares, off, out=path.squares)
        return path

    course.run(ahead, sorted({*snapshots, num_steps}), deadline, at_stop=at_stop)
    path: Path = course.state
    position, failed_at = np.asarray(path.members.position), np.asarray(path.members.failed_at)
    variance = path.squares / max(len(snapshots), 1)
    return Trained(position, shots, failed_at, course.done, path.mean, variance)


def _begun(optimiser, positions, has_snapshots: bool) -> Path:
    blank = positions if has_snapshots else positions[:, :0]
    return Path(_begin(optimiser, positions), np.zeros_like(blank), np.zeros_like(blank))


@functools.partial(sound, static_argnames="optimiser")
def _begin(optimiser, positions) -> Training:
    return jax.vmap(lambda u: Training.begin(optimiser, u))(positions)


@functools.partial(sound, static_argnames=("optimiser", "batch_size", "is_independent"))
def _advance(
    target: Target, members: Training, orders, factor, first, last, *, optimiser, batch_size: int | None, is_independent
) -> Training:
    def loss(u, batch):
        return (target.log_jacobian(u) - target.log_density(u, batch)) / max(target.size, 1)

    def update(i, member: Training, order) -> Training:
        batch = None
        if batch_size is not None:
            batch = window(
                target, batch_size, place_of(target, batch_size, as_key(order), i, is_independent=is_independent)
            )
        value, gradient = jax.value_and_grad(loss)(member.position, batch)
        return member.update(optimiser, i, value, gradient, factor)[0]

    def body(i, members: Training) -> Training:
        return jax.vmap(lambda member, order: update(i, member, order))(members, orders)

    return jax.lax.fori_loop(first, last, canonical(body), members)
