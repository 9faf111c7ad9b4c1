"""What the estimators share: scaled columns, fits that compile a shape once, draws of coefficients, and pickles."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_random_state, validate_data

from credo.arguments import unmasked
from credo.fitting import Method, fit
from credo.model.data import are_missing, check_order
from credo.model.model import Model
from credo.models.design import Scaling
from credo.models.family import Family
from credo.models.regression import LIKELIHOODS, linear_prior
from credo.posterior.kinds import Draws, Gaussian
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.status import CredoError, Verdict

if TYPE_CHECKING:
    from credo.estimators.networks import NetworkRecipe

NUM_DRAWS = 1_000  # of the coefficients, behind predictions that have no closed form


@dataclass(frozen=True)
class Recipe:
    """The model of an estimator in numbers, from which it is built again after pickling."""

    family: Family
    num_features: int
    unit: float
    centre: float
    num_classes: int | None
    prior_scale: float

    def model(self) -> Model:
        prior = linear_prior(
            self.family, self.num_features, self.unit, self.centre, self.num_classes, scale=self.prior_scale
        )
        return Model(prior, LIKELIHOODS[self.family])


@dataclass(frozen=True)
class Fitted:
    """A posterior in parts that can be pickled: arrays, numbers and words, no code."""

    recipe: Any  # anything with model()
    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    kind: Any
    verdict: Verdict
    info: dict[str, Any]
    log_evidence: Any

    def posterior(self) -> Posterior:
        target = self.recipe.model().given(by_name(self.x), self.y, weights=self.weights)
        return Posterior(self.kind, target, verdict=self.verdict, info=self.info, log_evidence=self.log_evidence)


class Pickled:
    """Pickles an estimator without its ``posterior_``, which holds code, and builds that again from its parts."""

    _fitted: Fitted

    def __getstate__(self):
        state: Any = super().__getstate__()  # scikit-learn's, with its version
        return {name: value for name, value in state.items() if name != "posterior_"}

    def __setstate__(self, state):
        super().__setstate__(state)  # type: ignore[misc]
        if "_fitted" in state:
            self.posterior_ = self._fitted.posterior()


def by_name(scaled: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs of a model of scaled columns, as ``credo.prepare`` names them: a bare array was never scaled."""
    return {"features": scaled}


class OnRows:
    """What estimators do with rows that ``fit`` would take: scale them, and score them."""

    _scaling: Scaling

    def inputs(self, X) -> dict[str, np.ndarray]:
        """The rows of X with their columns scaled, as ``posterior_`` knows them: ``posterior_.predict(inputs(X))``."""
        return by_name(self._scaling(new_rows(self, X)))

    def score(self, X, y, sample_weight=None) -> float:
        """R² of a regressor, the share of rows that are right of a classifier: scikit-learn's own.

        What a mask hides is missing, and tables of pandas have one order.
        """
        check_order(X=X, y=y, sample_weight=sample_weight)
        if np.ma.is_masked(y):
            raise CredoError(f"A mask hides {np.ma.count_masked(y)} of y: leave those rows out of the score.")
        mixin: Any = super()
        return mixin.score(X, y, unmasked(sample_weight))


def fit_padded(
    recipe: "Recipe | NetworkRecipe", x: np.ndarray, y: np.ndarray, weights: np.ndarray, method: Method, key: int
) -> tuple[Posterior, Fitted]:
    """(the posterior of the rows and of fillers, the parts of the posterior of the rows alone: the same one).

    Rows of weight zero fill the data up to one of eight sizes an octave: they change nothing in the posterior, and
    folds of a cross-validation that differ by a row share their compiled programs.
    """
    model, extra = recipe.model(), padding(len(y))
    target = model.given(
        by_name(np.concatenate([x, np.zeros((extra, x.shape[1]))])),
        np.concatenate([y, np.zeros(extra, y.dtype)]),
        weights=np.concatenate([weights, np.zeros(extra)]),
    )
    posterior = fit(target, method, key=key, progress=False)
    return posterior, Fitted(
        recipe, x, y, weights, posterior.kind, posterior.verdict, posterior.info, posterior.log_evidence
    )


def warn_of_failure(estimator) -> None:
    """A ConvergenceWarning where the verdict is failed: within a pipeline nobody reads it."""
    verdict = estimator.posterior_.verdict
    if verdict.status == "failed":
        warnings.warn(
            f"The posterior of this {type(estimator).__name__} has failed. {' '.join(verdict.sentences[:1])} See "
            "posterior_.verdict.",
            ConvergenceWarning,
            stacklevel=3,
        )


def mean_of(posterior: Posterior) -> np.ndarray:
    """The mean of (intercept, coefficients) stacked, (1 + D,) or (1 + D, K)."""
    if isinstance(posterior.kind, Gaussian):  # both are unconstrained: their position is their value
        mean = _named(posterior, np.asarray(posterior.kind.mean)[None])
        return np.concatenate([mean["intercept"][:, None], mean["coefficients"]], axis=1)[0]
    mean = posterior.mean()
    return np.concatenate([mean["intercept"][None], mean["coefficients"]])


