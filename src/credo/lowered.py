"""How programs were written for XLA, let go of once there are many.

JAX (0.10) keeps that text of the last 2,048 programs, each in an MLIR context of its own: 1.5 MB apiece, and a thread
that has had a thousand of them at once takes two or three times as long to write the next. Nothing that is compiled
needs it.
"""

import contextlib

CONTEXTS = 100  # that may live


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
