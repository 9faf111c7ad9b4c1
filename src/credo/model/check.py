"""The likelihood looked at once, abstractly, before anything is compiled: its shapes, its support, its constants."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro.distributions import Distribution, Independent, IntervalCensoredDistribution
from numpyro.distributions.distribution import MaskedDistribution

from credo.compiling import sound
from credo.model.dependence import dependencies
from credo.model.distributions import bounds_of, contains, masks, unwrapped
from credo.model.indices import check_indices, has_reads
from credo.model.structure import Structure
from credo.model.target import Target, log_prob_rows
from credo.model.twice import traced
from credo.model.user_head import AnyHead
from credo.precision import double
from credo.status import CredoError
from credo.traced import by_shapes

if TYPE_CHECKING:
    from credo.model.model import Model

Outcome = Callable[[dict, Any], Any]  # (u, data) -> the distribution of y, or a dict of them


def check_likelihood(model: "Model", x, y) -> tuple[int, AnyHead | None]:
    """(number of independent factors, head) of ``model``'s likelihood at data (x, y); CredoError if it cannot be."""
    prior, likelihood = model.prior, model.likelihood
    assert likelihood is not None
    size, seen = check_outcome(lambda u, x: likelihood(prior.constrain(u), x), model.structure, x, y)
    with double():
        return size, model.head_of(seen, x)


def check_outcome(outcome: Outcome, structure: Structure, data, y) -> tuple[int, Any]:
    """(number of independent factors, distribution of ``y`` or a dict of them) of any function of a position and data
    that gives it."""
    seen: dict[str, Distribution] = {}

    def score(u, data, y):
        distribution = outcome(u, data)
        seen.update(_by_name(distribution, y))
        for name, d in seen.items():
            _check_shape(name, d, np.shape(_values(y, name)))
        return log_prob_rows(distribution, y)

    with double():
        u = {leaf.name: np.zeros(leaf.free_shape) for leaf in structure.leaves}
        with explained("The likelihood", structure, data):
            jaxpr, _ = traced("The likelihood", score, u, data, y)
        _check_constants(jaxpr.consts)
        check_indices(jaxpr, structure, u, x=data, y=y)
        _check_supports(seen, outcome, u, data, y)
    return jaxpr.out_avals[0].shape[0], seen if isinstance(y, dict) else seen["y"]


def check_new_outcomes(target: Target, y) -> None:
    """CredoError where outcomes ``y`` at the inputs of ``target`` could not be those of a fit: outside the support."""
    prior, seen = target.model.prior, {}

    def outcome(u, x):
        return target.likelihood_distribution(prior.constrain(u), x)

    with double():
        u = {leaf.name: np.zeros(leaf.free_shape) for leaf in target.structure.leaves}
        jax.eval_shape(lambda u, x: seen.update(_by_name(outcome(u, x), y)), u, target.x)
        _check_supports(seen, outcome, u, target.x, y)


def check_new_inputs(target: Target, x) -> None:
    """CredoError where the likelihood cannot be had at inputs ``x``, or reads past the rows of a parameter."""
    with double():
        if _reads_rows(target, x):
            program, u = _likelihood_at(target.model, x)
            check_indices(program, target.structure, u, x=x)


@by_shapes
def _reads_rows(target: Target, x) -> bool:
    """Whether the likelihood reads an array at an index: most do not, whatever the values of ``x``."""
    return has_reads(_likelihood_at(target.model, x)[0])


def _likelihood_at(model: "Model", x) -> tuple[Any, dict[str, np.ndarray]]:
    """The likelihood at inputs ``x`` as a traced program, and the position it was traced at."""
    prior, likelihood = model.prior, model.likelihood
    assert likelihood is not None
    u = {leaf.name: np.zeros(leaf.free_shape) for leaf in model.structure.leaves}
    with explained("The likelihood", model.structure, x):
        return jax.make_jaxpr(lambda u, x: likelihood(prior.constrain(u), x))(u, x), u


def check_log_density(model: "Model", data) -> None:
    """CredoError unless ``model``'s log density gives one real number at these data."""
    prior, log_density = model.prior, model.log_factor
    assert log_density is not None

    def value(u, data):  # which a fit gives to compiled code as it does the position
        return log_density(prior.constrain(u), data)

    with double():
        u = {leaf.name: np.zeros(leaf.free_shape) for leaf in model.structure.leaves}
        with explained("The log density", model.structure, data):
            program, found = traced("The log density", value, u, data)
        if getattr(found, "shape", None) != () or not np.issubdtype(found.dtype, np.floating):
            shown = f"{found.dtype} of shape {found.shape}" if hasattr(found, "shape") else f"a {type(found).__name__}"
            raise CredoError(
                f"The log density returned {shown}: it must be one real number. Sum the terms of all data, as with "
                "jnp.sum."
            )
        check_indices(program, model.structure, u, x=data)


