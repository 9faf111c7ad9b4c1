"""The one loop over iterations, which every iterative method shares.

An algorithm is a pair of functions, ``init`` and ``step``; everything round it is here: chains, chunks, recording,
barriers between phases, progress, time limits, checkpoints.

A *chunk* is the compiled unit: a loop of as many steps as it is told, which writes what is recorded into a buffer of
fixed length. One program therefore serves warm-up and sampling, any number of draws, new data and new keys. Chains
run their chunks on threads, one thread a core (XLA releases Python's lock). Step i of chain c draws its key from
(key, c, i) alone, so neither thread timing nor the size of the chunks changes a draw.
"""

import contextlib
import contextvars
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from credo.journal import Journal
from credo.native import jit
from credo.precision import double, to_numpy
from credo.progress import Progress
from credo.status import CredoError
from credo.stopping import Stopping

Key = Any
State = Any  # what the next step needs; a pytree of arrays
Info = Any  # what a person asks of a step; a named tuple of arrays
Tuning = Any  # what all chains share and barriers change; a pytree of arrays
Records = tuple[dict[str, np.ndarray], Info]  # arrays (chain, step, …): what was kept of the states, and the infos

BUFFER_BYTES = 8 << 20  # of one chunk's records: small beside any data, and holds many steps of most models
MAX_CHUNK = 1_024  # steps
FIRST_CHUNK = 16  # steps, or 1 under a time limit: how long a step takes is not known before
PATIENCE = 0.25  # seconds a chunk aims at: what a stop waits for, far above the 0.1 ms that calling it costs
PATIENCE_WITH_FILES = 1.0  # what a crash may lose, far above the few ms of flushing two files
LISTEN = 0.1  # seconds between two looks at whether to stop
SILENCE = 0.3  # seconds that a stop may take without a word


class Options(NamedTuple):
    """What ``credo.fit`` passes on to every method.

    ``checkpoint``: a folder. ``layout``: None or "threads". ``time_limit``: seconds of the whole run. ``max_memory``:
    bytes of draws kept in memory; above it they lie in a temporary file. ``progress``: show a bar. ``identity``: what
    a checkpoint is of, JSON-able facts that a resumed run must share. ``is_repeatable``: nothing else is needed to
    begin the run. ``resume``: continue the checkpoint.
    """

    checkpoint: Path | None = None
    layout: str | None = None
    time_limit: float | None = None
    max_memory: int | None = None
    progress: bool = False
    identity: Mapping[str, Any] | None = None
    is_repeatable: bool = True
    resume: bool = False

    def deadline(self) -> float:
        """When ``time_limit`` is over, by ``time.monotonic()``; infinite without one."""
        return np.inf if self.time_limit is None else time.monotonic() + self.time_limit

    def until(self, deadline: float) -> "Options":
        """The same for a part of the run: the time limit is what is left of it, 0 where nothing is."""
        left = None if deadline == np.inf else max(0.0, deadline - time.monotonic())
        return self._replace(time_limit=left)


class Algorithm(NamedTuple):
    """``init(key, position) -> state`` and ``step(key, state) -> (state, info)``, pure and traceable."""

    init: Callable[[Key, Any], State]
    step: Callable[[Key, State], tuple[State, Info]]


@runtime_checkable
class Program(Protocol):
    """What a compiled loop is keyed on: hashable settings that make an algorithm of a target and its tuning."""

    def algorithm(self, target: Any, tuning: Tuning) -> Algorithm: ...

    def record(self, state: State) -> dict[str, Any]:
        """What may be kept of a state, by name."""
        ...


class Phase(NamedTuple):
    """A stretch of the run that ends at a barrier.

    ``record``: names (of ``Program.record``) to keep of each step; infos are always kept. ``at_end(records, tuning,
    states) -> (tuning, states)`` runs once all chains are there, on NumPy arrays in chain order.
    """

    name: str
    num_steps: int
    record: tuple[str, ...] = ()
    at_end: Callable[[Records, Tuning, list[State]], tuple[Tuning, list[State]]] | None = None


