"""Fit, resume and load: dispatch only."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from credo.model.target import Target
from credo.posterior.posterior import Posterior, as_key
from credo.precision import double, to_numpy
from credo.run import Options
from credo.status import CredoError, Verdict
from credo.timing import stopwatch


class Method(Protocol):
    """A way to infer: a frozen dataclass of settings."""

    def fit(self, target: Target, *, key, start: Any, options: Options) -> Posterior: ...


def fit(
    target: Target,
    method: Method,
    *,
    key=0,
    start=None,
    checkpoint: str | Path | None = None,
    precision: str | None = None,
    layout: str | None = None,
    time_limit: float | None = None,
    max_memory: int | None = None,
    progress: bool = True,
) -> Posterior:
    """The posterior of ``target`` by ``method``.

    ``key``: int or JAX key; the same key gives the same answer. ``start``: a posterior, parameters (a dict), or a flat
    unconstrained position (dim,) or (chains, dim). ``checkpoint``: a folder from which ``resume`` continues.
    ``precision``: "float64" (default) or "float32". ``layout``: "threads" (default by rule). ``time_limit``: seconds
    after which the run stops cleanly with what it has. ``max_memory``: bytes. ``progress``: show a bar.

    Raises CredoError, a sentence with cause, value and remedy, where the request cannot be answered.
    """
    if not isinstance(target, Target):
        raise CredoError(f"fit() takes a Target, made by model.given(x, y); got {type(target).__name__}.")
    if not hasattr(method, "fit"):
        raise CredoError(f"fit() takes a method such as Laplace() or NUTS(); got {method!r}.")
    if precision not in (None, "float64", "float32"):
        raise CredoError(f"precision is 'float64' or 'float32'; got {precision!r}.")
    is_double = precision != "float32"
    options = Options(
        checkpoint=None if checkpoint is None else Path(checkpoint),
        layout=layout,
        time_limit=time_limit,
        max_memory=max_memory,
        progress=progress,
    )
    with double(is_double), stopwatch() as seconds:
        target = target.cast(np.float64 if is_double else np.float32)
        posterior = method.fit(target, key=as_key(key), start=start_position(target, start), options=options)
        posterior.kind = to_numpy(posterior.kind)
    posterior.info["seconds"] = seconds | posterior.info.get("seconds", {})
    posterior.verdict = _with_few_rows(posterior.verdict, target)
    return posterior


def _with_few_rows(verdict: Verdict, target: Target) -> Verdict:
    if target.y is None or target.size >= target.dim:
        return verdict
    sentence = (
        f"There are fewer rows ({target.size}) than parameters ({target.dim}): in the directions that the data leave "
        "free, the prior decides."
    )
    return replace(verdict, sentences=(*verdict.sentences, sentence))


def start_position(target: Target, start):
    """A posterior stays as it is; parameters and positions become flat positions."""
    if start is None:
        start = target.model.start
        if start is None:
            return None
    if isinstance(start, Posterior):
        if start.target.structure != target.structure:
            raise CredoError("The starting posterior has other parameters than this target: fit it on the same model.")
        return start
    if isinstance(start, dict):
        return target.flat().unconstrain(start)
    position = np.asarray(start, np.float64)
    if position.ndim not in (1, 2) or position.shape[-1] != target.dim:
        raise CredoError(
            f"start has shape {position.shape}; a position has shape ({target.dim},), or (chains, {target.dim})."
        )
    return position
