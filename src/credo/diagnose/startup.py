"""Why a model cannot start: which parameter, row or gradient entry is not finite there, and what to do about it.

A sampler that starts where log p(u, D) or its gradient is not finite stays there for ever with no word. The parts of
the density are looked at in the order in which the model computes them, so the first fault found is a cause and not
a consequence.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpyro.distributions.constraints import is_dependent

from credo.compiling import sound
from credo.model.data import column_name
from credo.model.distributions import contains, is_moved, transform_to, unwrapped
from credo.model.mended import log_prob
from credo.model.structure import Structure, scalar_names
from credo.model.target import Target
from credo.model.visit import at_index, terms_at
from credo.precision import double, to_numpy
from credo.status import CredoError

NUM_SHOWN = 3  # rows or gradient entries that a sentence lists


def check_finite_start(target: Target, u: Float[np.ndarray | jax.Array, "..."]) -> None:
    """CredoError with ``explain``'s text unless the log density and its gradient are finite at ``u``."""
    with double():
        value, gradient = _value_and_gradient(target.flat(), jnp.asarray(u))
        finite = bool(jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient)))
    if not finite:
        raise CredoError(explain(target, u))


def explain(target: Target, u: Float[np.ndarray | jax.Array, "..."]) -> str:
    """A sentence or two: why the log density or its gradient is not finite at the flat position ``u``, and the remedy.

    Raises nothing: a model that cannot be evaluated at all is explained by its own error.
    """
    try:
        with double():
            return _explain(target.flat(), np.asarray(u, np.float64))
    except CredoError as error:
        return str(error)
    except Exception as error:  # the model's own code may raise anything; its message is the explanation
        cause = str(error).splitlines()[0].rstrip(".") if str(error) else "no message"
        return f"The model cannot be evaluated: {type(error).__name__}: {cause}."


def _explain(target: Target, u: np.ndarray) -> str:
    if u.shape != (target.dim,):
        return f"The starting position has shape {u.shape}; this target's positions have shape ({target.dim},)."
    if not np.all(np.isfinite(u)):
        bad = np.flatnonzero(~np.isfinite(u))
        return (
            f"The starting position is not finite at {_coordinates(target.structure, bad)} "
            f"({u[bad[0]]}): give finite starting values."
        )
    parts = to_numpy(_parts(target, u))
    for name, leaf in parts["parameters"].items():
        if sentence := _parameter(name, leaf, parts):
            return sentence
    if not np.isfinite(parts["log_factor"]):
        values = ", ".join(f"{n} = {_show(leaf['value'])}" for n, leaf in parts["parameters"].items())
        said = f"The log density is {parts['log_factor']} at {values[:300]}"
        if holes := _holes(target.x):
            return (
                f"{said}, and {holes}: leave these out, or put any number in their place and pass over their terms "
                "by jnp.where."
            )
        return (
            f"{said}: guard the term that overflows, divides by zero or takes the log of a number that is not "
            "positive, or start elsewhere (start=)."
        )
    rounded = "".join(
        f" At this position {name} has rounded to {_show(leaf['value'])}, the boundary of its support."
        for name, leaf in parts["parameters"].items()
        if not np.all(leaf["inside"])
    )
    for name, outcome in parts["outcomes"].items():
        if sentence := _rows(name, outcome, target):
            return sentence + rounded
    if parts["terms"] is not None and not np.all(np.isfinite(parts["terms"])):
        bad = np.flatnonzero(~np.isfinite(parts["terms"]))
        return f"The log likelihood is {parts['terms'][bad[0]]} in {_some_rows(bad, len(parts['terms']), target)}."
    value, gradient = to_numpy(_value_and_gradient(target, u))
    if not np.all(np.isfinite(gradient)):
        return _gradient(target, u, gradient)
    if not np.isfinite(value):
        return f"Each part of the log density is finite but their sum is {value}: rescale the data."
    return (
        f"The log density ({value:.6g}) and its gradient are finite at this position, and what the method makes of "
        "them is not: look for a root, a power or an absolute value at 0 in the model, or start elsewhere (start=)."
    )


