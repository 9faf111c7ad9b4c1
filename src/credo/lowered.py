"""How programs were written for XLA, and what was compiled, let go of once there is much of it.

JAX (0.10) keeps that text of the last 2,048 programs, each in an MLIR context of its own: 1.5 MB apiece, and a thread
that has had a thousand of them at once takes two or three times as long to write the next. Nothing that is compiled
needs it. A compiled program has memory maps of its own, a new model some hundreds with all its programs; where Linux
grants no more of them, mostly after 65,530, LLVM ends the process.
"""

import contextlib
import gc
from pathlib import Path

import jax

CONTEXTS = 100  # that may live
SHARE_OF_MAPS = 0.5
MAPS, MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def let_go() -> None:
    """Forget it where there are many. What JAX offers for this, ``clear_caches()``, forgets compiled programs too; the
    functions taken here are internal, and without them it is kept as before."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.interpreters.pxla import _cached_lowering_to_hlo
        from jax._src.pjit import _pjit_lower
        from jaxlib.mlir import ir

        if ir.Context._get_live_count() > CONTEXTS:
            _pjit_lower.cache_clear()
            _cached_lowering_to_hlo.cache_clear()


def make_room() -> None:
    """Forget what was compiled, where the process has half of the memory maps that it may have.

    For after a compilation: counting them takes a millisecond for every two thousand.
    """
    if MOST_MAPS.exists() and MAPS.read_bytes().count(b"\n") > SHARE_OF_MAPS * int(MOST_MAPS.read_text()):
        jax.clear_caches()
        gc.collect()
