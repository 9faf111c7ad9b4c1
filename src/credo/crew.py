"""Chains at work: threads that run one compiled chunk after another, and what they record.

*threads*: a chain is a task, run by as many threads as there are cores (XLA releases Python's lock). *vectorized*: all
chains are one task, whose program the compiler spreads over whatever the device has.
"""

import contextlib
import contextvars
import functools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.algorithm import Key, Options, Phase, Program, Records, stream
from credo.chunk import loop, steps
from credo.collector import collect_as_usual
from credo.cores import num_cores
from credo.memory import Need, budget, bytes_of, in_words, peak, require
from credo.noise import draw
from credo.precision import double, to_numpy
from credo.progress import Progress
from credo.status import CredoError
from credo.stopping import Stopping
from credo.storage import check_room, copy_draws, memory_for_draws, release, stored

LARGE_TUNING = 1 << 17  # bytes that are better moved to the device once than by every chunk
BUFFER_BYTES = 8 << 20  # of one chunk's records of a chain: small beside any data, and many steps of most models
TEAM_BUFFERS = 32  # of them at most, where many chains share a program
BUFFER_SHARE = 16  # of the memory for draws, since a chunk's records are held more than once while they are written
MIN_CHUNK = 2  # steps: a loop of one is no loop to the compiler, which then rounds otherwise
MAX_CHUNK = 1_024
MANY = 1 << 15  # parameters, from which what chains hold is counted before they begin
COPIES = 2  # of states: here and on the device
OF_TUNING = 6  # copies of the tuning: the bases of which the end of a window makes the next metric
FIRST_CHUNK = 16  # steps, or 1 under a time limit: how long a step takes is not known before
PATIENCE = 0.25  # seconds a chunk aims at: what a stop waits for, far above the 0.1 ms that calling it costs
PATIENCE_WITH_FILES = 1.0  # what a crash may lose, far above the few ms of flushing two files, or of waiting chains
LEAST_PENDING = 8  # chunks handed to threads, so that none waits for the one that hands them over
LISTEN = 0.1  # seconds between two looks at whether to stop
QUICK = 0.005  # seconds of a team's work that is not worth a thread: two of them hand it over in as long
SILENCE = 0.3  # seconds that a stop may take without a word


