"""What XLA is told about the programs that Credo compiles: most of a first fit's time is compilation.

On a CPU XLA writes each group of element-wise operations by its "fusion emitters", which take half of the processor
time of compilation, and cuts a module in parts for its threads, which costs a quarter of what is left. Programs that
run a few times, or a few thousand times on small arrays, do without both. Those that train a network for minutes keep
them: there the emitters' vectorised functions (tanh) are worth up to 40 % of a step.
"""

import functools
from collections.abc import Callable

import jax
from jax.core import Tracer

BRIEF = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
TINY = {**BRIEF, "xla_backend_optimization_level": 0}
# Loops of small operations are too short for the vectoriser and the unroller of LLVM's levels 2 and 3 to earn anything:
# at level 1, without the dearer passes, they compile in two thirds of the time and run at the same speed.
LONG = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
NATIVE = {**BRIEF, **LONG}


class brief:
    """``jax.jit(function)`` of a program that runs a few times.

    ``options``: ``BRIEF``, or ``TINY`` where it runs for milliseconds, which LLVM's optimiser does not earn;
    ``is_small(*args)`` says where it does, if that depends. Within another program, without a CPU, and from the first
    time that this XLA refuses them, there are none.
    """

    def __init__(
        self,
        function: Callable,
        static_argnames: str | tuple[str, ...] = (),
        options: dict = BRIEF,
        is_small: Callable[..., bool] | None = None,
    ):
        functools.update_wrapper(self, function)
        self.usual = jax.jit(function, static_argnames=static_argnames)
        self.quick = jax.jit(function, static_argnames=static_argnames, compiler_options=options)
        self.tiny = jax.jit(function, static_argnames=static_argnames, compiler_options=TINY)
        self.is_small, self.is_refused = is_small, False

    def lower(self, *args, **static):
        return (self.usual if self._is_usual((args, static)) else self._quick(args)).lower(*args, **static)

    def __call__(self, *args, **static):
        if self._is_usual((args, static)):
            return self.usual(*args, **static)
        try:
            return self._quick(args)(*args, **static)
        except jax.errors.JaxRuntimeError as error:
            if "compile option" not in str(error):
                raise
            self.is_refused = True
            return self.usual(*args, **static)

    def _quick(self, args) -> Callable:
        return self.tiny if self.is_small is not None and self.is_small(*args) else self.quick

    def _is_usual(self, arguments) -> bool:
        is_within = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments))
        return is_within or self.is_refused or jax.default_backend() != "cpu"
