"""The equations of a traced program, looked at or run one by one."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

DRAWS = "random_bits", "threefry2x32", "rng_bit_generator"
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}
CUSTOM = "custom_jvp_call", "custom_vjp_call"
# where the programs of an equation are, of loops, branches and what is computed anew for a derivative
HOLDERS = {
    "scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",),
    "checkpoint": ("jaxpr",), "remat2": ("jaxpr",),
}  # fmt: skip
ALONG = ("axes", "axis", "dimension", "dimensions")  # what equations call the axes that they run along


def programs(jaxpr: jex.Jaxpr) -> Iterator[jex.Jaxpr]:
    """``jaxpr``, and those of its branches and loop bodies."""
    yield jaxpr
    for equation in jaxpr.eqns:
        for inner in programs_in(equation):
            yield from programs(inner)


def equations(jaxpr: jex.Jaxpr) -> Iterator[jex.JaxprEqn]:
    """All equations, those of branches and loop bodies included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in programs_in(equation):
            yield from equations(inner)


def constants(program: jex.ClosedJaxpr) -> Iterator:
    """All constants, those of branches and loop bodies included."""
    yield from program.consts
    for equation in equations(program.jaxpr):
        for inner in _held(equation):
            yield from getattr(inner, "consts", ())


def evaluate(program: jex.ClosedJaxpr, arguments: list, outputs: Callable[[int, Any, list], list]) -> list:
    """What ``program`` gives, with ``outputs(number, equation, operands)`` for each of its outermost equations."""
    jaxpr = program.jaxpr
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *arguments), strict=True))

    def read(atom):
        return atom.val if isinstance(atom, jex.Literal) else values[atom]

    for number, equation in enumerate(jaxpr.eqns):
        found = outputs(number, equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def bind(equation, operands: list, **changed) -> list:
    """The outputs of one equation, with ``changed`` parameters."""
    params = equation.primitive.get_bind_params(equation.params) | changed
    if equation.primitive.name in CUSTOM:  # their rules for derivatives may index what they are given
        operands = list(map(jnp.asarray, operands))
    found = equation.primitive.bind(*operands, **params)
    return list(found) if equation.primitive.multiple_results else [found]


def renewed(equation: jex.JaxprEqn, rewrite: Callable[[jex.ClosedJaxpr], jex.ClosedJaxpr]) -> dict[str, Any]:
    """The parameters of a loop or a branch, its programs as ``rewrite`` gives them, of the same shapes."""

    def anew(program: jex.ClosedJaxpr | jex.Jaxpr) -> jex.ClosedJaxpr | jex.Jaxpr:
        closed = program if isinstance(program, jex.ClosedJaxpr) else jex.ClosedJaxpr(program, ())
        found = rewrite(closed)
        return found if closed is program else found.jaxpr

    holding = HOLDERS.get(equation.primitive.name, ())
    return {which: jax.tree.map(anew, equation.params[which], is_leaf=_is_program) for which in holding}


def needed(program: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
    """``program`` without the equations that its outputs do not depend on; what an equation holds stays whole."""
    wanted, kept = set(map(id, program.jaxpr.outvars)), []
    for equation in reversed(program.jaxpr.eqns):
        if equation.effects or any(id(variable) in wanted for variable in equation.outvars):
            kept.append(equation)
            wanted.update(map(id, equation.invars))
    return jex.ClosedJaxpr(program.jaxpr.replace(eqns=kept[::-1]), program.consts)


def multiplications(jaxpr: jex.Jaxpr) -> int:
    """Of numbers, in products of matrices and convolutions: nearly all the work of a network."""
    total = 0
    for equation in jaxpr.eqns:
        shapes: list[tuple[int, ...]] = [getattr(atom.aval, "shape", ()) for atom in equation.invars]
        size = math.prod(getattr(equation.outvars[0].aval, "shape", ())) if equation.outvars else 0
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += size * math.prod(shapes[0][axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            outputs = shapes[1][equation.params["dimension_numbers"].rhs_spec[0]]
            total += size * math.prod(shapes[1]) // outputs
        else:
            times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            total += times * sum(map(multiplications, programs_in(equation)))
    return total


def runs_along(equation: jex.JaxprEqn, num_rows: int) -> bool:
    """Whether it may bring rows together: it runs along, cuts or moves a first axis as long as there are rows.

    So does what numbers them, and what draws a number for each.
    """
    shapes = [getattr(atom.aval, "shape", ()) for atom in equation.invars]
    name = equation.primitive.name
    if name in DRAWS or (name == "iota" and equation.params["shape"][equation.params["dimension"]] == num_rows):
        return True
    if not any(shape[:1] == (num_rows,) for shape in shapes):
        return False
    params = equation.params
    if name == "dot_general":
        contracted, _ = params["dimension_numbers"]
        return any(0 in axes and shape[:1] == (num_rows,) for axes, shape in zip(contracted, shapes, strict=True))
    if name == "transpose":  # whatever follows
        return params["permutation"][0] != 0
    if name in ("reshape", "slice", "dynamic_slice"):
        return getattr(equation.outvars[0].aval, "shape", ())[:1] != (num_rows,)
    if name in ("gather", "scatter", "scatter-add", "pad", "scan"):
        return True
    if name == "tile":
        return params["reps"][0] != 1
    if name == "broadcast_in_dim":  # else the rows stand behind another axis, as those of x[None]
        return params["broadcast_dimensions"][:1] != (0,)
    if name in ("squeeze", "expand_dims"):
        return False
    axes = [params[each] for each in ALONG if each in params]
    return any(0 in (each if isinstance(each, tuple | list) else (each,)) for each in axes)


def programs_in(equation: jex.JaxprEqn) -> list[jex.Jaxpr]:
    """What an equation holds: the body of a loop, the branches of a choice."""
    return [getattr(each, "jaxpr", each) for each in _held(equation)]


def _held(equation: jex.JaxprEqn) -> list:
    parameters = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
    return [each for each in parameters if _is_program(each)]


def _is_program(value) -> bool:
    return isinstance(value, jex.ClosedJaxpr | jex.Jaxpr)
