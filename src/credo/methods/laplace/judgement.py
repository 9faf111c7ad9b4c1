"""What the verdict on a network's Laplace rests on.

Weighing draws against the posterior says nothing in many dimensions: log weights vary by the dimension times the
relative error of each coordinate, whatever the predictions are worth. So three things are looked at that can be known:
the distance to the mode, the curvature's sign, and whether data are as likely as the linearised predictive expects
(optimise/surprise.py). None of them shows other modes, nor how far from normal the posterior is around this one: no
pass without weights.
"""

import functools
from dataclasses import replace

import jax
import numpy as np

from credo.algorithm import stream
from credo.compiling import TINY, brief
from credo.diagnose.rules import RULES
from credo.diagnose.verdict import ORDER, all_pass, judge
from credo.linalg.dense import Dense
from credo.methods.laplace.proposal import figures as proposal_figures
from credo.methods.optimise.objective import Objective
from credo.methods.optimise.surprise import surprise
from credo.model.target import Target
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.status import Verdict
from credo.timing import counted

FEW = 8  # rows whose outputs are looked at
STRAIGHT = 1e-3  # of the change of the outputs along a line: a bend below it is rounding
WEIGHED = 100  # coordinates up to which draws are weighed

LINEARISED = (
    "predict(x) linearises the network in its weights. Draws of the weights (sample(), MonteCarlo()) leave the region "
    "where the Gaussian holds, and predictions by them underfit."
)


@counted("verdict")
def verdict_of(
    posterior: Posterior,
    objective: Objective,
    figures: dict[str, float | None],
    sentences: tuple[str, ...],
    key,
    chunk: int,
    deadline: float,
) -> tuple[Verdict, int]:
    """The verdict, and how many draws were weighed. ``figures``: those of the mode."""
    target = posterior.target
    figures = figures | {"surprise": surprise(posterior, stream(key, 6), is_linearised=True)}
    if target.dim > WEIGHED:
        unweighed = (
            f"The posterior of {target.dim:,} coordinates was not compared with this Gaussian: in so many, weights of "
            "draws say nothing, and there are other modes. Judge it by held-out scores (credo.compare)."
        )
        return judge(figures, [*sentences, unweighed, *of_draws(posterior, key)], at_best="doubtful"), 0
    assert isinstance(posterior.kind, Gaussian)
    weighed, num_draws = proposal_figures(objective, posterior.kind, target, key, chunk, deadline)
    if all_pass(weighed):
        return judge(figures | weighed, sentences), num_draws
    beyond = [name for name, value in weighed.items() if RULES[name].status(value) != "pass"]
    shown = ", ".join(f"{name} = {weighed[name]:.3g} ({RULES[name].passes:g} passes)" for name in beyond)
    doubt = (
        f"By weights of draws the posterior of the weights may not be this Gaussian: {shown}. Judge its predictions by "
        "held-out scores (credo.compare)."
    )
    return judge(figures, [*sentences, doubt, *of_draws(posterior, key)], at_best="doubtful"), num_draws


def of_draws(posterior: Posterior, key) -> tuple[str, ...]:
    """What is said of draws of the weights: nothing where the outputs are linear in them."""
    target, kind = posterior.target.flat(), posterior.kind
    if target.outputs is None or not isinstance(kind, Gaussian):
        return (LINEARISED,)
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[:FEW], target.x)
    mean = np.asarray(kind.mean)
    along = np.random.default_rng(stream(key, 7)).normal(size=mean.size) * (1 + np.abs(mean))
    with double(mean.dtype == np.float64):
        along = np.where(np.asarray(kind.scale.diagonal()) > 0, along, 0.0).astype(mean.dtype)  # not those left out
        try:
            before, here, after = map(np.asarray, _outputs_along(target, mean, along, rows))
        except (TypeError, ValueError):  # a graph's network knows all its rows together alone
            return (LINEARISED,)
    bend, change = np.abs(after + before - 2 * here), np.abs(after - before)
    return () if np.max(bend) <= STRAIGHT * np.max(change) else (LINEARISED,)


@functools.partial(brief, options=TINY)
def _outputs_along(target: Target, u, along, rows):
    outputs = target.outputs
    assert outputs is not None
    return [outputs(target.constrain(u + side * along), rows) for side in (-1.0, 0.0, 1.0)]


def after_earlier(verdict: Verdict, earlier: Posterior | None) -> Verdict:
    """Never better than that of the posterior of ``earlier`` data, which stands for them from now on."""
    if earlier is None or earlier.verdict.status == "pass":
        return verdict
    is_whole = isinstance(earlier.kind, Gaussian) and isinstance(earlier.kind.scale, Dense)
    better = "" if is_whole else "the earlier data with structure=Dense(), or "
    sentence = (
        f"The posterior of earlier data, given as prior, is {earlier.verdict.status} itself, and stands for these "
        f"data: where it is wrong, so is this one. Fit {better}all data at once."
    )
    status = max(verdict.status, earlier.verdict.status, key=ORDER.index)
    return replace(verdict, status=status, sentences=(*verdict.sentences, sentence))