def padding(num_rows: int) -> int:
    """How many rows are missing to the next multiple of an eighth of the power of two below; at least to 16."""
    step = max(2 ** (int(num_rows).bit_length() - 1) // 8, 1)
    return max(-num_rows % step, 16 - num_rows)


def draws(posterior: Posterior) -> np.ndarray:
    """Draws of (intercept, coefficients) stacked, (S, 1 + D) or (S, 1 + D, K).

    A Gaussian is drawn in pairs around its mean from fixed white noise, so that predictions move smoothly with it.
    """
    kind = posterior.kind
    if isinstance(kind, Gaussian):
        z = np.random.default_rng(0).standard_normal((NUM_DRAWS // 2, len(kind.mean)))
        moved = z @ factor(kind).T
        named = _named(posterior, np.asarray(kind.mean) + np.concatenate([moved, -moved]))
    elif isinstance(kind, Draws) and kind.log_weights is None:
        named = {name: values.reshape(-1, *values.shape[2:]) for name, values in posterior.draws.items()}
        stride = -(-len(named["intercept"]) // NUM_DRAWS)
        named = {name: values[::stride] for name, values in named.items()}
    else:
        named = posterior.sample(0, NUM_DRAWS)
    return np.concatenate([named["intercept"][:, None], named["coefficients"]], axis=1)


def _named(posterior: Posterior, u: np.ndarray) -> dict[str, np.ndarray]:
    """The coordinates of flat positions (S, dim) by parameter, unconstrained."""
    named, start = {}, 0
    for leaf in posterior.target.structure.leaves:
        named[leaf.name] = u[:, start : start + leaf.size].reshape(-1, *leaf.free_shape)
        start += leaf.size
    return named


def factor(kind: Gaussian) -> np.ndarray:
    """S with S Sᵀ the covariance, (dim, dim)."""
    lower = getattr(kind.scale, "lower", None)
    if lower is not None:
        return np.asarray(lower)
    with double():
        return np.stack([np.asarray(kind.scale.matvec(row)) for row in np.eye(kind.scale.dim)], axis=1)


def new_rows(estimator, X) -> np.ndarray:
    """Rows (M, D) to predict at, checked against those of the fit."""

    check_is_fitted(estimator)
    return np.asarray(checked_table(estimator, X, reset=False))


def checked_table(estimator, X, *y, **settings) -> Any:
    """scikit-learn's ``validate_data``, with a sentence that names the column of a table which holds no numbers."""
    try:
        return validate_data(estimator, unmasked(X), *map(unmasked, y), dtype=np.float64, **settings)
    except (TypeError, ValueError) as error:
        if sentence := _no_number(X):
            raise CredoError(sentence) from error
        raise


def _no_number(X) -> str | None:
    for name, column in X.items() if hasattr(X, "iloc") and np.ndim(X) == 2 else ():
        for value in column.dropna():
            try:
                float(value)
            except (TypeError, ValueError):
                return (
                    f"Column {name!r} of X holds {str(value)!r}, and an estimator takes numbers: encode categories "
                    "first, such as by OneHotEncoder(sparse_output=False) in a ColumnTransformer before it, and count "
                    "dates in days."
                )
    return None


def scaling_of(x: np.ndarray, weights: np.ndarray) -> Scaling:
    """Centred columns in units of their sd (of two-valued ones, of their difference); rows count by weight."""
    return Scaling.of(x, weights > 0, is_centred=True, weights=weights[weights > 0])


def distinct_rows(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that count, equal ones once with the sum of their weights: k equal rows are then one of weight k exactly.

    Methods that go by rows, as minibatches do, would otherwise tell the two apart.
    """
    rows = np.column_stack([x, y])[weights > 0]
    _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    kept = np.flatnonzero(weights > 0)[first]
    return x[kept], y[kept], np.bincount(group.ravel(), weights[weights > 0])


def checked_weights(sample_weight, x: np.ndarray) -> np.ndarray:
    """One non-negative weight a row, not all zero."""

    weights = _check_sample_weight(unmasked(sample_weight), x, dtype=np.float64, ensure_non_negative=True)
    if not np.any(weights > 0):
        raise CredoError("Sample weights must contain at least one non-zero number: every row counts for nothing.")
    return weights


def checked_scale(prior_scale) -> float:
    is_number = isinstance(prior_scale, int | float | np.integer | np.floating) and not isinstance(prior_scale, bool)
    if not is_number or not 0 < prior_scale < np.inf:
        raise CredoError(f"prior_scale={prior_scale!r} is no standard deviation: give a positive number.")
    return float(prior_scale)


def checked_method(inference) -> Method:
    if isinstance(inference, type) or not hasattr(inference, "fit"):
        raise CredoError(f"inference takes a method such as Laplace() or NUTS(), with its brackets; got {inference!r}.")
    return inference


def seed_of(random_state) -> int:
    """An int as it is; otherwise one drawn from scikit-learn's random state."""
    if isinstance(random_state, int | np.integer) and 0 <= random_state < 2**32:
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise CredoError(
            f"random_state={random_state!r} is no seed: give a whole number from 0 to 2**32 - 1, None, or a "
            "numpy.random.RandomState."
        ) from error


def checked_classes(estimator, X, y, sample_weight) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(x, each row's class by number, the classes, weights); CredoError where the rows that count are of one class."""
    check_order(X=X, y=y, sample_weight=sample_weight)
    labels = np.asarray([] if y is None else unmasked(y), object)
    lacking = are_missing(labels)
    if lacking.any():
        raise CredoError(f"y has {lacking.sum()} labels that are missing (the first in row {int(np.argmax(lacking))}).")
    kinds = {isinstance(label, str): label for label in labels.flat}
    if len(kinds) == 2:
        raise CredoError(
            f"y has labels that are text, such as {str(kinds[True])!r}, beside others, such as {kinds[False]!r}: make "
            "them of one kind, by y.astype(str) say."
        )
    x, y = checked_table(estimator, X, y)
    x = np.asarray(x)
    check_classification_targets(y)
    weights = checked_weights(sample_weight, x)
    classes, codes = np.unique(y, return_inverse=True)
    present = np.unique(codes[weights > 0])
    if len(present) < 2:
        raise CredoError(
            f"y has one class only ({str(classes[present[0]])!r}, in {np.sum(weights > 0)} rows that count): there is "
            "nothing to tell apart."
        )
    return x, codes, classes, weights
