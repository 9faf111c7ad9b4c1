"""The ladder: approximations from cheap to rich, up to the first that can be trusted.

A Gaussian found on the way to the mode (Pathfinder), independent normals, a normal with correlations, a flow. After
each rung its verdict, which looks at the Pareto k̂ and at what importance weights correct in means and sds, says whether
to stop; else the next rung is climbed to from the middle of this one's answer, and the sentences say why.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from credo.algorithm import Options, stream
from credo.diagnose.rules import RULES
from credo.journal import Journal
from credo.memory import TooLarge
from credo.methods.vi.advi import ADVI
from credo.methods.vi.families.flow import Flow
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.pathfinder.pathfinder import Pathfinder
from credo.model.target import Target
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.status import CredoError

MAX_FULL = 1_000  # dimensions up to which a path and a full covariance are rungs: beyond, a covariance of low rank
MAX_FLOW = 100  # dimensions up to which a flow is
MOVED = "mean_shift", "mean_limit", "log_sd_shift", "log_sd_limit"  # what weights would correct


@dataclass(frozen=True)
class Auto:
    """The first of ``rungs`` whose verdict is a pass, else the one with the highest ELBO.

    ``rungs``: methods such as ``ADVI(FullRank())``, from cheap to rich; None for ``Pathfinder()``, independent normals,
    a full covariance and, up to 100 dimensions, a flow. Beyond 1,000 dimensions there is no path and the covariance is
    of low rank; one coordinate has nothing to correlate with, and one rung. Where no ``start`` is given, rungs above a
    Gaussian begin in its middle. A ``time_limit`` is that of all of them. A rung that memory does not hold is left out,
    and the verdict says so.

    ``info["rungs"]``: one entry a rung climbed, with ``name``, ``status``, ``pareto_k``, ``log_evidence``,
    ``num_gradients``, ``seconds`` and ``why`` it was left; ``num_gradients`` counts all of them. The verdict's last
    sentences say the same. Beside a checkpoint each rung has a folder of its own in it. Raises CredoError for no rungs
    and for rungs that are no methods.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"mean": dist.Normal(0.0, 9.0)}, lambda params, x: dist.Normal(params["mean"], 1.0))
    >>> target = model.given(y=np.array([3.0, 5.0, 1.0, 4.0]))
    >>> posterior = credo.fit(target, credo.Auto())
    >>> posterior.verdict.status, len(posterior.info["rungs"])
    ('pass', 1)
    """

    rungs: tuple[Any, ...] | None = None

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        rungs = default_rungs(target.dim) if self.rungs is None else tuple(self.rungs)
        if not rungs:
            raise CredoError("Auto(rungs=()) has nothing to fit: give one method or more, or leave rungs out.")
        for rung in rungs:
            if isinstance(rung, type) or not hasattr(rung, "fit"):
                raise CredoError(
                    f"Auto(rungs=…) takes methods such as ADVI(FullRank()), with their brackets; got {rung!r}."
                )
        deadline = options.deadline()
        if options.checkpoint is not None and not options.resume and options.is_repeatable:
            Journal(
                options.checkpoint, options.identity or {}, resume=False
            ).announce()  # before the rungs' own folders
        climbed: list[Posterior] = []
        story: list[dict[str, Any]] = []
        refused: list[TooLarge] = []
        onward = start
        for i, method in enumerate(rungs):
            began = time.monotonic()
            own = _in_folder(options.until(deadline), f"rung-{i}")
            try:
                posterior = method.fit(target, key=stream(key, i), start=onward, options=own)
            except TooLarge as refusal:
                refused.append(refusal)
                continue
            climbed.append(posterior)
            story.append(_entry(method, posterior, time.monotonic() - began))
            is_over = i + 1 == len(rungs) or time.monotonic() >= deadline
            if posterior.verdict.status == "pass" or is_over:
                break
            story[-1]["why"] = _why(posterior)
            if start is None and isinstance(posterior.kind, Gaussian) and not np.isnan(_k_hat(posterior)):
                onward = np.asarray(posterior.kind.mean)  # the density is finite at draws about it
        if not climbed:
            raise refused[0]
        best = _best(climbed)
        return _told(climbed[best], story, best, len(rungs) - len(refused), refused)


def _in_folder(options: Options, name: str) -> Options:
    """For a rung: its checkpoint, if there is one, in a folder of its own, which it may have begun before."""
    if options.checkpoint is None:
        return options
    folder = options.checkpoint / name
    return options._replace(checkpoint=folder, resume=options.resume and (folder / "run.safetensors").exists())


def default_rungs(dim: int) -> tuple[Any, ...]:
    """From cheap to rich."""
    if dim == 1:
        return (ADVI(MeanField()),)
    if dim > MAX_FULL:
        return ADVI(MeanField()), ADVI(LowRank(10))
    rungs = Pathfinder(), ADVI(MeanField()), ADVI(FullRank())
    return (*rungs, ADVI(Flow())) if dim <= MAX_FLOW else rungs


def _best(climbed: list[Posterior]) -> int:
    """The one that passes, which is the last; else that of the highest ELBO, the nearest to the posterior by KL(q‖p).

    An unknown ELBO counts as the lowest; of posteriors that have none the smallest k̂ decides.
    """
    if climbed[-1].verdict.status == "pass":
        return len(climbed) - 1
    heights = [_elbo(posterior) for posterior in climbed]
    if all(np.isnan(heights)):
        heights = [-_k_hat(posterior) for posterior in climbed]
    return int(np.argmax(np.where(np.isnan(heights), -np.inf, heights)))


def _elbo(posterior: Posterior) -> float:
    return float(posterior.verdict.figures.get("elbo", np.nan))


def _k_hat(posterior: Posterior) -> float:
    return float(posterior.verdict.figures.get("pareto_k", np.nan))


def _name(method) -> str:
    family = getattr(method, "family", None)
    return f"{type(method).__name__}({type(family).__name__}())" if family is not None else f"{type(method).__name__}()"


def _entry(method, posterior: Posterior, seconds: float) -> dict[str, Any]:
    evidence = posterior.log_evidence
    return {
        "name": _name(method),
        "status": posterior.verdict.status,
        "pareto_k": _k_hat(posterior),
        "log_evidence": None if evidence is None else evidence.value,
        "num_gradients": posterior.info.get("num_gradients", 0),
        "seconds": seconds,
        "why": "",
    }


def _why(posterior: Posterior) -> str:
    """Why a rung was left."""
    k_hat, bound = _k_hat(posterior), RULES["pareto_k"].passes
    if not k_hat <= bound:
        return f"its Pareto k-hat is {k_hat:.2f} ({bound:g} passes)"
    figures = posterior.verdict.figures
    if any(RULES[name].status(figures[name]) != "pass" for name in MOVED if name in figures):
        return f"its Pareto k-hat of {k_hat:.2f} is acceptable, and yet the weights would correct its means or sds"
    return next(iter(posterior.verdict.sentences), f"it is {posterior.verdict.status}").rstrip(".")


def _told(
    posterior: Posterior, story: list[dict[str, Any]], best: int, num_rungs: int, refused: list[TooLarge]
) -> Posterior:
    left = [f"{rung['name']} was left for a richer approximation: {rung['why']}." for rung in story if rung["why"]]
    left += [f"Memory does not hold a rung: {refusal}" for refusal in refused]
    is_passing = posterior.verdict.status == "pass"
    if not is_passing:
        is_cut = len(story) < num_rungs
        left.append(
            f"None of the {len(story)} of {num_rungs} rungs climbed passes; this is {story[best]['name']}, whose ELBO "
            f"is the highest. {'The time limit came before the others: raise time_limit, or use' if is_cut else 'Use'} "
            "NUTS()."
        )
    posterior.verdict = replace(posterior.verdict, sentences=(*posterior.verdict.sentences, *left))
    total = sum(rung["num_gradients"] for rung in story)
    is_complete = posterior.info.get("is_complete", True) and (is_passing or len(story) == num_rungs)
    posterior.info = {**posterior.info, "rungs": story, "num_gradients": total, "is_complete": is_complete}
    posterior.info.pop("num_gradients_useful", None)
    return posterior
