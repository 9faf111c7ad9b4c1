"""A stochastic-gradient sampler as a method of ``credo.fit``: starts, tuning, the chain, its draws and its verdict.

A draw is as many updates as decorrelate one scale of the posterior, about; N comes from the data, and the factor N/M,
the prior and the Jacobian are the target's own.
"""

import functools
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np

from credo.algorithm import Algorithm, Options, Phase, as_key, stream
from credo.compiling import brief
from credo.diagnose.convergence import convergence, mcse_mean, stuck_chains
from credo.diagnose.function_space import observed, weights_of
from credo.diagnose.sd_error import sd_figures
from credo.diagnose.verdict import judge
from credo.methods.optimise.objective import members, positions_given
from credo.methods.particles.modes import missed
from credo.methods.sgmcmc.dynamics import Dynamics
from credo.methods.sgmcmc.gradient import Anchor, stochastic_gradient
from credo.methods.sgmcmc.preconditioner import CurvatureScale, Preconditioner
from credo.methods.sgmcmc.schedule import Constant, Schedule
from credo.methods.sgmcmc.tune import Measured, Noise, Tuning, first_position, measure, ran_away
from credo.methods.sgmcmc.warm_up import warm_up
from credo.model.structure import Structure
from credo.model.windows import shuffled
from credo.posterior.kinds import Draws
from credo.posterior.posterior import Posterior
from credo.run import run
from credo.status import CredoError
from credo.storage import chosen, is_finite

BIAS = 0.05  # share of the variance that each term of the step's error may add
MOST_FORCE = 10.0  # √ε times a force of a draw, whose sd is at most 0.6 at the step that is found
MOST_BOUNDED = 1e-3  # share of updates, of which nothing is said
MOST_UPDATES = 200  # a draw, where the caller does not say
STREAM = 1 << 20


@dataclass(frozen=True)
class Chain:
    """What the compiled chain is keyed on."""

    method: "StochasticGradient"
    num_steps: int
    first: int
    total: int

    is_long: ClassVar[bool] = True

    def algorithm(self, target, tuning: Tuning) -> Algorithm:
        method = self.method
        dynamics = Dynamics(
            gradient=stochastic_gradient(target, method.batch_of(target), tuning.anchor),
            scale=tuning.scale,
            step_size=tuning.step_size,
            center=tuning.center,
            most=tuning.most,
            directions=tuning.directions,
            schedule=method.schedule,
            temperature=method.temperature,
            num_steps=self.num_steps,
            first=self.first,
            total=self.total,
            power=method.power,
        )
        return method.kernel(dynamics)

    def record(self, state) -> dict[str, Any]:
        return {"position": state.position}


