"""Unseen levels of a group: their parameter's rows are drawn from its conditional prior, never clamped.

JAX reads an index past the end as the last one, in silence. So each level that the fit did not know gets a code past
the parameter's rows, the parameter is lengthened by rows drawn from its prior given the draw's other parameters, and
a probe finds every other parameter that the likelihood indexes by the same code, to lengthen it too.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from credo.compiling import sound
from credo.model.data import Levels, are_missing, as_array, as_double, kind_of_level
from credo.model.distributions import is_improper
from credo.model.target import Target
from credo.status import CredoError

KINDS = {"m": "dates", "M": "dates", "i": "numbers", "u": "numbers", "f": "numbers", "b": "truth values"}  # NumPy's

NewRows = tuple[tuple[str, int], ...]  # parameter -> how many rows past its own are indexed


def code(target: Target, table) -> tuple[object, NewRows]:
    """``table`` with group columns coded: known levels as in the fit, unseen ones from the parameter's length on."""
    groups = target.model.groups
    if not groups:
        return table, ()
    if not isinstance(table, Mapping):
        raise CredoError(
            f"The model groups by column {next(iter(groups))!r}: give x as a DataFrame or a dict of columns with it."
        )
    lengths = {leaf.name: leaf.shape[0] for leaf in target.structure.leaves if leaf.shape}
    unseen: dict[str, np.ndarray] = {}
    coded = dict(table)
    for column, parameter in groups.items():
        known = _known(target.levels.levels[column], lengths[parameter])
        new = np.setdiff1d(_values(column, table[column], known), known)
        unseen[parameter] = np.union1d(unseen[parameter], new) if parameter in unseen else new
    for column, parameter in groups.items():
        known = _known(target.levels.levels[column], lengths[parameter])
        extended = Levels({column: np.concatenate([known, unseen[parameter]])})
        codes = extended.encode(column, _values(column, table[column], known))
        coded[column] = np.where(codes < len(known), codes, codes + lengths[parameter] - len(known))
    return coded, tuple((parameter, len(new)) for parameter, new in unseen.items() if len(new))


def _known(levels: np.ndarray, length: int) -> np.ndarray:
    """Whole numbers that are codes themselves stand for every row of the parameter, seen in the fit or not."""
    are_codes = levels.dtype.kind in "iu" and np.array_equal(levels, np.arange(len(levels)))
    return np.arange(max(length, len(levels))) if are_codes else as_double(levels)


def _values(column: str, values, known: np.ndarray) -> np.ndarray:
    values = as_array(f"x[{column!r}]", values)
    is_missing = are_missing(values)
    if is_missing.any():
        raise CredoError(
            f"x[{column!r}] has {is_missing.sum()} missing values (the first in row {np.argmax(is_missing)}): give "
            "a level, or a new name for an unknown one."
        )
    was, now = _kind(known), _kind(values)
    are_flags = "truth values" in (was, now) and {was, now} == {"truth values", "numbers"}  # of which True is 1
    if was != now and not (are_flags and np.isin(values, known).all()):
        raise CredoError(f"x[{column!r}] held {was} in the fit and holds {now} now: give levels of the same kind.")
    return as_double(values)


def _kind(values: np.ndarray) -> str:
    if values.dtype.kind != "O":
        return KINDS.get(values.dtype.kind, "text")
    kinds = sorted({kind_of_level(value) for value in values.ravel().tolist()}, reverse=True)
    if kinds == ["numbers"]:
        return KINDS.get(np.array(values.tolist()).dtype.kind, "numbers")
    return kinds[0] if len(kinds) == 1 else f"both {' and '.join(kinds)}"


# lengthening the parameters -------------------------------------------------------------------------------------


def lengthen(target: Target, params, new_rows: NewRows, key):
    """``params`` with rows drawn from the conditional prior appended to the named parameters."""
    wanted = dict(new_rows)
    values = target.model.prior.leaves(params)

    def visitor(name, distribution, index):
        value = values[name]
        if name not in wanted:
            return value if index is None else value[index]
        number = wanted[name]
        fresh = _fresh_rows(distribution, value.shape[0], number, jax.random.fold_in(key, list(wanted).index(name)))
        return jnp.concatenate([value, fresh.astype(value.dtype)])

    return target.model.prior.visit(visitor, _overlook).params


def _overlook(name, distribution, value) -> None:
    """A visit that looks at nothing."""


