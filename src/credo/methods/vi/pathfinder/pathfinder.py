"""Pathfinder (Zhang, Carpenter, Gelman & Vehtari 2022, JMLR 23): variational inference along an optimiser's path.

    q_l = N(u_l + H_l ∇log p(u_l), H_l)  at each point u_l of a quasi-Newton ascent (climb.py, inverse_hessian.py)
    q = argmax_l of the ELBO of q_l, by a few draws each, the same noise for all

The mode of a density in many dimensions lies outside of its mass, and curvature there may be that of a funnel's neck:
points before it can be better. Several paths from dispersed starts give a mixture of their best Gaussians, whose draws
are weighed against the target (w = p / mean_i q_i, with Pareto-smoothed tails). The paper resamples by the weights;
here the draws keep them, which is the same expectation without the noise of resampling, and it weighs each draw
against its own path's q, where the mixture's density has the smaller variance (Veach & Guibas 1995). A tenth of the
draws reach far, as those of Importance do.
"""

import time
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from credo.algorithm import Options, stream
from credo.compiling import brief
from credo.diagnose.startup import explain
from credo.diagnose.verdict import judge
from credo.memory import Need, require_count
from credo.methods.optimise.objective import (
    NUM_STARTS,
    WIDE_SPREAD,
    generator,
    has_gradient,
    is_differentiable,
    positions_given,
    random_position,
    starting_position,
)
from credo.methods.particles.correction import gradients
from credo.methods.particles.elsewhere import LARGEST, Climber
from credo.methods.particles.importance import evaluations_at_once, has_evidence, log_density, log_evidence
from credo.methods.particles.left_out import left_out, of_moments
from credo.methods.particles.weighed import answer
from credo.methods.particles.weighing import Drawn
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.faults import verdict_of
from credo.methods.vi.measure import measure
from credo.methods.vi.needs import of_draws
from credo.methods.vi.pathfinder.climb import Path, climb
from credo.methods.vi.pathfinder.inverse_hessian import Root
from credo.methods.vi.pathfinder.wide import log_widening, wide_scales
from credo.model.target import Target
from credo.posterior.kinds import Draws, Gaussian
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict
from credo.traced import by_shapes

EVERY = 10  # draws of several paths: one of so many reaches far
MOST = 64  # points of a path whose Gaussians are judged
LONG = 300  # points of a path: few have more
VECTORS, FACTORS = 6, 8  # of a point, and of a Gaussian for each step in its history
SPREAD = 1.0  # of several starts round the one that was given


@dataclass(frozen=True)
class Best:
    """The best Gaussian of a path, N(mean, S Sᵀ), with its ELBO by few draws."""

    mean: Float[np.ndarray, " dim"]
    root: Root
    elbo: float

    def log_prob(self, u: Float[np.ndarray, "S dim"], scales: Float[np.ndarray, " n"]) -> Float[np.ndarray, " S"]:
        """Of draws made with ``scales`` (wide.py)."""
        squares, dim = np.sum(self.root.whitened(u - self.mean) ** 2, axis=1), u.shape[1]
        log_normal = -0.5 * squares - self.root.log_det() - 0.5 * dim * np.log(2 * np.pi)
        return log_normal + log_widening(squares, dim, scales)