def check_derived(model: "Model", name: str, function: Callable) -> None:
    """CredoError unless a derived quantity is an array of numbers, whatever the parameters."""
    with double():
        u = {leaf.name: np.zeros(leaf.free_shape) for leaf in model.structure.leaves}
        try:
            jax.eval_shape(lambda u: model.derive(function, model.prior.constrain(u)), u)
        except Exception as error:  # the user's own code
            reason = str(error).strip().split("\n")[0].rstrip(".")
            raise CredoError(
                f"Derived quantity {name!r} cannot be had: {type(error).__name__}, {reason}. It is a function of named "
                "parameters that returns one array of numbers, in jax.numpy (neither float() nor `if` of a parameter)."
            ) from error


@contextmanager
def explained(what: str, structure: Structure, data):
    """An error of the user's own code is kept, traceback and all, as the cause of a sentence."""
    try:
        yield
    except (CredoError, Warning):
        raise
    except Exception as error:
        raise CredoError(_explanation(what, error, structure, data)) from error


def _explanation(what: str, error: Exception, structure: Structure, data) -> str:
    parameters = ", ".join(f"{leaf.name}{list(leaf.shape) if leaf.shape else ''}" for leaf in structure.leaves[:8])
    inputs = ", ".join(str(np.shape(leaf)) for leaf in jax.tree.leaves(data)[:8]) or "none"
    seen = f"The parameters are {parameters}; the inputs' shapes are {inputs}."
    if isinstance(error, KeyError) and error.args:
        columns = (
            f", and the data have columns {', '.join(map(str, list(data)[:20]))}" if isinstance(data, Mapping) else ""
        )
        names = ", ".join(leaf.name for leaf in structure.leaves[:20])
        return f"{what} asks for {error.args[0]!r}, which is not there: the model has parameters {names}{columns}."
    if isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError):
        return (
            f"{what} needs the value of a parameter, of data or of a loop's counter in Python (an `if`, float(), a "
            "NumPy function or array), where only shapes are known: use jax.numpy, such as jnp.where and "
            f"jnp.asarray(a)[i], and bind a number that must be known, as a length, to the function. {seen}"
        )
    reason = str(error).strip().split("\n")[0].rstrip(".")
    if "take_along_axis indices must be of integer type" in reason:
        return f"{what} is of classes, which are whole numbers, and y holds floats: give y.astype(int)."
    if "Indexer must have integer" in reason and "float" in reason:
        return f"{what} indexes by floats, and indices are whole numbers: give them as such, by x.astype(int). {seen}"
    if "bool" in reason and any(np.asarray(leaf).dtype.kind == "b" for leaf in jax.tree.leaves(data)):
        return (
            f"{what} cannot be evaluated at these data: {reason}. Booleans reach it as they are, for jnp.where and ~x: "
            f"where they count, index or change sign write x.astype(int). {seen}"
        )
    if "string indexing" in reason:
        return (
            f"{what} takes a parameter by name out of an array: its arguments are the parameters first, a dict, and "
            f"then the data, as in likelihood(params, x). {seen}"
        )
    if what == "The likelihood" and "takes 1 positional argument but 2 were given" in reason:
        return (
            "The likelihood takes one argument and is called with two, the parameters and the inputs, which are None "
            "where there are none: write it as lambda params, x: …"
        )
    if isinstance(data, Mapping) and data and "dict" in reason:
        return (
            f"{what} cannot be evaluated at these data: {reason}. A DataFrame reaches it as a dict of columns, as a "
            f"dict does: take them by name, as in x[{next(iter(data))!r}]. {seen}"
        )
    if isinstance(error, TypeError | ValueError | IndexError):
        return f"{what} cannot be evaluated at these data: {reason}. {seen} Make them agree."
    return f"{what} raised {type(error).__name__} ({reason}); its traceback is above. {seen}"


