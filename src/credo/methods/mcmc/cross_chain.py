"""ChEES-HMC as a method of ``credo.fit``: many chains of few draws, which learn one length of trajectories together.

At each barrier of warm-up T climbs the criterion F(T), the mean of the gains f, for its price of (T + ε)/2ε gradients,
    ∂/∂log T log F/(T + ε)^a  ∝  ĝ_n − a T/(T + ε) f̂_n =: d_n       (a = 1: Sountsov & Hoffman 2021; a = 0: the paper)
    log T ← log T + RATE · mean_n d_n / √(mean_n d_n²)
with ĝ_n, f̂_n the means of gradients and gains over chains at step n of the window, weighted by acceptance. It is a step
of Adam (Kingma & Ba 2015) whose moments are those of the window: bold while all its steps agree, and small where what
is left is noise. F of a Gaussian has a maximum at T = 2.25 and more beyond 3.9 (orbits close), F/T has one: so a is 1
first, and POWER later.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from credo.algorithm import Options, Phase
from credo.methods.mcmc.chains import Recipe, check, sample
from credo.methods.mcmc.chees import State, chees
from credo.methods.mcmc.integrators import SPLIT, Integrator
from credo.methods.mcmc.metric import AutomaticMetric, MetricEstimator
from credo.methods.mcmc.reference import given_to
from credo.methods.mcmc.warmup import Tuning, warmup_phases
from credo.posterior.posterior import Posterior

AUTOMATIC = AutomaticMetric()
FIRST_WINDOW, GROWTH, STEP_SHARE = 8, 1.2, 0.15
RATE = float(np.log(2.0))  # from below 2.25 no step passes 3.9; while T is far too short it grows by two thirds
POWER = 0.5
FIRST_LENGTH = 1.0  # in white coordinates, in which a quarter of a Gaussian's period is π/2


@dataclass(frozen=True)
class ChEES:
    """Hamiltonian Monte Carlo in many chains at once, whose trajectories have one length, learnt from all of them.

    ``chains`` × ``num_draws`` draws after ``num_warmup`` steps of warm-up each. For many chains, and for accelerators,
    on which all of them advance in one program and do equal work. ``target_acceptance``: higher means smaller steps;
    Hoffman et al. (2021) take 0.651. ``max_num_steps``: of one trajectory. ``metric``, ``integrator``: as of ``NUTS``.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> posterior = credo.fit(model.given(y=np.array([3, 5, 1, 4])), credo.ChEES(), progress=False)
    >>> round(float(posterior.mean()["rate"]), 1), posterior.verdict.status
    (3.0, 'pass')
    """

    chains: int = field(default=16, metadata={"at_least": 2})
    num_warmup: int = 200
    num_draws: int = 500
    target_acceptance: float = 0.8
    max_num_steps: int = field(default=1_000, metadata={"at_least": 1})
    metric: MetricEstimator = AUTOMATIC
    integrator: Integrator = SPLIT

    def __post_init__(self):
        check(self)

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        recipe = Recipe(
            chees,
            State.like,
            self.target_acceptance,
            self.metric,
            (("max_num_steps", self.max_num_steps), ("integrator", self.integrator)),
            {
                "length": np.asarray(FIRST_LENGTH),
                "centre": np.zeros(target.dim),
                **given_to(self.integrator, target.dim),
            },
            warmup=phases,
        )
        posterior = sample(self, recipe, target, key=key, start=start, options=options)
        posterior.info["trajectory_length"] = float(posterior.info["sample_stats"]["length"][0, -1])
        return posterior


def windows(num_warmup: int) -> list[int]:
    """Lengths that sum to ``num_warmup``; after each but the last all that is shared changes."""
    last = min(num_warmup, max(FIRST_WINDOW, round(STEP_SHARE * num_warmup)))
    lengths, rest, length = [], num_warmup - last, float(FIRST_WINDOW)
    while rest > 0:
        take = rest if rest < length * (1 + GROWTH) else round(length)
        lengths.append(take)
        rest, length = rest - take, length * GROWTH
    return [*lengths, last]


def phases(num_warmup: int, metric: MetricEstimator | None, record: Iterable[str]) -> list[Phase]:
    """Warm-up as of the other samplers, in windows of its own, at whose ends the length changes too."""
    usual = warmup_phases(num_warmup, metric, record)
    if len(usual) < 2:
        return usual
    *growing, last = windows(num_warmup)

    def end_window(power: float, records, tuning: Tuning, states):
        assert usual[0].at_end is not None
        tuning, states = usual[0].at_end(records, tuning, states)
        positions = records[0]["position"]
        length = longer(tuning.given["length"], records[1], power)
        centre = positions.mean(axis=(0, 1), dtype=np.float64).astype(positions.dtype)
        return tuning._replace(given=tuning.given | {"length": length, "centre": centre}), states

    def window(index: int) -> Phase:
        power = 1.0 if index < len(growing) / 2 else POWER
        at_end = functools.partial(end_window, power)
        return usual[0]._replace(num_steps=growing[index], at_end=at_end, is_due=None)  # the length needs them all

    return [*map(window, range(len(growing))), usual[-1]._replace(num_steps=last)]


def longer(length: np.ndarray, info, power: float) -> np.ndarray:
    """T after a window of ``info`` (chain, step): at least a step, below which nothing depends on it."""
    weight = np.where(np.isfinite(info.length_gradient), info.acceptance, 0.0).astype(np.float64)
    total = weight.sum(axis=0)

    def over_chains(x):
        x = np.where(weight > 0, x, 0.0)
        return np.divide((weight * x).sum(axis=0), total, out=np.zeros_like(total), where=total > 0)

    step_size = np.mean(info.step_size)
    price = length / (length + step_size)  # the derivative of the log of (T + ε) / 2ε gradients
    gradient = over_chains(info.length_gradient) - power * price * over_chains(info.length_gain)
    size = np.sqrt(np.mean(gradient**2))
    if not size > 0:
        return length
    found = length * np.exp(RATE * np.mean(gradient) / size)
    return np.asarray(np.maximum(found, step_size), length.dtype)
