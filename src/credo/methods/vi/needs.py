"""What a variational fit holds at its peak, by shapes alone."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from credo.memory import Need, budget, bytes_of, fewer, require
from credo.methods.vi.families.family import Family
from credo.methods.vi.optimisers.by_optax import as_optimiser
from credo.model.target import Target
from credo.status import CredoError

NUMBER = 8  # bytes
MAX_ROUNDS = 32  # of final draws
STATES = 2  # before a step and after it
MEMBERS = 8  # as large as q: what a step computes on its way, and the start's curvature
DRAWS = 5  # vectors a final draw: in its batch, among all, white, and in the user's space twice
NUMBERS = 100  # a final draw beside: its weight in its forms, and in few dimensions a draw that reaches far


def check_memory(
    state_of: Callable[[Family], Any],
    family: Family,
    others: Sequence[Family],
    target: Target,
    num_draws: int,
    max_memory: int | None,
) -> None:
    """CredoError, with what would fit of ``others`` and of fewer draws, where the fit of ``family`` does not.

    ``state_of(family)``: the shapes of what a step takes and gives, q among it.
    """

    def of_steps(family: Family) -> int:
        state = state_of(family)
        return STATES * bytes_of(state) + MEMBERS * bytes_of(state.q)

    own, dim = of_steps(family), target.dim

    def cheaper() -> Iterator[Need]:
        for other in others:
            if type(other) is not type(family):
                with contextlib.suppress(CredoError):  # an optimiser that was given may not suit it
                    yield Need(f"{type(other).__name__}()", of_steps(other) + of_draws(num_draws, dim))
        if num_draws:
            yield fewer(lambda n: Need(f"num_draws={n}", own + of_draws(n, dim)), num_draws, max_memory)

    wanted = Need(f"{type(family).__name__}()", own + of_draws(num_draws, dim))
    require(wanted, f"{dim:,} parameters", max_memory, cheaper())


def with_family(ascent: Any, family: Family) -> Any:
    """``ascent`` of another family, by that one's own optimiser where it has its family's own."""
    is_own = ascent.optimiser == as_optimiser(ascent.family.optimiser())
    optimiser = as_optimiser(family.optimiser()) if is_own else ascent.optimiser
    return replace(ascent, family=family, optimiser=optimiser)


def rounds_at_once(num_draws: int, dim: int, max_memory: int | None) -> int:
    """How many rounds of so many final draws may be weighed together."""
    return int(np.clip(budget(max_memory) // of_draws(num_draws, dim), 1, MAX_ROUNDS))


def of_draws(num_draws: int, dim: int) -> int:
    """Bytes of final draws that are weighed."""
    return NUMBER * num_draws * (DRAWS * dim + NUMBERS)
