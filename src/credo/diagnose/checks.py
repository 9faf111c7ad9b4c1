"""Predictive checks: does the model produce data like those observed? (Rubin, 1984; Gelman, Meng & Stern, 1996)

A statistic T of the data is compared with its distribution over replicated data sets: p = Pr(T(y_rep) ≥ T(y)), ties
half counted. Under the *prior* predictive distribution p is uniform if the model is true (Box, 1980). Under the
posterior one the data are used twice, and p lies nearer ½ than a uniform variable (Meng, 1994): an extreme value then
says all the more, and a middling one less.
"""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from credo.arguments import as_key
from credo.compiling import sound
from credo.memory import Need, require_count
from credo.model.draws import check_replicable
from credo.model.observed import observed, rows_of
from credo.model.target import Target
from credo.precision import double, to_numpy
from credo.status import CredoError

ROUNDING = 1e-12  # of a statistic: ties of sums taken in another order
COPIES = 2  # of all replicates: drawn, and without what is masked
DISTINCT = 10  # values of an outcome: of fewer a column may be like it by chance
MOST_LAG, MOST_COLUMNS = 5, 200
SAME, LOOSE = 1e-9, 1e-6  # of a squared correlation; of a statistic that sums in another order
CLEAR, NEAR = 0.01, 0.05  # tail areas: that much is said plainly, that much with care


