"""The two updates of a mixture of Gaussians, and its bound, for the one loop of coordinate ascent.

    responsibilities:  r_nk ∝ ρ_nk = exp(c_k · φ(x_n)),  summed to T, and H(r) = Σ_n log Σ_k ρ_nk − Σ_k c_k · T_k
    parameters:        q(π, μ, Λ) at T,  as coefficients c and KL(q ‖ prior)
    ELBO = Σ_k c_k · T_k + H(r) − KL(q ‖ prior)

The bound needs no pass through the data of its own. Under a point factor KL is left out and the same loop is EM.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.methods.vi.cavi.mixture.factors import Factor
from credo.methods.vi.cavi.mixture.responsibilities import Rows
from credo.methods.vi.cavi.sweeps import Ascent, ascend


class Responsibilities(NamedTuple):
    """q(z) as far as anything reads it: ``statistics`` T and the ``entropy`` in nats."""

    statistics: Float[np.ndarray, "K P"]
    entropy: float


class Parameters(NamedTuple):
    """q(π, μ, Λ) as far as rows see it: ``coefficients`` c, and the ``divergence`` from the prior in nats."""

    coefficients: Float[np.ndarray, "K P"]
    divergence: float


def climb(factor: Factor, rows: Rows, statistics, weight: float = 1.0, **limits) -> Ascent:
    """Coordinate ascent from expected ``statistics``; each row counts ``weight`` times."""

    def responsibilities(factors, _):
        c = factors["parameters"].coefficients
        T, log_normaliser = rows.sweep(c)
        return Responsibilities(weight * T, weight * (log_normaliser - float(np.sum(c * T))))

    def parameters(factors, _):
        return Parameters(*factor.coefficients(factors["responsibilities"].statistics))

    def elbo(factors, _):
        r, q = factors["responsibilities"], factors["parameters"]
        return float(np.sum(q.coefficients * r.statistics)) + r.entropy - q.divergence

    updates = {"responsibilities": responsibilities, "parameters": parameters}
    return ascend(updates, elbo, {"parameters": Parameters(*factor.coefficients(statistics))}, **limits)