@dataclass(frozen=True)
class Pathfinder:
    """A Gaussian of diagonal plus low-rank covariance for the price of finding a mode; a quick start for ``NUTS``.

    ``num_paths``: 1 for a ``Gaussian`` posterior, with its ELBO as lower bound of the evidence; more for weighed draws,
    with the evidence by importance sampling. ``history`` J: steps that a covariance is made of, of rank 2 J. The
    paper has 6; with 50, paths are shorter and Gaussians better (breast cancer, 31 parameters: 32 gradients for 47, and
    an ELBO 5 nats below the best for 12).
    ``num_samples``: draws for the ELBO at each point. ``max_steps``: points of a path. ``num_draws``: of the
    Gaussian's verdict; with several paths of the answer, and up to eight times as many until means and sds are known.
    ``start``: one position, or (num_paths, dim); left out, several paths begin N(0, 2²) apart, so that they find
    separated modes.

    ``info``: ``num_gradients``, ``num_densities``, ``num_steps``, and ``elbo_path`` of the best path. Raises CredoError
    where the density is finite at no start, or at no draw of any path.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> target = model.given(y=np.array([3, 5, 1, 4]))
    >>> posterior = credo.fit(target, credo.Pathfinder(num_paths=4))
    >>> round(float(posterior.mean()["rate"]), 1), posterior.verdict.status
    (3.0, 'pass')
    """

    num_paths: int = field(default=1, metadata={"at_least": 1})
    history: int = field(default=50, metadata={"at_least": 1})
    num_samples: int = field(default=10, metadata={"at_least": 2})
    max_steps: int = field(default=300, metadata={"at_least": 1})
    num_draws: int = field(default=2_000, metadata={"at_least": 1})

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        deadline = options.deadline()

        def need(num_draws: int) -> Need:
            return self._need(f"Pathfinder(num_draws={num_draws})", target.dim, num_draws)

        require_count(need, self.num_draws, f"{target.dim:,} parameters", options.max_memory)
        at_once = evaluations_at_once(target, options.max_memory)
        paths, num_gradients, is_complete = self._climb(target, key, start, deadline)
        noise = np.random.default_rng(stream(key, 1).tolist()).normal(size=(self.num_samples, target.dim))
        judged = [self._judge(target, path, noise, at_once, deadline) for path in paths]
        num_judged = sum(len(elbos) for _, elbos in judged)
        is_complete = is_complete and num_judged == sum(min(len(path.points), MOST) for path in paths)
        best, elbos = max(judged, key=lambda pair: pair[0].elbo)
        info = {
            "num_gradients": num_gradients,
            "num_densities": num_judged * self.num_samples,
            "num_steps": sum(len(path.points) for path in paths),
            "elbo_path": np.stack([np.arange(elbos.size), elbos]),
            "is_complete": is_complete,
        }
        cut = () if is_complete else ("The time limit came before all points of a path were judged: raise time_limit.",)
        if self.num_paths > 1:
            bests = [b for b, _ in judged if np.isfinite(b.elbo)] or [best]
            return self._weighed(target, bests, stream(key, 2), at_once, info, cut, deadline)
        q = Gaussian(best.mean, best.root.operator())
        measured = measure(q, FullRank(), target, stream(key, 2), self.num_draws, at_once, deadline, options.max_memory)
        figures = {"elbo_error": measured.elbo.error, **measured.figures, "elbo": measured.elbo.value}
        info["num_densities"] += measured.num_draws

        def verdict_with(fault: str | None) -> Verdict:
            if fault is not None:
                return judge(figures, (*cut, fault), at_best="failed")
            return judge(figures, cut, at_best="doubtful" if cut else "pass")

        verdict, is_improper = verdict_of(verdict_with, target, q, FullRank())
        return Posterior(
            q,
            target,
            verdict=verdict,
            info=info,
            log_evidence=measured.elbo if has_evidence(target) and not is_improper else None,
        )

    def _need(self, name: str, dim: int, num_draws: int) -> Need:
        """Of points, two at a time as Gaussians, and of draws."""
        vectors = VECTORS * self.num_paths * min(self.max_steps, LONG) + FACTORS * self.history
        return Need(name, 8 * vectors * dim + of_draws(num_draws, dim))

    def _climb(self, target: Target, key, start, deadline: float) -> tuple[list[Path], int, bool]:
        """One path from each start; those whose start is no number begin again elsewhere."""

        def evaluate(u: np.ndarray):
            values, gradients = _densities_and_gradients(target, u.astype(dtype))
            return np.asarray(values, float), np.asarray(gradients, float)

        climber = Climber.of(target)  # its program will be the verdict's, which looks for other modes

        def curvature(u: np.ndarray):
            nonlocal num_gradients
            if not _has_curvature(target):
                return np.full(u.shape, np.nan)
            num_gradients += target.dim
            found = climber.solver.evaluate(climber.function, climber.args, u.astype(dtype), -np.inf, None)
            assert found.curvature is not None  # of a dense solver
            return np.diagonal(found.curvature)

        starts = self._starts(target, key, start)
        dtype = starts.dtype
        done: list[Path] = []
        at_mode: list[Path] = []
        num_gradients, is_complete = 0, True
        for attempt in range(NUM_STARTS + 1):
            paths = [Path(np.asarray(u, float), self.history, self.max_steps, curvature) for u in starts]
            taken, is_complete = climb(evaluate, paths, deadline)
            num_gradients += taken
            if attempt == 0 and all(len(path.points) == 1 for path in paths) and time.monotonic() <= deadline:
                at_mode = paths  # begun there, as from MAP(): a path that goes nowhere has seen no curvature
                starts = starts + (SPREAD * generator(key, 2).normal(size=starts.shape)).astype(dtype)
                continue
            done += [path for path in paths if path.points]
            if len(done) >= self.num_paths or (done and time.monotonic() > deadline):
                break
            first = (attempt + 1) * self.num_paths
            again = [random_position(target, key, first + i, WIDE_SPREAD) for i in range(self.num_paths)]
            starts = np.stack(again)  # as many as before: one shape, one program
        done = done or at_mode
        if not done:
            raise CredoError(explain(target, starts[0]))
        return done[: self.num_paths], num_gradients, is_complete

    def _starts(self, target: Target, key, start) -> np.ndarray:
        """(num_paths, dim)."""
        if isinstance(start, np.ndarray) and positions_given(start, self.num_paths, target.dim).ndim == 2:
            return start
        first = starting_position(target, key, start)
        if self.num_paths == 1:
            return first[None]
        if start is None:
            apart = [random_position(target, key, i, WIDE_SPREAD) for i in range(self.num_paths)]
            return np.stack(apart).astype(first.dtype)
        return (first + SPREAD * generator(key, 1).normal(size=(self.num_paths, target.dim))).astype(first.dtype)

    def _judge(
        self, target: Target, path: Path, noise, at_once: int, deadline: float
    ) -> tuple[Best, Float[np.ndarray, " points"]]:
        """The best Gaussian of a path, and the ELBO at its points: of long paths at MOST of them, to the last.

        From the last point back: after ``deadline``, by ``time.monotonic()``, that one has to do.
        """
        best, elbos = None, []
        for i in np.unique(np.linspace(0, len(path.points) - 1, min(len(path.points), MOST)).astype(int))[::-1]:
            if best is not None and time.monotonic() > deadline:
                break
            point = path.points[i]
            mean, root = point.position + point.direction, point.inverse_hessian.root()
            log_p = densities(target, mean + root.times(noise), min(at_once, len(noise)))
            entropy = root.log_det() + 0.5 * target.dim * np.log(2 * np.pi)
            with np.errstate(invalid="ignore"):
                elbo = float(log_p.mean() + 0.5 * np.mean(np.sum(noise**2, axis=1)) + entropy)
            elbos.append(elbo if np.isfinite(elbo) else -np.inf)
            if best is None or elbos[-1] > best.elbo:
                best = Best(mean, root, elbos[-1])
        assert best is not None  # a path has a point
        return best, np.array(elbos[::-1])

    def _weighed(
        self, target: Target, bests: list[Best], key, at_once: int, info: dict, cut: tuple, deadline: float
    ) -> Posterior:
        """Draws of the mixture of the paths' Gaussians, as many of each, with their importance weights."""
        noise = np.random.default_rng(key.tolist())
        bests = bests[: self.num_draws]  # to more there would be no draw of each

        def draw(_: int):
            z = noise.normal(size=(self.num_draws, target.dim))
            parts = np.array_split(z, len(bests))
            scales = [wide_scales(len(part), EVERY) for part in parts]
            shares = [part * wide[:, None] for part, wide in zip(parts, scales, strict=True)]
            u = np.concatenate([best.mean + best.root.times(share) for best, share in zip(bests, shares, strict=True)])
            sizes = np.array([len(share) for share in shares])
            with np.errstate(divide="ignore"):
                each = [best.log_prob(u, wide) for best, wide in zip(bests, scales, strict=True)]
                log_q = logsumexp(each, axis=0, b=(sizes / len(u))[:, None])
            log_weights = densities(target, u, at_once) - log_q
            is_lost = np.isnan(log_weights) & (np.concatenate(scales) > 1)  # of a wide draw, as after overflow
            return Drawn(u, np.where(is_lost, -np.inf, log_weights))

        found = answer(target, draw, lambda u: gradients(log_density, target, u, at_once), deadline)
        if found.is_lost:
            raise CredoError(
                f"The log density is finite at none of {len(found.u)} draws of the paths' Gaussians: start nearer to "
                "the posterior (start=), or use NUTS()."
            )
        unseen = _left_out(target, found, deadline)
        sentences = (*cut, *found.sentences)
        info["num_densities"] += len(found.u)
        info["num_gradients"] += found.num_gradients
        return Posterior(
            Draws(found.u[None], found.log_weights[None]),
            target,
            verdict=judge(found.figures | unseen, sentences, at_best="doubtful" if sentences else "pass"),
            info=info,
            log_evidence=log_evidence(found.raw, found.k_hat) if has_evidence(target) else None,
        )