def _holes(data) -> str | None:
    """Where the data of a log density are NaN, which they may be; None where they are not."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        leaf = np.asarray(leaf)
        holes = np.argwhere(np.isnan(leaf)) if leaf.dtype.kind == "f" else np.empty((0, leaf.ndim))
        if len(holes):
            first = f", the first in row {holes[0, 0]}" if leaf.ndim else ""
            name = column_name(path) if path else "the data"
            return f"{name} are NaN in {len(holes)} of {leaf.size} entries{first}"
    return None


# the parts, compiled once a model -----------------------------------------------------------------------------------


@sound
def _value_and_gradient(target: Target, u):
    return jax.value_and_grad(target.log_density)(u)


@sound
def _parts(target: Target, u):
    """Each named piece of the log density, unsummed."""
    parameters, position = {}, target.structure.unravel(u)

    def value(name, distribution, index):
        return transform_to(distribution)(at_index(position[name], index))

    def see(name, distribution, value):
        log_prob, log_jacobian = terms_at(position[name], distribution, value)
        parameters[name] = {
            "value": value,
            "inside": contains(distribution, value),
            "log_prob": log_prob,
            "log_jacobian": log_jacobian,
            "arguments": _arguments(distribution),
        }

    params, sum_factors, outcome = target.prior.visit(value, see)
    log_factor = sum_factors()
    if target.model.log_factor is not None:
        log_factor = log_factor + target.model.log_factor(params, target.x)
    outcomes, terms = {}, None
    if target.y is not None and target.model.likelihood is not None:
        outcome = target.model.likelihood(params, target.x) if outcome is None else outcome
        pairs = (
            {n: (outcome[n], y) for n, y in target.y.items()}
            if isinstance(target.y, dict)
            else {"y": (outcome, target.y)}
        )
        for name, (distribution, y) in pairs.items():
            inside, density = contains(distribution, y), log_prob(distribution, y)
            density = jnp.where(inside, density, -jnp.inf) if is_moved(distribution) else density
            outcomes[name] = {
                "y": y, "log_prob": density, "inside": inside, "at_end": _at_end(distribution, y),
                "arguments": _arguments(distribution),
            }  # fmt: skip
        terms = target.log_likelihood(u)
    return {"parameters": parameters, "log_factor": log_factor, "outcomes": outcomes, "terms": terms}


def _at_end(distribution, y):
    """Which outcomes of a continuous law stand at an end of its support."""
    support = distribution.support
    support = getattr(support, "base_constraint", support)
    ends = [getattr(support, end) for end in ("lower_bound", "upper_bound") if hasattr(support, end)]
    if distribution.is_discrete or not ends:
        return jnp.zeros(jnp.shape(y), bool)
    return jnp.any(jnp.stack([jnp.broadcast_to(jnp.asarray(y) == end, jnp.shape(y)) for end in ends]), axis=0)


def _arguments(distribution) -> dict[str, tuple]:
    """The distribution's arguments by name: (value, is it finite and one that the distribution allows?)."""
    inner = unwrapped(distribution)
    given = {n: jnp.asarray(v) for n, v in vars(inner).items() if n in inner.arg_constraints and v is not None}
    return {name: (value, _is_allowed(inner.arg_constraints[name], value)) for name, value in given.items()}


def _is_allowed(constraint, value):
    finite = jnp.all(jnp.isfinite(value), axis=tuple(range(-constraint.event_dim, 0)))
    return finite if is_dependent(constraint) else finite & constraint(value)


# sentences ------------------------------------------------------------------------------------------------------------


