"""Losses with a closed form: what a wrong answer costs, and the action that costs least in expectation.

Each is ``loss(action, outcome)`` for one action and one outcome, as a user's own loss is. Where an outcome has several
entries (columns, or the parameters of a posterior) the losses of the entries are added.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from credo.decisions.belief import Belief, OfPredictive
from credo.decisions.interval import best_interval
from credo.predict.monte_carlo import MixtureLaw
from credo.status import CredoError, is_number

REJECTED = -1  # where an action is a class; NaN where it is a number, None where it is anything else


class Loss(ABC):
    """A loss whose best action has a formula."""

    @abstractmethod
    def __call__(self, action, outcome) -> Any:
        """The loss of one action at one outcome."""

    @abstractmethod
    def check(self, belief: Belief) -> None:
        """CredoError where this loss has no meaning for such outcomes."""

    @abstractmethod
    def act(self, belief: Belief) -> Any:
        """The action of least expected loss, one for each row of the belief."""

    def expected(self, belief: Belief) -> np.ndarray | None:
        """What that action is expected to lose, (m,), where it has a formula free of simulation; else None."""
        return None

    def moment(self, belief: Belief) -> Any:
        """What must be finite for the expected loss to be: draws would not show it. None where the loss is bounded."""
        return None


@dataclass(frozen=True)
class ZeroOne(Loss):
    """1 unless the action is the outcome. The best action is the mode, for classes and counts."""

    def __call__(self, action, outcome):
        return jnp.where(jnp.asarray(action) == outcome, 0.0, 1.0)

    def check(self, belief):
        _single(self, belief)
        if not belief.is_discrete:
            raise CredoError(
                "ZeroOne() is for classes and counts: no action hits a continuous outcome exactly, so all would lose "
                "alike. Use Squared() or Absolute() for a value, Interval(price) for a set, MAP() for a mode."
            )

    def act(self, belief):
        return belief.mode() if belief.probs is None else np.argmax(belief.probs, axis=-1)


@dataclass(frozen=True)
class CostMatrix(Loss):
    """``costs[action][class]``: what an action costs when the class is true. Actions are numbers of rows.

    There may be more or fewer actions than classes. ``CostMatrix.binary`` prices the two errors of a binary outcome.

    >>> CostMatrix.binary(false_positive=1.0, false_negative=5.0).costs
    ((0.0, 5.0), (1.0, 0.0))
    """

    costs: ArrayLike

    def __post_init__(self):
        try:
            costs = np.asarray(self.costs, np.float64)
        except (TypeError, ValueError) as error:
            raise CredoError(f"costs is a matrix of numbers, costs[action][class]; got {self.costs!r}.") from error
        if costs.ndim != 2 or costs.size == 0 or not np.all(np.isfinite(costs)):
            raise CredoError(
                f"costs is a matrix of finite numbers, a row for each action and a column for each class; got {costs}."
            )
        object.__setattr__(self, "costs", tuple(tuple(row) for row in costs.tolist()))  # hashable: losses are static

    @classmethod
    def binary(cls, *, false_positive: float, false_negative: float) -> "CostMatrix":
        """Act 1 where p > false_positive / (false_positive + false_negative), the probability at which both tie."""
        return cls([[0.0, false_negative], [false_positive, 0.0]])

    def __call__(self, action, outcome):
        costs = np.asarray(self.costs)
        inside = (jnp.asarray(action) >= 0) & (jnp.asarray(action) < len(costs))
        return jnp.where(inside, jnp.asarray(costs)[action, outcome], jnp.nan)

    def check(self, belief):
        _single(self, belief)
        num_actions, num_classes = np.shape(self.costs)
        if belief.num_classes is None:
            raise CredoError(
                "CostMatrix is for an outcome of classes, and this one is no class: write the loss as a function of "
                "action and outcome."
            )
        if num_classes != belief.num_classes:
            raise CredoError(
                f"costs has shape ({num_actions}, {num_classes}) and the outcome {belief.num_classes} classes: give a "
                "column for each class."
            )

    def act(self, belief):
        return np.argmin(belief.probs @ np.asarray(self.costs).T, axis=-1)


@dataclass(frozen=True)
class Squared(Loss):
    """(y − a)². The best action is the mean, and loses the variance."""

    def __call__(self, action, outcome):
        return _total(lambda a, y: (y - a) ** 2, action, outcome)

    def check(self, belief):
        _ordered(self, belief)

    def act(self, belief):
        return belief.mean()

    def moment(self, belief):
        return belief.variance()

    def expected(self, belief):
        if not isinstance(belief, OfPredictive):
            return None
        law = belief.stream.law
        if isinstance(law, MixtureLaw) and law.width > 1:
            return None  # its moments are of draws of the parameters, whose error the simulation tells
        leaves = jax.tree.leaves(belief.predictive.variance)
        return sum(leaf.reshape(len(leaf), -1).sum(axis=1) for leaf in leaves)


@dataclass(frozen=True)
class Absolute(Loss):
    """|y − a|. The best action is the median."""

    def __call__(self, action, outcome):
        return _total(lambda a, y: jnp.abs(y - a), action, outcome)

    def check(self, belief):
        if not belief.is_ordered:
            _ordered(self, belief)

    def act(self, belief):
        return belief.quantile(0.5)

    def moment(self, belief):
        return None if belief.num_classes else belief.mean()


@dataclass(frozen=True)
class Pinball(Loss):
    """level · (y − a) where y exceeds a, (1 − level) · (a − y) elsewhere. The best action is the quantile at ``level``.

    Koenker & Bassett (1978). ``level``: what a unit of shortage costs beside a unit of excess, in (0, 1).
    """

    level: float

    def __post_init__(self):
        if not (is_number(self.level) and 0 < self.level < 1):
            raise CredoError(f"The level of Pinball lies strictly between 0 and 1; got {self.level!r}.")

    def __call__(self, action, outcome):
        return _total(lambda a, y: jnp.maximum(self.level * (y - a), (self.level - 1.0) * (y - a)), action, outcome)

    def check(self, belief):
        if not belief.is_ordered:
            _ordered(self, belief)

    def act(self, belief):
        return belief.quantile(self.level)

    def moment(self, belief):
        return None if belief.num_classes else belief.mean()


@dataclass(frozen=True)
class Interval(Loss):
    """1 unless low ≤ y ≤ high, and ``price`` · (high − low) in any case; the action is (low, high).

    With F and f the distribution function and density of y, the expected loss 1 − F(high) + F(low) + price · (high −
    low) is stationary where f(low) = f(high) = price: an interval of highest density, which holds just what is denser
    than ``price`` where there is one mode, and is empty where nothing is. ``price`` is a density: per unit of y.
    Of all intervals the best is taken where there are several modes.
    """

    price: float

    def __post_init__(self):
        if not (is_number(self.price) and self.price > 0):
            raise CredoError(f"The price of a unit of length is a positive number; got {self.price!r}.")

    def __call__(self, action, outcome):
        low, high = action

        def one(l, h, y):
            return jnp.where((l <= y) & (y <= h), 0.0, 1.0) + self.price * (h - l)

        return _total(one, low, high, outcome)

    def check(self, belief):
        if belief.num_classes is not None:
            raise CredoError("Interval is for numbers and counts, and this outcome is a class: use ZeroOne().")
        if belief.is_circular:
            raise CredoError(
                "Interval is for numbers on a line, and this outcome is an angle, which goes on from π at −π: find an "
                "arc by log_prob(y)."
            )

    def act(self, belief):
        return best_interval(belief, self.price)


@dataclass(frozen=True)
class Reject:
    """The option to leave a case to somebody else, at ``cost``, wherever ``loss`` expects to lose more than that.

    Under ZeroOne() this is Chow's rule (1970): answer where the largest probability is 1 − cost at least. A rejected
    action is −1 where actions are classes, whole numbers from 0, NaN where they are other numbers, and None where they
    are anything else.
    """

    cost: float
    loss: Any = ZeroOne()

    def __post_init__(self):
        if not is_number(self.cost):
            raise CredoError(f"The cost of a rejection is a finite number; got {self.cost!r}.")
        if self.cost < 0 and isinstance(self.loss, Loss) and not isinstance(self.loss, CostMatrix):
            raise CredoError(
                f"The cost of a rejection is {self.cost}, and {type(self.loss).__name__} is never below 0, so every "
                "case would be rejected: give a cost from 0."
            )
        if not callable(self.loss) or isinstance(self.loss, Reject | type):
            raise CredoError(f"Reject(cost, loss) wraps a loss such as ZeroOne(); got {self.loss!r}.")

    @property
    def answers_with_classes(self) -> bool:
        """Whether whole numbers among the actions are classes: those of a loss of numbers are numbers."""
        return not isinstance(self.loss, Absolute | Squared | Pinball | Interval)

    def __call__(self, action, outcome):
        if action is None:
            return self.cost
        first = jnp.ravel(jnp.asarray(jax.tree.leaves(action)[0]))[0]
        is_whole = jnp.issubdtype(first.dtype, jnp.integer)
        is_rejected = (first == REJECTED) & self.answers_with_classes if is_whole else jnp.isnan(first)
        return jnp.where(is_rejected, self.cost, self.loss(action, outcome))


def _total(entry, *trees):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(jax.tree.map(entry, *trees)))


def _single(loss: Loss, belief: Belief) -> None:
    if belief.has_parts:
        raise CredoError(
            f"{type(loss).__name__} is for one outcome, and this predictive has several: write the loss as a function "
            "of action and outcome, which takes outcome['name']."
        )


def _ordered(loss: Loss, belief: Belief) -> None:
    if belief.num_classes is not None and not belief.is_binary:
        raise CredoError(
            f"{type(loss).__name__} is for numbers, and the classes of this outcome have no "
            f"{'distances: use Absolute(), Pinball(level),' if belief.is_ordered else 'order: use'} ZeroOne() or "
            "CostMatrix(costs)."
        )
