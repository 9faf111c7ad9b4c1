"""Seconds spent compiling, as JAX itself reports them, apart from seconds spent running."""

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax

_PREFIX = "/jax/core/compile/"
_total = 0.0


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    global _total
    if event.startswith(_PREFIX):
        _total += duration_secs


@functools.cache
def _register() -> None:
    jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """A dict that holds ``total`` and ``compile`` seconds, tracing included, once the block has ended."""
    _register()
    seconds: dict[str, float] = {}
    start, compiled = time.perf_counter(), _total
    yield seconds
    seconds["total"] = time.perf_counter() - start
    seconds["compile"] = min(_total - compiled, seconds["total"])
