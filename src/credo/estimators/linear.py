"""Linear regression as a scikit-learn regressor: by evidence in closed form, or by any method.

By evidence (MacKay, 1992; credo.exact.EvidenceLinearRegression), with a flat prior on the intercept b:

    y = b + X w + ε,  w_j ~ N(0, 1/α) per sd of column j,  ε ~ N(0, 1/β)

Integrated over b, the likelihood is that of the N − 1 contrasts of y: of centred data with N − 1 for N. Given w and
centred columns, b ~ N(ȳ, 1/(βN)), independently of w. A row of weight k counts as k equal rows.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from sklearn.base import BaseEstimator, RegressorMixin

from credo.diagnose.verdict import judge
from credo.estimators.base import (
    Fitted,
    OnRows,
    Pickled,
    Recipe,
    checked_method,
    checked_scale,
    checked_table,
    checked_weights,
    draws,
    factor,
    fit_padded,
    mean_of,
    new_rows,
    scaling_of,
    seed_of,
    warn_of_failure,
)
from credo.linalg.dense import Dense
from credo.methods.exact import EvidenceLinearRegression
from credo.methods.exact.family import extend
from credo.model.data import check_order
from credo.model.model import Model
from credo.models.design import mean_and_sd
from credo.models.regression import PRIOR_SD, linear_predictor
from credo.posterior.kinds import Gaussian
from credo.status import CredoError

LEAST_NOISE = 1e-4  # sds of y: the noise is held there where the columns fit y exactly
NO_EFFECT = 1e-8  # sds of y a sd of the column: a coefficient that is zero but for rounding


class KnownNoise(eqx.Module):
    """The likelihood y ~ N(b + X w, noise_sd²). The noise is data: another one compiles nothing."""

    noise_sd: np.ndarray

    def __call__(self, params, x):
        return dist.Normal(linear_predictor(params, x), self.noise_sd)


@dataclass(frozen=True)
class EvidenceRecipe:
    """The model with the precisions found: flat intercept, coefficients N(0, coefficient_sd²), noise known."""

    num_features: int
    coefficient_sd: float
    noise_sd: float

    def model(self) -> Model:
        prior = {
            "intercept": dist.ImproperUniform(constraints.real, (), ()),
            "coefficients": dist.Normal(0.0, self.coefficient_sd).expand([self.num_features]),
        }
        return Model(prior, KnownNoise(np.asarray(self.noise_sd)))


class BayesianLinearRegression(Pickled, OnRows, RegressorMixin, BaseEstimator):
    """E(y | x) and its spread from a posterior over coefficients and noise.

    ``inference``: None finds the prior and the noise precision that maximise the evidence, and the rest is closed form;
    or a method such as ``NUTS()``, with the prior N(0, (prior_scale · sd(y))²) of a coefficient per sd of its column
    (for a column of two values: between them) and an exponential prior of the noise sd with mean sd(y).
    ``prior_scale`` is for methods alone. ``random_state``: the key of the method.

    After ``fit``: ``posterior_`` over the coefficients of scaled columns (those of ``inputs(X)``), with its verdict;
    ``log_evidence_``, an ``Estimate`` or None (by evidence: of the N − 1 contrasts of y, at its maximum); ``coef_`` and
    ``intercept_``, posterior means for columns as given; ``noise_sd_``, the root of the mean noise variance; by
    evidence ``alpha_``, the precision of a scaled coefficient.
    Raises ValueErrors: scikit-learn's for data, CredoError for a constant y or a prior scale that is not positive.

    >>> import numpy as np
    >>> x, y = np.arange(6.0)[:, None], np.array([0.1, 0.9, 2.1, 2.9, 4.2, 4.8])
    >>> mean, sd = BayesianLinearRegression().fit(x, y).predict([[10.0]], return_std=True)
    >>> mean.round(1)
    array([9.8])
    """

    def __init__(self, inference=None, *, prior_scale=PRIOR_SD, random_state=0):
        self.inference = inference
        self.prior_scale = prior_scale
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None):
        """``X`` (N, D), ``y`` (N,), ``sample_weight`` (N,): the number of times each row counts. N ≥ 2."""
        check_order(X=X, y=y, sample_weight=sample_weight)
        x, y = checked_table(self, X, y, y_numeric=True, ensure_min_samples=2)
        x, y = np.asarray(x), np.asarray(y, np.float64)
        weights = checked_weights(sample_weight, x)
        prior_scale = checked_scale(self.prior_scale)
        centre, unit = map(float, mean_and_sd(y, weights))
        if unit == 0:
            raise CredoError(f"y is constant ({y[np.argmax(weights)]:g} in every row that counts): nothing to explain.")
        if weights.sum() < 2:
            raise CredoError(
                f"The sample weights sum to {weights.sum():.3g}, less than two rows: a weight is the number of "
                f"times its row counts. Multiply them to sum to {len(y)}."
            )
        self._scaling = scaling_of(x, weights)
        scaled = self._scaling(x)
        if self.inference is None:
            self._fit_by_evidence(scaled, y, weights, centre, unit)
        else:
            recipe = Recipe("gaussian", x.shape[1], unit, centre, None, prior_scale)
            self._fit_by_method(recipe, scaled, y, weights)
        self.posterior_ = self._fitted.posterior()
        self.log_evidence_ = self.posterior_.log_evidence
        self.coef_ = self._mean[1:] / self._scaling.scale
        self.intercept_ = float(self._mean[0] - self._scaling.centre @ self.coef_)
        warn_of_failure(self)
        return self

    def predict(self, X, return_std=False):
        """(M,) the mean of y; with ``return_std`` also its sd (M,), of noise and coefficients together."""
        x = new_rows(self, X)
        design = np.column_stack([np.ones(len(x)), self._scaling(x)])
        mean = design @ self._mean
        if not return_std:
            return mean
        ratio = design @ self._root / self.noise_sd_  # squares of y's own units may be no numbers
        return mean, self.noise_sd_ * np.sqrt(1 + np.sum(ratio**2, axis=1))

    def _fit_by_evidence(self, x, y, weights, centre: float, unit: float) -> None:
        root = np.sqrt(weights)[:, None]
        num_rows = float(weights.sum())
        found, sentences = _maximise(root * x, root[:, 0] * ((y - centre) / unit), num_rows - 1)  # in sds of y
        sd = min(max(1 / np.sqrt(found.alpha), NO_EFFECT), 1 / NO_EFFECT)
        noise_sd = 1 / np.sqrt(found.beta)
        recipe = EvidenceRecipe(x.shape[1], float(unit * sd), float(unit * noise_sd))
        lower, num_determined = np.diag([noise_sd / np.sqrt(num_rows), *[sd] * x.shape[1]]), 0.0
        if found.active.any():  # with one alpha all are active or none is
            lower[1:, 1:] = np.asarray(found.distributions["weights"].scale_tril)  # type: ignore[union-attr]
            num_determined = x.shape[1] - float(found.alpha) * np.sum(lower[1:, 1:] ** 2)  # MacKay (1992), γ
        self._mean = np.concatenate([[centre], unit * found.mean()["weights"]])
        self._root, self.noise_sd_, self.alpha_ = unit * lower, recipe.noise_sd, float(found.alpha / unit / unit)
        at_best = "doubtful" if sentences and found.active.any() else "pass"
        verdict = judge({"noise_rows": num_rows - 1 - num_determined}, sentences, at_best=at_best)
        kind, info = Gaussian(self._mean, Dense(self._root)), {"route": "evidence"}
        log_evidence = extend(found.log_evidence, -(num_rows - 1) * np.log(unit))
        self._fitted = Fitted(recipe, x, y, weights, kind, verdict, info, log_evidence)

    def _fit_by_method(self, recipe: Recipe, x, y, weights) -> None:
        method = checked_method(self.inference)
        posterior, self._fitted = fit_padded(recipe, x, y, weights, method, seed_of(self.random_state))
        self._mean = mean_of(posterior)
        if isinstance(posterior.kind, Gaussian):
            self._root = factor(posterior.kind)[: 1 + x.shape[1]]
        else:
            drawn = draws(posterior)
            self._root = (drawn - drawn.mean(axis=0)).T / np.sqrt(len(drawn))
        self.noise_sd_ = float(np.hypot(posterior.mean()["noise_sd"], posterior.sd()["noise_sd"]))


def _maximise(x, y, num_rows: float) -> tuple[EvidenceLinearRegression, tuple[str, ...]]:
    """The maximum of the evidence; with the noise held where the columns fit y exactly, and a sentence about it."""
    gathered = replace(EvidenceLinearRegression().update(x, y), num_rows=num_rows)
    try:
        sentences = gathered.sentences
    except CredoError:
        held = EvidenceLinearRegression(noise_precision=LEAST_NOISE**-2)
        sentence = (
            f"The columns fit y exactly, so the data leave the noise open: its sd is held at {LEAST_NOISE:g} sd(y). "
            "Add rows, or drop columns."
        )
        return replace(held.update(x, y), num_rows=num_rows), (sentence,)
    return gathered, sentences