@dataclass(frozen=True, repr=False)
class Check:
    """``observed``: T(y). ``replicated``: T(y_rep), (num_draws,). ``p_value``: Pr(T(y_rep) ≥ T(y)), ties half counted.
    ``lag``: where T looks across rows and an input holds the outcome so many rows before; else 0.

    A p-value near 0 or 1 says that the model does not reproduce this aspect of the data.
    """

    observed: float
    replicated: np.ndarray
    p_value: float
    lag: int = 0

    @property
    def sentence(self) -> str:
        """What the figures mean."""
        if self.lag:
            return (
                f"An input holds the outcome {self.lag} row{'s' * (self.lag > 1)} before, and replicated data keep the "
                "lags that were seen: a statistic that looks across rows, as this one does, is no check of the model. "
                "Take one of residuals (y, x), or simulate forward."
            )
        low, high = np.quantile(self.replicated, [0.05, 0.95])
        side = "above" if self.p_value < 0.5 else "below"
        tail = min(self.p_value, 1.0 - self.p_value)
        figures = (
            f"observed {self.observed:.4g}, 90 % of the replicated in [{low:.4g}, {high:.4g}], p = {self.p_value:.3f}"
        )
        if tail < CLEAR:
            return f"The model does not reproduce this aspect of the data ({figures}): what was seen lies {side} it."
        if tail < NEAR:
            return f"The model hardly reproduces this aspect of the data ({figures}): what was seen lies {side} most."
        return f"The data are like those of the model in this respect ({figures})."

    def plot(self, ax=None):
        """A histogram of the replicated values with the observed one as a line: the matplotlib ``Axes``."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        ax.hist(self.replicated, bins="auto" if np.ptp(self.replicated) > 0 else 1, color="0.75", label="replicated")
        ax.axvline(self.observed, color="C3", label="observed")
        ax.set(xlabel="statistic", ylabel="data sets", title=f"p = {self.p_value:.3f}")
        ax.legend()
        return ax

    def __repr__(self) -> str:
        return f"<Check: {self.sentence}>"


def make_check(statistic: Callable, target: Target, replicated_y) -> Check:
    """``statistic(y)``, or ``statistic(y, x)``, of the data of ``target`` beside replicated ones, (num_draws, N, …)."""
    y, replicated_y, x = without_masked(target, replicated_y)
    of = _with_inputs(statistic, x)
    seen = _number(of, y)
    number = len(jax.tree.leaves(replicated_y)[0])
    each = (jax.tree.map(lambda leaf, i=i: leaf[i], replicated_y) for i in range(number))
    replicated = np.array([_number(of, y) for y in each])
    num_bad = int((~np.isfinite(replicated)).sum())
    if not np.isfinite(seen) or num_bad:
        which = f"{num_bad} of {number} replicated data sets" if np.isfinite(seen) else "the data"
        is_cut = any(np.isnan(leaf).any() for leaf in jax.tree.leaves(y))
        hint = ", such as np.nanmax: what the likelihood masks is NaN" if is_cut else ""
        raise CredoError(f"statistic is not finite for {which}: give one that is a number for any data{hint}.")
    is_tie = np.abs(replicated - seen) <= ROUNDING * max(abs(seen), float(np.median(np.abs(replicated))))
    p_value = float(np.mean((replicated > seen) & ~is_tie) + 0.5 * np.mean(is_tie))
    lag = _lag(x, y) if of is statistic else 0
    return Check(seen, replicated, p_value, lag if lag and not _is_of_a_set(statistic, y, seen) else 0)


def _is_of_a_set(statistic: Callable, y, seen: float) -> bool:
    """Whether the statistic is the same of the rows in another order."""
    rows = len(jax.tree.leaves(y)[0])
    order = np.random.default_rng(0).permutation(rows)
    turned = _number(statistic, jax.tree.map(lambda leaf: np.asarray(leaf)[order], y))
    return bool(abs(turned - seen) <= LOOSE * abs(seen))


def _lag(x, y) -> int:
    """How many rows before its own a column of the inputs holds the outcome, up to a scale; 0 where none does."""
    leaves = jax.tree.leaves(y)
    if len(leaves) != 1 or np.ndim(leaves[0]) != 1 or len(np.unique(leaves[0])) < DISTINCT:
        return 0
    outcome = np.asarray(leaves[0], float)
    columns = [np.asarray(leaf) for leaf in jax.tree.leaves(x) if np.shape(leaf)[:1] == outcome.shape]
    columns = [c.reshape(len(outcome), -1).astype(float) for c in columns if c.dtype.kind in "iuf"]
    columns = [c for c in columns if c.shape[1] <= MOST_COLUMNS]  # more are no table
    for lag in range(1, MOST_LAG + 1):
        if len(outcome) <= lag + DISTINCT:
            return 0
        for column in (each for array in columns for each in array[lag:].T):
            is_number = np.ptp(column) > 0 and np.ptp(outcome[:-lag]) > 0 and np.isfinite(column).all()
            if is_number and np.corrcoef(column, outcome[:-lag])[0, 1] ** 2 > 1 - SAME:
                return lag
    return 0


def without_masked(target: Target, replicated_y) -> tuple[Any, Any, Any]:
    """(y, replicated y, x) without what the likelihood masks: such rows are left out, and parts of a row are NaN."""
    counts = observed(target, target.y)
    every = jax.tree.leaves(counts)
    if all(each.all() for each in every):
        return target.y, replicated_y, target.x
    if not any(each.any() for each in every):
        raise CredoError(
            "The likelihood masks all outcomes, so that there is nothing to check: give some that are data."
        )
    num_rows = len(every[0])
    is_aligned = all(len(each) == num_rows for each in every)
    rows = rows_of(counts, num_rows) if is_aligned else slice(None)

    def hidden(values, here):
        return values if here[rows].all() else np.where(here, values, np.nan)

    y = jax.tree.map(lambda values, here: hidden(np.asarray(values), here)[rows], target.y, counts)
    replicated = jax.tree.map(lambda values, here: hidden(values, here)[:, rows], replicated_y, counts)
    x = jax.tree.map(lambda leaf: leaf[rows] if np.shape(leaf)[:1] == (num_rows,) else leaf, target.x)
    return y, replicated, x


def _number(statistic: Callable, y) -> float:
    """``statistic(y)``, or a sentence where it is no number."""
    try:
        found = statistic(y)
        values = np.asarray(found, np.float64)
    except CredoError:
        raise
    except Exception as error:  # the user's code
        raise CredoError(
            f"statistic cannot be computed ({type(error).__name__}: {str(error)[:100]}): give a function of y, or of y "
            "and x, that returns one number."
        ) from error
    if values.size != 1:
        raise CredoError(f"statistic returned shape {values.shape}: it must reduce y to one number.")
    return float(values.item())


def check_draws(num_draws) -> None:
    """CredoError where ``num_draws`` is no number of replicated data sets."""
    if not isinstance(num_draws, int | np.integer) or num_draws < 1:
        raise CredoError(f"num_draws is a whole number from 1; got {num_draws!r}.")


def check_prior(target: Target, statistic: Callable, *, num_draws: int = 1_000, key: Any = 0) -> Check:
    """A prior predictive check: ``statistic`` of the data of ``target`` beside data drawn from prior and likelihood.

    ``statistic(y)`` or ``statistic(y, x)`` returns a number; of rows that the likelihood masks it sees nothing, and of
    others as many as their weights count, as in ``Posterior.check``. Raises CredoError for a model that cannot be
    sampled (a bare log density, an improper prior), weights that are no whole numbers, and a target without y.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]).expand([4]))
    >>> check = check_prior(model.given(y=np.array([300, 512, 128, 404])), np.mean)
    >>> check.p_value
    0.0
    """
    require_checkable(target, statistic)
    check_draws(num_draws)
    target = counted(target, num_draws)
    with double():
        keys = jax.random.split(as_key(key), num_draws)
        replicated = to_numpy(_from_prior(target, keys))
    return make_check(statistic, target, replicated)


@sound
def _from_prior(target: Target, keys):
    def draw(key):
        k_params, k_data = jax.random.split(key)
        return target.model.draw_outcome(k_data, target.model.prior.sample(k_params)[0], target.x, target.y)

    return jax.lax.map(draw, keys)


def require_checkable(target: Target, statistic) -> None:
    """CredoError where no check can be made."""
    if not callable(statistic):
        raise CredoError(f"statistic is a function of y that returns a number, such as numpy.max; got {statistic!r}.")
    require_replicable(target, "A predictive check")


def require_replicable(target: Target, what: str) -> None:
    """CredoError where there is no likelihood to draw ``y`` anew from."""
    if target.y is None or target.model.likelihood is None:
        lacking = target.model.without_likelihood if target.model.likelihood is None else "there is no y"
        raise CredoError(f"{what} needs the model's likelihood and observed y: {lacking}.")
    check_replicable(target.model, target.x)


def counted(target: Target, num_draws: int) -> Target:
    """The same rows, each as often as its weight counts it.

    CredoError for weights that are no whole numbers, since of a part of a row there is nothing to replicate, and where
    memory does not hold ``num_draws`` replicates of all.
    """
    held = len(jax.tree.leaves(target.y)[0])
    weights = target.row_weights
    counts = np.ones(held) if weights is None else np.asarray(weights, float)
    if np.any(counts != np.round(counts)):
        odd = float(counts[counts != np.round(counts)][0])
        raise CredoError(
            f"A predictive check compares the data with rows drawn anew, and the weights count parts of rows ({odd:g} "
            "of one): check a fit whose weights are whole numbers, 0 for rows to leave out."
        )
    if not counts.any():
        raise CredoError("All weights are 0, so that there is nothing to check: give some rows that count.")
    num_rows, of_row = int(counts.sum()), sum(map(np.size, jax.tree.leaves(target.y))) / held
    require_count(
        lambda number: Need(f"a check with num_draws={number}", COPIES * 8 * number * num_rows * of_row),
        num_draws,
        f"{num_rows:,} rows",
    )
    if weights is None:
        return target
    rows = target.read(np.repeat(np.arange(len(counts)), counts.astype(int)))
    return dataclasses.replace(target, x=rows.x, y=rows.y, weights=None)


def _with_inputs(statistic: Callable, x) -> Callable:
    """The statistic as a function of y alone."""
    try:
        parameters = inspect.signature(statistic).parameters.values()
    except ValueError:  # a builtin, such as max
        return statistic
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in by_place and p.default is inspect.Parameter.empty]
    return (lambda y: statistic(y, x)) if len(needed) == 2 else statistic
