"""How far the chains are, on a terminal: one line on standard error, only for runs that take a while."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

DELAY = 1.0  # seconds: what ends sooner needs no bar, nor the import of rich


class Progress:
    """``total``: steps of a chain. Shows nothing where ``is_wanted`` is false or nobody watches a terminal."""

    def __init__(self, total: int, num_chains: int, is_wanted: bool):
        self.total, self.num_chains = total, num_chains
        self.is_wanted = is_wanted and sys.stderr is not None and sys.stderr.isatty()  # None: a service, pythonw
        self.begun = time.monotonic()
        self.bar: Any = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.stop()

    def update(self, name: str, before: int, done: Sequence[int], info: Any) -> None:
        """``before``, ``done``: steps of a chain before a phase, and of each in it. ``info``: theirs (chain, step)."""
        if not self.is_wanted or time.monotonic() - self.begun < DELAY:
            return
        self.bar = self.bar or self._start()
        self.bar.update(
            self.task,
            completed=before * self.num_chains + sum(done),
            total=self.total * self.num_chains,
            description=_describe(name, done, info),
        )

    def _start(self):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        bar = Bar(*columns, console=Console(stderr=True))
        self.task = bar.add_task("")
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
