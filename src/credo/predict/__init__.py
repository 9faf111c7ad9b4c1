"""From a posterior to a prediction: rules of integration, and the predictive distribution that they give."""

from credo.predict.augmented import Augmented
from credo.predict.linearised import Linearised, Quadrature
from credo.predict.monte_carlo import MonteCarlo
from credo.predict.predictive import Predictive
from credo.predict.probit import Probit

__all__ = ["Augmented", "Linearised", "MonteCarlo", "Predictive", "Probit", "Quadrature"]
