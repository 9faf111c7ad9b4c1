"""The closed form of a matching step (Cai et al. 2024, equations 9 to 14), whitened by the q that drew the batch.

Draws u_b = μ + S ε_b of q = N(μ, S Sᵀ) have scores g_b = ∇ log p(u_b) and, whitened, γ_b = Sᵀ g_b. The Gaussian
N(μ + S m, S X Sᵀ) that minimises  λ Σ_b w_b |score of the target − its own|²_Σ / 2 + KL(q ‖ ·)  solves

    X U X + X = V,   U = λ Γ + ρ γ̄ γ̄ᵀ,   V = I + λ C + ρ ε̄ ε̄ᵀ,   m = ρ (X γ̄ + ε̄),   ρ = λ/(1 + λ)

with ε̄, C and γ̄, Γ the means and covariances of the batch by weights w of sum one (1/B in the paper). U = W Wᵀ has no
more columns than the batch draws. With X = V − V W H Wᵀ V and G = Wᵀ V W, the equation becomes one in the eigenvalues
of G alone,

    h = 4 / (1 + (1 + 4 g)^½)²

(put R = V^½ X' V^½: X' = 2 (I + (I + 4 V^½ U V^½)^½)⁻¹, and 2/(1 + s) = 1 − g h for s² = 1 + 4 g.) So X is symmetric,
and positive in exact arithmetic; the subtraction loses half the digits of g at most. With V = I + A Aᵀ everything here
costs dim × (batch)², and X stays in factors, X = I + A Aᵀ − T Tᵀ, T = V W Q h^½.

Where log p is quadratic, γ is affine in ε with a symmetric matrix, so that the whitened products ε_a·γ_b − ε_b·γ_a of
deviations from the mean of the batch vanish, wherever q is. Else, for ε_a, ε_b independent, their mean square is twice

    r² = E|γ + K ε − c|²,   K = −E[γ εᵀ] = −E[∇γ], symmetric by Stein's identity,

what no Gaussian's score explains of the target's: the noise of a step, known without knowing the optimum.

A scale's scores grow exponentially in its tail, and one draw there would decide a step by itself. As in a fit of a t,
w_b ∝ 1/(1 + |γ_b + ε_b|²/(3 d)): alike for all draws about the optimum of a near-Gaussian, where |γ_b + ε_b|² ≪ d, and
without a say in the answer where log p is quadratic, since any weights agree there.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

HEAVY = 3.0  # times d: of |γ + ε|² where a draw counts by half


class Match(NamedTuple):
    """The Gaussian N(m, I + A Aᵀ − T Tᵀ) in whitened coordinates: ``mean`` m, ``widened`` A, ``narrowed`` T."""

    mean: Float[Array, " dim"]
    widened: Float[Array, "dim columns"]
    narrowed: Float[Array, "dim columns"]

    def covariance(self) -> Float[Array, "dim dim"]:
        """X."""
        A, T = self.widened, self.narrowed
        return jnp.eye(A.shape[0], dtype=A.dtype) + jnp.matmul(A, A.T) - jnp.matmul(T, T.T)

    def excess(self) -> Float[Array, " dim"]:
        """diag X − 1."""
        return jnp.sum(jnp.square(self.widened) - jnp.square(self.narrowed), axis=1)


def match(
    noise: Float[Array, "B dim"], scores: Float[Array, "B dim"], weights: Float[Array, " B"], rate: Float[Array, ""]
) -> Match:
    """The step of rate λ that noise ε and whitened scores γ ask for, each draw by its weight."""
    share = rate / (1 + rate)
    mean_noise, mean_score = jnp.matmul(weights, noise), jnp.matmul(weights, scores)
    A = _columns(noise, mean_noise, weights, rate, share)
    W = _columns(scores, mean_score, weights, rate, share)
    VW = W + jnp.matmul(A, jnp.matmul(A.T, W))
    g, Q = jnp.linalg.eigh(jnp.matmul(W.T, VW))
    T = jnp.matmul(VW, Q) * (2 / (1 + jnp.sqrt(1 + 4 * jnp.maximum(g, 0.0))))
    pulled = mean_score + jnp.matmul(A, jnp.matmul(A.T, mean_score)) - jnp.matmul(T, jnp.matmul(T.T, mean_score))
    return Match(share * (pulled + mean_noise), A, T)


def weights(noise: Float[Array, "B dim"], scores: Float[Array, "B dim"]) -> Float[Array, " B"]:
    """w, of sum one."""
    w = 1 / (1 + jnp.sum(jnp.square(scores + noise), axis=1) / (HEAVY * noise.shape[1]))
    return w / jnp.sum(w)


def inconsistency(noise: Float[Array, "B dim"], scores: Float[Array, "B dim"]) -> Float[Array, ""]:
    """r²: unbiased but for the mean that the batch itself estimates."""
    B = noise.shape[0]
    products = jnp.matmul(noise - jnp.mean(noise, axis=0), (scores - jnp.mean(scores, axis=0)).T)
    return jnp.sum(jnp.square(products - products.T)) / (2 * (B - 1) ** 2)


def _columns(values, mean, weights, rate, share):
    """Columns whose products sum to λ times the batch's covariance and ρ times the square of its mean."""
    deviations = jnp.sqrt(rate * weights)[:, None] * (values - mean)
    return jnp.concatenate([deviations, (jnp.sqrt(share) * mean)[None]]).T
