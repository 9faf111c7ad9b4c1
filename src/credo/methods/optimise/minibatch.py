"""Gradient ascent by an optax optimiser, on full data or on minibatches drawn without replacement within each epoch.

One compiled program takes any number of updates. Step i's batch is a slice of the permutation of its epoch, drawn from
(key, epoch), so the same key gives the same path however the steps are cut into calls.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from credo.algorithm import Options
from credo.convolutions import canonical
from credo.course import Course
from credo.diagnose.startup import check_finite_start
from credo.methods.optimise.training import NOT_FINITE, adam, batch_asked
from credo.model.target import Target
from credo.status import CredoError

NUM_EPOCHS, LEAST_STEPS = 30, 1_000
STEP_SIZE = 0.05  # in unconstrained coordinates, which are of order one


def default_num_steps(target: Target, batch_size: int | None) -> int:
    """30 epochs, and no fewer than 1,000 steps."""
    return max(LEAST_STEPS, NUM_EPOCHS * (target.size // batch_size) if batch_size else 0)


def default_optimiser(num_steps: int) -> optax.GradientTransformation:
    """Adam for coordinates of order one."""
    return adam(num_steps, STEP_SIZE)


def ascend(
    target: Target,
    optimiser: optax.GradientTransformation,
    batch_size: int | None,
    num_steps: int,
    key,
    position: Float[np.ndarray, " dim"],
    options: Options,
) -> tuple[Float[np.ndarray, " dim"], int]:
    """``num_steps`` updates from ``position`` of the density in the user's space, fewer at the time limit; how many."""
    batch_size = batch_asked(target, batch_size)
    deadline = options.deadline()
    course = Course("training", initial(optimiser, jax.device_put(position), target.size), options)

    def advance(state, first: int, last: int):
        state = _advance(optimiser, batch_size, target, key, state, first, last)
        if not np.all(np.isfinite(state[0])):
            check_finite_start(target, position)  # where the fault lies there, no step size mends it
            raise CredoError(f"The position is no longer finite after {last} steps: {NOT_FINITE}")
        return state

    course.run(advance, [num_steps], deadline)
    return np.asarray(course.state[0]), course.done


@functools.partial(jax.jit, static_argnames=("optimiser", "size"))
def initial(optimiser, u: Float[Array, " dim"], size: int):
    """(position, state of the optimiser, order of the rows in this epoch)."""
    return u, optimiser.init(u), jnp.arange(size)


@functools.partial(jax.jit, static_argnames=("optimiser", "batch_size"))
def _advance(optimiser, batch_size: int | None, target: Target, key, state, first, last):
    num_batches = 1 if batch_size is None else target.size // batch_size

    def loss(u, batch):
        return target.log_jacobian(u) - target.log_density(u, batch)

    def body(i, state):
        u, memory, order = state
        batch = None
        if batch_size is not None:
            place = i % num_batches

            def shuffle():
                return jax.random.permutation(jax.random.fold_in(key, i // num_batches), target.size)

            order = jax.lax.cond(place == 0, shuffle, lambda: order)
            batch = jax.lax.dynamic_slice_in_dim(order, place * batch_size, batch_size)
        updates, memory = optimiser.update(jax.grad(loss)(u, batch), memory, u)
        return optax.apply_updates(u, updates), memory, order

    return jax.lax.fori_loop(first, last, canonical(body), state)
