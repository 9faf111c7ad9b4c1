"""What a decision must know of an uncertain outcome, from a predictive or a posterior alike.

Outcomes come as weighted draws in groups. A group is what one draw of the parameters stands behind, or a run of one
chain, so that the spread of the groups tells the error of an average honestly: many outcomes drawn from few parameters
are not many draws, nor are neighbours in a chain.
"""

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from credo.batches import in_batches
from credo.compiling import sound
from credo.diagnose.convergence import mcse_mean
from credo.linalg.operator import Stored
from credo.model.draws import draw
from credo.posterior.kinds import Draws
from credo.posterior.marginals import draw_weights, student_variance
from credo.posterior.posterior import Posterior
from credo.posterior.summary import independent_groups
from credo.precision import double, to_numpy
from credo.predict.monte_carlo import NUM_GROUPS, MixtureLaw
from credo.predict.outcome import moments
from credo.predict.predictive import Predictive
from credo.predict.stream import MEMORY, NUM_TEMPORARIES
from credo.status import CredoError

MAX_COUNT = 1_000  # values of a count that are tried for its mode or its interval
RARE = 1e-3  # the tails of a count in which its mode is not looked for


class Outcomes(NamedTuple):
    """``values``: outcomes (n, m, …) at m rows; ``weights`` (n, m), of sum 1 over n.

    ``group_size``: of independent groups, one after the other, of which the last may be smaller; None where nothing is
    drawn and averages are exact. ``chains``: how many Markov chains the n draws are, one after the other; 0 for none.
    """

    values: Any
    weights: Float[Array, "n m"]
    group_size: int | None
    chains: int = 0


class Belief(ABC):
    """What is believed about an outcome at each of m rows."""

    num_classes: int | None = None
    is_binary: bool = False
    is_ordered: bool = False  # classes that have an order
    is_discrete: bool = False
    is_circular: bool = False  # an angle
    has_parts: bool = False  # several outcomes by name
    has_density: bool = False

    @property
    def probs(self) -> np.ndarray | None:
        """Class probabilities (m, K); None where the outcome is no class."""
        return None

    @abstractmethod
    def mean(self) -> Any: ...

    @abstractmethod
    def variance(self) -> Any: ...

    @abstractmethod
    def quantile(self, p) -> Any: ...

    @abstractmethod
    def mode(self) -> np.ndarray: ...

    @abstractmethod
    def log_prob(self, y) -> np.ndarray: ...

    def points(self, rare: float) -> tuple[np.ndarray, np.ndarray] | None:
        """(values, their probabilities), (n, m) each, of a count but for tails of ``rare``; None where that is none."""
        return None

    @abstractmethod
    def each(self, function: Callable, *more, is_fresh: bool = False) -> Any:
        """``function(outcomes, *more)`` over chunks of rows, joined: NumPy arrays (m, …).

        ``is_fresh``: with draws of its own, where draws can be made, so that they did not choose the action they price.
        """


