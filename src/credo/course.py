"""A loop that trains, in parts: between them the clock is looked at, signals are heard, the checkpoint is written.

``NAME.safetensors`` in the folder of the checkpoint: the state after so many steps, replaced in one step.
``NAME-000016.safetensors``: what the loop keeps of step 16 for good. A part is short enough that an interrupt is obeyed
soon; where the loop is cut changes no number.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from credo.algorithm import Options
from credo.checkpoint import read_arrays, read_tree, write_arrays, write_tree
from credo.collector import collect_as_usual
from credo.journal import Journal, occupied, versions
from credo.precision import to_numpy
from credo.progress import Progress
from credo.stopping import Stopping

PART = 1.0  # seconds that a part aims at
SAVED = 10.0  # seconds of work that a kill may lose, and the writing of a file is to be a small share of
SHARE = 20


class Course:
    """``state``: a tree of arrays, as it is after ``done`` steps; ``begun``: the same before the first.

    CredoError where the folder of the checkpoint holds another run.
    """

    def __init__(self, name: str, begun: Any, options: Options):
        self.name, self.options = name, options
        self.state, self.done = begun, 0
        self.journal, self.saved, self.cost = None, time.monotonic(), 0.0
        if options.checkpoint is None:
            return
        self.journal = Journal(options.checkpoint, options.identity or {}, resume=options.resume)
        self.path = self.journal.folder / f"{name}.safetensors"
        if options.resume and self.path.exists():
            self.state, header = read_tree(self.path, begun, kind="course")
            self.done, self.journal.is_begun = header["done"], True
            if header["versions"] != versions():
                warnings.warn(
                    f"The checkpoint was written with {header['versions']} and continues with {versions()}: the answer "
                    "is as good, but no longer bit for bit that of an uninterrupted run.",
                    stacklevel=2,
                )
        elif not options.resume and self.path.exists():
            raise occupied(self.journal.folder)
        elif not self.journal.is_announced and options.is_repeatable:
            self.journal.announce()

    def run(
        self,
        advance: Callable[[Any, int, int], Any],
        stops: Sequence[int],
        deadline: float,
        *,
        at_stop: Callable[[Any, int], Any] = lambda state, stop: state,
        is_over: Callable[[Any], bool] = lambda state: False,
    ) -> None:
        """``advance(state, first, last)`` until the last of ``stops``, the deadline, or ``is_over``.

        At each of the stops, rising numbers of steps, the state becomes ``at_stop(state, stop)``.
        """
        quota = 1
        with Stopping() as signals, Progress(stops[-1], 1, self.options.progress) as bar:
            if self.journal:
                signals.kept = self.journal.kept
            for stop in stops:
                while self.done < stop and not is_over(self.state):
                    begun, last = time.monotonic(), min(self.done + quota, stop)
                    if self.done and begun > deadline:
                        self.save()
                        return
                    self.state = jax.block_until_ready(advance(self.state, self.done, last))
                    collect_as_usual()
                    self.done = last
                    if self.done == stop or is_over(self.state):
                        self.state = at_stop(self.state, self.done)
                    bar.update(self.name, 0, [self.done], None)
                    seconds = time.monotonic() - begun
                    if seconds < PART / 2:
                        quota *= 2
                    elif seconds > 2 * PART:
                        quota = max(quota // 2, 1)
                    if signals.heard is not None or self.is_due:
                        self.save()
                    signals.check()
            self.save()

    @property
    def is_due(self) -> bool:
        """Whether as much work is behind as a kill may lose."""
        return time.monotonic() - self.saved > max(SAVED, SHARE * self.cost)

    def save(self) -> None:
        """The state in the folder, if there is one."""
        if self.journal is None:
            return
        begun = time.monotonic()
        if not self.journal.is_announced:
            self.journal.announce()
        write_tree(self.path, to_numpy(self.state), {"done": self.done, "versions": versions()}, kind="course")
        self.journal.is_begun, self.saved = True, time.monotonic()
        self.cost = self.saved - begun

    def keep(self, step: int, array: np.ndarray) -> None:
        """``array`` belongs to ``step`` for good."""
        if self.journal is not None:
            write_arrays(self._kept(step), {"kept": array}, {}, kind="course")

    def kept(self, step: int) -> np.ndarray:
        """What was kept of a step before the run was interrupted."""
        return read_arrays(self._kept(step), kind="course")[0]["kept"]

    def _kept(self, step: int):
        assert self.journal is not None
        return self.journal.folder / f"{self.name}-{step:06d}.safetensors"
