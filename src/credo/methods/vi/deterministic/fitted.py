"""What a deterministic fit found, in whichever way."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.methods.optimise.newton import Status
from credo.methods.vi.deterministic.derivatives import AtPositions
from credo.posterior.kinds import Gaussian, Kind


class Fitted(NamedTuple):
    """``q``: the family's optimum, from ``start``. ``responding``: the Gaussian by linear response, where wanted.

    ``response_variances``: by linear response, None where not computed. ``error_of_mean`` in sds of the answer, and
    ``error_of_log_sd``: (dim,), NaN where unknown. ``loss``: nats of the ELBO that the draws being fixed cost q,
    expected (response.py). ``value``: of F; ``lacks``: nats of it, by the gradient. ``path``: F wherever it was
    evaluated. ``free``: a direction along which the density does not fall, or None. ``program``: what was compiled to
    evaluate log p, where that was all.
    """

    q: Kind
    start: Kind
    responding: Gaussian | None
    response_variances: Float[np.ndarray, " dim"] | None
    error_of_mean: Float[np.ndarray, " dim"]
    error_of_log_sd: Float[np.ndarray, " dim"]
    loss: float
    value: float
    lacks: float
    status: Status
    path: list[float]
    num_draws: int
    num_gradients: int
    free: np.ndarray | None
    program: AtPositions | None = None

    @property
    def judged_errors(self) -> np.ndarray:
        """Of what is reported; by linear response that of sds is of second order, where they are the posterior's."""
        if self.responding is not None:
            return self.error_of_mean
        return np.concatenate([self.error_of_mean, self.error_of_log_sd])
