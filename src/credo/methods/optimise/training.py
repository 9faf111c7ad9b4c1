"""How long networks are trained where nobody says, and when a batch is all rows: one rule for every method."""

from credo.model.target import Target

EPOCHS, LEAST_STEPS = 60, 2_000


def default_num_steps(target: Target, batch_size: int | None) -> int:
    """60 epochs, and no fewer than 2,000 updates."""
    return max(LEAST_STEPS, EPOCHS * (target.size // batch_size) if batch_size else 0)


def batch_of(target: Target, batch_size: int | None) -> int | None:
    """None where a batch is all rows. CredoError where the likelihood cannot be cut into rows."""
    if batch_size is None or target.y is None or batch_size >= target.size:
        return None
    target.check_minibatch(batch_size)
    return batch_size
