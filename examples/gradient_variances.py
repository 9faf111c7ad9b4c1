"""How noisy are the gradients of variational inference? Five estimators side by side, at two Gaussians q.

Ten means θ_j ~ N(0, 1) have one observation each, and q is a product of normals. Each estimator gives the gradient of
the ELBO in the twenty numbers of q from eight draws; the table shows the sum of their variances over repeats. The score
function asks for values of log p alone and pays for it; the mean of the other draws as a baseline takes most of that
noise off, and Rao-Blackwellisation (a mean needs only the terms that it moves) most of the rest. Gradients along draws
have less again. At the posterior, which q here can be, log p − log q is a constant: baselines and sticking the landing
then leave no noise at all, and the reparameterised gradient keeps that of a score of mean zero.
"""

import sys
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import credo
from credo.precision import double
from credo.vi import ELBO, MeanField, Reparameterised, ScoreFunction, StickingTheLanding

DIM, NOISE, NUM_DRAWS, NUM_REPEATS = 10, 0.5, 8, 2_000
family, objective = MeanField(), ELBO()
estimators = {
    "score function": ScoreFunction(baseline=False, rao_blackwell=False),
    "... leave one out": ScoreFunction(rao_blackwell=False),
    "... and Rao-Blackwell": ScoreFunction(),
    "reparameterised": Reparameterised(),
    "sticking the landing": StickingTheLanding(),
}


def likelihood(params, x):
    return dist.Normal(params["theta"], NOISE)


y = np.random.default_rng(0).normal(size=DIM)
target = credo.Model({"theta": dist.Normal(0.0, 1.0).expand([DIM])}, likelihood).given(y=y).flat()
precision = 1 + NOISE**-2
mean, sd = y * NOISE**-2 / precision, np.full(DIM, precision**-0.5)
places = {"away from it": family.start(mean + 0.5, 1.5 * sd), "at the posterior": family.start(mean, sd)}


def variance(estimator, q):
    known = estimator.prepare(target)

    def gradient(key):
        k_noise, k_batch = jax.random.split(key)
        z = estimator.noise(objective, family, k_noise, NUM_DRAWS, target.dim)
        log_density = estimator.density(target, None, None, k_batch)

        def surrogate(tangent):
            return estimator.surrogate(objective, family, q, tangent, log_density, z, known, NUM_DRAWS)

        return jax.grad(surrogate)(family.rest(q))

    drawn = jax.jit(jax.vmap(gradient))(jax.random.split(jax.random.key(1), NUM_REPEATS))
    return sum(float(np.var(leaf, axis=0).sum()) for leaf in drawn)


with double():
    found = {name: [variance(each, q) for q in places.values()] for name, each in estimators.items()}
print(f"{'variance of the gradient':24} {'away from it':>14} {'at the posterior':>18}")
for name, (away, there) in found.items():
    print(f"{name:24} {away:14.2f} {there:18.4f}")

figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
for k, place in enumerate(places):
    values = [max(row[k], 1e-9) for row in found.values()]
    axes.barh(np.arange(len(found)) + 0.4 * k - 0.2, values, height=0.38, color=f"C{k}", label=f"q {place}", log=True)
axes.set(
    yticks=range(len(found)), yticklabels=found, xlim=(0.1, None), xlabel="variance of the gradient (no bar: none)"
)
axes.invert_yaxis()
axes.legend(frameon=False)

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "gradient_variances.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
