"""The likelihood looked at once, abstractly, before anything is compiled: its shapes, its support, its constants."""

import warnings
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from credo.model.heads import Head, head_of
from credo.model.target import log_prob_rows
from credo.precision import double
from credo.status import CredoError

if TYPE_CHECKING:
    from credo.model.model import Model


def check_likelihood(model: "Model", x, y) -> tuple[int, Head | None]:
    """(number of independent factors, head) of ``model``'s likelihood at data (x, y); CredoError if it cannot be."""
    seen: list[Distribution] = []

    def score(u, x, y):
        params, _ = model.prior.constrain(u)
        distribution = model.likelihood(params, x)
        parts = _parts(distribution, y)
        seen.extend(d for _, d, _ in parts)
        for name, d, values in parts:
            _check_shape(name, d, np.shape(values))
        return log_prob_rows(distribution, y)

    with double():
        u = {leaf.name: jax.ShapeDtypeStruct(leaf.free_shape, jnp.float64) for leaf in model.structure.leaves}
        jaxpr = jax.make_jaxpr(score)(u, x, y)
        _check_constants(jaxpr.consts)
        for (name, values), d in zip(_outcomes(y), seen, strict=True):
            _check_support(model, x, name, values, d)
    num_terms = jaxpr.out_avals[0].shape[0]
    return num_terms, head_of(seen[0]) if len(seen) == 1 else None


def _outcomes(y):
    return list(y.items()) if isinstance(y, dict) else [("y", y)]


def _parts(distribution, y):
    if isinstance(y, dict):
        missing = [name for name in y if name not in distribution]
        if missing:
            raise CredoError(f"The likelihood returns no distribution for outcome {missing[0]!r}.")
        return [(name, distribution[name], y[name]) for name in y]
    if not isinstance(distribution, Distribution):
        raise CredoError(
            f"The likelihood returned {type(distribution).__name__}; it must return a numpyro distribution of y."
        )
    return [("y", distribution, y)]


def _check_shape(name: str, d: Distribution, shape: tuple[int, ...]) -> None:
    mine = d.batch_shape + d.event_shape
    try:
        fits = np.broadcast_shapes(mine, shape) == tuple(shape) and shape[len(shape) - d.event_dim :] == d.event_shape
    except ValueError:
        fits = False
    if not fits:
        raise CredoError(
            f"The likelihood returned {type(d).__name__} with batch_shape {d.batch_shape} and event_shape "
            f"{d.event_shape}, but {name} has shape {tuple(shape)}: return one distribution a row, that is "
            f"batch_shape {tuple(shape)[:1]} (squeeze or index away the extra axis)."
        )


def _check_constants(constants) -> None:
    """A float32 constant inside a float64 density is rounded before it arrives; say so."""
    for constant in constants:
        if getattr(constant, "dtype", None) == np.float32:
            warnings.warn(
                f"The density holds a float32 constant of shape {np.shape(constant)}: its rounding (1e-7 relative) "
                "enters a float64 computation. Build it with NumPy, or pass it as data.",
                stacklevel=4,
            )


def _check_support(model: "Model", x, name: str, y, d: Distribution) -> None:
    """Refuse outcomes that no parameter could produce."""
    support = d.support
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(support)):

        def valid(u, x, y):
            found = model.likelihood(model.prior.constrain(u)[0], x)
            return (found[name] if isinstance(found, dict) else found).support(y)

        valid = jax.jit(valid)
        leaves = model.structure.leaves
        tries = [{leaf.name: np.full(leaf.free_shape, value) for leaf in leaves} for value in (0.0, 0.7, -0.7)]
        inside = np.any([np.asarray(valid(u, x, y)) for u in tries], axis=0)
        support_name = type(d).__name__
    else:
        inside = np.asarray(support(y))
        support_name = f"{type(d).__name__}: {type(support).__name__.strip('_').lower().replace('_', ' ')}"
    inside = np.broadcast_to(inside, np.shape(y)[: np.ndim(inside)]) if np.ndim(inside) else np.asarray(inside)
    if not inside.all():
        rows = np.argwhere(~inside)[:, 0] if inside.ndim else np.array([0])
        raise CredoError(
            f"{name} has {len(np.unique(rows))} row(s) outside the likelihood's support ({support_name}); the first is "
            f"row {rows[0]}: {np.asarray(y)[rows[0]]}. Recode {name}, drop those rows, or choose another likelihood."
        )
