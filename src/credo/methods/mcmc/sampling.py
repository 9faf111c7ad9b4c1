"""The samplers as methods of ``credo.fit``."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from credo.algorithm import Options
from credo.methods.mcmc.chains import Recipe, check, sample
from credo.methods.mcmc.enough import StoppingRule
from credo.methods.mcmc.hmc import hmc
from credo.methods.mcmc.integrators import LEAPFROG, SPLIT, Integrator
from credo.methods.mcmc.metric import AutomaticMetric, MetricEstimator
from credo.methods.mcmc.nuts import State, nuts
from credo.methods.mcmc.reference import given_to
from credo.methods.mcmc.start import begins_with_widths
from credo.methods.mcmc.warmup import depth_limit, short_trees_first, windows
from credo.posterior.posterior import Posterior
from credo.status import CredoError, is_number

AUTOMATIC = AutomaticMetric()


@dataclass(frozen=True)
class NUTS:
    """The no-U-turn sampler: draws from the exact posterior of any differentiable model.

    ``chains`` × ``num_draws`` draws after ``num_warmup`` steps of warm-up each: more of these, five times as many or
    so, while a chain is not where the others are; fewer where draws confirm the Gaussian of those before them.
    ``target_acceptance``: higher means smaller steps, for posteriors of strong curvature. ``max_depth``: at most
    2^max_depth − 1 gradients a draw.
    ``metric``: ``AutomaticMetric()`` is ``DiagonalMetric()`` or, where correlations ask for it, ``DenseMetric()``, and
    above 200 parameters ``LowRankMetric()``. ``integrator``: ``SPLIT`` solves a Gaussian's paths exactly where
    warm-up finds the posterior near to it; ``LEAPFROG`` does not, nor ``MINIMUM_ERROR``, two gradients a step.
    ``until``: draw on in blocks of ``num_draws`` until this rule is met.
    """

    chains: int = 4
    num_warmup: int = 300
    num_draws: int = 1_000
    target_acceptance: float = 0.8
    max_depth: int = 10
    metric: MetricEstimator = AUTOMATIC
    until: StoppingRule | None = None
    integrator: Integrator = SPLIT

    def __post_init__(self):
        check(self)
        if not (is_number(self.max_depth) and 1 <= self.max_depth <= 20):
            raise CredoError(f"max_depth lies between 1 and 20; got {self.max_depth!r}.")

    def recipe(self, dim: int) -> Recipe:
        settings = ("max_depth", self.max_depth), ("integrator", self.integrator)
        return Recipe(nuts, State.like, self.target_acceptance, self.metric, settings, num_uniform=1 + self.max_depth)

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        given = given_to(self.integrator, target.dim)
        recipe = dataclasses.replace(self.recipe(target.dim), given=given)
        if begins_with_widths(start, options):  # and so the metric
            return sample(self, recipe, target, key=key, start=start, options=options)
        num_windows = len(windows(self.num_warmup, num_chains=self.chains)) if self.num_warmup else 0
        recipe = dataclasses.replace(
            recipe,
            given=given | depth_limit(0, num_windows, self.max_depth),
            warmup=functools.partial(short_trees_first, num_chains=self.chains, max_depth=self.max_depth),
        )
        return sample(self, recipe, target, key=key, start=start, options=options)


@dataclass(frozen=True)
class HMC:
    """Hamiltonian Monte Carlo with ``num_steps`` steps a draw on average; the other settings are those of ``NUTS``."""

    chains: int = 4
    num_warmup: int = 300
    num_draws: int = 1_000
    num_steps: int = 10
    target_acceptance: float = 0.8
    metric: MetricEstimator = AUTOMATIC
    until: StoppingRule | None = None
    integrator: Integrator = LEAPFROG

    def __post_init__(self):
        check(self)
        if not (is_number(self.num_steps) and self.num_steps >= 1):
            raise CredoError(f"num_steps is at least 1; got {self.num_steps!r}.")

    def recipe(self, dim: int) -> Recipe:
        settings = ("num_steps", self.num_steps), ("integrator", self.integrator)
        return Recipe(hmc, State.like, self.target_acceptance, self.metric, settings, num_uniform=2)

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        recipe = dataclasses.replace(self.recipe(target.dim), given=given_to(self.integrator, target.dim))
        return sample(self, recipe, target, key=key, start=start, options=options)
