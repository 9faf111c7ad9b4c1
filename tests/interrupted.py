"""Runs that end before their time: by Ctrl-C as a chunk is written, on a disk that is full, or out of time."""

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from credo import CredoError, crew
from credo.journal import Journal


@contextlib.contextmanager
def at_chunk(number: int, error: BaseException | type = KeyboardInterrupt, *, before_state: bool = False) -> Iterator:
    """What stands in this block ends by ``error`` as chunk ``number`` is written.

    ``before_state``: its draws are on the disk, and the state that vouches for them is not.
    """
    add, seen = Journal.add, []

    def stop(self, phase, chains, first, last, states, rows):
        seen.append(last)
        if len(seen) >= number:
            if before_state:
                self.write_draws(phase, chains, first, last, rows)
            raise error
        add(self, phase, chains, first, last, states, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "add", stop)
        with pytest.raises(error if isinstance(error, type) else type(error)) as caught:
            yield caught


@contextlib.contextmanager
def on_a_full_disk(folder: Path, num_files: int, *, phase: int, chunk: int = 16) -> Iterator:
    """What stands in this block ends once ``folder`` has ``num_files`` files, of ``chunk`` draws each, of ``phase``."""
    fsync = os.fsync

    def full(descriptor):
        if len(list(folder.glob(f"draws-{phase}-*"))) >= num_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew, "FIRST_CHUNK", chunk)
        patch.setattr(crew, "MAX_CHUNK", chunk)
        patch.setattr(os, "fsync", full)
        with pytest.raises(CredoError, match=r"cannot be written \(No space left on device\): free space or choose"):
            yield


@contextlib.contextmanager
def on_chunks_of(length: int) -> Iterator:
    """Chunks of so many draws in this block, so that a short run has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew, "FIRST_CHUNK", length)
        patch.setattr(crew, "MAX_CHUNK", length)
        yield


@contextlib.contextmanager
def out_of_time() -> Iterator:
    """The time limit of a run in this block, however long, is over once each chain has a chunk of its draws: a test
    that waits for a clock fails on a slow machine."""
    run = crew.Crew.run

    def hurried(self, index, phase, *args, deadline, **options):
        return run(self, index, phase, *args, deadline=-np.inf if phase.name == "sampling" else deadline, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew.Crew, "run", hurried)
        yield


@contextlib.contextmanager
def obeying_ctrl_c() -> Iterator:
    """SIGINT as a shell leaves it to programs in the foreground: one in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