@dataclass(frozen=True)
class StochasticGradient:
    """``chains`` × ``num_draws`` draws after ``num_warmup`` of warm-up each, on minibatches of ``batch_size`` rows.

    ``batch_size`` None: all rows. ``step_size``: None for one whose bias is about a tenth of a variance, by the
    curvature and the gradients' variance at the start, and then where warm-up has brought the chains (warm_up.py).
    ``num_steps``: updates a draw; None for what decorrelates.
    ``control_variates``: gradients relative to those at the start, which should be near a mode; None: where that makes
    them less noisy. ``preconditioner``: ``CurvatureScale()``, ``GradientScale()`` or ``UnitScale()``, found where the
    step size is, and fixed before the first draw. ``schedule``: ``Constant()``, ``Decaying()`` or ``Cyclical()``.
    ``temperature``: T of the law p(u, D)^{1/T}; 1 is the posterior, below it is a "cold" one.
    Chains begin round ``start``, or round a mode; from an ensemble, each round a member of its own.

    Verdict: R-hat and effective sizes, how well sds are known, and ``temperature_error``: by how much step size and
    noise heat the chain.
    """

    chains: int = field(default=4, metadata={"at_least": 1})
    num_warmup: int = field(default=200, metadata={"at_least": 0})
    num_draws: int = field(default=1_000, metadata={"at_least": 4})
    batch_size: int | None = 256
    step_size: float | None = None
    num_steps: int | None = field(default=None, metadata={"at_least": 1})
    schedule: Schedule = field(default_factory=Constant)
    preconditioner: Preconditioner = field(default_factory=CurvatureScale)
    control_variates: bool | None = None
    temperature: float = 1.0

    takes_source: ClassVar[bool] = True
    power: ClassVar[int]  # the schedule is one of ε; the step size is ε^(power / 2)
    most_force: ClassVar[float] = MOST_FORCE
    heuristic: ClassVar[str | None] = None  # why the draws are no more than one

    @abstractmethod
    def kernel(self, dynamics: Dynamics) -> Algorithm:
        """One draw of the chain."""

    @abstractmethod
    def best_step(self, curvature: float, noise: Noise) -> float:
        """The step size at which each term of the bias is about ``BIAS``."""

    @abstractmethod
    def updates(self, step_size: float) -> int:
        """Updates that move a chain by about one scale."""

    @abstractmethod
    def like(self, position: Any) -> Any:
        """A state at ``position``, right in shapes and types alone."""

    def batch_of(self, target) -> int | None:
        """None where a batch would be all rows."""
        return None if self.batch_size is None or self.batch_size >= target.size else self.batch_size

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        target = target.flat()
        self._check(target)
        deadline = options.deadline()
        random = np.random.default_rng(stream(key, STREAM))
        known = self._known(target, start)
        batch = self.batch_of(target)
        position = first_position(target, batch, key, start, options.of_start(deadline))
        data = shuffled(target, batch, random)
        found = measure(data, batch, self.preconditioner, key, position)
        tuning = self._tuning(found, position, is_noisy=batch is not None, is_apart=known is not None)
        num_steps = self.num_steps or int(np.clip(self.updates(float(tuning.step_size)), 1, MOST_UPDATES))
        first, total = num_steps * self.num_warmup, num_steps * self.num_draws
        self._check_kept(num_steps)
        chain = Chain(self, num_steps, first, total)
        spread = found.scale / np.sqrt(max(float(found.curvature), 1.0))
        centres = position if known is None else known.astype(position.dtype)
        away = spread * random.normal(size=(self.chains, target.dim)).astype(position.dtype)

        def begin(data, tuning: Tuning = tuning, share: float = 1.0):
            keys = [as_key(stream(key, STREAM, i)) for i in range(self.chains)]
            places = zip(keys, centres + share * away, strict=True)
            states = [_first_state(data, tuning, key, u, chain=chain) for key, u in places]
            return tuning, [jax.tree.map(np.asarray, state) for state in states]

        warmup = warm_up(self, data, key, tuning, begin) if self.num_warmup else []
        done = run(
            chain,
            data,
            begin=begin,
            like=(tuning, self.like(position)),
            phases=[*warmup, Phase("sampling", self.num_draws, ("position",))],
            key=key,
            num_chains=self.chains,
            options=options.until(deadline),
            identity={"dtype": str(position.dtype)},
        )
        return self._posterior(done, target, chain, found, done.tuning)

    def _known(self, target, start) -> np.ndarray | None:
        """A position (chain, dim) for each chain, where ``start`` has them."""
        if isinstance(start, Posterior):
            return members(start, self.chains)
        if start is None:
            return None
        given = positions_given(start, self.chains, target.dim)
        return given if given.ndim == 2 else None

    def _check(self, target) -> None:
        if not 0 < self.temperature < np.inf:
            raise CredoError(f"temperature is {self.temperature}: give a positive number; 1 is the posterior.")
        if self.step_size is not None and not 0 < self.step_size < np.inf:
            raise CredoError(f"step_size is {self.step_size}: give a positive number, or leave it out.")
        if self.batch_size is None:
            return
        if self.batch_size < 1:
            raise CredoError(f"batch_size is {self.batch_size}: give a positive number, or None for all rows.")
        if target.y is None:
            raise CredoError(
                "This target has no data to take minibatches of: say batch_size=None, or use NUTS(), which is exact."
            )
        if self.batch_of(target) is not None:
            target.check_minibatch(self.batch_size)

    def _kept(self, num_steps: int, num_draws: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Which of the first ``num_draws`` draws the schedule keeps, and the log weights of those, None if equal."""
        t = num_steps * np.arange(1, num_draws + 1) - 1
        log_weights = self.schedule.log_weights(t, num_steps * self.num_draws)
        if log_weights is None:
            return np.ones(num_draws, bool), None
        kept = np.isfinite(log_weights)
        return kept, log_weights[kept]

    def _check_kept(self, num_steps: int) -> None:
        if not self._kept(num_steps, self.num_draws)[0].any():
            raise CredoError(
                f"{self.schedule} keeps none of {self.num_draws} draws of {num_steps} updates each: raise num_draws, "
                "or give a schedule of fewer cycles or less exploration."
            )

    def _is_anchored(self, found: Measured) -> bool:
        """Whether gradients are relative to those at the start."""
        if self.control_variates is not None:
            return self.control_variates
        return float(found.anchored_noise.largest) < float(found.noise.largest)

    def _tuning(self, found: Measured, position: np.ndarray, *, is_noisy: bool, is_apart: bool) -> Tuning:
        # where chains begin at modes of their own, an anchor at one of them would add noise to the others
        is_anchored = is_noisy and self._is_anchored(found) and not (is_apart and self.control_variates is None)
        anchor = Anchor(position, found.gradient) if is_anchored else None
        size = self.step_size or self.best_step(float(found.curvature), found.noise_of(anchor))
        most = np.inf if self.num_warmup else self.most_of_draws()
        size, most, caution = (np.asarray(each, position.dtype) for each in (size, most, 1.0))
        return Tuning(found.scale, size, position, anchor, most, caution, found.directions(anchor))

    def doubts(self, tuning: Tuning) -> list[str]:
        """What is to be said of the draws whatever they look like."""
        return [self.heuristic] if self.heuristic else []

    def most_of_draws(self) -> float:
        """A step that the caller gave is taken as it is: chains that run away from it are told so."""
        return self.most_force if self.step_size is None else np.inf

    def _posterior(self, done, target, chain: Chain, found: Measured, tuning: Tuning) -> Posterior:
        positions, infos = np.asarray(done.records["position"]), done.info["sampling"]
        num_draws = positions.shape[1]
        is_kept, log_weights = self._kept(chain.num_steps, num_draws)
        if not is_kept.any():
            raise CredoError(
                f"The time limit came after {num_draws} of {self.num_draws} draws in each chain, of which "
                f"{self.schedule} keeps none: raise time_limit, or give a schedule of more cycles."
            )
        positions = chosen(positions, is_kept)
        temperatures, directed = (np.asarray(each)[:, is_kept] for each in (infos.temperature, infos.directed))
        if log_weights is not None:
            log_weights = np.broadcast_to(0.5 * self.power * log_weights, positions.shape[:2])
            log_weights = log_weights - np.log(np.sum(np.exp(log_weights)))
            log_weights = None if np.ptp(log_weights) == 0 else log_weights.astype(positions.dtype)
        if not is_finite(positions):
            raise ran_away(tuning)
        seen, said = observed(target, positions)
        figures = {
            **_convergence(seen, target.structure if weights_of(target) is None else None),
            "num_stuck_chains": int(np.sum(stuck_chains(positions))),
            "temperature_error": _temperature_error(
                temperatures, directed[..., : 0 if self.heuristic else None], target.dim, self.temperature
            ),
            "step_size": float(tuning.step_size),
        }
        sentences = [said] if said else []
        bounded = float(np.mean(np.asarray(infos.bounded)))
        if bounded > MOST_BOUNDED:
            sentences.append(
                f"In {bounded:.2g} of the updates forces were bounded, without which chains run away to infinity: give "
                f"a step_size below {float(tuning.step_size):.2g}."
            )
        if not done.is_complete:
            sentences.append(f"The time limit came after {num_draws} of {self.num_draws} draws in each chain.")
        if self.temperature != 1:
            sentences.append(f"These are draws of p(u, D)^(1/{self.temperature:g}), which is not the posterior.")
        sentences += self.doubts(tuning)
        num_updates = self.chains * chain.num_steps * (num_draws + self.num_warmup)
        is_exact = self.temperature == 1 and self.heuristic is None
        if is_exact and weights_of(target) is None:
            figures |= missed(
                target, positions, figures, log_weights=log_weights, has_gradient=True, begin_together=True
            )
        return Posterior(
            Draws(positions, log_weights),
            target,
            verdict=judge(figures, sentences, at_best="pass" if is_exact else "doubtful"),
            info={
                "num_gradients": num_updates * (1 if tuning.anchor is None else 2),
                "num_gradients_useful": self.chains * chain.num_steps * num_draws,
                "num_steps": chain.num_steps,
                "step_size": float(tuning.step_size),
                "has_control_variates": tuning.anchor is not None,
                "gradient_variance": float(found.noise_of(tuning.anchor).largest),
                "layout": done.layout,
                "is_complete": done.is_complete,
                "seconds": {"warmup": 0.0} | done.seconds,
                "sample_stats": {name: np.asarray(each)[:, is_kept] for name, each in infos._asdict().items()},
            },
        )


@functools.partial(brief, static_argnames="chain")
def _first_state(data, tuning: Tuning, key, u, chain: Chain):
    return chain.algorithm(data, tuning).init(key, u)


def _temperature_error(mean: np.ndarray, directed: np.ndarray, dim: int, temperature: float) -> float:
    """The largest share by which a temperature is wrong: the ``mean`` over coordinates (chain, draw), or beyond two
    standard errors those along directions (chain, draw, 2), and what the mean is without the first of them."""
    error = abs(float(np.mean(mean)) / temperature - 1)
    if not directed.shape[-1] or dim < 2:
        return error
    rest = (dim * mean - directed[..., 0]) / (dim - 1)
    each = np.concatenate([directed, rest[..., None]], axis=-1) / temperature
    beyond = np.abs(np.mean(each, axis=(0, 1)) - 1) - 2 * mcse_mean(each)
    return float(np.nanmax([error, *beyond]))  # NaN along a direction of no length, where no curvature is


def _convergence(seen: np.ndarray, structure: Structure | None) -> dict[str, float]:
    """``structure``: of the parameters, whose sds are judged; None of a network's."""
    found = convergence(seen)
    return {
        "max_r_hat": float(np.max(found.r_hat)),
        "min_ess_bulk": float(np.min(found.ess_bulk)),
        "min_ess_tail": float(np.min(found.ess_tail)),
        **({} if structure is None else sd_figures(seen, found.ess_tail, structure)),
    }
