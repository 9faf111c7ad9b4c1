"""What is predicted: one marginal distribution a datum, whatever rule it came from."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax
import numpy as np

from credo.algorithm import stream as stream_of
from credo.algorithm import streams
from credo.arguments import as_key, as_numbers, check_count
from credo.collector import collecting_rarely
from credo.compiling import sound
from credo.model.check import check_new_outcomes
from credo.model.data import outcome_arrays, outcomes
from credo.model.observed import observed, rows_of
from credo.model.target import Target
from credo.precision import double
from credo.predict.few import warn_of_few_draws
from credo.predict.information import information
from credo.predict.inputs import Table, check_inputs
from credo.predict.invert import invert
from credo.predict.linearised import Linearised
from credo.predict.mixed import MixedLaw, law_of, mixed_information
from credo.predict.monte_carlo import MixtureLaw, MonteCarlo, without_data
from credo.predict.outcome import Outcome, over
from credo.predict.own import warn_of_shared_rows
from credo.predict.stream import MEMORY, NUM_TEMPORARIES, Law, stream
from credo.predict.undefined import explain_holes, is_hole
from credo.status import CredoError

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

NUM_SAMPLES = 4_096  # for quantiles where numpyro knows no distribution function


@runtime_checkable
class Rule(Protocol):
    """A way to integrate the likelihood over the posterior: a frozen dataclass of settings."""

    def law(self, posterior: "Posterior", table: Table, key) -> tuple[Law, Any]: ...


def predict(posterior: "Posterior", x, rule: Rule | None, key) -> "Predictive":
    """See ``Posterior.predict``."""
    rule = own_rule(posterior) if rule is None else rule
    if isinstance(rule, type) or not hasattr(rule, "law"):
        raise CredoError(f"rule is one of MonteCarlo(), Linearised(), Probit(), Quadrature(); got {rule!r}.")
    with double():
        table = check_inputs(posterior.target, x)
        if x is not None:
            warn_of_shared_rows(posterior.target, table)
        law, rows = law_of(rule, posterior, table, key)
        is_failed = posterior.verdict.status == "failed"
        return Predictive(law, rows, table, stream_of(key, 2), posterior.target, is_failed=is_failed)


def own_rule(posterior: "Posterior") -> Rule:
    """The rule where none is named."""
    return Linearised() if posterior.info.get("predicts") == "linearised" else MonteCarlo()


def outcomes_of(predictive: "Predictive") -> Any:
    """What a predictive is of; CredoError where it is none."""
    if not isinstance(predictive, Predictive):
        raise CredoError(f"This takes the predictive that posterior.predict(x) gives; got {type(predictive).__name__}.")
    return predictive._outcomes


class Predictive:
    """p(y* | x*, D), a marginal for each of M rows. Made by ``posterior.predict``.

    Arrays have shape (M,), or (M, K) where an outcome has K columns. A categorical outcome is seen as its one-hot
    vector: mean, variances and ``probs`` are (M, K), and it has no quantiles unless its classes have an order. An angle
    has none either, and no mean. Where the likelihood returns a dict of outcomes, so do the methods. Rows are worked
    through in chunks sized by an estimate of their memory.
    Where the likelihood is undefined at a row, or the posterior ``is_failed``, and a prediction is NaN, CredoError says
    so.
    """

    def __init__(self, law: Law, rows, table: Table, key, fitted: Target, *, is_failed: bool = False):
        """``rows``: what ``law`` takes of ``table``. ``fitted``: the target of the fit."""
        self._outcomes, self._stream = stream(law, rows, table.size)
        self._key, self._table, self._fitted, self._is_failed = key, table, fitted, is_failed

    @functools.cached_property
    def _target(self) -> Target:
        """At these rows, without outcomes."""
        return dataclasses.replace(without_data(self._fitted), x=self._table.x)

    def _compute(self, function, *args, **options):
        """``function`` over the rows: numbers or a sentence, and never a silent NaN, but of what has no mean."""
        with collecting_rarely():
            found = self._stream(function, *args, **options)
        if any(is_hole(leaf).any() for leaf in jax.tree.leaves(found)):
            explain_holes(self._stream, stream_of(self._key, 3), is_failed=self._is_failed)
        return found

    # moments ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _moments(self):
        """(mean, aleatoric, epistemic), or a dict of such."""
        for name, outcome in self._named():
            self._check_line(name, outcome)
            if not outcome.has_moments:
                raise CredoError(
                    f"numpyro knows no mean and variance of {outcome.family}{name}: use sample(key, n), "
                    "quantile(p) or log_prob(y)."
                )
        with double():
            return self._compute(_moments)

    @functools.cached_property
    def _moments_asked_for(self):
        """The same, for a reader, who is told once where they rest on a handful of draws."""
        if isinstance(self._stream.law, MixtureLaw):
            warn_of_few_draws(self._stream.law, self._outcomes, self._moments)
        return self._moments

    @property
    def num_rows(self) -> int | None:
        """M, the rows of x; None where the model takes none."""
        return self._table.size

    @property
    def mean(self):
        """E[y]: (M, …); the probability of 1 for a binary outcome, the probabilities (M, K) for a categorical one."""
        if "_moments" in vars(self) or not hasattr(self._stream.law, "mean"):
            found = over(lambda triple: triple[0], self._moments_asked_for)
        else:
            found = self._mean
        # a sum of weights is 1 but for rounding, and a probability is within its bounds all the same
        return over(
            lambda mean, outcome: np.clip(mean, 0.0, 1.0) if outcome.is_of_classes else mean, found, self._outcomes
        )

    @functools.cached_property
    def _mean(self):
        """Of a law whose variances cost more."""
        with double():
            return self._compute(_mean, is_light=True)

    @property
    def aleatoric(self):
        """E[Var(y | θ)]: the variance that would remain if the parameters were known. Shape of ``mean``."""
        return over(lambda triple: triple[1], self._moments_asked_for)

    @property
    def epistemic(self):
        """Var(E[y | θ]): the variance that more data would remove; zero for a point posterior. Shape of ``mean``."""
        return over(lambda triple: triple[2], self._moments_asked_for)

    @property
    def variance(self):
        """Var(y) = aleatoric + epistemic, the law of total variance. Shape of ``mean``."""
        return over(lambda triple: triple[1] + triple[2], self._moments_asked_for)

    @property
    def sd(self):
        """√variance, in the units of the outcome. Shape of ``mean``."""
        return over(np.sqrt, self.variance)

    @functools.cached_property
    def mutual_information(self):
        """I(y; θ | x, D), (M,) in nats: what seeing the outcome of a row would tell of the parameters on average.

        H(E[p(y | θ)]) − E[H(p(y | θ))] (MacKay 1992; BALD, Houlsby et al. 2011). Of classes an exact sum over the
        rule's draws or nodes; of a normal outcome under ``Linearised()`` and ``Quadrature()`` exact too,
        ½ log(variance / aleatoric) where the noise is known; of other outcomes from 512 draws a row, to 5 to 15 %.
        From draws of the parameters it is below the truth on average, and at most the log of their number.
        Columns of a row are taken together. Raises CredoError for an outcome that is joint over the rows.
        """
        key = stream_of(self._key, 2)
        with double():
            if isinstance(self._stream.law, MixedLaw):
                assert isinstance(self._outcomes, Outcome)  # linearised outputs are of one
                return mixed_information(self, self._outcomes, key)
            if isinstance(self._outcomes, dict):
                return {name: information(self, name, outcome, key) for name, outcome in self._outcomes.items()}
            return information(self, None, self._outcomes, key)

    @property
    def probs(self):
        """Class probabilities: (M, K) for a categorical outcome, the probability of 1 (M,) for a binary one."""
        for name, outcome in self._named():
            if not outcome.is_of_classes:
                instead = "sample(key, n)" if outcome.is_circular or not outcome.has_moments else "mean"
                raise CredoError(
                    f"probs is for classes, and the outcome{name} is {outcome.family}: use {instead} or log_prob(y)."
                )
        return self.mean

    # distribution -----------------------------------------------------------------------------------------------

    def log_prob(self, y) -> np.ndarray:
        """log p(y_i | x_i, D), (M,): one a datum, its columns taken together; −∞ outside the support.

        What a mask of the likelihood hides is left out, whatever stands there: of a row some columns, or all, which
        gives NaN. Raises CredoError where y is not finite or has another shape than the outcome.
        """
        y, counts = self._given(y)
        with double():
            found = self._compute(_log_prob, y)
        return np.where(rows_of(counts, len(found)), found, np.nan)

    def quantile(self, p: float | Sequence[float]):
        """Marginal quantiles: (M, …) for a float p in (0, 1), (len(p), M, …) for a sequence.

        Of a count, the smallest value that is not exceeded with probability p at least. Found by inverting the
        distribution function, about a dozen evaluations of each draw (0.03 µs for a normal, 3 µs for a t or a negative
        binomial outcome); where numpyro has none for the likelihood, or no number, from 4,096 samples a row.
        Raises CredoError for a categorical outcome whose classes have no order, and for an angle.
        """
        levels = as_numbers(p)
        if not np.all((levels > 0) & (levels < 1)):
            raise CredoError(f"A quantile's level lies strictly between 0 and 1; got {p!r}.")
        for name, outcome in self._named():
            self._check_line(name, outcome)
            if outcome.num_classes is not None and not outcome.is_ordered:
                raise CredoError(
                    f"A categorical outcome{name} has no quantiles, since its classes have no order: use probs."
                )
        found = [self._quantile(level) for level in (levels.ravel() if levels.size else (0.5,))]
        return over(lambda *each: np.stack(each)[: levels.size].reshape(levels.shape + each[0].shape), *found)

    def interval(self, mass: float = 0.9):
        """The central interval that holds ``mass``, or more of a count: (lower, upper), each (M, …)."""
        known = as_numbers(mass)
        if known.ndim or not 0 < known < 1:
            raise CredoError(f"An interval's mass is one number strictly between 0 and 1; got {mass!r}.")
        return self.quantile(0.5 * (1.0 - float(known))), self.quantile(0.5 * (1.0 + float(known)))

    def sample(self, key, n: int):
        """``n`` draws of the outcome at every row: (n, M, …). ``key``: int or JAX key.

        Within one of the n all rows share a draw of the parameters, so that sums over rows are distributed rightly
        too (except under ``Probit()``, which knows each row alone).
        """
        check_count(n)
        with double():
            return self._sample(as_key(key), n, None)

    def __repr__(self) -> str:
        shown = ", ".join(f"{outcome.family}{name} of shape {outcome.shape}" for name, outcome in self._named())
        return f"<Predictive: {shown}>"

    # how --------------------------------------------------------------------------------------------------------

    def _named(self) -> list[tuple[str, Outcome]]:
        if isinstance(self._outcomes, dict):
            return [(f" {name!r}", outcome) for name, outcome in self._outcomes.items()]
        return [("", self._outcomes)]

    def _check_line(self, name: str, outcome: Outcome) -> None:
        if outcome.is_circular:
            raise CredoError(
                f"The outcome{name} is an angle, of which 3.1 and -3.1 are neighbours: it has no mean, variance or "
                "quantile on the line. Use sample(key, n), and the mean of its sines and cosines, or log_prob(y)."
            )

    def _held_out(self, y) -> tuple[Any, Any]:
        """(outcomes to score, which entries of them are data), in the shape of y; CredoError for any that cannot be.

        What a mask of the likelihood hides is no data, and stands as 0.
        """
        y, counts = self._given(y)
        if not any(map(np.any, jax.tree.leaves(counts))):
            raise CredoError("The likelihood masks all these outcomes: give some that are data.")
        check_new_outcomes(self._target, y)
        return y, counts

    def _given(self, y) -> tuple[Any, Any]:
        """The same without a look at the support."""
        y = outcome_arrays(y)
        if isinstance(self._outcomes, dict):
            if not isinstance(y, Mapping) or not set(self._outcomes) <= set(y):
                raise CredoError(
                    f"y lacks an outcome of the likelihood; it has {', '.join(self._outcomes)}: give them all."
                )
            y = {name: y[name] for name in self._outcomes}
        elif isinstance(y, Mapping):
            raise CredoError(
                f"y is a dict of {', '.join(map(str, y))}, and the likelihood has one outcome: give its array."
            )
        self._check_shapes(y)
        counts = observed(self._target, y)
        y = over(lambda values, here: values if here.all() else np.where(here, values, 0), y, counts)
        for name, _, values in self._each(y):
            is_missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
            if is_missing.any():
                raise CredoError(
                    f"y{name} is NaN in {is_missing.sum()} place(s) (the first in row {np.argwhere(is_missing)[0][0]}"
                    "): what is not known has no probability, so leave these rows out, of x and of y."
                )
        y = outcomes(y)
        self._check_classes(y)
        return y, counts

    def _each(self, y) -> list[tuple[str, Outcome, Any]]:
        """The outcomes with their values."""
        given = [y[name] for name in self._outcomes] if isinstance(self._outcomes, dict) else [y]
        return [(name, outcome, values) for (name, outcome), values in zip(self._named(), given, strict=True)]

    def _check_shapes(self, y) -> None:
        for name, outcome, values in self._each(y):
            if np.ndim(values) and not len(values):
                raise CredoError(f"y{name} has no rows: give one outcome at least.")
            # without inputs the rows are alike, and any number of them can be asked about
            wanted = outcome.shape
            if self._stream.size is None and wanted[:1] == (1,):
                wanted = (*np.shape(values)[:1], *wanted[1:])
            if np.shape(values) != wanted:
                raise CredoError(
                    f"y{name} has shape {np.shape(values)} and the predictive {outcome.shape}: give an outcome for "
                    "each row of x."
                )

    def _check_classes(self, y) -> None:
        for name, outcome, values in self._each(y):
            if outcome.num_classes is not None and not np.issubdtype(values.dtype, np.integer):
                raise CredoError(
                    f"y{name} holds {values.dtype}, and classes are whole numbers from 0: give y.astype(int)."
                )

    def _quantile(self, level: float):
        if isinstance(self._outcomes, dict):
            return {name: self._quantile_of(name, outcome, level) for name, outcome in self._outcomes.items()}
        return self._quantile_of(None, self._outcomes, level)

    def _quantile_of(self, part: str | None, outcome: Outcome, level: float) -> np.ndarray:
        if outcome.is_ordered:
            probs = self._moments[0] if part is None else self._moments[part][0]
            return np.argmax(np.cumsum(probs, axis=-1) >= level * (1 - 1e-12), axis=-1)
        with double():
            if not outcome.has_cdf:
                return self._sampled_quantile(part, outcome, level)
            quantile = functools.partial(_quantile, p=level, part=part, is_discrete=outcome.is_discrete)
            value = self._compute(quantile, *self._location(part, outcome))
            if is_hole(value).any():  # numpyro's distribution function is no number somewhere
                value = np.where(is_hole(value), self._sampled_quantile(part, outcome, level), value)
        value = value if outcome.lower is None else np.maximum(value, outcome.lower)  # the search knows no support
        value = value if outcome.upper is None else np.minimum(value, outcome.upper)
        return value.astype(np.int64) if outcome.is_discrete else value

    def _location(self, part: str | None, outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd, where the search for a quantile starts; NaN where there are none."""
        if not all(each.has_moments for _, each in self._named()):
            unknown = np.full(outcome.shape, np.nan)
            return unknown, unknown
        mean, aleatoric, epistemic = self._moments if part is None else self._moments[part]
        return mean, np.sqrt(aleatoric + epistemic)

    def _sampled_quantile(self, part: str | None, outcome: Outcome, level: float) -> np.ndarray:
        method = "inverted_cdf" if outcome.is_discrete else "linear"

        def reduce(draws):
            return np.quantile(np.asarray(draws if part is None else draws[part]), level, axis=0, method=method)

        chunk = MEMORY // (NUM_TEMPORARIES * NUM_SAMPLES * 8 * max(1, int(np.prod(outcome.shape[1:]))))
        return self._sample(self._key, NUM_SAMPLES, max(1, chunk), reduce)

    def _sample(self, key, n: int, chunk: int | None, reduce=None, *more):
        """Draws (n, M, …), or ``reduce(draws, *more)`` of each chunk of rows, with ``more`` cut as the rows are."""
        shared = self._stream.law.shared(np.random.default_rng(stream_of(key, 0).tolist()), n)

        def draw(law, rows, *more, key):
            draws = _sample(law, rows, shared, streams(key, n))
            return draws if reduce is None else reduce(draws, *more)

        return self._compute(draw, *more, key=stream_of(key, 1), chunk=chunk, axis=1 if reduce is None else 0)


@sound
def _moments(law: Law, rows):
    return law.moments(rows)


@sound
def _mean(law: Any, rows):
    return law.mean(rows)


@sound
def _log_prob(law: Law, rows, y):
    return law.log_prob(rows, y)


@functools.partial(sound, static_argnames=("part", "is_discrete"))
def _quantile(law: Law, rows, mean, sd, p, part: str | None, is_discrete: bool):
    return invert(law.cdf(rows, part), p, mean, sd, is_discrete=is_discrete)


@sound
def _sample(law: Law, rows, shared, keys):
    return law.sample(rows, shared, keys)
