"""Simulation-based calibration: fit data of known parameters many times, and rank the truth among the draws.

Of θ ~ p(θ), y ~ p(y | θ) and L independent draws of p(θ | y), the rank of any f(θ, y) among its values at the draws is
uniform on 0 … L (Cook, Gelman & Rubin 2006; Talts et al. 2018, theorem 1). Parameters alone miss faults that leave
their average over data sets right (a posterior that is the prior, say); f = log p(y | θ) finds these
(Modrák et al. 2023).
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from credo.algorithm import as_key as typed_key
from credo.algorithm import stream
from credo.arguments import as_key, check_limit
from credo.diagnose.simulation.beside import from_posterior
from credo.diagnose.simulation.ranks import (
    Statistics,
    TooFewDraws,
    check_statistics,
    independent_draws,
    quantities,
    rank,
)
from credo.diagnose.simulation.result import Calibration
from credo.diagnose.simulation.simulate import DRAWS, FIT, NOT_FINITE, Truths, from_prior
from credo.fitting import Method, fit
from credo.model.model import Model
from credo.model.target import Target
from credo.posterior.posterior import Posterior
from credo.progress import Progress
from credo.status import CredoError


def sbc(
    model: Model,
    method: Method | Callable[[Target], Method],
    num_simulations: int = 1_000,
    *,
    key=0,
    x=None,
    size: int | None = None,
    statistics: Mapping[str, Callable] | None = None,
    num_ranks: int = 100,
    time_limit: float | None = None,
    progress: bool = True,
) -> Calibration:
    """Simulation-based calibration of ``model`` and ``method`` (Talts et al. 2018; Modrák et al. 2023).

    Parameters are drawn from the prior and data from the likelihood ``num_simulations`` times, each data set is
    fitted, and true values are ranked among ``num_ranks`` − 1 nearly independent draws of the fit: parameters, derived
    quantities, the joint log likelihood and ``statistics``, functions of (params, y) in jax.numpy by name.
    ``method``: or a function from a target to a method, such as
    ``lambda target: Importance(fit(target, Laplace()))``. ``x``: the inputs of each data set. ``size``: its rows,
    where there is no x and the likelihood draws a single one. ``key``: the same key gives the same answer, and
    simulation i is the same however many there are. ``time_limit``: seconds after which no fit begins.
    Short runs serve: 100 ranks need about 100 effective draws a fit, as ``NUTS(chains=2, num_draws=300)`` gives.
    Raises CredoError where the model cannot simulate or no fit succeeds; single failures are counted and named.

    >>> import numpyro.distributions as dist, credo
    >>> model = credo.Model({"mean": dist.Normal(0.0, 2.0)}, lambda params, x: dist.Normal(params["mean"], 1.0))
    >>> credo.diagnose.sbc(model, credo.Exact(), 100, size=10).verdict.status
    'pass'
    """
    if not isinstance(model, Model):
        raise CredoError(f"sbc() simulates from a model, before any data are given; got {type(model).__name__}.")
    if isinstance(method, type):
        raise CredoError(f"method is an instance, such as credo.{method.__name__}(), not the class.")
    size = None if size is None else _whole("size", size, 1)
    truths = from_prior(model, x, size, _whole("num_simulations", num_simulations, 1), as_key(key))
    return _calibrated(truths, method, as_key(key), statistics, num_ranks, time_limit, progress)


def posterior_sbc(
    posterior: Posterior,
    method: Method | Callable[[Target], Method],
    num_simulations: int = 1_000,
    *,
    key=0,
    statistics: Mapping[str, Callable] | None = None,
    num_ranks: int = 100,
    time_limit: float | None = None,
    progress: bool = True,
) -> Calibration:
    """Simulation-based calibration about ``posterior``, where the data have put it (Säilynoja et al. 2025).

    Parameters are drawn from the posterior, new data y* from the likelihood at the inputs that were seen, and the
    fit is to the data that were seen, with their weights, and the new ones together. A prior too wide to calibrate
    under is no obstacle. It asks ``posterior`` itself as well: where that is wrong, ranks are not uniform.
    y is a dict to ``statistics``: "observed" and "replicated" (of several outcomes: "a" and "a_replicated").
    Everything else is as in ``sbc``; methods that ask for a likelihood of a known form (``Exact``) cannot answer here.
    Raises CredoError where ``posterior`` is worth fewer independent draws than ``num_simulations``.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"mean": dist.Normal(0.0, 1e6)}, lambda params, x: dist.Normal(params["mean"], 1.0))
    >>> posterior = credo.fit(model.given(y=np.array([1.2, 0.7, 2.1])), credo.Laplace())
    >>> credo.diagnose.posterior_sbc(posterior, credo.Laplace(), 100).verdict.status
    'pass'
    """
    truths = from_posterior(posterior, _whole("num_simulations", num_simulations, 1), as_key(key))
    found = _calibrated(truths, method, as_key(key), statistics, num_ranks, time_limit, progress)
    return replace(found, is_about_posterior=True)


def _calibrated(
    truths: Truths, method, key, statistics: Mapping[str, Callable] | None, num_ranks: int, time_limit, progress: bool
) -> Calibration:
    """Fit and rank, one simulation after the other."""
    begun, num_simulations = time.monotonic(), truths.num_simulations
    draws = _whole("num_ranks", num_ranks, 2) - 1
    check_limit("time_limit", time_limit, "seconds", "no limit")
    if not (statistics is None or (isinstance(statistics, Mapping) and all(map(callable, statistics.values())))):
        raise CredoError(f"statistics are functions of (params, y) by name, such as {{'sum': f}}; got {statistics!r}.")
    functions = tuple((statistics or {}).items())
    deadline = np.inf if time_limit is None else begun + time_limit
    ranks: list[dict[str, np.ndarray]] = []
    num_effective: list[float] = []
    failures: dict[int, str] = {}
    statuses = Counter({"pass": 0, "doubtful": 0, "failed": 0})
    num_done = 0
    with Progress(num_simulations, 1, progress) as bar:
        for i, (position, target) in enumerate(truths.each()):
            if time.monotonic() > deadline and num_done:
                break
            if target is not None:
                check_statistics(target.flat(), position, functions)
            try:
                posterior, found, worth = _one(target, position, method, key, i, draws, functions)
            except TooFewDraws:
                raise
            except CredoError as error:
                failures[i] = str(error)
            except Exception as error:
                error.add_note(f"This happened in simulation {i} of {num_simulations}.")
                raise
            else:
                ranks.append(found)
                num_effective.append(worth)
                statuses[posterior.verdict.status] += 1
            num_done += 1
            bar.update("simulations", 0, [num_done], None)
    if not ranks:
        raise CredoError(f"None of {num_done} simulated data sets could be fitted. The first: {failures[0]}")
    together = {name: np.stack([each[name] for each in ranks]) for name in ranks[0]}
    seconds = time.monotonic() - begun
    is_complete = num_done == num_simulations
    return Calibration(together, num_ranks, failures, dict(statuses), np.array(num_effective), is_complete, seconds)


def _one(
    target: Target | None, truth, method, key, i: int, num_draws: int, statistics: Statistics
) -> tuple[Posterior, dict[str, np.ndarray], float]:
    """(posterior, ranks by name, effective draws) of simulation ``i``."""
    if target is None:
        raise CredoError(NOT_FINITE)
    chosen: Any = method if hasattr(method, "fit") or not callable(method) else method(target)
    posterior = fit(target, chosen, key=typed_key(stream(key, FIT, i)), progress=False)
    positions, num_effective = independent_draws(posterior, num_draws, stream(key, DRAWS, i))
    values = quantities(target.flat(), np.concatenate([truth[None], positions]), statistics)
    lost = next((name for name, value in values.items() if np.isnan(value).any()), None)
    if lost is not None:
        raise CredoError(f"{lost} is not a number at the true parameters or at a draw of the fit.")
    random = np.random.default_rng(stream(key, DRAWS, i))
    return posterior, {name: rank(value, random) for name, value in values.items()}, num_effective


def _whole(name: str, value, least: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise CredoError(f"{name} is a whole number of at least {least}; got {value!r}.")
    return int(value)