def _parameter(name: str, leaf: dict, parts: dict) -> str | None:
    value, log_prob, log_jacobian = leaf["value"], leaf["log_prob"], leaf["log_jacobian"]
    if not np.all(np.isfinite(value)):
        where, shown = _first(name, value)
        return (
            f"Parameter {where} is {shown} at this position: its transform overflows. Start nearer the origin, or give "
            f"{name!r} a prior on a smaller scale (rescale the data)."
        )
    if not np.all(np.isfinite(log_prob)):
        where, shown = _first(name, log_prob)
        at = f"{name} = {_show(value)}"
        for argument, (given, allowed) in leaf["arguments"].items():
            if not np.all(allowed):
                return (
                    f"The prior of {where} has log density {shown}: its {argument} is {_show(given, ~allowed)} there. "
                    + _argument_remedy(argument, given)
                )
        if not np.all(leaf["inside"]) and np.issubdtype(np.asarray(value).dtype, np.integer):
            return (
                f"Parameter {where} lies outside the support of its prior ({at}), where that is 0: start inside it "
                "(start=)."
            )
        if not np.all(leaf["inside"]):
            return (
                f"Parameter {where} has rounded to the boundary of its support ({at}), where its prior has log density "
                f"{shown}: start nearer the origin, or rescale the parameter."
            )
        if np.max(log_prob) == np.inf:
            return (
                f"The prior of {where} is infinitely high at {at}: start beside that value (start=), or give {name!r} "
                "a prior of finite density."
            )
        return (
            f"The prior of {where} has log density {shown} at {at}: start inside its support (start=), or give "
            f"{name!r} a prior whose support holds that value."
        )
    if not np.all(np.isfinite(log_jacobian)):
        return (
            f"The transform of {name!r} has log-Jacobian {_first(name, log_jacobian)[1]} at {name} = {_show(value)}: "
            "the value has rounded to the boundary of its support. Start nearer the origin, or rescale the parameter."
        )
    return None


def _rows(name: str, outcome: dict, target: Target) -> str | None:
    log_prob = np.asarray(outcome["log_prob"])
    per_row = log_prob.reshape(log_prob.shape[0] if log_prob.ndim else 1, -1)
    bad = np.flatnonzero(~np.isfinite(per_row).all(axis=1))
    if not len(bad):
        return None
    row = bad[0]

    def at_row(values):
        return values[row] if values.ndim and len(values) == len(per_row) else values

    seen = per_row[row][~np.isfinite(per_row[row])][0]
    text = (
        f"The log likelihood of {name} is {seen} in {_some_rows(bad, len(per_row), target)}; in row "
        f"{_numbers(bad[:1], len(per_row), target)[0]}, "
        f"{name} = {_show(at_row(np.asarray(outcome['y'])))}"
    )
    arguments = {argument: at_row(given) for argument, (given, _) in outcome["arguments"].items()}
    for argument, (_, allowed) in outcome["arguments"].items():
        if not np.all(at_row(allowed)):
            remedy = _argument_remedy(argument, arguments[argument])
            return f"{text} and the likelihood's {argument} is {_show(arguments[argument])}. {remedy}"
    shown = ", ".join(f"{argument} = {_show(given)}" for argument, given in arguments.items())
    if not np.all(at_row(outcome["inside"])):
        return (
            f"{text}, outside the likelihood's support at these parameters ({shown}). Start where the support holds "
            "every row (start=), or choose a likelihood whose support does not depend on the parameters."
        )
    text = f"{text}, and the likelihood has {shown}." if shown else f"{text}."
    if np.isnan(seen):
        return f"{text} Look for 0/0, inf − inf, or the log or root of a negative number in its log_prob."
    if np.any(at_row(outcome["at_end"])):
        return (
            f"{text} That outcome stands at an end of the likelihood's support, where its density is 0 or without "
            "bound: move what was rounded to there inside, as by (y (N − 1) + ½) / N for shares, or give such rows a "
            "probability of their own by a likelihood that is inflated there."
        )
    if seen > 0:
        return (
            f"{text} The density has no bound there: keep the parameters that sharpen it away from it by their priors."
        )
    return (
        f"{text} The datum is impossible at machine precision there: start nearer the data (start=), standardise x and "
        "y, or use a likelihood with heavier tails."
    )


