"""The one loop over iterations, which every iterative method shares.

An algorithm is a pair of functions, ``init`` and ``step``; everything round it is here and in its neighbours: chains
and threads (crew.py), compiled chunks (chunk.py), recording, barriers between phases, progress, time limits,
checkpoints (journal.py).
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from credo.algorithm import Info, Key, Options, Phase, Program, Records, State, Tuning
from credo.crew import Crew, choose_layout
from credo.journal import Journal
from credo.ordered import Ordered
from credo.progress import Progress
from credo.status import CredoError
from credo.stopping import Stopping
from credo.storage import cut


class Run(NamedTuple):
    """What came of it. ``records``: of the last phase. ``info``: by name of phase, phases of one name in a row.

    ``seconds``: wall seconds by name of phase. ``useful_share``: of the work done, that of steps which were recorded.
    ``is_complete``: False where the time limit came first; the chains are then cut to the length of the shortest.
    """

    tuning: Tuning
    states: list[State]
    records: dict[str, np.ndarray]
    info: dict[str, Info]
    seconds: dict[str, float]
    layout: str
    useful_share: float
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
    CredoError for a checkpoint that does not fit, or a time limit within warm-up.
    """
    layout = options.layout or choose_layout(num_chains)
    deadline = options.deadline()
    # The rest is for what must be done; a run that can be resumed has all the time, and is the same without a limit.
    half_time = np.inf if options.checkpoint else (time.monotonic() + deadline) / 2
    facts = {**(options.identity or {}), **(identity or {}), "layout": layout, "num_chains": num_chains}
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
        crew = stack.enter_context(
            Crew(program, Ordered.of(target), like, key, num_chains, layout, options, journal, stop)
        )
        crew.plan(phases, _ends(phases[last])[0])
        crew.result(crew.submit_compiler(crew.lower))  # Python's part of compiling first, then both cores have work
        start = None if is_resumed else crew.submit(begin, target)
        if start and meanwhile:
            start.add_done_callback(lambda done: crew.submit_unless_left(meanwhile, done))
        crew.result(crew.submit_compiler(crew.compile))
        if start is not None:
            first, left_out, (tuning, states) = 0, [], _in_rows(crew.result(start))
        elif journal:
            first, left_out, tuning, states = journal.restore(like, num_chains)
        if journal and not is_resumed:
            journal.enter(0, tuning, states)
        seconds = dict.fromkeys((phase.name for phase in phases), 0.0)
        info: dict[str, list[Info]] = {phase.name: [] for phase in phases}
        total = sum(phase.num_steps for phase in phases if not phase.is_extra)
        bar = stack.enter_context(Progress(total, num_chains, options.progress))
        of_last = crew.allocate(phases[last], _ends(phases[last])[0])  # before warm-up
        before, is_complete = 0, True
        for index, phase in enumerate(phases):
            if index in left_out:
                bar.total -= 0 if phase.is_extra else phase.num_steps
                continue
            ends = _ends(phase)
            bar.total += phase.num_steps if phase.is_extra else 0
            records, done = of_last if index == last else crew.allocate(phase, ends[0]), [0] * num_chains
            if journal and is_resumed and index <= first:
                records = crew.lengthen(records, phase, journal.num_steps(index, crew.teams))
                here, done = journal.read(index, crew.teams, records, states)
                states = here if index == first else states  # barriers since have changed those of earlier phases
            for end in ends if index >= first else ():
                if end < max(done):
                    continue  # before the checkpoint was written, the draws up to there were not enough
                begun, records = time.monotonic(), crew.lengthen(records, phase, end)
                states, done = crew.run(
                    index, phase, end, tuning, states, done, records, bar, before=before, deadline=deadline
                )
                seconds[phase.name] += time.monotonic() - begun
                is_complete = min(done) == end
                if not is_complete or _is_enough(phase, records, end):
                    break
            num_steps, before = min(done), before + phase.num_steps
            if not is_complete and (index < last or not num_steps):
                raise CredoError(_too_early(phase, num_steps, options))
            records = jax.tree.map(functools.partial(cut, num_draws=num_steps, folder=options.checkpoint), records)
            info[phase.name].append(records[1])
            if phase.at_end and index >= first and is_complete:
                tuning, states = _in_rows(phase.at_end(records, tuning, states))
            if first <= index < last:
                is_late = time.monotonic() > half_time
                following = next(i for i in range(index + 1, last + 1) if _is_due(phases[i], tuning, is_late))
                left_out = [*left_out, *range(index + 1, following)]
                if journal:
                    journal.enter(following, tuning, states, left_out)
    joined = {name: jax.tree.map(lambda *a: np.concatenate(a, axis=1), *parts) for name, parts in info.items() if parts}
    return Run(tuning, states, records[0], joined, seconds, layout, crew.useful_share(), is_complete)


def _in_rows(tree):
    """NumPy arrays row by row, as a file gives them back: products round by how a matrix lies."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, order="C") if isinstance(leaf, np.ndarray) else leaf, tree)


def _ends(phase: Phase) -> tuple[int, ...]:
    return *phase.pauses, phase.num_steps


def _is_due(phase: Phase, tuning: Tuning, is_late: bool) -> bool:
    return not (phase.is_extra and is_late) and (phase.is_due is None or phase.is_due(tuning))


def _is_enough(phase: Phase, records: Records, num_steps: int) -> bool:
    """Whether ``phase``, paused after ``num_steps``, ends there."""
    if num_steps not in phase.pauses or phase.is_enough is None:
        return False
    return phase.is_enough(jax.tree.map(lambda a: a[:, :num_steps], records))


def _too_early(phase: Phase, num_steps: int, options: Options) -> str:
    remedy = "credo.resume continues it" if options.checkpoint else "with checkpoint= it could be continued"
    return (
        f"The time limit of {options.limit:g} s came after {num_steps} of {phase.num_steps} steps of a phase of "
        f"{phase.name}, so there are no draws yet: raise time_limit ({remedy})."
    )
