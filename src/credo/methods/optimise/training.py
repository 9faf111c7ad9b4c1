"""How networks are trained where nobody says, and when a batch is all rows: one rule for every method."""

import functools

import optax

from credo.model.target import Target

EPOCHS, LEAST_STEPS = 60, 2_000
STEP_SIZE = 0.01
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


@functools.lru_cache(maxsize=32)  # a compiled program is keyed on the object
def adam(num_steps: int, step_size: float = STEP_SIZE) -> optax.GradientTransformation:
    """Adam whose step size falls to zero, so that the noise of the minibatches averages out."""
    return optax.adam(optax.cosine_decay_schedule(step_size, num_steps))
