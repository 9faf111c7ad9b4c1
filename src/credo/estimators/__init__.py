"""Credo's regressions and networks as scikit-learn estimators."""

from credo.estimators.linear import BayesianLinearRegression
from credo.estimators.logistic import BayesianLogisticRegression
from credo.estimators.mlp import BayesianMLPClassifier, BayesianMLPRegressor

__all__ = ["BayesianLinearRegression", "BayesianLogisticRegression", "BayesianMLPClassifier", "BayesianMLPRegressor"]