class Crew:
    """``like``: a tuning and a state of one chain, right in shapes and types."""

    def __init__(
        self, program: Program, target, like, key: Key, num_chains: int, layout: str, options: Options, journal, stop
    ):
        self.program, self.target, self.options, self.journal = program, target, options, journal
        self.stop: Stopping = stop
        self.is_vectorized = layout == "vectorized"
        self.loop = loop(program, self.is_vectorized)
        self.teams = [list(range(num_chains))] if self.is_vectorized else [[chain] for chain in range(num_chains)]
        self.keys = np.stack([stream(key, chain) for chain in range(num_chains)])
        self.like = jax.tree.map(np.zeros_like, (like[0], [like[1]] * len(self.teams[0])))
        self.is_double = jnp.result_type(float) == jnp.float64
        self.compiler = ThreadPoolExecutor(1)  # so that the main thread is free to hear a signal
        self.under_way: set[Future] = set()
        self.work = np.zeros(2, int)  # executed and useful turns, where chains share a loop
        self.memory = memory_for_draws()
        budget = BUFFER_BYTES * min(len(self.teams[0]), TEAM_BUFFERS)
        budget = min(budget, (options.max_memory or self.memory) // BUFFER_SHARE)
        self.noise_sizes = _noise_sizes(program, like[1])
        num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.like[1]))  # of one step of a team
        num_bytes += 8 * len(self.teams[0]) * sum(self.noise_sizes or ())
        self.length = 2 ** int(np.log2(np.clip(budget / max(num_bytes, 1), MIN_CHUNK, MAX_CHUNK)))
        first = 1 if options.time_limit is not None else FIRST_CHUNK
        self.quota = [min(first, self.length)] * len(self.teams)
        self.pace = math.inf  # seconds a step, as last seen
        self.patience = PATIENCE_WITH_FILES if journal or self.is_vectorized else PATIENCE
        self.at_once = min(len(self.teams), num_cores())
        self.pool = ThreadPoolExecutor(self.at_once)

    def plan(self, phases: Sequence[Phase], num_last: int) -> None:
        """Fewer teams at a time where memory does not hold as many as there are cores.

        ``num_last``: steps of the last phase to make room for. TooLarge where memory does not hold one team, CredoError
        where the disk does not hold the draws: both by shapes, before any work.
        """
        kept = jax.eval_shape(self.program.record, self.like[1][0])

        def of_records(phase: Phase, num_steps: int) -> int:
            return len(self.keys) * num_steps * bytes_of([kept[name] for name in phase.record])

        draws = of_records(phases[-1], num_last)
        if draws > (self.options.max_memory or self.memory):
            check_room(draws, self.options.checkpoint)
        dim = max((math.prod(leaf.shape) for leaf in jax.tree.leaves(kept)), default=0)
        if dim >= MANY:
            self.at_once = self._most_at_once(f"{dim:,} parameters")
            self.pool = ThreadPoolExecutor(self.at_once)  # in the place of one that has no thread yet

    def _most_at_once(self, what: str) -> int:
        tuning, states = self.like
        arguments = self.arguments(tuning, 0, states, 0, 0)
        work = peak(functools.partial(steps(self.is_vectorized), program=self.program, length=self.length), *arguments)
        held, own, num_teams = OF_TUNING * bytes_of(tuning), COPIES * bytes_of(states), len(self.teams)
        number, limit = len(self.keys), budget(self.options.max_memory)
        wanted = Need(f"Sampling by {number} chain{'s' * (number > 1)}", held + num_teams * own + work)
        others = [Need("chains=1", held + own + work)] if num_teams > 1 else []
        require(wanted, what, limit, others)
        return int(np.clip((limit - held - num_teams * own) // work, 1, self.at_once))

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
        tuning, states = self.like
        self.loop.lower(*self.arguments(tuning, 0, states, 0, 0), program=self.program, length=self.length)

    def compile(self) -> None:
        """Compile it by running no step at all."""
        tuning, states = self.like
        _, rows, _ = self.chunk(tuning, 0, states, 0, 0)
        self.rows = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[2:], a.dtype), rows)

    def arguments(self, tuning, team: int, states: list, first: int, last: int):
        keys, noise = self.keys[self.teams[team]], None
        if self.noise_sizes is not None:
            dtype = np.float64 if self.is_double else np.float32
            parts = [draw(key, self.noise_sizes, first, last, self.length, dtype) for key in keys]
            noise = jax.tree.map(lambda *rows: np.stack(rows), *parts) if self.is_vectorized else parts[0]
        if self.is_vectorized:
            state = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
        else:
            keys, state = keys[0], states[0]
        return self.target, tuning, keys, noise, state, np.int32(first), np.int32(last)

    def chunk(self, *args) -> tuple[list, Any, Any]:
        """(states, records (chain, step, …), work) of a team."""
        arguments = self.arguments(*args)
        if not self.is_vectorized:
            state, rows, work = self.loop(*arguments, program=self.program, length=self.length)
            return [state], jax.tree.map(lambda a: np.asarray(a)[None], rows), work
        found = self.loop(*arguments, program=self.program, length=self.length)
        state, rows, work = jax.tree.map(np.asarray, found)
        return [jax.tree.map(lambda leaf, c=c: leaf[c], state) for c in range(len(self.keys))], rows, work

    def allocate(self, phase: Phase, num_steps: int) -> Records:
        """Arrays (chain, step, …) for records of a phase; the largest lie in files where memory is short."""
        kept, info = self.rows
        rows = {name: kept[name] for name in phase.record}, info
        leading = (len(self.keys), num_steps)
        leaves, structure = jax.tree.flatten(rows)
        sizes = [np.dtype(leaf.dtype).itemsize * int(np.prod((*leading, *leaf.shape))) for leaf in leaves]
        limit, left = self.options.max_memory, sum(sizes)
        limit = self.memory if limit is None else limit
        arrays: list[Any] = [None] * len(leaves)
        for size, place in sorted(((size, place) for place, size in enumerate(sizes)), reverse=True):
            shape = *leading, *leaves[place].shape
            if left > limit and size:
                by_columns = phase.at_end is None  # else what a barrier makes of draws would depend on where they lie
                arrays[place] = stored(shape, leaves[place].dtype, self.options.checkpoint, by_columns=by_columns)
                left -= size
            else:
                arrays[place] = _zeros(shape, leaves[place].dtype)
        return jax.tree.unflatten(structure, arrays)

    def lengthen(self, records: Records, phase: Phase, num_steps: int) -> Records:
        """The same with room for ``num_steps`` steps a chain, or for more."""
        present = jax.tree.leaves(records)[0].shape[1]
        if num_steps <= present:
            return records
        longer = self.allocate(phase, min(max(num_steps, 2 * present), phase.num_steps))
        jax.tree.map(lambda old, new: copy_draws(old, new, present), records, longer)
        return longer

    def run(
        self,
        index: int,
        phase: Phase,
        end: int,
        tuning,
        states,
        done,
        records: Records,
        bar: Progress,
        *,
        before: int,
        deadline: float,
    ):
        """All chains to step ``end`` of a phase -> (states, steps done), short of it if the deadline comes first.

        ``before``: steps of the phases before it, so that no two steps of a run draw the same numbers. The queue is
        fair: the next chunk of a team waits behind those of the others.
        """
        self.stop.check()
        collect_as_usual()
        is_large = sum(leaf.nbytes for leaf in jax.tree.leaves(tuning)) > LARGE_TUNING
        tuning, states, done = jax.device_put(tuning) if is_large else tuning, list(states), list(done)

        def advance(team: int) -> None:
            chains = self.teams[team]
            first = min(done[chain] for chain in chains)
            last = self.end_of_chunk(team, first, end)
            begun = time.monotonic()
            found, (kept, info), work = self.chunk(
                tuning, team, [states[c] for c in chains], before + first, before + last
            )
            rows = jax.tree.map(lambda a: a[:, : last - first], ({n: kept[n] for n in phase.record}, info))
            self.pace = pace = (time.monotonic() - begun) / (last - first)
            if work is not None:
                self.work += np.array(work)
            place = slice(chains[0], chains[-1] + 1), slice(first, last)
            jax.tree.map(lambda a, row: a.__setitem__(place, row), records, rows)
            release(*jax.tree.leaves(records))
            if self.journal:
                self.journal.add(index, chains, first, last, found, rows)
            for chain, state in zip(chains, found, strict=True):
                states[chain], done[chain] = state, last
            of_quota = pace * self.quota[team]
            if of_quota > 2 * self.patience:
                self.quota[team] = max(1, self.quota[team] // 2)
            elif of_quota < self.patience / 2:
                growth = 2 if of_quota > self.patience / 8 else 4
                self.quota[team] = min(self.length, growth * self.quota[team])

        def is_left(team: int) -> bool:
            return min(done[chain] for chain in self.teams[team]) < end

        if self.pace * (end - min(done)) < QUICK and deadline == math.inf:
            for team in filter(is_left, range(len(self.teams))):
                self.quota[team] = self.length
                while is_left(team):
                    advance(team)
            bar.update(phase.name, before, done, records[1])
            return to_numpy(states), done
        waiting = deque(filter(is_left, range(len(self.teams))))
        pending: dict[Future, int] = {}

        def submit_next() -> None:
            while waiting and len(pending) < max(LEAST_PENDING, 2 * num_cores()):
                team = waiting.popleft()
                pending[self.submit(advance, team)] = team

        submit_next()
        while pending:
            self.stop.check()
            finished, _ = wait(pending, timeout=LISTEN, return_when=FIRST_COMPLETED)
            for future in finished:
                team = pending.pop(future)
                future.result()
                if is_left(team):
                    waiting.append(team)
            if time.monotonic() < deadline:
                submit_next()
            bar.update(phase.name, before, done, records[1])
        return to_numpy(states), done

    def end_of_chunk(self, team: int, first: int, end: int) -> int:
        """The step at which the chunk of a team that begins at ``first`` ends. It takes a short rest along: chains that
        share a loop wait for each other at its end."""
        quota, left = self.quota[team], end - first
        return end if left <= min(1.5 * quota, self.length) else first + quota

    def useful_share(self) -> float:
        """Of the turns of a shared loop, those of steps that were recorded; 1 where chains have loops of their own, NaN
        of a run that was continued."""
        if self.is_vectorized and self.journal and self.journal.is_resumed:
            return math.nan
        executed, useful = self.work
        return float(useful / executed) if executed else 1.0


def _noise_sizes(program: Program, state) -> tuple[int, int] | None:
    """Of a step's noise that is better drawn before it; an accelerator draws its own."""
    sizes = getattr(program, "noise_sizes", None)
    return None if sizes is None or jax.default_backend() != "cpu" else sizes(state)


def choose_layout(num_chains: int) -> str:
    """Threads on a CPU, where a chain that waits for no other is cheapest; one program for all on an accelerator.

    The rule reads nothing that differs between two runs on machines of one kind: same key, same draws.
    """
    return "threads" if jax.default_backend() == "cpu" else "vectorized"


def _zeros(shape: tuple[int, ...], dtype) -> np.ndarray:
    """CredoError where the system refuses as much."""
    try:
        return np.zeros(shape, dtype)
    except MemoryError as error:
        raise CredoError(
            f"The draws need {in_words(math.prod(shape) * np.dtype(dtype).itemsize)} of memory, which the system "
            "refuses: lower max_memory, above which they lie in a file, or ask for fewer draws."
        ) from error
