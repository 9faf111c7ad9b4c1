"""Credo's regressions as scikit-learn estimators."""

from credo.estimators.linear import BayesianLinearRegression
from credo.estimators.logistic import BayesianLogisticRegression

__all__ = ["BayesianLinearRegression", "BayesianLogisticRegression"]
