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
GROWTH = (
    4.0  # of the longest leap: a longer one is tried after each that was as long as it may be, a shorter if too far
)
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


class Leap(NamedTuple):
    """Where extrapolation may carry the factors: ``read(factors) -> (n,)`` and ``write(factors, (n,)) -> factors``.

    The vector holds what the next sweep starts from; any values must be possible (logarithms of positive numbers).
    """

    read: Callable[[Factors], np.ndarray]
    write: Callable[[Factors, np.ndarray], Factors]


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
    leap: Leap | None = None,
) -> Ascent:
    """Sweeps over ``updates`` in their order from the factors ``start``, until the ELBO has no more to gain.

    ``start`` holds the factors that are read before they are first updated; more do no harm. ``tolerance``: nats that
    further sweeps may gain, and ``relative_tolerance`` the same as a share of |ELBO|; the larger counts. ``deadline``:
    by ``time.monotonic()``. ``leap``: every third sweep starts from an extrapolation of the last ones (squared
    iterative method: Varadhan & Roland 2008, scheme S3), and is kept if the ELBO is the higher for it. Raises
    CredoError where the ELBO falls, or is no finite number, and where an update cannot compute with what it is given.
    """
    factors, path, pace = dict(start), [], Pace()
    trail: list[np.ndarray] = []  # vectors after sweeps that followed one another
    is_converged, is_cut_off, longest = False, False, GROWTH
    for _ in range(max_sweeps):
        if leap is not None and len(trail) == 3:
            step = _step(*trail)
            proposal = leap.write(factors, _extrapolated(*trail, max(step, -longest)))
            found = _leapt(updates, elbo, proposal, data, path[-1])
            if found is None:
                longest = max(longest / GROWTH, 1.0)
            else:
                factors, value = found
                path.append(value)
                pace = pace.after_leap()
                longest *= GROWTH if step <= -longest else 1.0
            trail = [leap.read(factors)]
        else:
            before, factors = factors, _sweep(updates, factors, data)
            path.append(_value(elbo, factors, data))
            _refuse_fall(updates, elbo, before, data, path)
            pace = pace.after_sweep(path)
            if leap is not None:
                trail.append(leap.read(factors))
            is_converged = pace.remaining <= max(tolerance, relative_tolerance * abs(path[-1]))
        if is_converged:
            break
        if time.monotonic() > deadline:
            is_cut_off = True
            break
    return Ascent(factors, np.array(path), pace.remaining, is_converged, is_cut_off, np.array(path[-1:]))


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


def unfinished(ascent: Ascent) -> tuple[str, ...]:
    """A sentence where the sweeps ended before the ELBO had."""
    if ascent.is_converged:
        return ()
    cause = "The time limit came" if ascent.is_cut_off else "The sweeps allowed ended"
    remedy = "Raise time_limit." if ascent.is_cut_off else "Raise max_sweeps, or start nearer."
    return (f"{cause} after {ascent.num_sweeps:,} sweeps, before the ELBO had converged. {remedy}",)


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
        except CredoError:
            raise
        except (ArithmeticError, ValueError) as error:  # LinAlgError is a ValueError
            raise CredoError(_failure(f"The update of {name!r}", error, factors, data)) from error
    return factors


def _failure(what: str, error: Exception, factors: Factors, data: Any) -> str:
    """Why the user's code ended in ``error``. NaN in the data may be meant: it is named where it may be the cause."""
    said = f"{what} ended in a {type(error).__name__} ({error})"
    if not _is_finite(data):
        return f"{said}, and the data hold values that are NaN or infinite: leave these out, or let it pass over them."
    for name, factor in factors.items():
        if not _is_finite(factor):
            return f"{said}, and the factor {name!r} holds values that are not finite: look at what gave it."
    return f"{said}, with data and factors that are finite: look there for what it cannot take."


def _is_finite(tree: Any) -> bool:
    return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if _is_real(leaf))


def _value(elbo: Bound, factors: Factors, data: Any) -> float:
    try:
        value = np.asarray(elbo(factors, data))
    except KeyError as error:
        raise CredoError(
            f"elbo looked up {error} and did not find it; the factors are {', '.join(map(repr, factors))}. Give it an "
            "update, or another name in elbo."
        ) from error
    except CredoError:
        raise
    except (ArithmeticError, ValueError) as error:
        raise CredoError(_failure("The ELBO", error, factors, data)) from error
    if value.shape != () or not np.issubdtype(value.dtype, np.number) or np.iscomplexobj(value):
        raise CredoError(f"elbo(factors, data) gave {str(value)[:60]} of shape {value.shape}: it returns one number.")
    if np.isfinite(value):
        return float(value)
    for name, factor in factors.items():
        if not _is_finite(factor):
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


class Pace(NamedTuple):
    """How fast the sweeps converge: the last gain (NaN before one, and after a leap) and the last ratios of two gains.

    After a leap the fast directions gain most, so the slowest of several ratios is believed.
    """

    gain: float = np.nan
    ratios: tuple[float, ...] = ()
    remaining: float = np.inf
    num_ratios: int = 1

    def after_sweep(self, path: list[float]) -> "Pace":
        """``remaining``: nats that the sweeps to come would gain; inf before two gains, and where gains do not fall."""
        if len(path) < 2:
            return self
        gain = path[-1] - path[-2]
        if gain <= STANDSTILL * max(1.0, abs(path[-1])):
            return self._replace(gain=gain, remaining=0.0)
        ratios = self.ratios if np.isnan(self.gain) else (*self.ratios, gain / self.gain)[-self.num_ratios :]
        r = max(ratios, default=np.inf)
        is_known = r < 1 and not np.isnan(self.gain)
        return self._replace(gain=gain, ratios=ratios, remaining=gain * r / (1 - r) if is_known else np.inf)

    def after_leap(self) -> "Pace":
        return self._replace(gain=np.nan, num_ratios=3)


def _step(x0: np.ndarray, x1: np.ndarray, x2: np.ndarray) -> float:
    """s = −‖r‖/‖v‖, r = x₁ − x₀ and v = (x₂ − x₁) − r, at most −1: −1/(1 − ρ) along one direction of rate ρ."""
    r = np.sqrt(np.sum((x1 - x0) ** 2))
    v = np.sqrt(np.sum((x2 - 2 * x1 + x0) ** 2))
    return min(-r / v, -1.0) if v > 0 else -1.0


def _extrapolated(x0: np.ndarray, x1: np.ndarray, x2: np.ndarray, s: float) -> np.ndarray:
    """x₀ − 2 s r + s² v; s = −1 is x₂."""
    return x0 - 2 * s * (x1 - x0) + s**2 * (x2 - 2 * x1 + x0)


def _leapt(
    updates: Mapping[str, Update], elbo: Bound, proposal: Factors, data: Any, least: float
) -> tuple[Factors, float] | None:
    """A sweep from ``proposal`` and its ELBO; None where that is below ``least``, or no number."""
    with np.errstate(all="ignore"):
        try:
            factors = _sweep(updates, proposal, data)
            value = float(elbo(factors, data))
        except (ArithmeticError, ValueError, np.linalg.LinAlgError):  # too far
            return None
    return (factors, value) if np.isfinite(value) and value >= least else None


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