class Run(NamedTuple):
    """What came of it. ``records``: of the last phase. ``info``: by name of phase, phases of one name in a row.

    ``seconds``: wall seconds by name of phase. ``is_complete``: False where the time limit came first; the chains are
    then cut to the length of the shortest.
    """

    tuning: Tuning
    states: list[State]
    records: dict[str, np.ndarray]
    info: dict[str, Info]
    seconds: dict[str, float]
    layout: str
    is_complete: bool


def run(
    program: Program,
    target: Any,
    *,
    begin: Callable[[Any], tuple[Tuning, list[State]]],
    like: tuple[Tuning, State],
    phases: Sequence[Phase],
    key: Key,
    num_chains: int,
    options: Options,
    identity: Mapping[str, Any] | None = None,
    meanwhile: Callable[[], Any] | None = None,
) -> Run:
    """Run ``phases`` one after the other in ``num_chains`` chains.

    ``begin(target)`` gives the first tuning and states; it works while the loop compiles, for which ``like``, trees
    of arrays of the same structure, shapes and dtypes, are enough. ``meanwhile()``: what else could be done then.
    ``identity``: JSON-able facts for the checkpoint.
    CredoError for a layout that does not exist, a checkpoint that does not fit, or a time limit within warm-up.
    """
    if options.layout not in (None, "threads"):
        raise CredoError(f"layout={options.layout!r} does not exist (yet): leave it out, or say 'threads'.")
    deadline = options.deadline()
    facts = {**(options.identity or {}), **(identity or {}), "layout": "threads", "num_chains": num_chains}
    last = len(phases) - 1
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(Stopping())
        journal = Journal(options.checkpoint, facts, resume=options.resume) if options.checkpoint else None
        if journal:
            stop.kept = journal.kept
        is_resumed = journal is not None and journal.is_resumed
        if journal and not is_resumed and options.is_repeatable:
            journal.announce()
        target = jax.device_put(target)
        crew = stack.enter_context(_Crew(program, target, like, key, num_chains, options, journal, stop))
        crew.result(crew.submit_compiler(crew.lower))  # Python's part of compiling first, then both cores have work
        start = None if is_resumed else crew.submit(begin, crew.target)
        if start and meanwhile:
            start.add_done_callback(lambda done: crew.submit_unless_left(meanwhile, done))
        crew.result(crew.submit_compiler(crew.compile))
        if start is not None:
            first, (tuning, states) = 0, crew.result(start)
        elif journal:
            first, tuning, states = journal.restore(like, num_chains)
        if journal and not is_resumed:
            journal.enter(0, tuning, states)
        seconds = dict.fromkeys((phase.name for phase in phases), 0.0)
        info: dict[str, list[Info]] = {phase.name: [] for phase in phases}
        bar = stack.enter_context(Progress([p.num_steps for p in phases], num_chains, options.progress))
        for index, phase in enumerate(phases):
            records, done = crew.allocate(phase), [0] * num_chains
            if journal and is_resumed and index <= first:
                here, done = journal.read(index, records, states)
                states = here if index == first else states  # barriers since have changed those of earlier phases
            if index >= first:
                begun = time.monotonic()
                states, done = crew.run(index, phase, tuning, states, done, records, bar, deadline)
                seconds[phase.name] += time.monotonic() - begun
            num_steps = min(done)
            records = jax.tree.map(lambda a, n=num_steps: a[:, :n], records)
            info[phase.name].append(records[1])
            if num_steps < phase.num_steps:
                if index < last or not num_steps:
                    raise CredoError(_too_early(phase, num_steps, options))
                break
            if phase.at_end and index >= first:
                tuning, states = phase.at_end(records, tuning, states)
            if journal and first <= index < last:
                journal.enter(index + 1, tuning, states)
    joined = {name: jax.tree.map(lambda *a: np.concatenate(a, axis=1), *parts) for name, parts in info.items() if parts}
    return Run(tuning, states, records[0], joined, seconds, "threads", num_steps == phases[-1].num_steps)


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


