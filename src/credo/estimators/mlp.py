"""Multilayer perceptrons with uncertain weights, as scikit-learn estimators.

Columns of X, and y of a regression, are centred and scaled; networks.py has the model.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from credo.estimators.base import (
    Fitted,
    OnRows,
    Pickled,
    by_name,
    checked_classes,
    checked_method,
    checked_scale,
    checked_table,
    checked_weights,
    distinct_rows,
    fit_padded,
    new_rows,
    padding,
    scaling_of,
    seed_of,
    warn_of_failure,
)
from credo.estimators.choice import chosen
from credo.estimators.networks import ACTIVATIONS, Family, NetworkRecipe, checked_hidden, checked_word
from credo.methods.ensemble import DeepEnsemble
from credo.methods.laplace import Laplace
from credo.model.data import check_order, column
from credo.models.design import mean_and_sd
from credo.posterior.posterior import Posterior
from credo.predict.linearised import Linearised
from credo.predict.monte_carlo import MonteCarlo
from credo.predict.predictive import Predictive
from credo.status import CredoError

DEFAULT = DeepEnsemble()
DIGITS = 10  # of scaled columns and outcomes: the last bits, which hang on units, would steer the training


class _BayesianMLP(Pickled, BaseEstimator):
    """What the two share: the fit, and predictives at new rows."""

    _fitted: Fitted
    posterior_: Posterior

    def __init__(self, hidden=(50,), inference=None, *, activation="relu", prior_scale=None, random_state=0):
        self.hidden = hidden
        self.inference = inference
        self.activation = activation
        self.prior_scale = prior_scale
        self.random_state = random_state

    def _fit(self, family: Family, x, y, weights, num_outputs: int = 1) -> None:
        method: Any = DEFAULT if self.inference is None else checked_method(self.inference)
        activation = checked_word("activation", self.activation, ACTIVATIONS)
        self._seed, hidden = seed_of(self.random_state), checked_hidden(self.hidden)
        scale = 1.0 if self.prior_scale is None else checked_scale(self.prior_scale)
        recipe = NetworkRecipe(family, x.shape[1], hidden, activation, num_outputs, scale, self._seed)
        self._scaling = scaling_of(x, weights)
        x = np.round(self._scaling(x), DIGITS)
        if self.prior_scale is None and isinstance(method, DeepEnsemble):
            recipe = chosen(recipe, x, y, weights, method, self._seed)
        self.prior_scale_ = recipe.prior_scale
        _, self._fitted = fit_padded(recipe, x, y, weights, method, self._seed)
        # Sampled weights of a linearised fit predict worse than the fit itself does: see how-to-choose.md.
        self._rule = Linearised() if isinstance(method, Laplace) else MonteCarlo()
        self.posterior_ = self._fitted.posterior()
        self.log_evidence_ = self.posterior_.log_evidence

    def _predictive(self, X) -> tuple[Predictive, int]:
        """(of the rows of X and of fillers, as in a fit; the number of rows)."""
        x = new_rows(self, X)
        filled = np.concatenate([self._scaling(x), np.zeros((padding(len(x)), x.shape[1]))])
        return self.posterior_.predict(by_name(filled), self._rule, key=self._seed), len(x)


class BayesianMLPRegressor(OnRows, RegressorMixin, _BayesianMLP):
    """p(y | x) from a posterior over the weights of a multilayer perceptron.

    ``hidden``: widths of the hidden layers. ``inference``: any method of Credo, such as ``HMC(…)``, ``Laplace(…)``
    or ``SWAG()``; None is ``DeepEnsemble()``, five networks. ``noise``: the sd of y "constant" and unknown, or a
    function of the "input", an output of the network. ``activation``: "relu", "tanh" or "silu". ``prior_scale``: the
    prior sd of a weight (networks.py). None is 1, but for an ensemble the one of 1, 3 and 10 by which a fifth of the
    rows, held out, is predicted best, and a constant noise is that of these rows, where that predicts them better
    (choice.py): 30 rows or more, and four or five times the time. ``random_state``: of the initial weights, the
    rows held out, the method and the predictions.

    After ``fit``: ``posterior_`` over the weights for scaled columns (those of ``inputs(X)``) and y, with its verdict;
    ``log_evidence_`` of y in its own units, an ``Estimate`` or None; ``prior_scale_``, the one that was taken.
    Raises ValueErrors: scikit-learn's for data, CredoError for a constant y or settings that do not exist.

    >>> import numpy as np, credo
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = BayesianMLPRegressor((10,), credo.DeepEnsemble(members=2, num_steps=500)).fit(x, np.abs(x[:, 0]))
    >>> mean, sd = model.predict([[0.5]], return_std=True)
    >>> mean.round(1)
    array([0.5])
    """

    def __init__(
        self, hidden=(50,), inference=None, *, noise="constant", activation="relu", prior_scale=None, random_state=0
    ):
        super().__init__(hidden, inference, activation=activation, prior_scale=prior_scale, random_state=random_state)
        self.noise = noise

    def fit(self, X, y, sample_weight=None):
        """``X`` (N, D), ``y`` (N,), ``sample_weight`` (N,): the number of times each row counts. N ≥ 2."""
        check_order(X=X, y=y, sample_weight=sample_weight)
        x, y = checked_table(self, X, y, y_numeric=True, ensure_min_samples=2)
        x, y = np.asarray(x), np.asarray(y, np.float64)
        x, y, weights = distinct_rows(x, y, checked_weights(sample_weight, x))  # before means, which round by order
        noise: Any = checked_word("noise", self.noise, ("constant", "input"))
        self._centre, self._unit = map(float, mean_and_sd(y, weights))
        if self._unit == 0:
            raise CredoError(f"y is constant ({y[np.argmax(weights)]:g} in every row that counts): nothing to explain.")
        self._fit(noise, x, np.round((y - self._centre) / self._unit, DIGITS), weights)
        if self.log_evidence_ is not None:  # each y's density is 1 / unit times that of its scaled self
            value = self.log_evidence_.value - np.sum(weights) * np.log(self._unit)
            self.log_evidence_ = replace(self.log_evidence_, value=float(value))
        warn_of_failure(self)
        return self

    def predict(self, X, return_std=False):
        """(M,) the mean of y; with ``return_std`` also its sd (M,), of noise and weights together."""
        predictive, size = self._predictive(X)
        mean = self._centre + self._unit * predictive.mean[:size]
        return (mean, self._unit * np.sqrt(predictive.variance[:size])) if return_std else mean

    def log_prob(self, X, y):
        """log p(y_i | x_i) of each row in the units of y, (M,)."""
        check_order(X=X, y=y)
        predictive, size = self._predictive(X)
        y = column("y", y)
        if y.shape != (size,):
            raise CredoError(f"y has shape {y.shape} for {size} rows of X: give one outcome a row.")
        filled = np.concatenate([(y - self._centre) / self._unit, np.zeros(padding(size))])
        return predictive.log_prob(filled)[:size] - np.log(self._unit)

    def sample_y(self, X, n_samples=1, random_state=0):
        """Draws of y, (M, n_samples); the rows of a draw share their weights of the network."""
        predictive, size = self._predictive(X)
        return (self._centre + self._unit * predictive.sample(seed_of(random_state), n_samples)[:, :size]).T


class BayesianMLPClassifier(OnRows, ClassifierMixin, _BayesianMLP):
    """p(class | x) from a posterior over the weights of a multilayer perceptron.

    Settings and attributes of ``BayesianMLPRegressor``, and ``classes_``. ``predict_proba`` averages over the
    posterior and so is less extreme than one network. Raises CredoError where y has one class only.

    >>> import numpy as np, credo
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = BayesianMLPClassifier((10,), credo.DeepEnsemble(members=2, num_steps=500)).fit(x, np.abs(x[:, 0]) > 0.5)
    >>> model.predict([[0.9], [0.0]])
    array([ True, False])
    """

    def fit(self, X, y, sample_weight=None):
        """``X`` (N, D), ``y`` (N,) of any labels, ``sample_weight`` (N,): the number of times each row counts."""
        x, codes, self.classes_, weights = checked_classes(self, X, y, sample_weight)
        x, codes, weights = distinct_rows(x, codes, weights)
        is_binary = len(self.classes_) == 2
        family: Family = "bernoulli" if is_binary else "categorical"
        self._fit(family, x, codes.astype(np.int64), weights, 1 if is_binary else len(self.classes_))
        warn_of_failure(self)
        return self

    def predict_proba(self, X):
        """(M, K) probabilities of ``classes_``: their mean over the posterior."""
        predictive, size = self._predictive(X)
        probs = predictive.probs[:size]
        return np.column_stack([1 - probs, probs]) if probs.ndim == 1 else probs

    def predict(self, X):
        """(M,) the most probable class."""
        check_is_fitted(self)
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]
