"""The action of least expected loss (Wald 1950; Savage 1954): what a prediction or a posterior is for.

    a* = argmin_a E[L(a, y) | D]

A loss brings its own formula, or is minimised here: among a list of actions, or by a search.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.arguments import as_key
from credo.decisions.belief import Belief, OfPosterior, OfPredictive, average
from credo.decisions.losses import REJECTED, Loss, Reject
from credo.decisions.models import ModelProbabilities, decide_model
from credo.decisions.search import among, by_coordinates, check_scalar, compiled_losses, is_numeric, losses_of_one
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.predict.predictive import Predictive
from credo.status import CredoError

NUM_DRAWS = 4_096  # of the outcome: an error of the expected loss of 1.6 % of the loss's sd


@dataclass(frozen=True)
class Decision:
    """``action``: the best one, for each row of a predictive (M, …), or one for a posterior.

    ``expected_loss``: what it is expected to lose, (M,) or a number. ``error``: one standard error of that, from the
    draws of the parameters and of the outcome behind it; 0 where nothing was drawn, NaN of one draw alone.
    """

    action: Any
    expected_loss: Any
    error: Any


def decide(
    belief: Predictive | Posterior | ModelProbabilities,
    loss: Callable[[Any, Any], Any],
    actions: Iterable | None = None,
    *,
    start: Any = None,
    key: Any = 0,
    num_draws: int = NUM_DRAWS,
) -> Decision:
    """The action of least expected loss: one for each row of a ``Predictive``, one for a ``Posterior``.

    ``loss(action, outcome)`` returns a number for one action and one outcome, y for a predictive and the parameters
    for a posterior: one of ``credo.decisions``, or any function of jax.numpy. ``actions``: a finite sequence to choose
    from; None takes the formula of the loss where it has one, all classes where the outcome is a class, and otherwise
    searches from ``start`` (default: the mean of the outcome, in its shape), on ``num_draws`` draws of the outcome.

    Probabilities of classes are summed exactly. Everything else is averaged over draws that did not choose the action,
    except that a posterior of stored draws uses the same for both. The error counts the draws of the parameters that
    stand behind the predictive too; what the approximation itself lacks, only its verdict knows.
    Raises CredoError for a loss that is no number or NaN, or that has no meaning for such outcomes.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> posterior = credo.fit(model.given(y=np.array([3, 5, 1, 4])), credo.Exact())
    >>> decision = credo.decide(posterior, credo.decisions.Squared())
    >>> round(float(decision.action["rate"]), 6)
    3.0
    """
    _check_request(loss, num_draws)
    actions = None if actions is None else _checked(actions)
    if isinstance(loss, Reject):
        inner = _decided(belief, loss.loss, actions, start, key, num_draws)
        are_classes = loss.answers_with_classes and all(_may_be_class(action) for action in actions or ())
        return _finite(_with_rejection(inner, loss.cost, are_classes))
    return _finite(_decided(belief, loss, actions, start, key, num_draws))


def _decided(belief, loss: Callable, actions: Sequence | None, start, key, num_draws: int) -> Decision:
    """``decide``, where the expected loss may be infinite."""
    if isinstance(belief, ModelProbabilities):
        return Decision(*decide_model(belief, loss, actions))
    if isinstance(belief, Predictive):
        source: Belief = OfPredictive(belief, as_key(key), num_draws)
    elif isinstance(belief, Posterior):
        source = OfPosterior(belief, as_key(key), num_draws)
    else:
        raise CredoError(
            f"decide takes a predictive (posterior.predict(x)), a posterior or model probabilities; got "
            f"{type(belief).__name__}."
        )
    loss = _hashable(loss)
    with double():
        if isinstance(loss, Loss):
            loss.check(source)
        decision = _decide(source, loss, actions, start)
    if isinstance(source, OfPosterior):
        first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], decision.action)
        return Decision(first, float(decision.expected_loss[0]), float(decision.error[0]))
    return decision


def _decide(belief: Belief, loss: Callable, actions: Sequence | None, start) -> Decision:
    if actions is None and start is None and not isinstance(loss, Loss) and belief.num_classes is not None:
        actions = list(range(belief.num_classes))
    if actions is not None:
        return _choose(belief, loss, actions)
    action = loss.act(belief) if isinstance(loss, Loss) and start is None else _search(belief, loss, start)
    known = loss.expected(belief) if isinstance(loss, Loss) and start is None else None
    if known is not None:
        return Decision(action, known, np.zeros_like(known))

    def price(drawn, action):
        check_scalar(loss, _first(action), _first(drawn.values, 2))
        return average(compiled_losses(loss, action, drawn.values), drawn)

    return _priced(belief, loss, action, *belief.each(price, action, is_fresh=True))


def _priced(belief: Belief, loss: Callable, action, expected, error) -> Decision:
    """What draws say of the expected loss, but where it is infinite, which they cannot show."""
    try:
        moment = loss.moment(belief) if isinstance(loss, Loss) else None
    except CredoError:  # a law whose moments have no formula
        moment = None
    for leaf in map(np.asarray, jax.tree.leaves(moment)):
        is_there = np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
        expected, error = np.where(is_there, expected, np.inf), np.where(is_there, error, np.nan)
    return Decision(action, expected, error)


def _search(belief: Belief, loss: Callable, start):
    if start is None:
        start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), belief.mean())

        def search(drawn, start):
            check_scalar(loss, _first(start), _first(drawn.values, 2))
            return by_coordinates(loss, jax.tree.map(jnp.asarray, start), drawn)

        return belief.each(search, start)
    if not is_numeric(start):
        raise CredoError(f"start is a number, an array of numbers or a dict of such; got {start!r}.")

    def search_from(drawn):
        check_scalar(loss, jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start), _first(drawn.values, 2))
        m = jax.tree.leaves(drawn.values)[0].shape[1]
        rows = jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf, float), (m, *np.shape(leaf))), start)
        return by_coordinates(loss, rows, drawn)

    return belief.each(search_from)


def _choose(belief: Belief, loss: Callable, actions: Sequence) -> Decision:
    def choose(drawn):
        for action in actions:
            check_scalar(loss, action, _first(drawn.values, 2))
        index, expected = among(loss, actions, drawn)
        return index, expected.T

    index, expected = belief.each(choose)
    if np.isnan(expected).any():
        action = actions[int(np.argmax(np.isnan(expected).any(axis=0)))]
        raise CredoError(f"The loss of action {action!r} is NaN at some outcome: return a number for every outcome.")

    def price(drawn, index):
        losses = np.zeros(np.asarray(drawn.weights).shape)
        for number in np.unique(index):
            losses = np.where(index == number, losses_of_one(loss, actions[number], drawn.values), losses)
        return average(losses, drawn)

    return _priced(belief, loss, _taken(actions, index), *belief.each(price, index, is_fresh=True))


def _taken(actions: Sequence, index: np.ndarray) -> np.ndarray:
    """The chosen action of each row: an array of numbers where all actions are such of one shape, else of objects."""
    are_numbers = all(is_numeric(action) and not isinstance(action, dict) for action in actions)
    if are_numbers and len({np.shape(action) for action in actions}) == 1:
        return np.asarray(actions)[index]
    objects = np.empty(len(actions), object)
    objects[:] = actions
    return objects[index]


def _may_be_class(action) -> bool:
    """Whether it is no whole number below zero, one of which stands for a rejected class."""
    return not (is_numeric(action) and not isinstance(action, dict) and np.any(np.asarray(action) < 0))


def _with_rejection(inner: Decision, cost: float, are_classes: bool) -> Decision:
    is_rejected = np.asarray(inner.expected_loss) > cost

    def mark(leaf) -> Any:
        leaf = np.asarray(leaf)
        where = is_rejected.reshape(is_rejected.shape + (1,) * (leaf.ndim - is_rejected.ndim))
        if leaf.dtype.kind in "OUS":
            marked = leaf.astype(object)
            marked[where] = None
            return marked[()]
        return np.where(where, REJECTED if are_classes and leaf.dtype.kind in "biu" else np.nan, leaf)

    loss = np.where(is_rejected, cost, inner.expected_loss)
    error = np.where(is_rejected, 0.0, inner.error)
    if is_rejected.ndim == 0:
        loss, error = float(loss), float(error)
    return Decision(jax.tree.map(mark, inner.action), loss, error)


def _finite(decision: Decision) -> Decision:
    expected = np.ravel(decision.expected_loss)
    wrong = np.flatnonzero(~np.isfinite(expected))
    if wrong.size:
        raise CredoError(
            f"The expected loss of the best action is {expected[wrong[0]]} (row {wrong[0]}): the loss must be finite "
            "at every outcome of that action, and its mean must exist."
        )
    return decision


def _first(tree, axes: int = 1):
    """One action, or one outcome, out of arrays with ``axes`` leading axes."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[(0,) * axes], tree)


def _check_request(loss, num_draws) -> None:
    if isinstance(loss, type) or not callable(loss):
        raise CredoError(f"loss is a function loss(action, outcome), such as Squared(); got {loss!r}.")
    if not isinstance(num_draws, int | np.integer) or num_draws < 2:
        raise CredoError(f"num_draws is a whole number from 2; got {num_draws!r}.")


def _checked(actions) -> list:
    if isinstance(actions, str | dict) or not hasattr(actions, "__iter__"):
        raise CredoError(f"actions is a sequence of the actions to choose from; got {actions!r}.")
    actions = list(actions)
    if not actions:
        raise CredoError("actions is empty: give at least one, or None to search for the best.")
    return actions


def _hashable(loss: Callable) -> Callable:
    """Compiled functions know a loss by its hash; one that has none is known by identity."""
    try:
        hash(loss)
    except TypeError:
        return lambda action, outcome: loss(action, outcome)
    return loss
