"""How far the chains are, on a terminal: one line on standard error, only for runs that take a while."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

DELAY = 1.0  # seconds: what ends sooner needs no bar, nor the import of rich


class Progress:
    """``num_steps``: of each phase. Shows nothing where ``is_wanted`` is false or nobody watches a terminal."""

    def __init__(self, num_steps: Sequence[int], num_chains: int, is_wanted: bool):
        self.before = np.concatenate([[0], np.cumsum(num_steps)]) * num_chains
        self.is_wanted = is_wanted and sys.stderr.isatty()
        self.begun = time.monotonic()
        self.bar: Any = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.stop()

    def update(self, phase: int, name: str, done: Sequence[int], info: Any) -> None:
        """``done``: steps of each chain in this phase. ``info``: what the steps tell (chain, step)."""
        if not self.is_wanted or time.monotonic() - self.begun < DELAY:
            return
        self.bar = self.bar or self._start()
        self.bar.update(self.task, completed=self.before[phase] + sum(done), description=_describe(name, done, info))

    def _start(self):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        bar = Bar(*columns, console=Console(stderr=True))
        self.task = bar.add_task("", total=self.before[-1])
        bar.start()
        return bar


def _describe(name: str, done: Sequence[int], info: Any) -> str:
    """Such as ``sampling, step size 0.41, 2 divergences``."""
    words = [name]
    if hasattr(info, "step_size") and min(done):
        words.append(f"step size {np.mean([info.step_size[c, n - 1] for c, n in enumerate(done)]):.2g}")
    if hasattr(info, "is_divergent"):
        count = sum(int(info.is_divergent[c, :n].sum()) for c, n in enumerate(done))
        words.append(f"{count} divergence{'' if count == 1 else 's'}")
    return ", ".join(words)
