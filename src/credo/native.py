"""One native function out of a loop of small operations, on a CPU.

XLA runs a program on a CPU as a list of kernels, and starting a kernel costs about as much as a small model's whole
gradient. A call that carries the attribute below is compiled to a single function instead, loops and branches
included (it is what XLA itself does to its smallest loops): eight schools by NUTS ran 8 times faster for it and
compiled in half the processor time. Where the attribute is not known nothing changes.

Sorts, factorisations, matrix products, host callbacks and large arrays stay with XLA's kernels, which are right for
them, and so does a program that holds one. A scatter-add would be one more reason to stay: gradients.py writes those of
log densities as loops.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from credo.compiling import NATIVE, SOUND, known, signature
from credo.convolutions import rewritten
from credo.equations import equations
from credo.sharing import shared

LARGE = 200_000  # elements: an array above this keeps its own kernels, which may split the work
ATTRIBUTES = {"xla_cpu_small_call": "true", "inlineable": "false"}
# What takes a large array along, fills it once or reaches into it, as a loop does with the draws it has made.
CARRIERS = frozenset(
    {"while", "scan", "cond", "jit", "pjit", "broadcast_in_dim", "dynamic_slice", "dynamic_update_slice"}
)
WITH_KERNELS = frozenset(
    {"sort", "top_k", "approx_top_k", "fft", "conv_general_dilated", "rng_bit_generator", "rng_uniform"}
    | {"cholesky", "cholesky_update", "triangular_solve", "tridiagonal_solve", "lu", "qr", "geqrf", "geqp3"}
    | {"eig", "eigh", "svd", "schur", "hessenberg", "tridiagonal", "householder_product"}
    | {"custom_call", "ffi_call", "pure_callback", "io_callback", "debug_callback", "shard_map"}
)


class jit:
    """``jax.jit(function)``, as one native function on a CPU where ``function`` suits that.

    What the compiler then refuses all the same is compiled as usual, and remembered. ``options``: of the compiler;
    ``NATIVE`` is right unless the program runs for minutes.
    """

    def __init__(self, function: Callable, static_argnames: tuple[str, ...] = (), options: dict = NATIVE):
        self.function, self.static_argnames, self.options = function, static_argnames, options
        self.refused: set[int] = set()
        self.lowered: set[int] = set()

    @functools.cached_property
    def native(self) -> Callable:
        """A jitted function -> (answer, witness)."""

        def program(*args, **static):
            traced, shapes = jax.make_jaxpr(functools.partial(self.function, **static), return_shape=True)(*args)
            traced = shared(traced)
            run = native_call if suits(traced) else usual_call
            leaves, witness = run(rewritten(traced, is_outermost=True), jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(shapes), leaves), witness

        return jax.jit(program, static_argnames=self.static_argnames, compiler_options=known(self.options))

    @functools.cached_property
    def usual(self) -> Callable:
        return jax.jit(self.function, static_argnames=self.static_argnames, compiler_options=known(SOUND))

    def lower(self, *args, **static) -> None:
        """Trace and lower, on the caller's thread, unless it was done: the call that follows only compiles."""
        here = signature(args, static)
        if here not in self.refused and here not in self.lowered:
            self.native.lower(*args, **static)
            self.lowered.add(here)

    def __call__(self, *args, **static):
        """``static``: by keyword."""
        if self.refused and signature(args, static) in self.refused:
            return self.usual(*args, **static)
        try:
            return self.native(*args, **static)[0]
        except jax.errors.JaxRuntimeError:
            self.refused.add(signature(args, static))
            return self.usual(*args, **static)


def native_call(function: Callable, args: list) -> tuple[list, Any]:
    """``function(*args)`` inside a traced program, as one native function -> (leaves, witness).

    XLA (2026) aborts the process at a native function with an argument that its optimiser found to be unused. The
    *witness*, the sum of one number of every argument, uses them all; the program must return it.
    """
    from jax.experimental.xla_metadata import set_xla_metadata

    sized = [arg for arg in args if np.size(arg)]

    def body(*sized):
        rest = iter(sized)
        leaves = function(*(next(rest) if np.size(arg) else jnp.zeros_like(arg) for arg in args))
        return leaves, functools.reduce(lax.add, map(_first_number, sized), jnp.zeros(()))

    (leaf, *leaves), witness = jax.jit(body)(*sized)
    leaf = set_xla_metadata(leaf, **ATTRIBUTES)  # lands on the operation that made it: the call
    return [leaf, *leaves], witness


def _first_number(array):
    """Four operations of lax: jax.numpy's indexing takes ten times as long to trace, once for each argument."""
    flat = lax.reshape(array, (array.size,))
    return lax.convert_element_type(lax.index_in_dim(flat, 0, keepdims=False), float)


def usual_call(function: Callable, args: list) -> tuple[list, Any]:
    return function(*args), None


def suits(program: jex.ClosedJaxpr) -> bool:
    """Whether ``program``, where it runs, is worth one native function: a CPU, and nothing that needs a kernel."""
    return jax.default_backend() == "cpu" and all(_is_small(equation) for equation in equations(program.jaxpr))


def _is_small(equation) -> bool:
    name = equation.primitive.name
    if name in WITH_KERNELS:
        return False
    if name.startswith("scatter") and math.prod(equation.invars[1].aval.shape[:-1]) > 1:
        return False  # a single one is a write, as in x.at[0].set(v)
    avals = [variable.aval for variable in (*equation.invars, *equation.outvars)]
    if name not in CARRIERS and any(getattr(aval, "size", 0) > LARGE for aval in avals):
        return False
    return name != "dot_general" or _is_matrix_vector(equation)


def _is_matrix_vector(equation) -> bool:
    """A product in which one side has no axis of its own."""
    (contract_left, contract_right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    left, right = (variable.aval for variable in equation.invars)
    return left.ndim == len(contract_left) + len(batch_left) or right.ndim == len(contract_right) + len(batch_right)
