"""Coordinate ascent: the loop of mean-field variational Bayes (Bishop 2006, section 10.1; Blei et al. 2017, alg. 1).

    q(θ) = Π_j q_j(θ_j);    log q_j(θ_j) ← E_{q(θ_−j)}[log p(θ, D)] + const,    j = 1, 2, …, again and again

Each update is the maximum over q_j of ELBO(q) = E_q[log p(θ, D) − log q(θ)] with the other factors held, so the ELBO
never falls. That is checked after every sweep: a fall beyond rounding means that an update or the ELBO is wrong.

The sweeps end where what is left is below the tolerance. Coordinate ascent converges linearly: with gains g_t and
r = g_t/g_{t−1} < 1, the sweeps to come gain g_t (r + r² + …) = g_t r/(1 − r), much more than g_t where r is near 1.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from credo.status import CredoError

Factors = dict[str, Any]  # name -> a numpyro distribution, or a pytree of arrays
Update = Callable[[Factors, Any], Any]  # (all factors, data) -> the factor
Bound = Callable[[Factors, Any], Any]  # (all factors, data) -> the ELBO, a number

ROUNDING = 1e-9  # share of |ELBO| that a fall may have: sums of 10⁵ terms leave about 1e-12
STANDSTILL = 1e-12  # share of |ELBO| below which a gain is rounding


class Ascent(NamedTuple):
    """Where coordinate ascent ended.

    ``elbo_path`` (sweeps,): the ELBO after each sweep, in nats; ``elbo`` is the last. ``remaining``: nats that further
    sweeps would gain, by extrapolation; inf where the gains did not fall. ``is_converged``: below the tolerance.
    ``is_cut_off``: ended by the time limit. ``restarts`` (starts,): the last ELBO from each start, this one's the best.
    """

    factors: Factors
    elbo_path: Float[np.ndarray, " sweeps"]
    remaining: float
    is_converged: bool
    is_cut_off: bool
    restarts: Float[np.ndarray, " starts"]

    @property
    def elbo(self) -> float:
        """The ELBO at the end."""
        return float(self.elbo_path[-1])

    @property
    def num_sweeps(self) -> int:
        """Sweeps from the best start."""
        return len(self.elbo_path)


def ascend(
    updates: Mapping[str, Update],
    elbo: Bound,
    start: Mapping[str, Any],
    data: Any = None,
    *,
    tolerance: float = 1e-6,
    relative_tolerance: float = 1e-10,
    max_sweeps: int = 10_000,
    deadline: float = np.inf,
) -> Ascent:
    """Sweeps over ``updates`` in their order from the factors ``start``, until the ELBO has no more to gain.

    ``start`` holds the factors that are read before they are first updated; more do no harm. ``tolerance``: nats that
    further sweeps may gain, and ``relative_tolerance`` the same as a share of |ELBO|; the larger counts. ``deadline``:
    by ``time.monotonic()``. Raises CredoError where the ELBO falls, or is no finite number.
    """
    factors, path = dict(start), []
    remaining, is_converged, is_cut_off = np.inf, False, False
    for _ in range(max_sweeps):
        before, factors = factors, _sweep(updates, factors, data)
        path.append(_value(elbo, factors, data))
        _refuse_fall(updates, elbo, before, data, path)
        remaining = _remaining(path)
        is_converged = remaining <= max(tolerance, relative_tolerance * abs(path[-1]))
        if is_converged:
            break
        if time.monotonic() > deadline:
            is_cut_off = True
            break
    return Ascent(factors, np.array(path), remaining, is_converged, is_cut_off, np.array(path[-1:]))


def best_of(ascents: Iterable[Ascent]) -> Ascent:
    """The ascent with the highest ELBO. Lazy ascents after one that the time limit cut off are not begun."""
    found: list[Ascent] = []
    for each in ascents:
        found.append(each)
        if each.is_cut_off:
            break
    best = max(found, key=lambda ascent: ascent.elbo)
    return best._replace(
        restarts=np.array([ascent.elbo for ascent in found]), is_cut_off=any(ascent.is_cut_off for ascent in found)
    )


def _sweep(updates: Mapping[str, Update], factors: Factors, data: Any) -> Factors:
    factors = dict(factors)
    for name, update in updates.items():
        try:
            factors[name] = update(factors, data)
        except KeyError as error:
            raise CredoError(
                f"The update of {name!r} looked up {error} and did not find it; the factors so far are "
                f"{', '.join(map(repr, factors)) or 'none'}. Give the factor in start, or place its update earlier."
            ) from error
    return factors


def _value(elbo: Bound, factors: Factors, data: Any) -> float:
    value = np.asarray(elbo(factors, data))
    if value.shape != () or not np.issubdtype(value.dtype, np.number) or np.iscomplexobj(value):
        raise CredoError(f"elbo(factors, data) gave {str(value)[:60]} of shape {value.shape}: it returns one number.")
    if np.isfinite(value):
        return float(value)
    for name, factor in factors.items():
        if any(not np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(factor) if _is_real(leaf)):
            raise CredoError(
                f"The ELBO is {float(value)} because the factor {name!r} holds values that are not finite: look at its "
                "update for a division by zero or the logarithm of a negative number, and at the data for NaN."
            )
    raise CredoError(
        f"The ELBO is {float(value)} although every factor is finite: look at elbo for a term that overflows, the "
        "logarithm of zero, and at the data for NaN."
    )


def _is_real(leaf: Any) -> bool:
    return np.issubdtype(np.asarray(leaf).dtype, np.floating)


def _remaining(path: list[float]) -> float:
    """Nats that the sweeps to come would gain; inf before three of them, and where gains do not fall."""
    if len(path) < 2:
        return np.inf
    gain = path[-1] - path[-2]
    if gain <= STANDSTILL * max(1.0, abs(path[-1])):
        return 0.0
    last = path[-2] - path[-3] if len(path) > 2 else 0.0
    return gain * gain / (last - gain) if last > gain else np.inf


def _refuse_fall(updates: Mapping[str, Update], elbo: Bound, before: Factors, data: Any, path: list[float]) -> None:
    """CredoError where the last sweep lowered the ELBO; it is made again, update by update, to name the one."""
    if len(path) < 2:
        return
    allowed = ROUNDING * max(1.0, abs(path[-2]))
    if path[-1] >= path[-2] - allowed:
        return
    factors, value, blamed = dict(before), path[-2], []
    for name, update in updates.items():
        factors[name] = update(factors, data)
        after = _value(elbo, factors, data)
        blamed += [f"{name!r} ({after - value:.3g})"] if after < value - allowed else []
        value = after
    at = f" It fell at the update of {', '.join(blamed)}." if blamed else ""
    raise CredoError(
        f"The ELBO fell by {path[-2] - path[-1]:.3g} nats in sweep {len(path)}, from {path[-2]:.10g} to "
        f"{path[-1]:.10g}.{at} An update that maximises the ELBO over its factor cannot lower it: that update, or "
        "elbo, is wrong."
    )