# the compiled chunk ---------------------------------------------------------------------------------------------------


def _chunk(target, tuning, key, state, start, stop, *, program: Program, length: int):
    """Steps ``start`` to ``stop`` of one chain, ``length`` at most -> (state, records of each step)."""
    algorithm = program.algorithm(target, tuning)

    def step(i, state):
        state, info = algorithm.step(jax.random.fold_in(as_key(key), i), state)
        return state, (program.record(state), info)

    # The user's density is traced here, once; the loop repeats the equations that came of it.
    equations, shapes = jax.make_jaxpr(step, return_shape=True)(start, state)

    def body(carry):
        i, state, buffers = carry
        leaves = jex.jaxpr_as_fun(equations)(i, *jax.tree.leaves(state))
        state, record = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
        put = functools.partial(lax.dynamic_update_index_in_dim, index=i - start, axis=0)
        return i + 1, state, jax.tree.map(put, buffers, record)

    buffers = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes[1])
    return lax.while_loop(lambda carry: carry[0] < stop, body, (start, state, buffers))[1:]


compiled_chunk = jit(_chunk, static_argnames=("program", "length"))


# chains on threads ----------------------------------------------------------------------------------------------------


class _Crew:
    """Threads that run one compiled chunk after another, for all chains."""

    def __init__(self, program: Program, target, like, key: Key, num_chains: int, options: Options, journal, stop):
        self.program, self.target, self.like, self.options, self.journal = program, target, like, options, journal
        self.stop: Stopping = stop
        self.keys = [stream(key, chain) for chain in range(num_chains)]
        self.is_double = jnp.result_type(float) == jnp.float64
        self.pool = ThreadPoolExecutor(min(num_chains, num_cores()))
        self.compiler = ThreadPoolExecutor(1)  # so that the main thread is free to hear a signal
        self.under_way: set[Future] = set()
        num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(like[1]))
        budget = min(BUFFER_BYTES, (options.max_memory or BUFFER_BYTES) // 8)
        self.length = 2 ** int(np.log2(np.clip(budget / max(num_bytes, 1), 1, MAX_CHUNK)))
        self.quota = [min(FIRST_CHUNK if options.time_limit is None else 1, self.length)] * num_chains
        self.patience = PATIENCE_WITH_FILES if journal else PATIENCE

    def __enter__(self):
        return self

    def __exit__(self, _type, error, _traceback):
        """Waits for the work under way, so that files are whole and no thread is in XLA when Python ends."""
        for pool in (self.pool, self.compiler):
            pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, KeyboardInterrupt) and wait(list(self.under_way), timeout=SILENCE).not_done:
            print("Stopping … the work under way cannot be interrupted and is waited for.", file=sys.stderr, flush=True)
        while wait(list(self.under_way), timeout=LISTEN).not_done:
            pass  # no join yet: one that a second Ctrl-C interrupts would make its thread count as ended (Python 3.11)
        for pool in (self.pool, self.compiler):
            pool.shutdown()

    def submit(self, function: Callable, *args) -> Future:
        """Call ``function`` on a thread, in the caller's precision."""
        return self._submit_to(self.pool, function, *args)

    def submit_compiler(self, function: Callable) -> Future:
        """The same on the thread that compiles, beside those of the chains."""
        return self._submit_to(self.compiler, function)

    def _submit_to(self, pool: ThreadPoolExecutor, function: Callable, *args) -> Future:
        def task():
            with double(self.is_double):
                return function(*args)

        future = pool.submit(contextvars.copy_context().run, task)
        self.under_way.add(future)
        future.add_done_callback(self.under_way.discard)
        return future

    def result(self, future: Future) -> Any:
        """What ``future`` gives, unless a signal comes first."""
        self.stop.check()
        while not future.done():
            wait([future], timeout=LISTEN)
            self.stop.check()
        return future.result()

    def submit_unless_left(self, function: Callable, before: Future) -> None:
        """``submit`` what is not needed, once ``before`` is done; nothing where that failed or a signal came."""
        if not before.cancelled() and before.exception() is None:
            with contextlib.suppress(RuntimeError):
                self.submit(function)

    def lower(self) -> None:
        """Trace the chunk."""
        tuning, state = jax.tree.map(np.zeros_like, self.like)
        compiled_chunk.lower(*self.arguments(tuning, 0, state, 0, 0), program=self.program, length=self.length)

    def compile(self) -> None:
        """Compile it by running no step at all."""
        tuning, state = jax.tree.map(np.zeros_like, self.like)
        _, rows = self.chunk(tuning, 0, state, 0, 0)
        self.rows = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), rows)

    def arguments(self, tuning, chain: int, state, first: int, last: int):
        return self.target, tuning, self.keys[chain], state, np.int32(first), np.int32(last)

    def chunk(self, *args):
        return compiled_chunk(*self.arguments(*args), program=self.program, length=self.length)

    def allocate(self, phase: Phase) -> Records:
        """Arrays (chain, step, …) for the records of a phase."""
        kept, info = self.rows
        rows = ({name: kept[name] for name in phase.record}, info)
        leading = (len(self.keys), phase.num_steps)
        num_bytes = sum(np.dtype(r.dtype).itemsize * np.prod((*leading, *r.shape)) for r in jax.tree.leaves(rows))
        in_memory = self.options.max_memory is None or num_bytes <= self.options.max_memory
        make = np.zeros if in_memory else _in_temporary_file
        return jax.tree.map(lambda r: make((*leading, *r.shape), r.dtype), rows)

    def run(self, index: int, phase: Phase, tuning, states, done, records: Records, bar: Progress, deadline: float):
        """All chains to the end of a phase -> (states, steps done), short of it if the deadline comes first.

        The queue is fair: the next chunk of a chain waits behind those of the others.
        """
        self.stop.check()
        tuning, states, done = jax.device_put(tuning), list(states), list(done)

        def advance(chain: int) -> None:
            first = done[chain]
            last = min(first + self.quota[chain], phase.num_steps)
            begun = time.monotonic()
            state, (kept, info) = self.chunk(tuning, chain, states[chain], first, last)
            rows = jax.tree.map(lambda a: np.asarray(a)[: last - first], ({n: kept[n] for n in phase.record}, info))
            elapsed = time.monotonic() - begun
            jax.tree.map(lambda a, row: a[chain].__setitem__(slice(first, last), row), records, rows)
            if self.journal:
                self.journal.add(index, chain, first, last, state, rows)
            states[chain], done[chain] = state, last
            if elapsed > 2 * self.patience:
                self.quota[chain] = max(1, self.quota[chain] // 2)
            elif elapsed < self.patience / 2 and last - first == self.quota[chain]:
                self.quota[chain] = min(self.length, 2 * self.quota[chain])

        pending = {self.submit(advance, c): c for c in range(len(states)) if done[c] < phase.num_steps}
        while pending:
            self.stop.check()
            finished, _ = wait(pending, timeout=LISTEN, return_when=FIRST_COMPLETED)
            for future in finished:
                chain = pending.pop(future)
                future.result()
                if done[chain] < phase.num_steps and time.monotonic() < deadline:
                    pending[self.submit(advance, chain)] = chain
            bar.update(index, phase.name, done, records[1])
        return to_numpy(states), done


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_temporary_file(shape: tuple[int, ...], dtype) -> np.ndarray:
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def _too_early(phase: Phase, num_steps: int, options: Options) -> str:
    remedy = "credo.resume continues it" if options.checkpoint else "with checkpoint= it could be continued"
    return (
        f"The time limit of {options.time_limit:g} s came after {num_steps} of {phase.num_steps} steps of a phase of "
        f"{phase.name}, so there are no draws yet: raise time_limit ({remedy})."
    )
