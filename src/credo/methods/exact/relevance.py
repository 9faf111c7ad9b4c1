"""Automatic relevance determination: one prior precision a feature, by maximum evidence (MacKay, 1992; Tipping, 2001).

In the notation of type_two.py, along one g_j with the others fixed and P = A⁻¹ without feature j,

    s = xᵀPx,  q = xᵀPy,  u = g s/(1 + g s):   L = ½ k u + ½ log(1 − u) + const,  k = β q²/s     (β given)
    L = −(N/2) log(1 − c u) + ½ log(1 − u) + const,  c = q²/(s yᵀPy)                    (β maximised out)

has one maximum, at 1 − u = 1/k (Tipping and Faul, 2003, eq. 20) or 1 − u = (1 − c)/(c (N − 1)), or at u = 0 (the
feature is pruned, α_j = ∞) where k ≤ 1 or Nc ≤ 1. A round takes the largest set of these exact coordinate steps that
raises L, then Newton steps in log g of the features that live. L never falls, and the end is checked: the gradient of
the living is zero and no pruned feature would enter. L can have several maxima: the better of two starts is kept.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh, qr, solve_triangular

from credo.methods.exact.type_two import Data, Maximum, noiseless, one_alpha, residual_outside
from credo.status import CredoError

GRADIENT_TOLERANCE = 1e-9  # nats a unit of log alpha: rounding leaves about 1e-12
GAIN_TOLERANCE = 1e-9  # nats: a coordinate step that gains less changes nothing that a person could see
MAX_ROUNDS = 500
NEWTON_STEPS = 3  # a round: more would be spent on features that the next round prunes
LARGEST_STEP = 3.0  # in log g
NOISELESS = 1e-8  # Q/‖y‖² below this with N features alive: L is climbing to its level limit at beta = inf


class State(NamedTuple):
    """L and what one triangularisation at ``g`` (D,) says of every feature; a = the number with g > 0."""

    g: np.ndarray
    log_evidence: float
    residual: float  # Q
    noise: float  # 1/β
    inverse: np.ndarray  # (a, a) M⁻¹, M = I + G^½ XᵀX G^½ over the living
    p: np.ndarray  # (a,) G^½ XᵀA⁻¹y, the mean weights in units of their prior sd
    s: np.ndarray  # (D,) xᵀA⁻¹x and
    q: np.ndarray  # (D,) xᵀA⁻¹y of the pruned, 0 for the living

    @property
    def gradient(self) -> np.ndarray:
        """∂L/∂ log g of the living (a,)."""
        return 0.5 * (self.p**2 / self.noise - (1 - np.diagonal(self.inverse)))


def one_alpha_a_feature(data: Data) -> Maximum:
    """A maximum over alpha (D,) and beta.

    Raises CredoError where no maximum at a finite beta was found.
    """
    norms = np.sqrt(np.sum(data.x**2, axis=0))
    data = data._replace(x=data.x / np.where(norms > 0, norms, 1.0))  # L is the same, and g has no units
    weights, _, rank, _ = np.linalg.lstsq(data.x, data.y)
    residual_outside(data, data.y - data.x @ weights, num_used=int(rank))
    found = [state for start in _starts(data) if (state := _climb(data, start)) is not None]
    if not found:
        raise noiseless()
    best = max(found, key=lambda state: state.log_evidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        alpha = np.where(best.g > 0, norms**2 / (best.g * best.noise), np.inf)
    return Maximum(alpha, 1 / best.noise, best.log_evidence, float(np.max(np.abs(best.gradient), initial=0.0)))


def evaluate(data: Data, g: np.ndarray) -> State:
    """Everything at ``g`` from one QR of [X_living G^½, X_pruned, y; I, 0, 0], in which nothing cancels.

    Below the rows of the living, the columns hold Q^T of what A⁻¹ leaves of each feature and of y.
    """
    living, pruned = np.flatnonzero(g > 0), np.flatnonzero(g == 0)
    a = len(living)
    columns = np.column_stack([data.x[:, living] * np.sqrt(g[living]), data.x[:, pruned], data.y])
    unit = np.eye(a, columns.shape[1])
    triangle = np.asarray(qr(np.concatenate([columns, unit]), mode="r", overwrite_a=True, check_finite=False)[0])
    root, below = triangle[:a, :a], triangle[a:, a:]
    half = solve_triangular(root, np.eye(a), trans=1) if a else np.zeros((0, 0))
    s, q = np.zeros(len(g)), np.zeros(len(g))
    s[pruned], q[pruned] = np.sum(below[:, :-1] ** 2, axis=0), below[:, :-1].T @ below[:, -1]
    residual = np.sum(below[:, -1] ** 2)
    log_evidence = data.objective(residual, 2 * np.sum(np.log(np.abs(np.diagonal(root)))))
    p = half.T @ triangle[:a, -1]
    return State(g, float(log_evidence), float(residual), float(data.noise(residual)), half.T @ half, p, s, q)


def coordinate_steps(data: Data, state: State) -> tuple[np.ndarray, np.ndarray]:
    """For every feature alone: the g_j (D,) that maximises L, and the gain in L (D,)."""
    living, num_rows = state.g > 0, data.num_rows
    now, s, k = np.ones_like(state.g), state.s.copy(), np.zeros_like(state.g)  # now: 1 − u
    left = now[living] = np.diagonal(state.inverse)
    with np.errstate(divide="ignore", invalid="ignore"):
        s[living] = (1 - left) / (left * state.g[living])
        k[living] = state.p**2 / (left * (1 - left))  # q²/s; below, of yᵀPy = Q + p²/left
        k[~living] = state.q[~living] ** 2 / s[~living]
        k = np.nan_to_num(k, nan=0.0, posinf=0.0)  # a feature of length zero has 0/0
        if data.beta is None:
            total = np.full_like(k, state.residual)
            total[living] += state.p**2 / left
            c = np.minimum(k / total, 1 - 1e-15)
            best = np.where(num_rows * c > 1, (1 - c) / (c * (num_rows - 1)), 1.0)
            gain = 0.5 * num_rows * (np.log1p(-c * (1 - now)) - np.log1p(-c * (1 - best)))
        else:
            k = k * data.beta
            best = np.where(k > 1, 1 / k, 1.0)
            gain = 0.5 * k * (now - best)
        return np.where(best < 1, (1 - best) / (best * s), 0.0), gain + 0.5 * (np.log(best) - np.log(now))


def _starts(data: Data) -> list[np.ndarray]:
    """No feature alive, and all alive at the one-alpha maximum where there is one."""
    starts = [np.zeros(data.x.shape[1])]
    ridge = one_alpha(data)
    if ridge.is_noiseless:
        return starts
    with np.errstate(divide="ignore"):
        g = ridge.beta / ridge.alpha
    return [*starts, np.where(np.any(data.x != 0, axis=0), g, 0.0)] if np.any(g > 0) else starts


def _climb(data: Data, g: np.ndarray) -> State | None:
    """A maximum from ``g``; None if L climbs to a noiseless fit."""
    state, scale = evaluate(data, g), float(data.y @ data.y)
    for _ in range(MAX_ROUNDS):
        start = state.log_evidence
        state, has_moved = _largest_set_of_steps(data, state)
        for _ in range(NEWTON_STEPS):
            if np.max(np.abs(state.gradient), initial=0.0) <= GRADIENT_TOLERANCE:
                break
            state = _newton_step(data, state)
        if data.beta is None and len(state.p) >= data.num_rows and state.residual <= NOISELESS * scale:
            return None
        gradient = np.max(np.abs(state.gradient), initial=0.0)
        has_stalled = state.log_evidence - start <= 10 * _rounding(state)
        if (gradient <= GRADIENT_TOLERANCE and not has_moved) or (gradient <= 1e-6 and has_stalled):
            return state
    raise CredoError(
        f"Maximising the evidence over one alpha a feature did not converge in {MAX_ROUNDS} rounds (gradient "
        f"{np.max(np.abs(state.gradient), initial=0.0):.2g}): drop collinear features, or use ard=False."
    )


def _largest_set_of_steps(data: Data, state: State) -> tuple[State, bool]:
    """The coordinate steps of largest gain, as many at once as raise L, and whether there were any.

    At most a quarter of the living and one: with N < D, letting everything in at once leads to a noiseless fit.
    """
    best, gain = coordinate_steps(data, state)
    is_leaving = (best == 0) & (state.g > 0)  # gains next to nothing where g is already small
    order = np.argsort(-gain)
    order = order[(gain > GAIN_TOLERANCE)[order] | is_leaving[order]]
    count = min(len(order), 1 + len(state.p) // 4)
    while count:
        g = state.g.copy()
        g[order[:count]] = best[order[:count]]
        trial = evaluate(data, g)
        if trial.log_evidence >= state.log_evidence - _rounding(state):
            return trial, True
        count //= 2
    return state, False


def _newton_step(data: Data, state: State) -> State:
    """A step in log g that raises L: the Hessian's eigenvalues are turned negative, the step is cut and halved."""
    living = state.g > 0
    b, p = np.eye(len(state.p)) - state.inverse, state.p / np.sqrt(state.noise)
    outer = np.outer(p, p)
    hessian = 0.5 * (np.diag(p**2 - np.diagonal(b)) - 2 * outer * b + b**2)
    if data.beta is None:
        hessian += 0.5 * outer**2 / data.num_rows
    values, vectors = eigh(hessian)
    size = np.maximum(np.abs(values), 1e-12)
    step = vectors @ ((vectors.T @ state.gradient) / size)
    step *= min(1.0, LARGEST_STEP / np.max(np.abs(step)))
    for _ in range(30):
        g = state.g.copy()
        g[living] *= np.exp(step)
        trial = evaluate(data, g)
        if trial.log_evidence >= state.log_evidence - _rounding(state):
            return trial
        step /= 2
    return state


def _rounding(state: State) -> float:
    return 1e-14 * (1 + abs(state.log_evidence))
