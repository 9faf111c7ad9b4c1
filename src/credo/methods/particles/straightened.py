"""The Gaussian along a curve: what the draws of a ridge that bends are like, where a Gaussian is not.

With t = (u_l − m_l) / s_l for one coordinate l, the leader, least squares give every other u_i ≈ a_i + b_i t + c_i t².
v = u − c t² is straight: a Gaussian with its moments, bent back by u = v + c t², is a law of volume |cov v|^½ (twisting
has determinant 1; Haario, Saksman & Tamminen 1999), and the best leader is the one that leaves the least of it.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from credo.linalg.dense import Dense
from credo.linalg.operator import Stored
from credo.posterior.flow.layer import Image, Layer
from credo.posterior.kinds import Flow, Gaussian

FEWEST = 100  # draws
ENOUGH = 2.0  # times less volume than that of a Gaussian: of less a Gaussian tells as much


class Bend(Layer):
    """u = z + c (e·z)², with e·c = 0."""

    leader: Float[Stored, " dim"]
    shift: Float[Stored, " dim"]

    def forward(self, z) -> Image:
        return z + self.shift * jnp.dot(self.leader, z) ** 2, jnp.zeros((), z.dtype)

    def inverse(self, u) -> Image:
        return u - self.shift * jnp.dot(self.leader, u) ** 2, jnp.zeros((), u.dtype)


def straightened(u: Float[np.ndarray, "draw dim"]) -> Flow | None:
    """The law of draws that lie along a curve; None where a Gaussian is as narrow, or a covariance is singular."""
    draws = np.asarray(u, np.float64)
    if len(draws) < FEWEST or not np.all(np.isfinite(draws)) or np.any(np.ptp(draws, axis=0) == 0):
        return None
    try:
        return _best(draws, u.dtype)
    except np.linalg.LinAlgError:
        return None


def _best(draws: Float[np.ndarray, "draw dim"], dtype) -> Flow | None:
    best, found = _log_volume(draws) - np.log(ENOUGH), None
    for leader in range(draws.shape[1]):
        t = (draws[:, leader] - draws[:, leader].mean()) / draws[:, leader].std()
        c = np.linalg.lstsq(np.stack([np.ones(len(t)), t, t**2], axis=1), draws, rcond=None)[0][2]
        c[leader] = 0.0
        volume = _log_volume(v := draws - t[:, None] ** 2 * c)
        if volume < best:
            best, found = volume, (leader, c, v)
    if found is None:
        return None
    leader, c, v = found
    lower = np.linalg.cholesky(np.cov(v, rowvar=False))
    e = lower[leader] / np.linalg.norm(lower[leader])
    bend = Bend(e.astype(dtype), np.linalg.solve(lower, c).astype(dtype))
    return Flow((bend,), Gaussian(v.mean(axis=0).astype(dtype), Dense(lower.astype(dtype))))


def _log_volume(u: Float[np.ndarray, "draw dim"]) -> float:
    """−inf of draws that lie in a plane: nothing is narrower."""
    sign, log_det = np.linalg.slogdet(np.cov(u, rowvar=False).reshape(u.shape[1], u.shape[1]))
    return 0.5 * log_det if sign > 0 else -np.inf
