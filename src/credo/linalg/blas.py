"""Linear algebra on one thread, where threads of its own would cost more than they do.

Threads wait for each other, and where another program has a core of theirs they wait for the system to share it out.
Eigenvectors, in ms on one thread and on two of a machine of two cores:

    rows                     400       600       800     1,000     1,600
    idle                 12,  22   31,  42   72,  48  140,  81  560, 323
    two busy processes   23,  82   42, 544  106, 203  189, 286

Sums do not depend then on how many cores there are.
"""

import contextlib
import functools
import sys
import threading
from typing import Any

SMALL = 700  # rows of a matrix: beyond, threads pay where the machine is idle


class OneThread:
    """A context in which the linear algebra of the process keeps to the thread that calls it.

    The setting is the process's own: the first to enter makes it and the last to leave undoes it.
    """

    def __init__(self):
        self._lock, self._num_inside = threading.Lock(), 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                self._limits = _libraries(len(sys.modules)).limit(limits=1, user_api="blas")
            self._num_inside += 1

    def __exit__(self, *error) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                self._limits.restore_original_limits()


@functools.lru_cache(maxsize=1)
def _libraries(num_modules: int):
    """Those that are loaded. The search takes milliseconds, so it is done anew only where more modules are there."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


ONE_THREAD = OneThread()


def threads_for(dim: int) -> contextlib.AbstractContextManager[None]:
    """One thread for the linear algebra of a problem in ``dim`` dimensions, unless its matrices are large."""
    return ONE_THREAD if dim <= SMALL else contextlib.nullcontext()
