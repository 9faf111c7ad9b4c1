"""The stochastic-gradient samplers as methods of ``credo.fit``."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from credo.methods.sgmcmc import constant_rate
from credo.methods.sgmcmc import nose_hoover as thermostat
from credo.methods.sgmcmc import sghmc as hamiltonian
from credo.methods.sgmcmc import sgld as langevin
from credo.methods.sgmcmc.preconditioner import FLAT, NoiseScale, Preconditioner
from credo.methods.sgmcmc.stochastic import BIAS, StochasticGradient
from credo.status import CredoError

ZERO: Any = np.zeros((), np.int32)


@dataclass(frozen=True)
class SGLD(StochasticGradient):
    __doc__ = f"""Stochastic-gradient Langevin dynamics (Welling & Teh 2011): ``sgld.py``.

    {(StochasticGradient.__doc__ or "").strip()}

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> y = np.random.default_rng(0).normal(1.0, 2.0, size=10_000)
    >>> model = credo.Model({{"mean": dist.Normal(0.0, 10.0)}}, lambda params, x: dist.Normal(params["mean"], 2.0))
    >>> posterior = credo.fit(model.given(y=y), credo.SGLD(), key=0)
    >>> round(float(posterior.sd()["mean"]), 2), posterior.verdict.status
    (0.02, 'pass')
    """

    power: ClassVar[int] = 2

    def kernel(self, dynamics):
        return langevin.sgld(dynamics)

    def best_step(self, curvature, noise):
        return 4 * BIAS / max(curvature, float(noise.largest) / self.temperature, 1.0)

    def updates(self, step_size):
        return int(np.ceil(1 / step_size))

    def like(self, position: Any) -> Any:
        return langevin.State(position, ZERO)


@dataclass(frozen=True)
class SGHMC(StochasticGradient):
    """Stochastic-gradient Hamiltonian Monte Carlo (Chen et al. 2014); settings of ``SGLD``, and the ``friction`` γ."""

    friction: float = 1.0

    power: ClassVar[int] = 1

    def kernel(self, dynamics):
        return hamiltonian.sghmc(dynamics, self.friction)

    def best_step(self, curvature, noise):
        heated = 2 * BIAS * self.friction * self.temperature / max(float(noise.largest), 1e-12)
        return min(np.sqrt(4 * BIAS / max(curvature, 1.0)), heated)

    def updates(self, step_size):
        return int(np.ceil(1 / step_size))

    def like(self, position: Any) -> Any:
        return hamiltonian.State(position, position, ZERO)

    def _check(self, target):
        super()._check(target)
        if not self.friction > 0:
            raise CredoError(f"friction is {self.friction}: give a positive number; 1 forgets a momentum in one scale.")


@dataclass(frozen=True)
class SGNHT(StochasticGradient):
    """The Nosé-Hoover thermostat (Ding et al. 2014), whose friction adapts to the gradients' noise; else as ``SGLD``.

    ``diffusion``: A, the noise that is injected beside theirs.
    """

    diffusion: float = 1.0

    power: ClassVar[int] = 1

    def kernel(self, dynamics):
        return thermostat.nose_hoover(dynamics, self.diffusion)

    def best_step(self, curvature, noise):
        # within T (1 ± share) where the noise is largest and where it is least: of weights the mean alone is known
        largest, mean, least = (float(each) for each in (noise.largest, noise.mean, noise.least))
        uneven = max(largest - (1 + BIAS) * mean, (1 - BIAS) * mean - least)
        heated = 2 * self.diffusion * self.temperature / max(float(noise.largest), uneven / BIAS, 1e-12)
        return min(np.sqrt(4 * BIAS / max(curvature, 1.0)), heated)

    def updates(self, step_size):
        return int(np.ceil(1 / step_size))

    def like(self, position: Any) -> Any:
        return thermostat.State(position, position, position.sum(), ZERO)

    def _check(self, target):
        super()._check(target)
        if not self.diffusion > 0:
            raise CredoError(f"diffusion is {self.diffusion}: give a positive number.")


@dataclass(frozen=True)
class ConstantSGD(StochasticGradient):
    """Stochastic gradient descent of constant steps as a sampler (Mandt, Hoffman & Blei 2017): ``constant_rate.py``.

    No noise is injected: that of the minibatches is the sampler's own. Settings of ``SGLD``; steps are those at which
    the stationary variances are nearest to the posterior's, coordinate by coordinate, times ``temperature``.
    The verdict is doubtful at best: nothing that can be seen says how near they come.
    """

    preconditioner: Preconditioner = field(default_factory=NoiseScale)

    power: ClassVar[int] = 2
    most_force: ClassVar[float] = np.inf  # the gradients' noise is as large as it is to be
    heuristic: ClassVar[str | None] = (
        "The width of these draws is that of the minibatches' noise, right where its covariance and the curvature are "
        "diagonal alike: sds of correlated parameters are too small. Use SGLD(), which injects the noise it needs, or "
        "judge by held-out scores (credo.compare)."
    )

    def kernel(self, dynamics):
        return constant_rate.constant_sgd(dynamics)

    def best_step(self, curvature, noise):
        return min(2 * self.temperature / max(float(noise.mean), 1e-12), 0.5 / max(curvature, 1e-12))

    def updates(self, step_size):
        return 100

    def like(self, position: Any) -> Any:
        return langevin.State(position, ZERO)

    def _check(self, target):
        super()._check(target)
        if self.control_variates:
            raise CredoError(
                "ConstantSGD samples by the noise of its gradients: leave control_variates out, or use SGLD()."
            )
        if self.batch_of(target) is None:
            raise CredoError(
                f"ConstantSGD samples by the noise of minibatches, and a batch here is all of the {target.size} rows: "
                "give a smaller batch_size, or use SGLD()."
            )

    def _is_anchored(self, found):
        return False

    def doubts(self, tuning):
        spread = np.ptp(np.log(np.asarray(tuning.scale, float)))
        if not isinstance(self.preconditioner, NoiseScale) or spread < -0.5 * np.log(FLAT) - 0.01:
            return super().doubts(tuning)
        return [
            f"The gradients of some parameters vary {1 / FLAT:,.0f} times as much as those of others, or more: the sds "
            "of those others are too small. Standardise the columns of x.",
            *super().doubts(tuning),
        ]
