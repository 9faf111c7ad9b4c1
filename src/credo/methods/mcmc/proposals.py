"""The samplers that move by single proposals, as methods of ``credo.fit``; all but ``MALA`` need no gradient.

One proposal is worth much less than a trajectory, so that a draw is several of them (``num_steps``): chains are as long
as those of ``NUTS``, in memory and for R-hat. ``until``, a stopping rule, is as there.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from credo.algorithm import Options, stream
from credo.compiling import brief
from credo.diagnose.verdict import all_pass, judge
from credo.methods.mcmc import elliptical_slice as ellipse
from credo.methods.mcmc import independence as independent
from credo.methods.mcmc.chains import Recipe, check, sample
from credo.methods.mcmc.enough import StoppingRule
from credo.methods.mcmc.gaussian_prior import gaussian_prior
from credo.methods.mcmc.mala import mala
from credo.methods.mcmc.metric import AutomaticMetric, MetricEstimator
from credo.methods.mcmc.nuts import State as WithGradient
from credo.methods.mcmc.random_walk import State, random_walk
from credo.methods.mcmc.slice import slice_sampling
from credo.methods.mcmc.start import MAX_TRIES
from credo.methods.mcmc.warmup import STEADY
from credo.methods.particles.importance import kind_with_density
from credo.methods.particles.unmet import unmet
from credo.posterior.kinds import Draws
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict, is_number

AUTOMATIC = AutomaticMetric()
LEAST_INTERVAL = 3.0  # sds, of Slice(): as much as most of a density
STREAM = 1 << 21  # keys of starts lie apart from those of chains


@dataclass(frozen=True)
class RandomWalkMetropolis:
    """Random-walk Metropolis (1953): any density of up to about 20 parameters; ``num_steps`` proposals a draw.

    ``chains`` × ``num_draws`` draws after ``num_warmup`` steps of warm-up each. ``target_acceptance``: None is 0.234,
    or 0.44 of a single parameter. ``metric``: the shape of the proposals, from the covariance of draws.
    """

    chains: int = 4
    num_warmup: int = 600  # twice that of NUTS: without gradients, a covariance takes many draws
    num_draws: int = 1_000
    until: StoppingRule | None = None
    num_steps: int = field(default=20, metadata={"at_least": 1})  # for an ESS of 1,900 of 10 parameters, 500 of 30
    target_acceptance: float | None = None
    metric: MetricEstimator = AUTOMATIC

    def __post_init__(self):
        check(self)

    def recipe(self, dim: int) -> Recipe:
        best = 0.44 if dim == 1 else 0.234
        acceptance = best if self.target_acceptance is None else self.target_acceptance
        return Recipe(random_walk, State.like, acceptance, self.metric, (("num_steps", self.num_steps),))

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        return sample(self, self.recipe(target.dim), target, key=key, start=start, options=options)


@dataclass(frozen=True)
class MALA:
    """The Metropolis-adjusted Langevin algorithm, ``num_steps`` proposals a draw; the rest are settings of ``NUTS``."""

    chains: int = 4
    num_warmup: int = 300
    num_draws: int = 1_000
    until: StoppingRule | None = None
    num_steps: int = field(default=5, metadata={"at_least": 1})  # gradients a draw, as few as those of NUTS
    target_acceptance: float = 0.574
    metric: MetricEstimator = AUTOMATIC

    def __post_init__(self):
        check(self)

    def recipe(self, dim: int) -> Recipe:
        settings = (("num_steps", self.num_steps),)
        return Recipe(mala, WithGradient.like, self.target_acceptance, self.metric, settings, gamma=STEADY)

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        return sample(self, self.recipe(target.dim), target, key=key, start=start, options=options)


@dataclass(frozen=True)
class Slice:
    """Slice sampling (Neal 2003): any density, nothing to tune; a draw is a sweep through the ``metric``'s directions.

    ``chains`` × ``num_draws`` draws after ``num_warmup`` sweeps of warm-up each, at five to six densities a parameter.
    With ``DiagonalMetric()`` a direction is a coordinate. ``width``: of the first interval, in sds. ``max_widths``: an
    interval is at most as many wide.
    """

    chains: int = 4
    num_warmup: int = 200
    num_draws: int = 1_000
    until: StoppingRule | None = None
    width: float = 3.0
    max_widths: int = 16
    metric: MetricEstimator = AUTOMATIC

    def __post_init__(self):
        check(self)
        if not (is_number(self.width) and self.width > 0):
            raise CredoError(f"width is a finite number of standard deviations above 0; got {self.width!r}.")
        if not (is_number(self.max_widths) and self.max_widths >= 1):
            raise CredoError(f"max_widths is at least 1; got {self.max_widths!r}.")
        if self.width * self.max_widths < LEAST_INTERVAL:
            raise CredoError(
                f"An interval of width × max_widths = {self.width * self.max_widths:g} sds is so short that warm-up, "
                f"which learns the sds within it, finds them ever smaller: give {LEAST_INTERVAL:g} or more."
            )

    def recipe(self, dim: int) -> Recipe:
        settings = ("width", float(self.width)), ("max_widths", self.max_widths)
        return Recipe(slice_sampling, State.like, metric=self.metric, settings=settings)

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        return sample(self, self.recipe(target.dim), target, key=key, start=start, options=options)


@dataclass(frozen=True)
class EllipticalSlice:
    """Elliptical slice sampling (Murray, Adams & MacKay 2010): for priors that are jointly Gaussian, nothing to tune.

    ``chains`` × ``num_draws`` draws, each of ``num_steps`` transitions, after ``num_warmup`` draws of warm-up; chains
    start at draws from the prior. That may be correlated, as a Gaussian process is, and has to be Gaussian in the
    unconstrained space: CredoError, naming the parameter, where it is not. Write its matrix within a function, where
    Credo factors it in double precision; NumPyro's own single precision does for few points alone.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> x = np.linspace(0.0, 1.0, 20)
    >>> K = np.exp(-20 * (x[:, None] - x) ** 2) + 1e-6 * np.eye(20)
    >>> prior = {"f": lambda: dist.MultivariateNormal(np.zeros(20), K)}
    >>> model = credo.Model(prior, lambda params, x: dist.Poisson(np.e ** params["f"]))
    >>> posterior = credo.fit(model.given(x, np.arange(20) // 4), credo.EllipticalSlice())
    >>> posterior.mean()["f"].shape, posterior.verdict.status
    ((20,), 'pass')
    """

    chains: int = 4
    num_warmup: int = 200
    num_draws: int = 1_000
    until: StoppingRule | None = None
    num_steps: int = field(default=20, metadata={"at_least": 1})

    def __post_init__(self):
        check(self)

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        prior = gaussian_prior(target)
        if start is None:
            start = _draws_with_a_density(target, prior, self.chains, np.random.default_rng(stream(key, STREAM)))
        recipe = Recipe(
            ellipse.elliptical_slice,
            ellipse.State.like,
            settings=(("num_steps", self.num_steps),),
            given={"prior": prior},
        )
        return sample(self, recipe, target, key=key, start=start, options=options)


def _draws_with_a_density(target, prior, number: int, random: np.random.Generator) -> Float[np.ndarray, "n dim"]:
    """Draws of the prior, each again until its log density is finite, 100 times at most."""
    found = np.zeros((number, target.dim))
    is_due = np.ones(number, bool)
    for _ in range(MAX_TRIES):
        z = random.normal(size=(number, target.dim))
        drawn = prior.mean + np.stack([np.asarray(prior.scale.matvec(row)) for row in z])
        found[is_due] = drawn[is_due]
        is_due &= ~np.isfinite(np.asarray(_heights(target.flat(), found)))
        if not is_due.any():
            break
    return found


@brief
def _heights(target, positions):
    return jax.lax.map(target.log_density, positions)


@dataclass(frozen=True)
class IndependenceMH:
    """Metropolis-Hastings (Hastings 1970) with ``proposal``, a posterior over the same parameters that has a density.

    ``chains`` × ``num_draws`` draws, each of ``num_steps`` proposals, after ``num_warmup`` draws of warm-up; chains
    start at draws of the proposal. The figure ``pareto_k`` of its verdict, from the weights of the proposals, says
    whether chains can get stuck where the proposal is too thin. Where all else passes, draws that reach further than a
    proposal that is a Gaussian, a mixture of them or a flow say what chains never met (``unmet_shift``). CredoError
    where the proposal has no density.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> target = model.given(y=np.array([3, 5, 1, 4]))
    >>> posterior = credo.fit(target, credo.IndependenceMH(proposal=credo.fit(target, credo.Laplace())))
    >>> round(float(posterior.mean()["rate"]), 1), posterior.verdict.status
    (3.0, 'pass')
    """

    proposal: Posterior | None = None
    chains: int = 4
    num_warmup: int = 100
    num_draws: int = 1_000
    until: StoppingRule | None = None
    num_steps: int = field(default=5, metadata={"at_least": 1})

    def __post_init__(self):
        check(self)

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        proposal = self.proposal if self.proposal is not None else start
        if not isinstance(proposal, Posterior):
            raise CredoError(
                "IndependenceMH needs a posterior to propose from: IndependenceMH(proposal=credo.fit(target, "
                "Laplace()))."
            )
        if self.proposal is None and options.checkpoint is not None:
            raise CredoError(
                "A checkpoint holds names and numbers, and not the posterior that IndependenceMH() proposes from: fit "
                "without checkpoint=."
            )
        kind = kind_with_density(proposal, target, "proposal")
        recipe = Recipe(
            independent.independence,
            independent.State.like,
            settings=(("num_steps", self.num_steps),),
            given={"proposal": kind},
        )
        start = proposal if start is None else start
        posterior = sample(self, recipe, target, key=key, start=start, options=options)
        posterior.verdict = self._judged(posterior, kind, target, key)
        return posterior

    def _judged(self, posterior: Posterior, kind, target, key) -> Verdict:
        """With what the proposal never offered, where all but the shape of its weights passes."""
        verdict, draws = posterior.verdict, posterior.kind
        others = {name: value for name, value in verdict.figures.items() if name != "pareto_k"}
        is_open = verdict.status == "pass" or (self.until is None and all_pass(others))
        if not is_open or not isinstance(draws, Draws):
            return verdict
        log_weights = posterior.info["sample_stats"]["log_weight"]
        positions = np.asarray(draws.positions)
        figures = dict(verdict.figures) | unmet(kind, target, positions, log_weights, verdict.figures, key)
        of_table = judge(verdict.figures).sentences
        return judge(figures, [sentence for sentence in verdict.sentences if sentence not in of_table])
