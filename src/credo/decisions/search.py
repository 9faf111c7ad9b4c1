"""The best action under a loss without a formula: among a list, or by a search of coordinates."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import sound
from credo.decisions.belief import Outcomes
from credo.status import CredoError

NUM_STARTS = 32  # outcomes tried as actions, beside the start, so that a search begins in the right valley
PRECISION = 1e-7  # of an action, in units of the outcome's spread
MAX_SWEEPS = 500


def losses(loss: Callable, actions, values) -> jax.Array:
    """(n, m): ``loss`` of the action of each of m rows (m, …) at each of n outcomes (n, m, …)."""
    return jax.vmap(jax.vmap(loss), in_axes=(None, 0))(actions, values)


@functools.partial(sound, static_argnames=("loss",))
def compiled_losses(loss: Callable, actions, values) -> jax.Array:
    return losses(loss, actions, values)


def check_scalar(loss: Callable, action, outcome) -> None:
    """CredoError unless ``loss`` of one action and one outcome is a number that JAX can compute."""
    try:
        if is_numeric(action):
            found = jax.eval_shape(loss, action, outcome)
        else:  # a name, say: any object that the loss understands
            found = jax.eval_shape(lambda y: jax.tree.map(jnp.asarray, loss(action, y)), outcome)
    except CredoError:
        raise
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        raise CredoError(
            "The loss is run on all outcomes at once, so it can neither branch on one nor index a list by it, nor hand "
            "one to float() or NumPy: write it with jax.numpy, as in jnp.maximum(action, outcome), with "
            "jnp.where(condition, a, b) for if and jnp.asarray(costs)[action, outcome]."
        ) from error
    except Exception as error:  # whatever a user's function raises: the sentence says where
        lead = "The action has the shape of the parameters, a dict, unless start= gives another. "
        reason = (str(error).strip().split("\n")[0] or "no reason given")[:120]
        raise CredoError(
            f"{lead if isinstance(action, dict) else ''}The loss cannot be evaluated ({type(error).__name__}: "
            f"{reason}): it is called as loss(action, outcome) with action {_shown(action)} and outcome "
            f"{_shown(outcome)}. Give start= for an action of another shape."
        ) from error
    leaves = jax.tree.leaves(found)
    if len(leaves) != 1 or getattr(leaves[0], "shape", None) != ():
        shapes = ", ".join(str(getattr(leaf, "shape", type(leaf).__name__)) for leaf in leaves) or "nothing"
        raise CredoError(f"The loss returned shape {shapes} for one action and one outcome: it must return one number.")


def among(loss: Callable, actions: Sequence, drawn: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    """(index (m,) of the best action, all losses (A, m)): expected losses of each of a list of actions."""
    expected = np.stack([np.asarray(jnp.sum(each, axis=0)) for each in _weighted(loss, actions, drawn)])
    return np.argmin(np.where(np.isnan(expected), np.inf, expected), axis=0), expected


def _weighted(loss: Callable, actions: Sequence, drawn: Outcomes):
    for action in actions:
        values = losses_of_one(loss, action, drawn.values)
        yield jnp.where(drawn.weights > 0, drawn.weights * values, 0.0)


def losses_of_one(loss: Callable, action, values) -> jax.Array:
    """(n, m): ``loss`` of one action, which may be any object, at every outcome."""
    if is_numeric(action):
        m = jax.tree.leaves(values)[0].shape[1]
        actions = jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (m, *np.shape(leaf))), action)
        return compiled_losses(loss, actions, values)
    return jax.vmap(jax.vmap(lambda outcome: jnp.asarray(loss(action, outcome))))(values)


def is_numeric(action) -> bool:
    return all(np.asarray(leaf).dtype.kind in "biuf" for leaf in jax.tree.leaves(action)) and action is not None


def by_coordinates(loss: Callable, start: Any, drawn: Outcomes):
    """A local minimum of the mean loss in every coordinate of the action, (m, …), rows side by side.

    Each coordinate steps up or down where that helps, in steps that double after a success and halve after a failure
    (Hooke & Jeeves 1961). It needs no gradient, so losses may have kinks. A loss with kinks that lie across several
    coordinates can hold it short of the minimum.
    """
    leaves, structure = jax.tree.flatten(start)
    shapes = tuple(leaf.shape[1:] for leaf in leaves)
    flat = _flatten(leaves)
    alike = [np.shape(leaf)[1:] for leaf in jax.tree.leaves(drawn.values)] == [leaf.shape for leaf in leaves]
    if alike and structure == jax.tree.structure(drawn.values):
        outcomes = [jnp.asarray(leaf, float) for leaf in jax.tree.leaves(drawn.values)]
        n = outcomes[0].shape[0]
        index = np.linspace(0, n - 1, min(n, NUM_STARTS)).astype(int)
        starts = jnp.stack([flat, *(_flatten([leaf[i] for leaf in outcomes]) for i in index)])
        spread = _flatten([jnp.std(leaf, axis=0) for leaf in outcomes])
    else:
        starts, spread = flat[None], jnp.zeros_like(flat)
    scale = jnp.where(spread > 0, spread, jnp.maximum(jnp.abs(flat), 1.0))
    found, is_moving = _search(loss, starts, scale, drawn.values, drawn.weights, structure, shapes)
    if np.any(is_moving):
        row = int(np.argmax(is_moving))
        raise CredoError(
            f"The search for the best action had not settled after {MAX_SWEEPS} sweeps (in row {row} of these it is at "
            f"{np.asarray(found[row])}): the expected loss has no minimum, or a long valley. Give actions=[…] to "
            "choose from, or write the loss in other coordinates of the action."
        )
    return jax.tree.unflatten(structure, _unflatten(found, shapes))


@functools.partial(sound, static_argnames=("loss", "structure", "shapes"))
def _search(loss: Callable, starts, scale, values, weights, structure, shapes):
    def risk(flat):
        actions = jax.tree.unflatten(structure, _unflatten(flat, shapes))
        return jnp.sum(jnp.where(weights > 0, weights * losses(loss, actions, values), 0.0), axis=0)

    risks = jax.lax.map(risk, starts)
    best = jnp.argmin(jnp.where(jnp.isnan(risks), jnp.inf, risks), axis=0)
    a = jnp.take_along_axis(starts, best[None, :, None], axis=0)[0]

    def sweep(state):
        def along(j, inner):
            a, value, step = inner
            up = a.at[:, j].add(step[:, j])
            down = a.at[:, j].add(-step[:, j])
            risk_up, risk_down = risk(up), risk(down)
            goes_up = (risk_up < value) & (risk_up <= risk_down)
            goes_down = (risk_down < value) & ~goes_up
            a = jnp.where(goes_up[:, None], up, jnp.where(goes_down[:, None], down, a))
            value = jnp.where(goes_up, risk_up, jnp.where(goes_down, risk_down, value))
            return a, value, step.at[:, j].multiply(jnp.where(goes_up | goes_down, 2.0, 0.5))

        number, *inner = state
        return (number + 1, *jax.lax.fori_loop(0, a.shape[1], along, tuple(inner)))

    def is_moving(state):
        return (state[0] < MAX_SWEEPS) & jnp.any(state[3] > PRECISION * scale)

    state = jax.lax.while_loop(is_moving, sweep, (0, a, risk(a), 0.5 * scale))
    return state[1], jnp.any(state[3] > PRECISION * scale, axis=1)


def _flatten(leaves) -> jax.Array:
    return jnp.concatenate([jnp.asarray(leaf, float).reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def _unflatten(flat, shapes):
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return [
        piece.reshape(flat.shape[0], *shape) for piece, shape in zip(jnp.split(flat, ends, axis=1), shapes, strict=True)
    ]


def _shown(tree) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{name!r}: {_shown(value)}" for name, value in tree.items()) + "}"
    return f"of shape {np.shape(tree)}" if is_numeric(tree) else repr(tree)