class OfPredictive(Belief):
    """The outcome of each of the M rows of a predictive."""

    def __init__(self, predictive: Predictive, key, num_draws: int):
        self.predictive, self.key, self.num_draws = predictive, key, num_draws
        self.stream = predictive._stream
        self.parts = [outcome for _, outcome in predictive._named()]
        self.has_parts = isinstance(predictive._outcomes, dict)
        single = None if self.has_parts else self.parts[0]
        self.is_discrete = single is not None and single.is_discrete
        self.is_circular = single is not None and single.is_circular
        if single is not None and len(single.shape) == 1 and not single.is_joint:
            self.is_ordered = single.is_ordered
            self.is_binary = single.family.startswith("Bernoulli")
            self.num_classes = 2 if self.is_binary else single.num_classes
            self.has_density = not single.is_discrete

    @functools.cached_property
    def probs(self):
        if self.num_classes is None:
            return None
        probs: Any = self.predictive.probs
        return np.stack([1.0 - probs, probs], axis=-1) if self.is_binary else probs

    def mean(self):
        return self.predictive.mean

    def variance(self):
        return self.predictive.variance

    def quantile(self, p) -> Any:
        return self.predictive.quantile(p)

    def log_prob(self, y):
        return self.predictive.log_prob(y)

    def mode(self):
        if not self._is_count:
            together = ", drawn for all rows together," if self.parts[0].is_joint else ""
            raise CredoError(
                f"The mode of an outcome of shape {self.parts[0].shape}{together} is not searched for: give the "
                "actions to choose from as actions=[…]."
            )
        low, high = self._reach(RARE)
        widest = int(np.argmax(high - low))
        if high[widest] - low[widest] > MAX_COUNT:
            raise CredoError(
                f"The counts to choose from reach from {low[widest]} to {high[widest]} (row {widest}): give those that "
                "matter as actions=[…]."
            )
        return low + np.argmax(self._log_probs(low, high), axis=0)

    def points(self, rare):
        if not self._is_count:
            return None
        low, high = self._reach(rare)
        if np.max(high - low) > MAX_COUNT:
            return None
        probs = np.exp(self._log_probs(low, high))
        return low + np.arange(len(probs))[:, None], probs

    @property
    def _is_count(self) -> bool:
        """Whether each row has a whole number with probabilities of its own."""
        return self.is_discrete and len(self.parts[0].shape) == 1 and not self.parts[0].is_joint

    def _reach(self, rare: float) -> tuple[np.ndarray, np.ndarray]:
        """The quantiles of ``rare`` and of 1 − ``rare`` of each row, (m,)."""
        return np.asarray(self.quantile(rare)).astype(int), np.asarray(self.quantile(1.0 - rare)).astype(int)

    def _log_probs(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Of each count from ``low`` on at each row, (n, m), to ``high`` at least."""
        return np.stack([self.log_prob(low + beyond) for beyond in range(int(np.max(high - low)) + 1)])

    def each(self, function, *more, is_fresh=False):
        entries = sum(max(1, int(np.prod(part.shape[1:]))) for part in self.parts)
        width = self.stream.law.width * self.num_classes if self.num_classes else self.num_draws
        chunk = max(1, MEMORY // (NUM_TEMPORARIES * 8 * width * entries))
        with double():
            key, number = jax.random.fold_in(self.key, int(is_fresh)), itertools.count()
            if self.num_classes is None and not isinstance(self.stream.law, MixtureLaw):
                return self._each_sampled(function, more, key, chunk)

            def work(law, rows, *more):
                return function(self._draw(law, rows, jax.random.fold_in(key, next(number))), *more)

            return self.stream(work, *more, chunk=chunk)

    def _each_sampled(self, function, more, key, chunk: int):
        """With independent draws, as the predictive itself makes them."""
        size, number = self.parts[0].shape[0], itertools.count()

        def reduce(values):
            m = jax.tree.leaves(values)[0].shape[1]
            # chunks come in the order of the rows, the last of them filled up with the last row
            rows = np.minimum(next(number) * m + np.arange(m), size - 1)
            drawn = Outcomes(values, _equal(values), 1)
            return function(drawn, *jax.tree.map(lambda leaf: leaf[rows], more))

        return self.predictive._sample(key, self.num_draws, chunk, reduce)

    def _draw(self, law, rows, key) -> Outcomes:
        run = _run(law)
        if self.num_classes is not None:
            values, weights = _classes(law, rows, self.num_classes)
            return Outcomes(values, weights, run and run * self.num_classes)
        repeats = max(1, -(-self.num_draws // law.width))
        values, weights = _by_parameters(law, rows, key, repeats)
        return Outcomes(values, weights, run * repeats if run else 1)


class OfPosterior(Belief):
    """The parameters themselves, as one row. Stored draws are used all; others are made, ``num_draws`` of them."""

    def __init__(self, posterior: Posterior, key, num_draws: int):
        self.posterior, self.key, self.num_draws = posterior, key, num_draws

    def mean(self):
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], self.posterior.mean())

    def variance(self):
        return jax.tree.map(lambda leaf: np.square(np.asarray(leaf))[None], self.posterior.sd())

    def quantile(self, p):
        axis = np.ndim(p)
        return jax.tree.map(lambda leaf: np.expand_dims(leaf, axis), self.posterior.quantile(p))

    def mode(self):
        raise CredoError("Parameters are continuous: use MAP() for their mode.")

    def log_prob(self, y):
        raise CredoError("A posterior knows its joint density, and no marginal.")

    def each(self, function, *more, is_fresh=False):
        with double():
            return to_numpy(function(self._draw(is_fresh), *more))

    def _draw(self, is_fresh: bool) -> Outcomes:
        kind = self.posterior.kind
        is_stored = isinstance(kind, Draws)
        if is_stored:
            values = self.posterior._named(self.posterior._drawn)
        else:
            values = self.posterior.sample(jax.random.fold_in(self.key, int(is_fresh)), self.num_draws)
        values = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:, None], values)
        weights = draw_weights(kind) if is_stored else None
        if weights is None:
            return Outcomes(values, _equal(values), 1, len(kind.positions) if is_stored else 0)
        groups = independent_groups(self.posterior)
        return Outcomes(values, jnp.asarray(weights)[:, None], len(weights) // groups if groups else None)


def average(losses: Shaped[Stored, "n m"], drawn: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the losses and its standard error, (m,) each.

    With c_s and W_s the sums of w·L and of w in group s, the error² of the ratio Σ c / Σ W is S/(S−1) Σ (c_s − W_s L̄)²
    (Cochran 1977, chapter 6), times ``student_variance(S − 1)``; for chains it is sd²/ESS (Vehtari et al. 2021). NaN of
    one group alone.
    """
    weights = np.asarray(drawn.weights)
    # an outcome that cannot happen costs nothing, whatever its loss
    losses = np.where(weights > 0, np.asarray(losses), 0.0)
    mean = np.sum(weights * losses, axis=0)
    if drawn.group_size is None:
        return mean, np.zeros_like(mean)
    starts = np.arange(0, len(losses), drawn.group_size)
    groups = len(starts)
    if groups == 1:
        return mean, np.full_like(mean, np.nan)
    if drawn.chains:
        error = mcse_mean(losses.reshape(drawn.chains, -1, losses.shape[1]))
        return mean, np.where(np.ptp(losses, axis=0) == 0, 0.0, error)
    deviations = np.add.reduceat(weights * (losses - mean), starts, axis=0)
    return mean, np.sqrt(groups / (groups - 1.0) * student_variance(groups - 1) * np.sum(deviations**2, axis=0))


def _equal(values) -> jax.Array:
    n, m = jax.tree.leaves(values)[0].shape[:2]
    return jnp.full((n, m), 1.0 / n)


@functools.partial(sound, static_argnames=("num_classes",))
def _classes(law, rows, num_classes: int):
    """Every class at each row, weighted by its probability under each draw of the parameters: nothing is drawn."""
    if isinstance(law, MixtureLaw):
        means = jax.lax.map(
            lambda i: moments(law.likelihood(rows, i))[0], jnp.arange(law.width), batch_size=min(law.batch, law.width)
        )
        weights = jnp.exp(law.log_weights)
    else:
        means, weights = law.moments(rows)[0][None], jnp.ones(1)
    probs = jnp.stack([1.0 - means, means], axis=-1) if means.ndim == 2 else means  # (S, m, K)
    probs = jnp.moveaxis(weights[:, None, None] * probs, 2, 1)
    flat = probs.reshape(-1, probs.shape[2])
    classes = jnp.tile(jnp.arange(num_classes), len(weights))
    return jnp.broadcast_to(classes[:, None], flat.shape), flat


def _run(law) -> int | None:
    """Draws of the parameters that make one group; None where none are drawn."""
    if not isinstance(law, MixtureLaw):
        return None
    if law.is_chained:
        return -(-law.width // NUM_GROUPS)
    return 1 if law.width > 1 else None


@functools.partial(sound, static_argnames=("repeats",))
def _by_parameters(law: MixtureLaw, rows, key, repeats: int):
    """``repeats`` outcomes from each draw of the parameters: (draws · repeats, m, …)."""

    def one(pair):
        index, k = pair
        d = law.likelihood(rows, index)
        if isinstance(d, dict):
            return {name: draw(d[name], jax.random.fold_in(k, j), (repeats,)) for j, name in enumerate(d)}
        return draw(d, k, (repeats,))

    keys = jax.random.split(key, law.width)
    values = in_batches(one, (jnp.arange(law.width), keys), law.batch)
    values = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), values)
    rows_drawn = jax.tree.leaves(values)[0].shape[1]
    weights = jnp.repeat(jnp.exp(law.log_weights) / repeats, repeats)
    return values, jnp.broadcast_to(weights[:, None], (len(weights), rows_drawn))