def _by_name(distribution, y) -> dict[str, Distribution]:
    if isinstance(y, dict):
        missing = [name for name in y if not isinstance(distribution, dict) or name not in distribution]
        if missing:
            raise CredoError(
                f"The likelihood returns no distribution for outcome {missing[0]!r}: with a dict y it must return a "
                "dict of distributions of the same names."
            )
        return {name: distribution[name] for name in y}
    if not isinstance(distribution, Distribution):
        raise CredoError(
            f"The likelihood returned {type(distribution).__name__}; it must return a numpyro distribution of y."
        )
    return {"y": distribution}


def _values(y, name: str):
    return y[name] if isinstance(y, dict) else y


EXTRA_AXIS = "squeeze or index away the extra axis"


def _check_shape(name: str, d: Distribution, shape: tuple[int, ...]) -> None:
    mine = d.batch_shape + d.event_shape
    try:
        fits = np.broadcast_shapes(mine, shape) == tuple(shape) and shape[len(shape) - d.event_dim :] == d.event_shape
    except ValueError:
        fits = False
    if not fits:
        is_longer = len(mine) == len(shape) and mine[:1] > tuple(shape)[:1]  # rows are left out, or others are given
        remedy = "index what has an entry for each row by a column of row numbers in x" if is_longer else EXTRA_AXIS
        raise CredoError(
            f"The likelihood returned {type(unwrapped(d)).__name__} with batch_shape {d.batch_shape} and event_shape "
            f"{d.event_shape}, but {name} has shape {tuple(shape)}: return one distribution a row, that is "
            f"batch_shape {tuple(shape)[:1]} ({remedy})."
        )


def _check_constants(constants) -> None:
    """A float32 constant inside a float64 density is rounded before it arrives; say so."""
    for constant in constants:
        if getattr(constant, "dtype", None) == np.float32:
            warnings.warn(
                f"The density holds a float32 constant of shape {np.shape(constant)}: its rounding (1e-7 relative) "
                "enters a float64 computation. Build it with NumPy, or pass it as data.",
                stacklevel=6,
            )


def _check_supports(seen: dict[str, Distribution], outcome: Outcome, u: dict, data, y) -> None:
    for name, d in seen.items():
        _check_support(name, d, lambda u, data, name=name: _by_name(outcome(u, data), y)[name], u, data, y)


def _check_support(name: str, traced: Distribution, distribution: Callable, u: dict, data, y) -> None:
    """Refuse outcomes that no parameter could produce.

    A support that depends on parameters is left to the start-up diagnosis: some position may hold every row.
    """
    values = _values(y, name)
    if any(isinstance(leaf, Tracer) for leaf in _bounds(traced)):
        reached = dependencies(lambda u, data: _bounds(distribution(u, data)), u, data)
        if any(i < len(u) for found in reached for i in found):
            return
        inside = sound(lambda u, data, values: _inside(distribution(u, data), values))(u, data, values)
    else:
        inside = _inside(traced, values)
    inside = np.asarray(inside)
    if not inside.all():
        inside = np.broadcast_to(inside, np.shape(values)[: inside.ndim])
        rows = np.unique(np.argwhere(~inside)[:, 0]) if inside.ndim else np.array([0])
        kind = (
            f"{type(unwrapped(traced)).__name__}: {type(traced.support).__name__.strip('_').lower().replace('_', ' ')}"
        )
        raise CredoError(
            f"{name} has {len(rows)} row(s) outside the likelihood's support ({kind}); the first is row {rows[0]}: "
            f"{np.asarray(values)[rows[0]]}. {_recoded(name, traced)}"
        )


def _recoded(name: str, distribution: Distribution) -> str:
    if isinstance(unwrapped(distribution), IntervalCensoredDistribution):
        return (
            "Of an interval both ends lie inside: one that begins at the edge of the support is left-censored at its "
            f"upper end (left_censored=1, and any {name}[…, 0] inside), one without an end right-censored."
        )
    return f"Recode {name}, drop those rows, or choose another likelihood."


def _bounds(distribution: Distribution) -> list:
    """The arrays that say where the distribution lives and which rows of it count."""
    return [*bounds_of(distribution), *jax.tree.leaves(masks(distribution))]


def _inside(distribution: Distribution, values):
    """Whether each datum lies in the support; a masked one, or a masked part of one, may be anything."""
    inner: Any = distribution
    if not masks(inner):
        return contains(inner, values)
    inside = _inside(inner.base_dist, values)
    if isinstance(inner, MaskedDistribution):
        return inside | jnp.logical_not(inner._mask)
    own = inner.reinterpreted_batch_ndims if isinstance(inner, Independent) else 0
    return jnp.all(inside, axis=tuple(range(-own, 0))) if own else inside
