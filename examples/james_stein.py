"""James–Stein beats the maximum-likelihood estimate of ten normal means, wherever they are.

y ~ N(θ, I) in ten dimensions, and the loss is squared. The estimate y itself has risk 10 for every θ. Shrinking by
1 − 8/‖y‖² has less everywhere (James & Stein, 1961): the dots are simulated, the curve under them is exact. A Bayesian
who believes N(0, 4) shrinks by a fixed factor, wins near that belief and loses without bound far from it; James and
Stein let the data choose the factor, as an empirical Bayesian would, and so never lose.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import credo

DIM, NUM_DATA = 10, 20_000
radii = np.linspace(0.0, 10.0, 21)
noise = np.random.default_rng(0).normal(size=(NUM_DATA, DIM))


def james_stein(y):
    return (1 - (DIM - 2) / np.sum(y**2, axis=1, keepdims=True)) * y


def exact_risk(radius):
    """d − (d − 2)² E[1 / (d − 2 + 2K)], K ~ Poisson(‖θ‖²/2): 1/‖y‖² under a noncentral χ²."""
    k = np.arange(400)
    return DIM - (DIM - 2) ** 2 * np.sum(stats.poisson.pmf(k, radius**2 / 2) / (DIM - 2 + 2 * k))


simulated, errors = [], []
for radius in radii:
    theta = np.full(DIM, radius / np.sqrt(DIM))
    losses = np.sum((james_stein(theta + noise) - theta) ** 2, axis=1)
    simulated.append(losses.mean())
    errors.append(losses.std() / np.sqrt(NUM_DATA))
exact = np.array([exact_risk(radius) for radius in radii])

# the posterior mean is linear in y: how far one observation of 1 moves a belief N(0, 4)
factor = credo.exact.NormalKnownVariance(location=0.0, variance=4.0, noise_variance=1.0).update([1.0]).location
bayes = DIM * factor**2 + ((1 - factor) * radii) ** 2

figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
axes.axhline(DIM, color="black", label="maximum likelihood: y")
axes.plot(radii, bayes, color="C2", label=f"Bayes under N(0, 4): {factor:.1f} y")
axes.plot(radii, exact, color="C0", label="James–Stein, exact")
axes.errorbar(radii, simulated, 2 * np.array(errors), fmt="o", color="C0", markersize=4, label="James–Stein, simulated")
axes.set(
    xlabel="distance ‖θ‖ of the truth from 0", ylabel="risk: expected squared error", ylim=(0, 13), xlim=(-0.2, 10.2)
)
axes.legend(frameon=False, loc="lower right")

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "james_stein.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
print(f"Risk at ‖θ‖ = 0: James-Stein {exact[0]:.3f}, maximum likelihood {DIM}, Bayes {bayes[0]:.3f}.")
print(f"Risk at ‖θ‖ = 10: James-Stein {exact[-1]:.3f}, maximum likelihood {DIM}, Bayes {bayes[-1]:.3f}.")
z = np.abs((np.array(simulated) - exact) / errors)
print(f"Simulated risks lie within {z.max():.1f} standard errors of the exact curve.")
