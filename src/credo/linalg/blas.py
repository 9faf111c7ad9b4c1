"""Linear algebra on one thread, where threads of its own would cost more than they do.

Small matrices are faster so, by far on a busy machine, and sums do not depend on how many cores there are.
"""

import functools
import sys
import threading
from typing import Any


class OneThread:
    """A context in which the linear algebra of the process keeps to the thread that calls it.

    The setting is the process's own: the first to enter makes it and the last to leave undoes it.
    """

    def __init__(self):
        self._lock, self._num_inside = threading.Lock(), 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._num_inside += 1
            if self._num_inside == 1:
                self._limits = _libraries(len(sys.modules)).limit(limits=1, user_api="blas")

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
