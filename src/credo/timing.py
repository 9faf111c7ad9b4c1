"""Where the seconds of a fit went: compiling, as JAX itself reports it, and whatever is ``counted`` by name."""

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax

_PREFIX = "/jax/core/compile/"
_watches: list[dict[str, list[tuple[float, float]]]] = []  # of the stopwatches that run: name -> (start, end) of each


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event.startswith(_PREFIX):
        end = time.perf_counter()
        _add("compile", end - duration_secs, end)


def _add(name: str, start: float, end: float) -> None:
    for spans in _watches:
        spans.setdefault(name, []).append((start, end))


@functools.cache
def _register() -> None:
    jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """A dict that holds ``total`` and ``compile`` seconds, tracing included, once the block has ended.

    Beside them stand those of each part that was ``counted``, compilation included. What runs side by side on threads
    counts once.
    """
    _register()
    seconds: dict[str, float] = {}
    spans: dict[str, list[tuple[float, float]]] = {"compile": []}
    _watches.append(spans)
    start = time.perf_counter()
    try:
        yield seconds
    finally:
        _watches[:] = [other for other in _watches if other is not spans]
        seconds["total"] = time.perf_counter() - start
        seconds |= {name: union_length(each) for name, each in spans.items()}


@contextmanager
def counted(name: str) -> Iterator[None]:
    """A part of a fit, or as a decorator a function, whose seconds are to be known apart."""
    start = time.perf_counter()
    try:
        yield
    finally:
        _add(name, start, time.perf_counter())


def union_length(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union of intervals (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
