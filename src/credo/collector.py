"""Python's garbage collector while programs are traced.

Tracing makes some hundred thousand small objects. At Python's usual threshold of 700 they cause 160 collections in a
first fit by NUTS, two of which look at all that the import of JAX left behind, a quarter of a million objects: a sixth
of that fit's time. Loops that run for long collect as usual, since what a user's iterator leaves behind may be large.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = 20_000  # objects made and not freed between two collections of the youngest
_usual: list[int] = []  # the process's own threshold, while it is another
_lock = threading.Lock()


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Until the block ends, or a loop within it calls ``collect_as_usual``. A collector that is off stays off."""
    with _lock:
        threshold, *others = gc.get_threshold()
        if not _usual and 0 < threshold < RARELY:
            _usual.append(threshold)
            gc.set_threshold(RARELY, *others)
    try:
        yield
    finally:
        collect_as_usual()


def collect_as_usual() -> None:
    with _lock:
        if _usual:
            gc.set_threshold(_usual.pop(), *gc.get_threshold()[1:])
