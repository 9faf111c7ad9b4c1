"""Parallel tempering as a method of ``credo.fit``."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.algorithm import Options, Phase
from credo.compiling import TINY, brief
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc.chains import as_posterior, check, figures
from credo.methods.mcmc.hmc import hmc
from credo.methods.mcmc.ladder import (
    NUM_GATHERING,
    Ladder,
    State,
    Tuning,
    cumulative_barrier,
    first_betas,
    log_evidence,
    phases,
    stack,
)
from credo.methods.mcmc.metric import AutomaticMetric, MetricEstimator
from credo.methods.mcmc.parallel_tempering import Replicas
from credo.methods.mcmc.start import start_chains
from credo.methods.mcmc.warmup import Adaptive, restart, windows
from credo.methods.particles.importance import has_evidence, kind_with_density
from credo.methods.particles.modes import missed
from credo.model.target import Target
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.run import Run, run
from credo.status import CredoError

AUTOMATIC = AutomaticMetric()
UNSEEN = (
    "The temperatures end at a Gaussian over what replicas found from their starts: a mode that none of them "
    "found, such as a narrow one beside a wide one, stays unseen. Where there may be one, give reference= a posterior "
    "that covers it, or start= positions within it."
)


@dataclass(frozen=True)
class ParallelTempering:
    """Non-reversible parallel tempering: draws from posteriors of separated modes, in the right proportions.

    Each of ``chains`` moves ``num_temperatures`` replicas, from the prior (or ``reference``, a posterior that has a
    density and is wider than the target) to the posterior, and keeps the draws of the last: ``num_draws`` of them after
    ``num_warmup`` steps, in which temperatures, step sizes and metrics adapt. ``num_steps``: leapfrog steps of a move.
    A model whose prior cannot be drawn from, or has no likelihood beside it, is tempered against a Gaussian over what
    the scattered replicas find at first; a mode that none of them finds and that lies far outside stays unseen.

    Beside the draws: ``log_evidence`` with its Monte Carlo error (None under an improper prior), and in ``info``
    ``temperatures`` (beta), ``rejection`` of swaps between neighbours, and ``round_trips`` of each chain. Twice the
    figure ``barrier`` of its verdict is a good number of temperatures.
    Raises CredoError for a reference that has no density or other parameters.

    >>> import numpyro.distributions as dist, jax.numpy as jnp, credo
    >>> def two_modes(params):
    ...     return jnp.logaddexp(-0.5 * (params["x"] + 8.0) ** 2, -0.5 * (params["x"] - 8.0) ** 2)
    >>> model = credo.Model.from_log_density(two_modes, {"x": dist.constraints.real})
    >>> posterior = credo.fit(model.given(), credo.ParallelTempering(), progress=False)
    >>> bool(0.4 < (posterior.draws["x"] > 0).mean() < 0.6), posterior.verdict.status
    (True, 'pass')
    """

    chains: int = 4
    num_warmup: int = 300
    num_draws: int = 2_000
    num_temperatures: int = field(default=12, metadata={"at_least": 2})
    num_steps: int = field(default=5, metadata={"at_least": 1})
    target_acceptance: float = 0.8
    metric: MetricEstimator = AUTOMATIC
    reference: Posterior | None = None

    def __post_init__(self):
        check(self)

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        target = target.flat()
        kind = None if self.reference is None else kind_with_density(self.reference, target, "reference")
        is_gathering = kind is None and not begins_at_prior(target)
        if is_gathering and len(windows(self.num_warmup)) <= NUM_GATHERING + 1:
            raise CredoError(
                "ParallelTempering tempers this target against a Gaussian that it finds in warm-up, and "
                f"num_warmup={self.num_warmup} is too short for that: give 200 or more, or a reference=."
            )
        dtype = jnp.result_type(float)
        num = self.num_temperatures
        program = Ladder(self.num_steps)
        if is_gathering:
            kind = Gaussian(np.zeros(target.dim), Diagonal(np.ones(target.dim)))
        reference = _cast(kind, dtype)

        def tuned(gradients) -> Tuning:
            metric = _cast(self.metric.initial(gradients), dtype)
            betas: Any = np.ones(num, dtype) if is_gathering else first_betas(num, dtype)
            acceptance: Any = np.asarray(self.target_acceptance, dtype)
            is_adapting: Any = np.bool_(self.num_warmup > 0)
            return Tuning(betas, stack([metric] * num), reference, acceptance, is_adapting)

        def begin(target):
            place = start
            if isinstance(start, np.ndarray) and start.ndim == 2 and len(start) == self.chains:
                place = np.repeat(start, num, axis=0)
            found = start_chains(target, place, key, self.chains * num, Adaptive(hmc, (("num_steps", 1),), True), {})
            tuning = tuned(np.stack([each.gradient for each in found]))
            positions = np.stack([each.position for each in found]).reshape(self.chains, num, -1)
            states = jax.tree.map(np.asarray, _begin(target, tuning, positions, program=program))
            return tuning, [jax.tree.map(lambda a, c=c: a[c], states) for c in range(self.chains)]

        ones = np.ones((num, target.dim), dtype)
        done = run(
            program,
            target,
            begin=begin,
            like=(tuned(ones), State(Replicas.like(ones), restart(ones[:, 0]))),
            phases=[
                *phases(self.num_warmup, self.metric, is_gathering=is_gathering),
                Phase("sampling", self.num_draws, ("position", "gain")),
            ],
            key=key,
            num_chains=self.chains,
            options=options,
            identity={"dtype": str(dtype)},
        )
        return self._posterior(done, target, is_gathering)

    def _posterior(self, done: Run, target: Target, is_gathering: bool) -> Posterior:
        sampling = done.info["sampling"]
        rejection = np.mean(sampling.rejection, axis=(0, 1))
        found = figures(done.records["position"], sampling, self, structure=target.structure) | {
            "num_round_trips": int(sampling.num_round_trips.sum()),
            "swap_rate": float(1 - np.max(rejection)),
            "barrier": float(cumulative_barrier(sampling.rejection)[-1]),
        }
        if done.is_complete and (is_gathering or self.reference is not None):  # which may know of some modes alone
            found |= missed(target, done.records["position"], found, has_gradient=True)
        posterior = as_posterior(done, target, self, found)
        posterior.info |= {
            "temperatures": np.asarray(done.tuning.betas, np.float64),
            "rejection": rejection,
            "round_trips": sampling.num_round_trips.sum(axis=1),
        }
        if is_gathering:
            sentences = (*posterior.verdict.sentences, UNSEEN)
            posterior.verdict = dataclasses.replace(posterior.verdict, sentences=sentences)
        if has_evidence(target):
            posterior.log_evidence = log_evidence(done.records["gain"], np.asarray(done.tuning.betas))
        return posterior


def begins_at_prior(target: Target) -> bool:
    """Whether the prior can be drawn from, and there is a likelihood to temper."""
    model = target.model
    if model.likelihood is None or target.y is None or model.log_factor is not None:
        return False
    return not model.prior.improper_names() and not model.prior.factors


def _states(target, tuning: Tuning, positions, *, program: Ladder):
    return jax.vmap(lambda position: program.algorithm(target, tuning).init(None, position))(positions)


_begin = brief(_states, static_argnames=("program",), options=TINY)


def _cast(tree, dtype):
    """Floating-point leaves in ``dtype``."""
    return jax.tree.map(lambda a: np.asarray(a, dtype) if np.issubdtype(a.dtype, np.floating) else a, tree)
