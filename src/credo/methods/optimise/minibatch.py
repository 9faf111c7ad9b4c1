"""Gradient ascent by an optax optimiser, on full data or on minibatches drawn without replacement within each epoch.

One compiled program takes any number of updates. Step i's batch is a slice of the permutation of its epoch, drawn from
(key, epoch), so the same key gives the same path however the steps are cut into calls.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from credo.algorithm import Options
from credo.compiling import sound
from credo.convolutions import canonical
from credo.course import Course
from credo.diagnose.startup import check_finite_start
from credo.methods.optimise import training
from credo.methods.optimise.training import NOT_FINITE, Training, adam, batch_asked, which_batch, without_density
from credo.model.target import Target
from credo.status import CredoError

NUM_EPOCHS, LEAST_STEPS = 30, 1_000
STEP_SIZE = 0.05  # in unconstrained coordinates, which are of order one; weights of networks are smaller


def default_num_steps(target: Target, batch_size: int | None) -> int:
    """30 epochs, and no fewer than 1,000 steps; those of all trainings for the weights of a network."""
    if target.model.weights_name is not None:
        return training.default_num_steps(target, batch_size)
    return max(LEAST_STEPS, NUM_EPOCHS * (target.size // batch_size) if batch_size else 0)


def default_optimiser(target: Target, num_steps: int) -> optax.GradientTransformation:
    """Adam for coordinates of order one; that of all trainings, where they are the weights of a network."""
    return adam(num_steps, STEP_SIZE) if target.model.weights_name is None else adam(num_steps)


class Ascended(NamedTuple):
    """``failure``: which update was not finite, and of which rows; the position is the last of finite density."""

    position: Float[np.ndarray, " dim"]
    num_updates: int
    failure: str = ""

    def of_finite_density(self, target: Target) -> Float[np.ndarray, " dim"]:
        """The position, for what goes on from there. CredoError where an update failed and all data have no density."""
        if self.failure and (why := without_density(target, self.position)):
            raise CredoError(f"{self.failure} {why}")
        return self.position


class State(NamedTuple):
    """``order``: of the rows in this epoch."""

    training: Training
    order: Int[Array, " rows"]


def ascend(
    target: Target,
    optimiser: optax.GradientTransformation,
    batch_size: int | None,
    num_steps: int,
    key,
    position: Float[np.ndarray, " dim"],
    options: Options,
) -> Ascended:
    """``num_steps`` updates from ``position`` of the density in the user's space, fewer at the time limit.

    CredoError where the density is not finite at the start.
    """
    batch_size = batch_asked(target, batch_size)
    deadline = options.deadline()
    course = Course("training", begin(optimiser, jax.device_put(position), target.size), options)

    def advance(state: State, first: int, last: int) -> State:
        return _advance(optimiser, batch_size, target, key, state, first, last)

    course.run(advance, [num_steps], deadline, is_over=lambda state: bool(state.training.failed_at >= 0))
    ended: Training = course.state.training
    found, failed_at = np.asarray(ended.position), int(ended.failed_at)
    if failed_at < 0:
        return Ascended(found, course.done)
    check_finite_start(target, position)  # where the fault lies there, no step size mends it
    return Ascended(found, failed_at, _failure(target, batch_size, key, failed_at))


def _failure(target: Target, batch_size: int | None, key, i: int) -> str:
    """Which update, and which rows it saw."""
    where, which = "", "of all data"
    if batch_size is not None:
        num_batches, which = target.size // batch_size, "of its batch"
        order, first = np.asarray(_order(key, i // num_batches, target.size)), i % num_batches * batch_size
        where = f" ({which_batch(target, order[first : first + batch_size], num_batches, i)})"
    return (
        f"The density or its gradient was not finite at update {i + 1:,}{where}: training stopped there, at the last "
        f"position where that {which} was. {NOT_FINITE[0].upper()}{NOT_FINITE[1:]}"
    )


@functools.partial(sound, static_argnames=("optimiser", "size"))
def begin(optimiser, u: Float[Array, " dim"], size: int) -> State:
    """The state before the first update."""
    return State(Training.begin(optimiser, u), jnp.arange(size))


@functools.partial(sound, static_argnames="size")
def _order(key, epoch, size: int):
    return jax.random.permutation(jax.random.fold_in(key, epoch), size)


@functools.partial(sound, static_argnames=("optimiser", "batch_size"))
def _advance(optimiser, batch_size: int | None, target: Target, key, state: State, first, last) -> State:
    num_batches = 1 if batch_size is None else target.size // batch_size

    def loss(u, batch):
        return target.log_jacobian(u) - target.log_density(u, batch)

    def body(i, state: State) -> State:
        training, order = state
        batch = None
        if batch_size is not None:
            place = i % num_batches
            order = jax.lax.cond(place == 0, lambda: _order(key, i // num_batches, target.size), lambda: order)
            batch = jax.lax.dynamic_slice_in_dim(order, place * batch_size, batch_size)
        value, gradient = jax.value_and_grad(loss)(training.position, batch)
        return State(training.update(optimiser, i, value, gradient)[0], order)

    return jax.lax.fori_loop(first, last, canonical(body), state)
