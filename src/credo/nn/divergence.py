"""Divergence KL(N(μ, σ²) ‖ p) of a weight from its prior p, in nats.

For p = N(0, s²): ½ ((μ² + σ²)/s² − 1 − log(σ²/s²)).
For the log-uniform prior, p(w) ∝ 1/|w|, it is known up to a constant (Kingma, Salimans & Welling 2015), which is chosen
so that it vanishes as α = σ²/μ² grows. With t² = μ²/2σ² = 1/2α and w = σ(√2 t + ε), it is

    E log|√2 t + ε| − E log|ε| = G(t) = ∫₀ᵗ 2 D(s) ds = ∫₀¹ (1 − exp(−t² (1 − r²))) / (1 − r²) dr

with Dawson's function D, from t² for small t to log 2t + γ/2 for large. Here G is ½ log(1 + 4 e^γ t²), which has both
limits, and a polynomial of degree 20 in t²/(1.5 + t²): within 4e-7 nats everywhere. The formula of three constants of
Molchanov, Ashukha & Vetrov (2017, eq. 14) is up to 0.0094 nats off.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

SCALE = 1.5
CHEBYSHEV = (
    -1.45094354e-01, 8.86314590e-02, 1.21805682e-01, -8.13001399e-02, 1.71744056e-02, -5.00936620e-03,
    5.43020915e-03, -1.67435782e-03, 4.49389161e-04, -5.76028158e-04, 1.49203770e-04, -5.18377264e-05,
    7.54024177e-05, -7.52689525e-06, 9.82929192e-06, -9.77718875e-06, -1.14464452e-06, -2.72718423e-06,
    6.93870587e-07, 2.66287340e-07, 6.73484149e-07,
)  # fmt: skip
LARGEST = 1e30  # of t², so that its square is a number in single precision's range of exponents


def normal_divergence(mean, log_sd, prior_sd: float) -> Float[Array, "..."]:
    """KL(N(mean, sd²) ‖ N(0, prior_sd²)), entry by entry."""
    precision = prior_sd**-2
    return 0.5 * ((jnp.square(mean) + jnp.exp(2 * log_sd)) * precision - 1) - log_sd + float(np.log(prior_sd))


def log_uniform_divergence(mean, log_sd) -> Float[Array, "..."]:
    """KL(N(mean, sd²) ‖ p) for p(w) ∝ 1/|w|, entry by entry: 0 for mean 0."""
    square = jnp.minimum(0.5 * jnp.square(mean) * jnp.exp(-2 * log_sd), LARGEST)
    z = 2 * square / (SCALE + square) - 1
    later = last = jnp.zeros_like(z)
    for coefficient in CHEBYSHEV[:0:-1]:  # Clenshaw (1955)
        later, last = last, 2 * z * last - later + coefficient
    return 0.5 * jnp.log1p(4 * np.exp(np.euler_gamma).item() * square) + z * last - later + CHEBYSHEV[0]
