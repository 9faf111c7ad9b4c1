"""Stochastic variational inference (Hoffman, Blei, Wang & Paisley 2013) for a mixture of Gaussians.

    T̂_t = (N/M) Σ_{n ∈ batch t} r_n φ(x_n)ᵀ,  r at T_t;    T_{t+1} = T_t + ρ_t (T̂_t − T_t),  ρ_t = (t + τ)^−κ

q's natural parameters are those of the prior plus T, and T̂_t − T_t is an unbiased estimate of the ELBO's natural
gradient in them: the Fisher information has gone. An epoch's batches are a random division of the rows, which uses each
once; the batches of epoch e and the step t depend on the key and on t alone, and a fit may be continued at any step.
The result is the mean of the last epoch's T̂_t: a pass through all rows, in which the noise of the batches cancels.
"""

import time
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from credo.arguments import as_key
from credo.methods.vi.cavi.mixture.factors import Factor
from credo.methods.vi.cavi.mixture.responsibilities import Rows, respond
from credo.status import CredoError


class Learned(NamedTuple):
    """``statistics``: the mean of the last epoch. ``running``: T at ``step``, from which to continue, exactly.

    ``bounds`` (steps,): each batch's unbiased estimate of the bound.
    """

    statistics: Float[np.ndarray, "K P"]
    running: Float[np.ndarray, "K P"]
    step: int
    bounds: Float[np.ndarray, " steps"]


@dataclass(frozen=True, kw_only=True)
class Stochastic:
    """Steps on minibatches of ``batch_size`` rows, ``num_epochs`` times through the data.

    Step t has the size (t + ``delay``)^−``forgetting``, forgetting in (0.5, 1] as Robbins & Monro (1951) require. Then
    ``num_last_sweeps`` sweeps over all rows give the exact bound, and from three on what it still lacks.
    """

    batch_size: int = 1_000
    num_epochs: int = 5
    forgetting: float = 0.7
    delay: float = 10.0
    num_last_sweeps: int = 3

    def __post_init__(self):
        for name in ("batch_size", "num_epochs", "num_last_sweeps"):
            value = getattr(self, name)
            if not (isinstance(value, int | np.integer) and value >= 1):
                raise CredoError(f"{name} is {value!r}: give a whole number from 1.")
        if not 0.5 < self.forgetting <= 1:
            raise CredoError(
                f"forgetting is {self.forgetting!r}: it lies in (0.5, 1], where steps sum to infinity and their "
                "squares do not."
            )
        if not self.delay >= 1:
            raise CredoError(f"delay is {self.delay!r}: give a number from 1, so that no step is longer than whole.")

    def run(
        self, factor: Factor, rows: Rows, statistics: Float[np.ndarray, "K P"], step: int, key, deadline: float
    ) -> Learned:
        """``num_epochs`` from ``step`` on, or as many as there is time for."""
        if self.batch_size > len(rows):
            raise CredoError(
                f"batch_size is {self.batch_size} and x has {len(rows)} rows: give a minibatch of fewer rows, or leave "
                "updates out."
            )
        num_batches = len(rows) // self.batch_size
        last, bounds = np.zeros_like(statistics), []
        end = step + self.num_epochs * num_batches
        order_of, order = -1, np.zeros(0, int)
        while step < end:
            epoch, batch = divmod(step, num_batches)
            if epoch != order_of:
                order_of, order = epoch, self._order(key, epoch, len(rows))
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            found, bound = self.estimate(factor, rows, statistics, chosen)
            statistics = statistics + (step + self.delay) ** -self.forgetting * (found - statistics)
            step += 1
            bounds.append(bound)
            if end - step < num_batches:
                last += found / num_batches
            if time.monotonic() > deadline:
                return Learned(statistics, statistics, step, np.array(bounds))
        return Learned(last, statistics, step, np.array(bounds))

    @staticmethod
    def estimate(factor: Factor, rows: Rows, statistics, chosen) -> tuple[Float[np.ndarray, "K P"], float]:
        """T̂ and the bound, both unbiased, from the rows ``chosen`` at random."""
        coefficients, divergence = factor.coefficients(statistics)
        lines = rows.features.of(rows.x[chosen])
        r, log_normalisers = respond(coefficients, lines)
        weight = len(rows) / len(chosen)
        return weight * (r @ lines.T), weight * float(np.sum(log_normalisers)) - divergence

    @staticmethod
    def _order(key, epoch: int, num_rows: int) -> np.ndarray:
        words = [int(word) for word in np.asarray(jax.random.key_data(as_key(key))).ravel()]
        return np.random.default_rng([*words, epoch]).permutation(num_rows)