def _fresh_rows(distribution: Distribution, length: int, number: int, key) -> jax.Array:
    base: Any = _rows_of(distribution)
    if base.batch_shape[0] == length + number:  # its prior follows an earlier parameter that was lengthened itself
        return base.sample(key)[length:]
    copies = base.sample(key, (-(-number // length),))
    return copies.reshape(-1, *copies.shape[2:])[:number]


def _rows_of(distribution: Distribution) -> Distribution:
    """The distribution whose leading batch axis is the rows."""
    while isinstance(distribution, dist.Independent):
        distribution = distribution.base_dist
    return distribution


def indexed_parameters(target: Target, u, x, new_rows: NewRows) -> NewRows:
    """Every parameter to lengthen, with its number of new rows; CredoError where a new row cannot be drawn.

    ``u``: a position, at which the likelihood is probed and the prior's rows are compared.
    """
    found: dict[str, int] = {}
    lengths = {leaf.name: leaf.shape[0] for leaf in target.structure.leaves if leaf.shape}
    for parameter, number in new_rows:
        items = target.model.group_items
        probes = [_probe_rows(x, c, lengths[parameter], items) for c, p in items if p == parameter]
        others = [name for name, length in lengths.items() if length == lengths[parameter] and name != parameter]
        for name in (parameter, *others):
            indexed = [_is_indexed(target, u, probe, name, parameter) for probe in probes]  # each may refuse
            if name == parameter or any(indexed):
                found[name] = number
    ordered = tuple((leaf.name, found[leaf.name]) for leaf in target.structure.leaves if leaf.name in found)
    _check_exchangeable(target, u, ordered)
    return ordered


def _probe_rows(x, column: str, length: int, group_items):
    """Two copies of a row of ``x`` at known levels, but for an unseen one in ``column`` of the first."""
    two = jax.tree.map(lambda leaf: leaf[[0, 0]], x)
    known = {name: np.zeros(2, x[name].dtype) for name, _ in group_items}
    return {**two, **known, column: np.array([length, 0], x[column].dtype)}


def _is_indexed(target: Target, u, x, name: str, parameter: str) -> bool:
    """Whether the unseen row's distribution, and not the known one's, changes to NaN with a row of NaN appended."""
    try:
        unseen, known = np.asarray(_poisoned(target, u, x, name))
    except (TypeError, ValueError):  # the likelihood has no use for a longer parameter: it does not index it
        if name != parameter:
            return False
        unseen = known = True
    if known and unseen:
        raise CredoError(
            f"Group {parameter!r} has unseen levels, but the likelihood uses all rows of {name!r} at once: a new row "
            "would change the others. Predict at known levels only, or let the likelihood index the parameter alone."
        )
    return bool(unseen)


@functools.partial(sound, static_argnames=("name",))
def _poisoned(target: Target, u, x, name: str):
    """Which of two rows has a distribution with NaN in it when ``name`` has one more row, of NaN."""
    params = target.constrain(u)
    values = target.model.prior.leaves(params)
    padded = jnp.concatenate([values[name], jnp.full((1, *values[name].shape[1:]), jnp.nan, values[name].dtype)])
    params = target.structure.assemble({**values, name: padded})
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(target.likelihood_distribution(params, x))]
    real = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    rows = [jnp.broadcast_to(jnp.isnan(_per_row(leaf)), (2,)) for leaf in real]
    return jnp.any(jnp.stack(rows), axis=0)


def _per_row(leaf):
    """(2,) where the leaf has a row for each of two rows, () where it is shared: NaN if any entry is."""
    return jnp.sum(leaf.reshape(2, -1), axis=1) if leaf.ndim and leaf.shape[0] == 2 else jnp.sum(leaf)


def _check_exchangeable(target: Target, u, new_rows: NewRows) -> None:
    wanted = dict(new_rows)
    values = target.model.prior.leaves(target.constrain(u))

    def visitor(name, distribution, index):
        value = values[name]
        if name not in wanted:
            return value if index is None else value[index]
        if _rows_of(distribution).batch_shape[:1] != (len(value) + wanted[name],):
            _check_rows(name, distribution, value)
        return jnp.concatenate([value, jnp.repeat(value[-1:], wanted[name], axis=0)])

    try:
        target.model.prior.visit(visitor, _overlook)
    except CredoError:
        raise
    except (TypeError, ValueError) as error:
        raise CredoError(
            f"The group has unseen levels, but the prior cannot be evaluated with {', '.join(wanted)} lengthened "
            f"({str(error)[:80]}): predict at known levels only, or let no prior fix the number of rows of another."
        ) from error


def _check_rows(name: str, distribution: Distribution, value) -> None:
    base, remedy = _rows_of(distribution), "predict at known levels only, or give each row the same independent prior."
    if is_improper(base):
        raise CredoError(f"{name!r} has an improper prior, from which no unseen level can be drawn: {remedy}")
    if base.batch_shape[:1] != value.shape[:1]:
        raise CredoError(
            f"The rows of {name!r} are one joint draw from {type(base).__name__}, so the prior says nothing of one "
            f"more: {remedy}"
        )
    for row in (value[:1], value[-1:]):
        log_probs = np.asarray(base.log_prob(jnp.broadcast_to(row, value.shape)))
        if not np.allclose(log_probs, log_probs[:1], rtol=1e-9, atol=1e-9):
            raise CredoError(f"The prior of {name!r} differs from row to row, so an unseen level has none: {remedy}")
