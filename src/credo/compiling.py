"""What XLA is told about the programs that Credo compiles: most of a first fit's time is compilation.

On a CPU XLA writes each group of element-wise operations by its "fusion emitters", which take half of the processor
time of compilation, and cuts a module in parts for its threads, which costs a quarter of what is left. Programs that
run a few times, or a few thousand times on small arrays, do without both. Those that train a network for minutes keep
them: there the emitters' vectorised functions (tanh) are worth up to 40 % of a step. So do thousands of densities of
many rows: of 10,000 rows a density of a logistic regression takes 60 µs with them and 108 without.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax.core import Tracer

from credo.convolutions import canonical
from credo.lapack import one_by_one

one_by_one()
# JAX 0.10 gives groups of operations to a library, whose sums in single precision are wrong from some sizes on where
# element-wise operations follow: z − Σ_k w_nk z_bnk, as in derivatives of a softmax, of z (8, 700, 10) for half of the
# b. Single products of matrices it has right, and faster than XLA.
LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
SOUND = {LIBRARY: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
BRIEF = {**SOUND, "xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
LARGE = {**SOUND, "xla_cpu_parallel_codegen_split_count": 1}
MANY_ROWS = 20_000  # from which thousands of densities earn the emitters
# Loops of small operations are too short for the vectoriser and the unroller of LLVM's levels 2 and 3 to earn anything:
# at level 1, without the dearer passes, they compile in two thirds of the time and run at the same speed.
LONG = {**SOUND, "xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
# At level 0 it rounds one product in two ways within a program: the gradient of a maximum, which looks for the entry
# that is equal to it, is then NaN, or wrong.
TINY = {**BRIEF, **LONG}
NATIVE = {**TINY, LIBRARY: ""}  # a native function cannot call it at all


def known(options: dict) -> dict | None:
    """Those of ``options`` that this XLA knows (JAX 0.12 cannot leave the emitters), on a CPU; elsewhere None."""
    if jax.default_backend() != "cpu":
        return None
    unknown = refused(tuple(TINY.items()))
    if LIBRARY in unknown and LIBRARY not in refused(((LIBRARY, ""),)):  # it knows other parts of the library
        return {name: value for name, value in {**options, LIBRARY: ""}.items() if name not in unknown - {LIBRARY}}
    return {name: value for name, value in options.items() if name not in unknown}


@functools.cache
def refused(options: tuple[tuple[str, bool | int], ...]) -> frozenset[str]:
    """The names of those that XLA refuses, by compiling nothing with them: some milliseconds, once a process."""
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except jax.errors.JaxRuntimeError:
        names = frozenset(name for name, _ in options)
        return names if len(options) == 1 else frozenset().union(*(refused((option,)) for option in options))
    return frozenset()


def has_many_rows(tree) -> bool:
    """Whether some array is as long as the data are for which ``LARGE`` is there."""
    return any(np.ndim(leaf) and len(leaf) >= MANY_ROWS for leaf in jax.tree.leaves(tree))


def signature(args, static: dict) -> int:
    """Of a call, by what decides which program it runs: a number, which keeps nothing of the arguments alive."""
    leaves, structure = jax.tree.flatten(args)
    shapes = tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
    return hash((structure, _static(structure), shapes, tuple(static.items())))


def _static(structure) -> int:
    """Of a tree's nodes what is no leaf, which the hash of a ``PyTreeDef`` leaves out."""
    data = structure.node_data()
    kind, fields = data if data is not None else (None, None)
    fields = tuple(fields) if isinstance(fields, list) else fields  # the keys of a dict
    return hash((kind, fields, *map(_static, structure.children())))


class sound:
    """``jax.jit(function)`` without what is wrong (``SOUND``). Within another program there are no options."""

    def __init__(
        self,
        function: Callable,
        *,
        static_argnames: str | tuple[str, ...] = (),
        donate_argnums: int | tuple[int, ...] = (),
    ):
        functools.update_wrapper(self, function, updated=())  # what ``function`` has compiled is its own
        self.function, self.settings = function, {"static_argnames": static_argnames, "donate_argnums": donate_argnums}
        self.usual = jax.jit(function, **self.settings)

    @functools.cached_property
    def alone(self) -> Callable:
        return self._with(self.function, SOUND)

    def eval_shape(self, *args, **static):
        """Shapes and dtypes of the answer; traced once for arguments of one kind."""
        return self.suited(args, static).eval_shape(*args, **static)

    def __call__(self, *args, **static):
        return self.suited(args, static)(*args, **static)

    def suited(self, args, static) -> Callable:
        """The jitted function for these arguments."""
        is_within = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, static)))
        return self.usual if is_within else self.chosen(args)

    def chosen(self, args) -> Callable:
        return self.alone

    def _with(self, function: Callable, options: dict) -> Callable:
        return jax.jit(function, compiler_options=known(options), **self.settings)


class brief(sound):
    """``jax.jit(function)`` of a program that runs a few times.

    ``options``: ``BRIEF``, or ``TINY`` where it runs for milliseconds, which most of LLVM's optimiser does not earn;
    ``is_small(*args)`` says where it does, if that depends, and ``is_large(*args)`` where the emitters are worth their
    time.
    """

    def __init__(
        self,
        function: Callable,
        static_argnames: str | tuple[str, ...] = (),
        options: dict = BRIEF,
        is_small: Callable[..., bool] | None = None,
        is_large: Callable[..., bool] | None = None,
    ):
        super().__init__(function, static_argnames=static_argnames)
        self.options, self.is_small, self.is_large = options, is_small, is_large
        self.prepared: set[int] = set()

    @functools.cached_property
    def quick(self) -> Callable:
        return self._outermost(self.options)

    @functools.cached_property
    def tiny(self) -> Callable:
        return self._outermost(TINY)

    @functools.cached_property
    def large(self) -> Callable:
        return self._outermost(LARGE)

    def prepare(self, *args, **static) -> None:
        """Compile for arguments of these shapes, unless it was done."""
        here = signature(args, static)
        if here not in self.prepared:
            self.suited(args, static).lower(*args, **static).compile()
            self.prepared.add(here)

    def chosen(self, args) -> Callable:
        if self.is_large is not None and self.is_large(*args):
            return self.large
        return self.tiny if self.is_small is not None and self.is_small(*args) else self.quick

    def _outermost(self, options: dict) -> Callable:
        return self._with(canonical(self.function, is_outermost=True), options)