def _argument_remedy(argument: str, given) -> str:
    values = np.asarray(given, np.float64)
    if np.isnan(values).any():
        return "Look for 0/0, inf − inf, or the log or root of a negative number on the way to it."
    if np.isinf(values).any():
        return (
            "An exp or a division overflows on the way to it: standardise the inputs, or tighten the priors behind it."
        )
    if values.ndim > 1 and ("matrix" in argument or "tril" in argument):
        return "It is not positive definite: add a small multiple of the identity, or build it from a Cholesky factor."
    if (values == 0).any():
        return "It underflows to 0: add a small constant to it, or keep the parameters behind it away from there."
    return f"Map it into the values that {argument} may take: exp or softplus for positive ones, sigmoid for (0, 1)."


def _gradient(target: Target, u: np.ndarray, gradient: np.ndarray) -> str:
    bad = np.flatnonzero(~np.isfinite(gradient))
    text = (
        f"The log density is finite but its gradient is {gradient[bad[0]]} with respect to "
        f"{_coordinates(target.structure, bad)}. "
    )
    try:
        forward = float(_directional(target, u, jnp.zeros(u.size).at[bad[0]].set(1.0)))
    except TypeError:  # a function with a rule for reverse mode alone
        forward = math.nan
    if math.isfinite(forward):
        return text + (
            f"The derivative exists (forward mode gives {forward:.4g}), so reverse mode met an infinite derivative in "
            "the branch that a jnp.where did not take: make that branch's argument safe too, as in "
            "jnp.log(jnp.where(x > 0, x, 1.0))."
        )
    return text + (
        "A function in the model has no finite derivative there (a root, a norm or a power at 0, say): add a small "
        "constant inside it, or start elsewhere (start=)."
    )


@sound
def _directional(target: Target, u, direction):
    return jax.jvp(target.log_density, (jnp.asarray(u),), (direction,))[1]


def _coordinates(structure: Structure, positions) -> str:
    names = [
        name if leaf.is_elementwise else f"{name} (unconstrained)"
        for leaf in structure.leaves
        for name in scalar_names(leaf.name, leaf.free_shape)
    ]
    shown = ", ".join(names[i] for i in positions[:NUM_SHOWN])
    return shown if len(positions) <= NUM_SHOWN else f"{shown} and {len(positions) - NUM_SHOWN} more"


def _numbers(rows: np.ndarray, total: int, target: Target) -> np.ndarray:
    """As they were given, where they are the target's."""
    return target.numbers_given(rows) if total == target.size else rows


def _some_rows(bad: np.ndarray, total: int, target: Target) -> str:
    numbers = _numbers(bad[:NUM_SHOWN], total, target)
    rows = ", ".join(map(str, numbers)) + (", …" if len(bad) > NUM_SHOWN else "")
    return f"{len(bad)} of {total} row{'s' if total > 1 else ''} (row{'s' if len(bad) > 1 else ''} {rows})"


def _first(name: str, values) -> tuple[str, str]:
    """The scalar name and the value of the first entry that is not finite."""
    values = np.asarray(values)
    index = tuple(np.argwhere(~np.isfinite(values))[0])
    return (f"{name}[{','.join(map(str, index))}]" if index else name), str(values[index])


def _show(values, which=None) -> str:
    flat = (
        np.asarray(values)[which] if which is not None and np.shape(which) == np.shape(values) else np.asarray(values)
    )
    flat = flat.ravel()
    shown = ", ".join(f"{v:.4g}" for v in flat[:4])
    return shown if flat.size == 1 else f"[{shown}{', …' if flat.size > 4 else ''}]"
