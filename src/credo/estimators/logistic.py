"""Logistic regression, binary and multiclass, as a scikit-learn classifier."""

from dataclasses import replace

import numpy as np
from scipy.special import expit, ndtr
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from credo.estimators.base import (
    OnRows,
    Pickled,
    Recipe,
    checked_classes,
    checked_method,
    checked_scale,
    draws,
    factor,
    fit_padded,
    mean_of,
    new_rows,
    scaling_of,
    seed_of,
    warn_of_failure,
)
from credo.methods.laplace import Laplace
from credo.models.regression import PRIOR_SD
from credo.posterior.kinds import Gaussian

NODES = np.linspace(-8.5, 8.5, 341)  # trapezoidal in sds: error below 1e-8 for logits of sd up to WIDE
WIDE = 20.0
LOGITS = np.linspace(-40.0, 40.0, 161)  # trapezoidal in logits: error exp(−4π²), the poles of the density being π away
NUM_ROWS_AT_ONCE = 5_000


class BayesianLogisticRegression(Pickled, OnRows, ClassifierMixin, BaseEstimator):
    """p(class | x) from a posterior over coefficients; logits for two classes, softmax for more.

    ``inference``: a method; ``None`` is ``Laplace()``. ``prior_scale``: the prior sd of a coefficient, in logits per
    sd of its column (for a column of two values: between them), whatever the number of rows; the intercept's is 5
    (2.5 with more than two classes) at the mean of the columns. ``random_state``: the key of the method.

    After ``fit``: ``posterior_`` over the coefficients of scaled columns (those of ``inputs(X)``), with its verdict;
    ``log_evidence_``, an ``Estimate`` or None; ``coef_`` and ``intercept_``, posterior means for columns as given;
    ``classes_``. ``predict_proba`` averages over the posterior and so is less extreme than one set of coefficients.
    Raises ValueErrors: scikit-learn's for data, CredoError for one class only or a prior scale that is not positive.

    >>> import numpy as np
    >>> x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), ["no", "no", "yes", "yes"]
    >>> BayesianLogisticRegression().fit(x, y).predict([[2.5]])
    array(['yes'], dtype='<U3')
    """

    def __init__(self, inference=None, *, prior_scale=PRIOR_SD, random_state=0):
        self.inference = inference
        self.prior_scale = prior_scale
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None):
        """``X`` (N, D), ``y`` (N,) of any labels, ``sample_weight`` (N,): the number of times each row counts."""
        x, codes, self.classes_, weights = checked_classes(self, X, y, sample_weight)
        method = Laplace() if self.inference is None else checked_method(self.inference)
        num_classes = None if len(self.classes_) == 2 else len(self.classes_)
        family = "bernoulli" if num_classes is None else "categorical"
        recipe = Recipe(family, x.shape[1], 1.0, 0.0, num_classes, checked_scale(self.prior_scale))
        self._scaling = scaling_of(x, weights)
        scaled, codes = self._scaling(x), codes.astype(np.int64)
        posterior, fitted = fit_padded(recipe, scaled, codes, weights, method, seed_of(self.random_state))
        mean, kind = mean_of(posterior), fitted.kind
        is_gaussian = isinstance(kind, Gaussian) and num_classes is None
        self._gaussian = (mean, factor(kind)) if is_gaussian else None
        self._draws = None if is_gaussian else draws(posterior)
        verdict = _with_separation(fitted.verdict, scaled, codes, weights, mean, recipe.prior_scale)
        self._fitted = replace(fitted, verdict=verdict)
        self.posterior_ = self._fitted.posterior()
        self.log_evidence_ = fitted.log_evidence
        self.coef_ = np.atleast_2d(mean[1:].T) / self._scaling.scale  # (1, D) or (K, D)
        self.intercept_ = np.atleast_1d(mean[0]) - self.coef_ @ self._scaling.centre
        warn_of_failure(self)
        return self

    def predict_proba(self, X):
        """(M, K) probabilities of ``classes_``: their mean over the posterior."""
        x = new_rows(self, X)
        design = np.column_stack([np.ones(len(x)), self._scaling(x)])
        pieces = [
            self._probabilities(design[start : start + NUM_ROWS_AT_ONCE])
            for start in range(0, len(design), NUM_ROWS_AT_ONCE)
        ]
        return np.concatenate(pieces)

    def predict(self, X):
        """(M,) the most probable class."""
        check_is_fitted(self)
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]

    def _probabilities(self, design: np.ndarray) -> np.ndarray:
        if self._draws is not None and len(self.classes_) > 2:
            total = np.zeros((len(design), len(self.classes_)))
            for coefficients in self._draws:
                logits = design @ coefficients
                exponential = np.exp(logits - logits.max(axis=1, keepdims=True))
                total += exponential / exponential.sum(axis=1, keepdims=True)
            return total / len(self._draws)
        if self._draws is not None:
            logits = design @ self._draws.T
            positive, negative = expit(logits).mean(axis=1), expit(-logits).mean(axis=1)
        else:
            assert self._gaussian is not None
            mean, lower = self._gaussian
            m, sd = design @ mean, np.sqrt(np.sum((design @ lower) ** 2, axis=1))
            positive, negative = expected_sigmoid(m, sd), expected_sigmoid(-m, sd)
        return np.column_stack([negative, positive])


def expected_sigmoid(m: np.ndarray, s: np.ndarray) -> np.ndarray:
    """E σ(a), a ~ N(m, s²): the mean over the normal, or where it is wide over a logistic L, of Φ((m + L)/s)."""
    normal, logistic = np.exp(-0.5 * NODES**2), expit(LOGITS) * expit(-LOGITS)
    narrow = expit(m[:, None] + s[:, None] * NODES) @ normal / normal.sum()
    wide = ndtr((m[:, None] + LOGITS) / np.maximum(s, WIDE)[:, None]) @ logistic / logistic.sum()
    return np.where(s > WIDE, wide, narrow)


def _with_separation(verdict, x, codes, weights, mean, prior_scale: float):
    """A sentence where the mean coefficients tell all rows apart: then the likelihood has no maximum."""
    logits = np.column_stack([np.ones(len(x)), x]) @ mean
    guess = (logits > 0).astype(int) if logits.ndim == 1 else np.argmax(logits, axis=1)
    if np.any(guess[weights > 0] != codes[weights > 0]):
        return verdict
    sentence = (
        "The columns separate the classes perfectly: the likelihood grows without end as the coefficients do, and the "
        f"prior alone (prior_scale={prior_scale:g}) says how large they are."
    )
    return replace(verdict, sentences=(*verdict.sentences, sentence))
