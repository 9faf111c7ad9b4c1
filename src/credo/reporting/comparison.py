"""Several approximations of one posterior on one table."""

from collections.abc import Mapping

import numpy as np

from credo.model.fingerprint import log_density_at, probe
from credo.model.same_data import inputs_differ, outcomes_differ
from credo.model.target import Target
from credo.posterior.kinds import Draws, Point
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.predict import Predictive
from credo.reporting.scores import pair, predict_held_out, scores
from credo.status import CredoError

ELSE = (
    "Compare models by their evidence instead: credo.decisions.model_probabilities({name: posterior, …}), of "
    "posteriors by SMC() or Laplace(), say."
)
SAME_DENSITY = 1e-4  # of its size: data may have been rounded
STATUS_ORDER = {"pass": 0, "doubtful": 1, "failed": 2}


def compare(
    posteriors: Mapping[str, Posterior], held_out=None, *, reference: str | None = None, show: bool = True, key=0
):
    """A table of approximations: evidence, trust, held-out scores, distance from the reference, seconds, verdict.

    ``held_out``: (x, y) not used in the fit, in the forms that ``given`` takes; (None, y) of a model without inputs.
    ``reference``: the name of the posterior from which distances of means and sds are taken; by default the most
    trusted one (exact or grid, then draws that pass). ``show``: print it. Raises CredoError for posteriors that are not
    of one model and data, and for outcomes that the likelihood could not give, with the first row and its value.
    Returns a DataFrame with a row a posterior:

    - ``log_evidence``, ``log_evidence_error``, ``log_evidence_kind``;
    - ``pareto_k``, ``max_r_hat``, ``min_ess_bulk``: NaN where a figure does not apply;
    - ``log_score``, ``log_score_error``: mean held-out log predictive density, by the rule that ``predict`` takes where
      none is named, and its standard error, in which both the spread of the rows and the draws of the parameters
      count; then ``brier`` and ``ece`` for classes
      (two as well: the sum over both, twice the one-column form, and the calibration of the more probable), ``crps``
      (to a few thousandths of the outcome's sd, by draws shared by all) and ``coverage_90`` for numbers, means over
      rows and columns; of several outcomes by name the log score alone. What the likelihood masks is left out;
    - ``mean_distance``: the largest |mean − reference mean| in reference sds, of parameters and what is derived of
      them; ``sd_ratio``: the sd ratio farthest from 1 (on a log scale);
    - ``compile_s``, ``run_s``: seconds; ``verdict``.
    """
    if not isinstance(posteriors, Mapping) or not posteriors:
        raise CredoError(
            'compare() takes a dict of name -> posterior, such as {"Laplace": a, "NUTS": b}, with one at least; got '
            f"{'an empty one' if isinstance(posteriors, Mapping) else type(posteriors).__name__}."
        )
    wrong = [name for name, each in posteriors.items() if not isinstance(each, Posterior)]
    if wrong:
        raise CredoError(f"compare() takes posteriors; {wrong[0]!r} is a {type(posteriors[wrong[0]]).__name__}.")
    if reference is not None and reference not in posteriors:
        raise CredoError(f"reference={reference!r} is not among {', '.join(posteriors)}.")
    if reference is not None and isinstance(posteriors[reference].kind, Point):
        raise CredoError(
            f"reference={reference!r} is a point, which has no sds to measure distances in: name "
            "another, or leave it out."
        )
    check_alike(posteriors)
    x, y = pair(held_out)
    predictives = {} if held_out is None else {n: predict_held_out(p, x, y, key=key) for n, p in posteriors.items()}
    table = tabulate(posteriors, predictives, y, reference=reference, key=key)
    if show:
        from credo.reporting.console import show_comparison

        show_comparison(table, posteriors)
    return table


def check_alike(posteriors: Mapping[str, Posterior]) -> None:
    """CredoError where posteriors have other parameters than the first, of other shapes, or other data."""
    names = {name: [leaf.name for leaf in p.target.structure.leaves] for name, p in posteriors.items()}
    shapes = {name: {leaf.name: leaf.shape for leaf in p.target.structure.leaves} for name, p in posteriors.items()}
    first = next(iter(posteriors))
    other = next((name for name in names if names[name] != names[first]), None)
    if other is not None:
        raise CredoError(
            f"A comparison sets approximations of one posterior side by side: {first!r} has parameters "
            f"{', '.join(names[first][:6])} and {other!r} has {', '.join(names[other][:6])}. {ELSE}"
        )
    for name, own in shapes.items():
        wrong = next((leaf for leaf in own if own[leaf] != shapes[first][leaf]), None)
        if wrong is not None:
            raise CredoError(
                f"A comparison sets approximations of one posterior side by side: {wrong!r} has shape "
                f"{shapes[first][wrong]} in {first!r} and {own[wrong]} in {name!r}. {ELSE}"
            )
    here = {name: p.target for name, p in posteriors.items() if p.target.y is not None}  # not out of memory
    for name, target in here.items():
        known = here[next(iter(here))]
        differ = outcomes_differ(known, target) or ("x" if inputs_differ(known, target) else "")
        if differ:
            raise CredoError(
                f"A comparison sets approximations of one posterior side by side: {next(iter(here))!r} and {name!r} "
                f"were fitted to different {differ}. Fit both to the same rows."
            )
        if target.model is not known.model and _densities_differ(known, target):
            raise CredoError(
                f"A comparison sets approximations of one posterior side by side: {next(iter(here))!r} and {name!r} "
                f"have different log densities at one position, by another prior or likelihood. {ELSE}"
            )


