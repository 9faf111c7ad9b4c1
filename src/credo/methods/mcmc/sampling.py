"""NUTS and HMC as methods of ``credo.fit``: warm-up, sampling, and a verdict on the draws."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.diagnose.convergence import convergence, e_bfmi, stuck_chains
from credo.diagnose.verdict import judge
from credo.methods.mcmc.hmc import hmc
from credo.methods.mcmc.metric import AutomaticMetric, MetricEstimator
from credo.methods.mcmc.nuts import State as KernelState
from credo.methods.mcmc.nuts import nuts
from credo.methods.mcmc.start import start_chains
from credo.methods.mcmc.warmup import FIRST_STEP, Adaptive, State, Tuning, restart, warmup_phases
from credo.posterior.kinds import Draws
from credo.posterior.marginals import report_positions
from credo.posterior.posterior import Posterior
from credo.run import Algorithm, Options, Phase, Run, run
from credo.status import CredoError

AUTOMATIC = AutomaticMetric()


@dataclass(frozen=True)
class NUTS:
    """The no-U-turn sampler: draws from the exact posterior of any differentiable model.

    ``chains`` × ``num_draws`` draws after ``num_warmup`` steps of warm-up each. ``target_acceptance``: higher means
    smaller steps, for posteriors of strong curvature. ``max_depth``: at most 2^max_depth − 1 gradients a draw.
    ``metric``: ``AutomaticMetric()`` is ``DiagonalMetric()`` or, where correlations ask for it, ``DenseMetric()``.
    """

    chains: int = 4
    num_warmup: int = 300
    num_draws: int = 1_000
    target_acceptance: float = 0.8
    max_depth: int = 10
    metric: MetricEstimator = AUTOMATIC

    def __post_init__(self):
        _check(self)
        if not 1 <= self.max_depth <= 20:
            raise CredoError(f"max_depth lies between 1 and 20; got {self.max_depth}.")

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        return _sample(self, nuts, (("max_depth", self.max_depth),), target, key, start, options)


@dataclass(frozen=True)
class HMC:
    """Hamiltonian Monte Carlo with ``num_steps`` steps a draw on average; the other settings are those of ``NUTS``."""

    chains: int = 4
    num_warmup: int = 300
    num_draws: int = 1_000
    num_steps: int = 10
    target_acceptance: float = 0.8
    metric: MetricEstimator = AUTOMATIC

    def __post_init__(self):
        _check(self)
        if self.num_steps < 1:
            raise CredoError(f"num_steps is at least 1; got {self.num_steps}.")

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        return _sample(self, hmc, (("num_steps", self.num_steps),), target, key, start, options)


def _check(method) -> None:
    for name in ("chains", "num_draws"):
        if getattr(method, name) < 1:
            raise CredoError(f"{name} is at least 1; got {getattr(method, name)}.")
    if method.num_warmup < 0:
        raise CredoError(f"num_warmup is at least 0; got {method.num_warmup}.")
    if not 0 < method.target_acceptance < 1:
        raise CredoError(f"target_acceptance lies between 0 and 1; got {method.target_acceptance}.")


def _sample(method, kernel: Callable[..., Algorithm], settings, target, key, start, options: Options) -> Posterior:
    target = target.flat()
    dtype = jnp.result_type(float)

    def tuned(kernels: list[KernelState]) -> tuple[Tuning, list[State]]:
        metric = method.metric.initial(np.stack([state.gradient for state in kernels]))
        shared: Any = np.asarray(method.target_acceptance, dtype), np.bool_(method.num_warmup > 0)
        step = restart(np.asarray(FIRST_STEP, dtype))
        return Tuning(_cast(metric, dtype), *shared), [State(state, step) for state in kernels]

    def begin(target):
        return tuned(start_chains(target, start, key, method.chains))

    def prepare_report():
        """Compile what gives the draws by name: hardly anybody asks a sampler for less."""
        shape = (method.chains * method.num_draws, target.dim)
        report_positions.lower(target, jax.ShapeDtypeStruct(shape, dtype)).compile()

    ones: Any = np.ones(target.dim, dtype)
    tuning, (state,) = tuned([KernelState(ones, ones.sum(), ones)])
    done = run(
        Adaptive(kernel, settings),
        target,
        begin=begin,
        like=(tuning, state),
        phases=[*warmup_phases(method.num_warmup, method.metric), Phase("sampling", method.num_draws, ("position",))],
        key=key,
        num_chains=method.chains,
        options=options,
        identity={"dtype": str(dtype)},
        meanwhile=prepare_report if dtype == jnp.float64 else None,
    )
    return as_posterior(done, target, method)


def _cast(tree, dtype):
    """Floating-point leaves in ``dtype``."""
    return jax.tree.map(lambda a: a.astype(dtype) if np.issubdtype(a.dtype, np.floating) else a, tree)


def as_posterior(done: Run, target, method) -> Posterior:
    """The draws with their verdict."""
    sampling, warmup = done.info["sampling"], done.info.get("warmup")
    positions: Any = done.records["position"]
    num_useful = int(sampling.num_steps.sum())
    info = {
        "num_gradients": num_useful + (0 if warmup is None else int(warmup.num_steps.sum())),
        "num_gradients_useful": num_useful,
        "layout": done.layout,
        "step_size": float(np.mean(sampling.step_size[:, -1])),
        "is_complete": done.is_complete,
        "seconds": {"warmup": 0.0} | done.seconds,
        "sample_stats": sampling._asdict(),
    }
    sentences = []
    if not done.is_complete:
        num_draws = positions.shape[1]
        sentences.append(f"The time limit came after {num_draws} of {method.num_draws} draws in each chain.")
    verdict = judge(figures(positions, sampling, method), sentences)
    return Posterior(Draws(positions), target, verdict=verdict, info=info)


def figures(positions, info, method) -> dict[str, float]:
    """What the verdict reads, of positions (chain, draw, dim).

    Ranks are those of the parameters wherever a transform is elementwise, and no coordinate is constant by
    construction as an entry of a correlation matrix is.
    """
    found = convergence(positions)
    is_divergent = info.is_divergent
    at_largest = {"max_depth_share": float(np.mean(info.depth >= method.max_depth))} if hasattr(info, "depth") else {}
    return {
        "max_r_hat": float(np.max(found.r_hat)),
        "min_ess_bulk": float(np.min(found.ess_bulk)),
        "min_ess_tail": float(np.min(found.ess_tail)),
        "num_divergences": int(is_divergent.sum()),
        "divergence_share": float(np.mean(is_divergent)),
        "e_bfmi": float(np.min(e_bfmi(info.energy))),
        **at_largest,
        "num_stuck_chains": int(np.sum(stuck_chains(positions))),
        "acceptance_rate": float(np.mean(info.acceptance)),
        "step_size": float(np.mean(info.step_size)),
        "num_chains": positions.shape[0],
        "num_draws": positions.shape[0] * positions.shape[1],
    }
