"""Bridge sampling between particles of the target and a Gaussian (Meng & Wong 1996): the evidence from its other end.

With l = log p(u, D) − log q(u) at n_p particles of the target and n_q draws of q, s_p and s_q their shares of all,

    Z = mean_q [e^l / (s_p e^l + s_q Z)] / mean_p [1 / (s_p e^l + s_q Z)]

solved by iteration. Both means are of bounded terms, so that no tail weighs; nothing of the path is in it. The islands
are three parts in a ring, and q fitted to each serves the one before. Where p is Gaussian, the particles' error is
ε_i · ε_j, of the moments of both parts: the same twice for two that serve each other, uncorrelated round a ring of
three. Error: of the particles' mean by the spread of the islands within parts, K − 3 degrees of freedom in all.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.particles.mutation import Particles
from credo.methods.particles.tempering import Population, scale_of
from credo.posterior.marginals import student_variance
from credo.status import Estimate

SETTLED, MOST_ROUNDS = 1e-8, 1_000
PARTS = 3


def bridge(
    population: Population,
    log_shares: Float[np.ndarray, " K"],
    evaluate: Callable[[np.ndarray], Particles],
    generator: np.random.Generator,
) -> Estimate:
    """log p(D) from particles of the target in six islands or more, which count by ``log_shares``; NaN where a part of
    them counts for nothing, or no draw of the Gaussian meets the target.

    ``evaluate(u)``: positions (K, n, dim) as particles.
    """
    position = np.asarray(population.position, np.float64)
    num_islands, size, dim = position.shape
    drawn = generator.normal(size=position.shape)  # white at first
    squares_of_draws = np.sum(drawn**2, axis=-1)
    shares = np.exp(log_shares - logsumexp(log_shares))
    parts = [np.arange(num_islands) % PARTS == part for part in range(PARTS)]
    if not all(np.sum(shares[part]) > 0 for part in parts):
        return Estimate(np.nan, np.nan, "monte carlo")
    squares, log_dets = np.empty((num_islands, size)), np.empty(num_islands)
    for here, other in zip(parts, parts[1:] + parts[:1], strict=True):
        weights = np.repeat(shares[other, None] / np.sum(shares[other]) / size, size, axis=1)
        mean = np.tensordot(weights, position[other], axes=2)
        scale = scale_of(position[other], weights)
        away = position[here] - mean
        if isinstance(scale, Dense):
            S = np.asarray(scale.lower, np.float64)
            drawn[here] = mean + drawn[here] @ S.T
            squares[here] = np.sum(solve_triangular(S, away.reshape(-1, dim).T, lower=True) ** 2, axis=0).reshape(
                -1, size
            )
        else:
            assert isinstance(scale, Diagonal)
            drawn[here] = mean + drawn[here] * scale.scale
            squares[here] = np.sum((away / scale.scale) ** 2, axis=-1)
        log_dets[here] = float(scale.log_det())

    def ratio(particles: Particles, squares: np.ndarray) -> np.ndarray:
        log_q = -0.5 * squares - log_dets[:, None] - 0.5 * dim * np.log(2 * np.pi)
        value = np.asarray(particles.log_base, np.float64) + np.asarray(particles.gain, np.float64)
        return np.where(np.isfinite(value), value, -np.inf) - log_q

    of_particles = ratio(population, squares)
    of_draws = ratio(evaluate(drawn.astype(population.position.dtype, copy=False)), squares_of_draws)
    with np.errstate(all="ignore"):  # nothing in common: no numbers
        found = [_solve(of_particles[part], shares[part], of_draws[part]) for part in parts]
    values, of_p, of_q = np.array(found).T
    of_p = of_p * np.sqrt(student_variance(num_islands - PARTS))
    return Estimate(float(np.mean(values)), float(np.linalg.norm([of_p, of_q]) / PARTS), "monte carlo")


def _solve(of_particles, shares, of_draws) -> tuple[float, float, float]:
    """log Z and its standard errors by particles and by draws, from l of both; the first (K, n), by islands that count
    by ``shares``.
    """
    shares = shares / np.sum(shares)
    log_z = float(np.max(of_draws))
    for _ in range(MOST_ROUNDS):
        above, below = _terms(of_draws, log_z), _terms(of_particles, log_z, is_inverse=True)
        step = float(np.log(np.mean(above)) - np.log(shares @ np.mean(below, axis=1)))
        log_z += step
        if not abs(step) > SETTLED:
            break
    above, below = _terms(of_draws, log_z), np.mean(_terms(of_particles, log_z, is_inverse=True), axis=1)
    of_q = np.std(above) / np.sqrt(above.size) / np.mean(above)
    mean = shares @ below
    of_p = np.sqrt(np.sum((shares * (below - mean)) ** 2) * len(shares) / (len(shares) - 1)) / mean
    return log_z, float(of_p), float(of_q)


def _terms(ratios, log_z: float, *, is_inverse: bool = False):
    """2 e^l / (e^l + Z), or 2 Z / (e^l + Z): there are as many draws as particles."""
    difference = np.clip(ratios - log_z, -700, 700)
    return 2 / (1 + np.exp(difference if is_inverse else -difference))