def _left_out(target: Target, found, deadline: float) -> dict[str, float]:
    """Figures of what lies where no path came: nothing, where the moments of the draws are those of no Gaussian."""
    kind = of_moments(found.u, found.log_weights)
    if kind is None:
        return {}
    climber = Climber.of(target) if is_differentiable(target) else None
    log_z = float(logsumexp(found.raw) - np.log(len(found.raw)))
    weighed = {"log_weights": found.log_weights, "climber": climber, "log_z": log_z}
    return left_out(kind, target, found.u, found.figures, deadline, **weighed)


@by_shapes
def _has_curvature(target: Target) -> bool:
    """Whether second derivatives can be formed, and are not dear."""

    def slope(u):
        return jnp.sum(jax.grad(target.log_density)(u))

    return target.dim <= LARGEST and has_gradient(slope, jnp.zeros(target.dim))


def densities(target: Target, u: Float[np.ndarray, "S dim"], at_once: int) -> Float[np.ndarray, " S"]:
    """log p(u, D) of each row, ``at_once`` at a time by one program."""
    padded = np.resize(u, (-(-len(u) // at_once) * at_once, u.shape[1])).reshape(-1, at_once, u.shape[1])
    return np.concatenate([np.asarray(_densities(target, part), float) for part in padded])[: len(u)]


@brief
def _densities(target: Target, u):
    return jax.vmap(target.log_density)(u)


@brief
def _densities_and_gradients(target: Target, u):
    return jax.vmap(jax.value_and_grad(target.log_density))(u)
