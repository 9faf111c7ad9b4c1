"""How networks are trained where nobody says, when a batch is all rows, and what ends a training: one rule for all."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from credo.diagnose.startup import check_finite_start
from credo.model.target import Target
from credo.status import CredoError

EPOCHS, LEAST_STEPS = 60, 2_000
STEP_SIZE = 0.01
SHOWN = 6  # rows
NOT_FINITE = (  # what to do where training met what is no number
    "look for a log or root of what may become negative, 0/0 or an overflow in the model, or take shorter steps, by "
    "step_size= or optimiser= of this method or, where it has neither, of a credo.MAP() that it starts from (start=)."
)


def default_num_steps(target: Target, batch_size: int | None) -> int:
    """60 epochs, and no fewer than 2,000 updates."""
    return max(LEAST_STEPS, EPOCHS * (target.size // batch_size) if batch_size else 0)


def batch_of(target: Target, batch_size: int | None) -> int | None:
    """None where a batch is all rows, or there are none. CredoError where the likelihood cannot be cut into rows."""
    if batch_size is None or target.y is None or batch_size >= target.size:
        return None
    target.check_minibatch(batch_size)
    return batch_size


def batch_asked(target: Target, batch_size: int | None) -> int | None:
    """``batch_of`` a size that is nobody's default: CredoError where there are no rows as well."""
    if batch_size is not None and target.y is None:
        target.check_minibatch(batch_size)
    return batch_of(target, batch_size)


class Training(NamedTuple):
    """``position``, a pytree, with the optimiser's ``memory``. ``failed_at``: the update that was not finite, or −1.

    ``good``: the last position whose loss was finite, one update back; where training has failed it stands there.
    """

    position: Any
    memory: Any
    good: Any
    failed_at: Int[Array, ""]

    @classmethod
    def begin(cls, optimiser: optax.GradientTransformation, position: Any) -> "Training":
        """Before the first update."""
        return cls(position, optimiser.init(position), position, jnp.int32(-1))

    def update(
        self, optimiser: optax.GradientTransformation, i, value, gradient, factor=None
    ) -> tuple["Training", Any]:
        """After update ``i``, and whether that was taken; loss and gradient are those at the position.

        ``factor``: of the optimiser's steps. After an update that is not finite there are no others. A gradient that is
        not may be what the optimiser was made for (``optax.zero_nans``): what counts is what it makes of it.
        """
        change, memory = optimiser.update(gradient, self.memory, self.position)
        change = change if factor is None else jax.tree.map(lambda leaf: factor * leaf, change)
        new: Any = optax.apply_updates(self.position, change)
        is_open, is_valued, is_sloped = self.failed_at < 0, jnp.isfinite(value), _is_finite(gradient)
        is_fine = is_open & (is_valued | ~is_sloped) & _is_finite(new)
        failed_at = jnp.where(is_open & ~is_fine, jnp.int32(i), self.failed_at)
        good = _either(is_valued & is_sloped, self.position, self.good)
        back = _either(is_open, good, self.position)
        taken, left = Training(new, memory, good, failed_at), Training(back, self.memory, self.good, failed_at)
        return _either(is_fine, taken, left), is_fine


def _is_finite(tree) -> Any:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _either(condition, tree, other) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), tree, other)


def which_batch(target: Target, rows: np.ndarray, num_batches: int, i: int) -> str:
    """In words, what update ``i`` saw: ``rows`` of the target."""
    numbers = target.numbers_given(rows[:SHOWN])
    shown = "rows " + ", ".join(map(str, numbers)) + (" …" if len(rows) > SHOWN else "")
    if num_batches == 1:
        return shown
    return f"epoch {i // num_batches + 1}, batch {i % num_batches + 1} of {num_batches}: {shown}"


def without_density(target: Target, u: np.ndarray) -> str:
    """Why the density of all data is not finite where a training ended; empty where it is."""
    try:
        check_finite_start(target, u)
    except CredoError as error:
        return f"That of all data is not finite there. {error}"
    return ""


@functools.lru_cache(maxsize=32)  # a compiled program is keyed on the object
def adam(num_steps: int, step_size: float = STEP_SIZE) -> optax.GradientTransformation:
    """Adam whose step size falls to zero, so that the noise of the minibatches averages out."""
    return optax.adam(optax.cosine_decay_schedule(step_size, num_steps))
