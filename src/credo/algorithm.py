"""What an iterative method gives to the one loop, and what the loop is told.

An algorithm is a pair of pure functions, ``init`` and ``step``; one whose steps differ in length shows their *stages*
as well, so that many chains can share a compiled loop without waiting for one another.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Key = Any
State = Any  # what the next step needs; a pytree of arrays
Info = Any  # what a person asks of a step; a named tuple of arrays
Tuning = Any  # what all chains share and barriers change; a pytree of arrays
Records = tuple[dict[str, np.ndarray], Info]  # arrays (chain, step, …): what was kept of the states, and the infos
Unfinished = Any  # a step under way; a pytree of arrays

LAYOUTS = ("threads", "vectorized")


class Stages(NamedTuple):
    """A step cut into pieces of equal cost: ``begin``, ``advance`` until ``is_done``, ``end``.

    ``begin(key, state, previous) -> unfinished``: ``previous`` is a finished one whose memory may serve again, or None.
    """

    begin: Callable[[Key, State, Unfinished | None], Unfinished]
    advance: Callable[[Unfinished], Unfinished]
    is_done: Callable[[Unfinished], Any]
    end: Callable[[Unfinished], tuple[State, Info]]

    def step(self, key: Key, state: State) -> tuple[State, Info]:
        """The whole step."""
        start = self.begin(key, state, None)
        return self.end(lax.while_loop(lambda unfinished: ~self.is_done(unfinished), self.advance, start))


class Algorithm(NamedTuple):
    """``init(key, position) -> state`` and ``step(key, state) -> (state, info)``, pure and traceable."""

    init: Callable[[Key, Any], State]
    step: Callable[[Key, State], tuple[State, Info]]
    stages: Stages | None = None


@runtime_checkable
class Program(Protocol):
    """What a compiled loop is keyed on: hashable settings that make an algorithm of a target and its tuning.

    One that may run for minutes on a network says ``is_long = True``, which is worth a longer compilation. One whose
    steps take ``Noise`` in place of a key says ``noise_sizes(state)``, how many normal and uniform numbers.
    """

    def algorithm(self, target: Any, tuning: Tuning) -> Algorithm: ...

    def record(self, state: State) -> dict[str, Any]:
        """What may be kept of a state, by name."""
        ...


class Phase(NamedTuple):
    """A stretch of the run that ends at a barrier.

    ``record``: names (of ``Program.record``) to keep of each step; infos are always kept. ``at_end(records, tuning,
    states) -> (tuning, states)`` runs once all chains are there, on NumPy arrays in chain order. At each of the steps
    ``pauses`` of the last phase, in rising order and below ``num_steps``, ``is_enough(records)`` may end it. A phase
    before the last is left out if it is not ``is_due(tuning)`` when the one before it has ended; one that ``is_extra``
    is not counted on beforehand, and left out too if half of the time limit of a run without a checkpoint is over.
    """

    name: str
    num_steps: int
    record: tuple[str, ...] = ()
    at_end: Callable[[Records, Tuning, list[State]], tuple[Tuning, list[State]]] | None = None
    pauses: tuple[int, ...] = ()
    is_enough: Callable[[Records], bool] | None = None
    is_due: Callable[[Tuning], bool] | None = None
    is_extra: bool = False


class Options(NamedTuple):
    """What ``credo.fit`` passes on to every method.

    ``checkpoint``: a folder. ``layout``: None, "threads" or "vectorized". ``time_limit``: seconds of the whole run.
    ``max_memory``: bytes of draws kept in memory, a share of what is free if None; above it they lie in a temporary
    file. ``progress``: show a bar.
    ``identity``: what a checkpoint is of, JSON-able facts that a resumed run must share. ``is_repeatable``: nothing
    else is needed to begin the run. ``resume``: continue the checkpoint. ``asked``: the limit of the
    whole run, where this is a part of it.
    """

    checkpoint: Path | None = None
    layout: str | None = None
    time_limit: float | None = None
    max_memory: int | None = None
    progress: bool = False
    identity: Mapping[str, Any] | None = None
    is_repeatable: bool = True
    resume: bool = False
    asked: float | None = None

    @property
    def limit(self) -> float | None:
        """The seconds that a person asked for, of which ``time_limit`` may be what is left."""
        return self.time_limit if self.asked is None else self.asked

    def deadline(self) -> float:
        """When ``time_limit`` is over, by ``time.monotonic()``; infinite without one."""
        return np.inf if self.time_limit is None else time.monotonic() + self.time_limit

    def until(self, deadline: float) -> "Options":
        """The same for a part of the run: the time limit is what is left of it, 0 where nothing is."""
        left = None if deadline == np.inf else max(0.0, deadline - time.monotonic())
        return self._replace(time_limit=left, asked=self.limit)

    def of_start(self, deadline: float) -> "Options":
        """The same for the search of a start: beside a checkpoint nothing cuts it, or another run would be resumed."""
        return self.until(deadline if self.checkpoint is None else np.inf)


# keys -----------------------------------------------------------------------------------------------------------------


def stream(key: Key, *path: int) -> np.ndarray:
    """Key data, uint32 (2,), of one of many independent streams under ``key`` (NumPy's SeedSequence: O'Neill 2015).

    Made on the host, so that naming a stream compiles nothing.
    """
    data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return np.random.SeedSequence(np.asarray(data).ravel().tolist(), spawn_key=path).generate_state(2, np.uint32)


def streams(key: Key, number: int, *path: int) -> np.ndarray:
    """Key data, uint32 (number, 2): one key for each of ``number`` things under ``stream(key, *path)``."""
    return np.random.SeedSequence(stream(key, *path).tolist()).generate_state(2 * number, np.uint32).reshape(-1, 2)


def as_key(data) -> Key:
    """The JAX key of a stream, within a compiled program."""
    return jax.random.wrap_key_data(data, impl="threefry2x32")