def _densities_differ(first: Target, other: Target) -> bool:
    with double():
        first, other = first.cast(np.float64), other.cast(np.float64)
        position = probe(first)
        values = [float(log_density_at(each, position)) for each in (first, other)]
    return all(map(np.isfinite, values)) and not np.isclose(*values, rtol=SAME_DENSITY, atol=SAME_DENSITY)


def tabulate(
    posteriors: Mapping[str, Posterior],
    predictives: Mapping[str, Predictive],
    y,
    *,
    reference: str | None = None,
    key=0,
):
    """The table of ``compare``, with ``predictives`` made already at the held-out rows whose outcomes are ``y``."""
    import pandas as pd

    reference = reference or trusted(posteriors)
    rows = {}
    for name, posterior in posteriors.items():
        rows[name] = {
            **_evidence(posterior),
            **{figure: posterior.verdict.figures.get(figure, np.nan) for figure in _FIGURES},
            **(scores(predictives[name], y, key) if name in predictives else {}),
            **(_distance(posterior, posteriors[reference]) if reference is not None else {}),
            **_seconds(posterior),
            "verdict": posterior.verdict.status,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.attrs["reference"] = reference
    return table


_FIGURES = ("pareto_k", "max_r_hat", "min_ess_bulk")


def trusted(posteriors: Mapping[str, Posterior]) -> str | None:
    """The name of the posterior to measure the others by: exact answers, then passing draws, then None."""

    def rank(item) -> int:
        posterior = item[1]
        if posterior.verdict.status != "pass":
            return 3
        if posterior.log_evidence is not None and posterior.log_evidence.kind == "exact":
            return 0
        if isinstance(posterior.kind, Draws):
            return 1 if posterior.kind.log_weights is None else 2
        return 3

    name, best = min(posteriors.items(), key=rank)
    return name if rank((name, best)) < 3 else None


def answering(posteriors: Mapping[str, Posterior]) -> str | None:
    """The name of the posterior to believe: the best verdict, then the least approximate; None where all failed.

    Exact answers come before draws, draws before Gaussians, of which the one with the smallest Pareto k-hat is the
    nearest; a point estimate says nothing of uncertainty and comes after every doubtful answer that does.
    """

    def rank(posterior: Posterior) -> tuple:
        kind, evidence = posterior.kind, posterior.log_evidence
        is_exact = evidence is not None and evidence.kind == "exact"
        is_draws = isinstance(kind, Draws)
        is_point, status = isinstance(kind, Point), STATUS_ORDER[posterior.verdict.status]
        order = (is_point, not is_exact, not is_draws, is_draws and kind.log_weights is not None)
        k = posterior.verdict.figures.get("pareto_k", np.inf)
        return max(status, STATUS_ORDER["doubtful"]) if is_point else status, *order, np.inf if np.isnan(k) else k

    name = min(posteriors, key=lambda name: rank(posteriors[name]))
    return None if posteriors[name].verdict.status == "failed" else name


def _evidence(posterior: Posterior) -> dict:
    evidence = posterior.log_evidence
    return {
        "log_evidence": evidence.value if evidence else np.nan,
        "log_evidence_error": evidence.error if evidence else np.nan,
        "log_evidence_kind": evidence.kind if evidence else "",
    }


def _seconds(posterior: Posterior) -> dict:
    seconds = posterior.info.get("seconds", {})
    compile_s = seconds.get("compile", np.nan)
    return {"compile_s": compile_s, "run_s": seconds.get("total", np.nan) - compile_s}


def _distance(posterior: Posterior, reference: Posterior) -> dict:
    mean, sd = posterior._moments
    reference_mean, reference_sd = reference._moments
    target = reference.target
    known = *(leaf.name for leaf in target.structure.leaves), *(name for name, _ in target.model.derived_functions)
    names = [name for name in known if name in mean and name in reference_mean]
    unit = np.concatenate([np.ravel(reference_sd[n]) for n in names])
    is_measured = (unit > 0) & np.isfinite(unit)  # a law without a variance measures nothing
    if not is_measured.any():
        return {"mean_distance": np.nan, "sd_ratio": np.nan}
    shift = np.concatenate([np.ravel(np.asarray(mean[n]) - reference_mean[n]) for n in names])[is_measured]
    ratio = np.concatenate([np.ravel(sd[n]) for n in names])[is_measured] / unit[is_measured]
    with np.errstate(divide="ignore"):
        farthest = np.argmax(np.abs(np.log(ratio)))  # NaN where there is one: an answer without a number is not near
    return {
        "mean_distance": float(np.max(np.abs(shift / unit[is_measured]))),
        "sd_ratio": float(ratio[farthest]),
    }
