"""Natural-gradient variational inference for Gaussians: the variational online Newton method (Khan et al. 2018).

With P the precision of q = N(m, P⁻¹), natural gradients of the ELBO are (Khan & Lin 2017; Khan & Rue 2023, eq. 11–12)

    P ← P + ρ E,  E = E_q[−∇² log p(u, D)] − P;    m ← m + ρ P⁻¹ E_q[∇ log p(u, D)]

Newton's method, averaged over q: at ρ = 1 it solves a Gaussian target. Added to, P may cease to be positive. The loop
(ascent.py) moves the factor of P⁻¹ = S Sᵀ instead, in whose tangent this is S ← S exp(−½ ρ SᵀES) to first order (Lin,
Nielsen, Khan & Schmidt 2021) and P ← P + ρE + ½ρ² E P⁻¹ E for a diagonal one, to second order the positive update of
Lin, Schmidt & Khan (2020, eq. 10). ADVI is the same ascent; what differs is where E comes from:
    second derivatives: exact, at dim products a draw                         (gradients/second_order.py)
    gradients alone:    −E[∇² log p]_ii = −E[∂_i log p · (u_i − m_i)/σ_i²], as in IVON (Shen et al. 2024, section 3),
                        and its dense form, −E[∇ log p (u − m)ᵀ] P              (gradients/sticking_the_landing.py)
Averages over past gradients (momentum) and over iterates take the place of IVON's running mean of curvatures.
"""

from dataclasses import dataclass, field

from credo.algorithm import Options
from credo.methods.optimise.training import batch_asked
from credo.methods.vi.advi import ADVI
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.gradients.estimator import Estimator
from credo.methods.vi.gradients.second_order import SecondOrder
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.optimisers.momentum import Momentum
from credo.model.target import Target
from credo.posterior.posterior import Posterior
from credo.status import CredoError

MAX_FULL = 100  # dimensions up to which a full covariance is the rule
MAX_SECOND = 16  # and second derivatives: a draw's dim products with the Hessian cost more than the steps they save
NEWTON, CAREFUL = 1.0, 0.3  # ρ at first, without noise and with it
MAX_DRAWS, MAX_NUMBERS = 2_000, 2**24  # of the final ELBO: 128 MB of draws


@dataclass(frozen=True)
class NaturalGradient:
    """Newton's method averaged over a Gaussian q, full or diagonal: exact in a few steps on a Gaussian target.

    ``family``: ``FullRank()`` or ``MeanField()``, whose work and memory are linear in the dimension; None for the first
    up to 100 dimensions. ``gradient``: ``SecondOrder()`` or ``StickingTheLanding()``, which needs no second
    derivatives; None for the first up to 16 dimensions. ``batch_size``: rows a step, None for all. ``num_samples``:
    draws a step, None for what the family needs. ``step_size``: ρ at first, in (0, 1]; None for 1 with a full
    covariance, second derivatives and all rows, else 0.3 with momentum. It falls by itself; ``tolerance``,
    ``max_steps``, ``num_draws`` and the stop are those of ``ADVI``, as are ``info``, evidence and verdict. In
    ``num_gradients`` a product with a Hessian counts as one.
    On networks with minibatches this is IVON: the ascent of ``ADVI`` there, with its warm start and defaults.
    Raises CredoError for other families and estimators, settings that are not positive, and minibatches that the
    target cannot give.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> posterior = credo.fit(model.given(y=np.array([3, 5, 1, 4])), credo.NaturalGradient())
    >>> round(float(posterior.mean()["rate"]), 1), posterior.log_evidence.kind
    (3.0, 'lower bound')
    """

    family: Family | None = None
    gradient: Estimator | None = None
    batch_size: int | None = None
    num_samples: int | None = field(default=None, metadata={"at_least": 2})
    step_size: float | None = None
    tolerance: float | None = None
    max_steps: int = field(default=12_700, metadata={"at_least": 1})
    num_draws: int | None = field(default=None, metadata={"at_least": 1})

    @property
    def takes_source(self) -> bool:
        """Whether data outside of memory are read batch by batch."""
        return self.batch_size is not None

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        return self.ascent(target).fit(target, key=key, start=start, options=options)

    def ascent(self, target: Target) -> ADVI:
        """The ascent that this is on ``target``."""
        batch_size = batch_asked(target, self.batch_size)
        family = self.family or (FullRank() if target.dim <= MAX_FULL else MeanField())
        gradient = self.gradient or (SecondOrder() if target.dim <= MAX_SECOND else StickingTheLanding())
        if not isinstance(family, MeanField | FullRank):
            raise CredoError(f"NaturalGradient() moves MeanField() or FullRank(); take ADVI() for {family!r}.")
        if not isinstance(gradient, SecondOrder | StickingTheLanding):
            raise CredoError(
                f"NaturalGradient(gradient=…) is SecondOrder() or StickingTheLanding(); take ADVI() for {gradient!r}."
            )
        # with a diagonal covariance, correlations make the objective steeper than its Fisher information
        is_newton = isinstance(family, FullRank) and isinstance(gradient, SecondOrder) and batch_size is None
        return ADVI(
            family=family,
            gradient=gradient,
            batch_size=batch_size,
            num_samples=self.num_samples,
            optimiser=Momentum(0.0) if is_newton else Momentum(),
            step_size=(NEWTON if is_newton else CAREFUL) if self.step_size is None else self.step_size,
            tolerance=self.tolerance,
            max_steps=self.max_steps,
            num_draws=self.num_draws or max(min(MAX_DRAWS, MAX_NUMBERS // target.dim), 1),
        )
