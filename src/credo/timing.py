"""Seconds spent compiling, as JAX itself reports them, apart from seconds spent running."""

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax

_PREFIX = "/jax/core/compile/"
_watches: list[list[tuple[float, float]]] = []  # of the stopwatches that run: (start, end) of each compilation


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event.startswith(_PREFIX):
        end = time.perf_counter()
        for spans in _watches:
            spans.append((end - duration_secs, end))


@functools.cache
def _register() -> None:
    jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """A dict that holds ``total`` and ``compile`` seconds, tracing included, once the block has ended.

    Programs compiled side by side on threads count once.
    """
    _register()
    seconds: dict[str, float] = {}
    spans: list[tuple[float, float]] = []
    _watches.append(spans)
    start = time.perf_counter()
    try:
        yield seconds
    finally:
        _watches[:] = [other for other in _watches if other is not spans]
        seconds["total"] = time.perf_counter() - start
        seconds["compile"] = union_length(spans)


def union_length(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union of intervals (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
