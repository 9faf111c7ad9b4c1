"""What a deterministic fit says beside its optimum ξ̂ = (a, C): covariances by linear response, and its own error.

*Linear response* (Giordano, Broderick & Jordan 2018, theorem 1). The mean of u under the fit to p(u, D) exp(tᵀu) moves
with t as the posterior's mean does, which moves by its covariance. With A = −∇²F at ξ̂ and J = ∂E[u]/∂ξ = (S, 0),

    Σ̂ = d E[u] / dt = J A⁻¹ Jᵀ

is exact on a Gaussian posterior, whatever the family has for variances: mean-field's are 1/Λ_ii there, Σ̂ is Λ⁻¹.

*Error of the fixed draws* (Giordano, Ingram & Broderick 2024, section 3.3). Other draws would have moved ξ̂ by the
covariance A⁻¹VA⁻¹/P, V that of the gradient of F over P pairs of draws. Whitened draws average quadratics in z exactly,
so that these may be taken from the gradient before its spread is known, with any weight. With g the gradient of log p
in v = a + C z, and by Stein's lemma, the quadratics nearest to what a pair gives are
    of g:    ½ Σ_ij M_ij (z_i z_j − δ_ij),  M_ij = E[z_i ∂g/∂z_j], symmetrised
    of g zᵀ: −Ā C (z zᵀ − I),               Ā = A_aa, the mean curvature
Draws that are whitened coordinate by coordinate average the terms in z_i² alone. A weight that fits badly adds spread:
of the errors with and without, both of which are upper bounds then, the smaller counts. To second order the ELBO of ξ̂
lacks ½ tr(A · A⁻¹VA⁻¹)/P = ½ tr(A⁻¹V)/P of the family's best.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

from credo.methods.optimise.newton import Optimum
from credo.methods.vi.deterministic.draws import has_unit_squares, is_quadrature
from credo.methods.vi.deterministic.gaussian import FixedDraws


class Response(NamedTuple):
    """``covariance``: Σ̂ (dim, dim). ``error_of_mean``, ``error_of_log_sd`` (dim,): standard errors of the family's
    mean and log sd of each coordinate. ``loss``: nats. NaN where F has no maximum at the point."""

    covariance: Float[np.ndarray, "dim dim"]
    error_of_mean: Float[np.ndarray, " dim"]
    error_of_log_sd: Float[np.ndarray, " dim"]
    loss: float


def respond(draws: FixedDraws, objective, args, optimum: Optimum) -> Response:
    """``objective(args, u)``: log p."""
    coordinates, S = draws.coordinates, draws.coordinates.root
    dim, A = len(coordinates.mean), optimum.curvature
    assert A is not None
    unknown = np.full(dim, np.nan)
    try:
        factor = scipy.linalg.cho_factor(A, lower=True)
    except (scipy.linalg.LinAlgError, ValueError):  # a saddle, or no numbers
        return Response(np.full((dim, dim), np.nan), unknown, unknown, np.nan)
    J = np.zeros((len(A), dim))
    J[:dim] = S.T
    covariance = J.T @ scipy.linalg.cho_solve(factor, J)
    moments = _moments(draws, optimum)
    each, taken = _gradients(draws, objective, args, optimum)
    if len(each) < 2:
        return Response(covariance, unknown, unknown, np.nan)
    rests = each, each - taken
    moves = [scipy.linalg.cho_solve(factor, rest.T).T for rest in rests]
    error = np.minimum(*(_spread(moments(move)) for move in moves))
    loss = min(_loss(move, rest) for move, rest in zip(moves, rests, strict=True))
    return Response(covariance, error[:dim], error[dim:], loss)


def _spread(moves: Float[np.ndarray, "P n"]) -> Float[np.ndarray, " n"]:
    """The standard error of a mean of pairs."""
    return np.std(moves, axis=0, ddof=1) / np.sqrt(len(moves))


def _loss(moves: Float[np.ndarray, "P n"], gradients: Float[np.ndarray, "P n"]) -> float:
    """½ tr(A⁻¹V)/P, from A⁻¹g of each pair."""
    num_pairs = len(moves)
    spread = np.sum((moves - moves.mean(axis=0)) * (gradients - gradients.mean(axis=0)))
    return float(0.5 * spread / (num_pairs * (num_pairs - 1)))


def _moments(draws: FixedDraws, optimum: Optimum):
    """How means and log sds (P, 2 dim) change along moves (P, n) of the optimum."""
    S, coordinates = draws.coordinates.root, draws.coordinates
    dim = len(S)
    T = S @ coordinates.split(optimum.position)[1]
    variances = np.sum(T**2, axis=1)

    def moments(moves):
        of_log_sd = [np.sum(T * (S @ coordinates.split(move)[1]), axis=1) / variances for move in moves]
        return np.concatenate([moves[:, :dim] @ S.T, of_log_sd], axis=1)

    return moments


def _gradients(draws: FixedDraws, objective, args, optimum: Optimum) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of F on each pair, (P, n), and what of it the draws average exactly: zeros if not whitened."""
    z, coordinates, A = draws.noise, draws.coordinates, optimum.curvature
    dim, num_pairs = z.shape[1], len(z) // 2
    C = coordinates.split(optimum.position)[1]
    at = draws.derivatives(objective, args, optimum.position, with_hessians=True)
    each = np.concatenate([at.gradients, draws.by_entries(at.gradients)], axis=1)
    each = 0.5 * (each[:num_pairs] + each[num_pairs:])
    assert A is not None
    assert at.hessians is not None
    H, curvature, half = at.hessians, A[:dim, :dim] @ C, z[:num_pairs]
    if is_quadrature(z):
        of_g = np.empty((num_pairs, dim))
        for a in range(dim):
            M = z.T @ H[:, a] @ C / len(z)  # E[z_i ∂g_a/∂z_j] = Σ_l E[z_i H_al] C_lj; zᵀMz is that of ½(M + Mᵀ)
            of_g[:, a] = 0.5 * (np.sum(half @ M * half, axis=1) - np.trace(M))
        rows, columns = coordinates.rows, coordinates.columns
        products = curvature[rows, columns] - (half @ curvature.T)[:, rows] * half[:, columns]
        return each, np.concatenate([of_g, products], axis=1)
    if coordinates.is_diagonal and has_unit_squares(z):  # the terms in z_i² alone
        squares = np.square(half) - 1
        M = np.einsum("kai,ki->ai", H, z) * np.diagonal(C) / len(z)
        return each, np.concatenate([0.5 * squares @ M.T, -np.diagonal(curvature) * squares], axis=1)
    return each, np.zeros_like(each)
