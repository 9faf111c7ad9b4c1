"""Convolutions in the one form that XLA's fast routine on a CPU takes: rows, places, channels; no groups.

XLA (2026) brings those of a program's outermost level to that form itself, but for groups, and leaves those of loops as
they are. The derivatives of a convolution, whose axes stand otherwise, and the groups that ``vmap`` over weights makes
are then loops of scalars, 12 to 26 times slower (benchmarks/convolutions.py). In double precision there is no fast
routine in loops: products of matrices take its place. At the outermost level XLA is quicker than they are.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from credo.depthwise import by_features, by_rows
from credo.equations import CALLS, bind, equations, evaluate, renewed
from credo.places import cut, fitting, padded, scaled
from credo.sharing import shared

UNROLLED = 8  # groups, above which a loop runs through them
PLACES = 32  # of a window, or of an answer, that products of matrices go through
MOST = 2**23  # numbers of x as products of matrices see them
WORTH_IT = 8  # pairs of channels in a group, one at a time
NARROW, WRITTEN_OUT = 8, 128  # pairs of channels in one of many groups, and places of a window, by products of numbers


def canonical(function: Callable, is_outermost: bool = False) -> Callable:
    """``function`` in a traced program, its convolutions and those of its loops and branches in that form; on a CPU.

    ``is_outermost``: it is the whole program, and no body of a loop.
    """

    @functools.wraps(function)
    def run(*args, **kwargs):
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)]

        def of_arrays(*arrays):
            for i, array in zip(places, arrays, strict=True):
                leaves[i] = array
            args, kwargs = jax.tree.unflatten(structure, leaves)
            return function(*args, **kwargs)

        arrays = [leaves[i] for i in places]
        program, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        program = shared(program) if is_outermost else program
        return jax.tree.unflatten(jax.tree.structure(shapes), rewritten(program, is_outermost)(*arrays))

    return run


def rewritten(program: jex.ClosedJaxpr, is_outermost: bool = False) -> Callable:
    """A function of the leaves that ``program`` takes; the same where it has no convolutions, or this is no CPU."""
    if jax.default_backend() != "cpu" or not _has_convolutions(program.jaxpr):
        return jex.jaxpr_as_fun(program)
    return functools.partial(_evaluate, program, is_outermost)


def _evaluate(program: jex.ClosedJaxpr, is_outermost: bool, *args) -> list:
    return evaluate(program, list(args), functools.partial(_outputs, is_outermost))


def _outputs(is_outermost: bool, _: int, equation, operands: list) -> list:
    name, params = equation.primitive.name, equation.params
    if name == "conv_general_dilated" and not (is_outermost and _is_whole(params)):
        return [_convolution(*operands, **params)]
    if name in CALLS and _has_convolutions(params[CALLS[name]].jaxpr):
        return _evaluate(params[CALLS[name]], is_outermost, *operands)
    return bind(equation, operands, **renewed(equation, _anew))


def _is_whole(params: dict) -> bool:
    """Whether a convolution has no groups."""
    return params["feature_group_count"] == params["batch_group_count"] == 1


def _anew(program: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
    """That of a loop or a branch."""
    if not _has_convolutions(program.jaxpr):
        return program
    return jax.make_jaxpr(functools.partial(_evaluate, program, False))(*program.in_avals)


def _has_convolutions(jaxpr: jex.Jaxpr) -> bool:
    return any(equation.primitive.name == "conv_general_dilated" for equation in equations(jaxpr))


def _convolution(x, kernel, *, dimension_numbers, feature_group_count: int, batch_group_count: int, **params):
    """One convolution: transposed to the form, in groups one at a time, and back."""
    rows, features, *places = dimension_numbers.lhs_spec
    outputs, inputs, *window = dimension_numbers.rhs_spec
    back = dimension_numbers.out_spec[0], *dimension_numbers.out_spec[2:], dimension_numbers.out_spec[1]
    x = lax.transpose(x, (rows, *places, features))
    kernel = lax.transpose(kernel, (*window, inputs, outputs))
    last = x.ndim - 1
    own = lax.ConvDimensionNumbers(
        (0, last, *range(1, last)), (last, last - 1, *range(last - 1)), (0, last, *range(1, last))
    )

    def convolve(x, kernel, num_groups: int = 1):
        if x.dtype == jnp.float64 and num_groups == 1:
            found = _by_products(x, kernel, **params)
            if found is not None:
                return found
        return lax.conv_general_dilated(x, kernel, dimension_numbers=own, feature_group_count=num_groups, **params)

    num_groups, is_of_rows = feature_group_count * batch_group_count, batch_group_count > 1  # one of the counts is 1
    if _is_narrow(x, kernel, num_groups, is_of_rows):
        x = padded(x, params["padding"], params["lhs_dilation"])
        by = by_rows if is_of_rows else by_features
        found = by(x, kernel, num_groups, params["window_strides"], params["rhs_dilation"])
    elif is_of_rows:  # groups of the outputs see one each
        found = _in_groups(convolve, x, 0, kernel, num_groups)
    elif num_groups > 1 and math.prod(kernel.shape[-2:]) >= WORTH_IT * num_groups:
        found = _in_groups(convolve, x, last, kernel, num_groups)
    else:
        found = convolve(x, kernel, num_groups)
    return lax.transpose(found, [back.index(axis) for axis in range(last + 1)])


def _is_narrow(x, kernel, num_groups: int, is_of_rows: bool) -> bool:
    """Whether there are many groups, of so few channels that products of numbers are quicker (depthwise.py)."""
    own = kernel.shape[-1] // num_groups * (len(x) // num_groups if is_of_rows else kernel.shape[-2])
    is_long = not is_of_rows and math.prod(kernel.shape[:-2]) > WRITTEN_OUT
    return num_groups > UNROLLED and own <= NARROW and not is_long and x.dtype in (jnp.float32, jnp.float64)


def _by_products(x, kernel, *, window_strides, padding, lhs_dilation, rhs_dilation, **_):
    """The same by products of matrices, at each place of the window or at each place of the answer, if one has few.

    XLA's fast routine knows no double precision. ``None`` where there are many places of both, or too much to hold.
    """
    (num_rows, *_, num_in), (*window, _, num_out) = x.shape, kernel.shape
    x = padded(x, padding, lhs_dilation)
    answer = fitting(x.shape[1:-1], window, window_strides, rhs_dilation)
    if num_rows * math.prod(answer) * math.prod(window) * num_in > MOST:
        return None
    if math.prod(window) <= PLACES and math.prod(answer):
        starts = [scaled(at, rhs_dilation) for at in np.ndindex(*window)]
        seen = jnp.concatenate([cut(x, start, answer, window_strides) for start in starts], axis=-1)
        return seen @ kernel.reshape(-1, num_out)
    if 0 < math.prod(answer) <= PLACES:
        starts = [scaled(at, window_strides) for at in np.ndindex(*answer)]
        seen = jnp.stack([cut(x, start, window, rhs_dilation).reshape(num_rows, -1) for start in starts], axis=1)
        return (seen @ kernel.reshape(-1, num_out)).reshape(num_rows, *answer, num_out)
    return None


def _in_groups(convolve: Callable, x, axis: int, kernel, num_groups: int):
    """Each group of x along ``axis`` with its own outputs of the kernel, beside each other."""
    groups = _stacked(x, axis, num_groups), _stacked(kernel, kernel.ndim - 1, num_groups)
    if num_groups <= UNROLLED:
        found = jnp.stack([convolve(*(group[i] for group in groups)) for i in range(num_groups)])
    else:
        found = lax.map(lambda pair: convolve(*pair), groups)
    found = jnp.moveaxis(found, 0, -2)
    return found.reshape(*found.shape[:-2], -1)


def _stacked(array, axis: int, num_groups: int):
    """Groups along ``axis``, one after another along a new first one."""
    shape = *array.shape[:axis], num_groups, array.shape[axis] // num_groups, *array.shape[axis + 1 :]
    return jnp.moveaxis(array.reshape(shape), axis, 0)
