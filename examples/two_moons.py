"""A small network on two moons, its weights by mean-field ADVI: where it is unsure, and why.

Two inputs, two hidden layers of five units, one logit: 51 weights. Left: the probability of a class, averaged over the
weights. Right: how much that probability varies from one draw of the weights to the next. Draws agree on where the
boundary runs between the moons, and disagree on where it leads beyond the data. A network with its units permuted or
mirrored is the same one: of the posterior's many modes ADVI describes one, by independent normals. Its verdict says so.
Some of these modes explain the data worse: of three keys the one of the highest ELBO is taken.
"""

import sys
from itertools import pairwise
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from sklearn.datasets import make_moons

import credo

WIDTHS = (2, 5, 5, 1)
SIDE = 61


def weights(rows, columns):
    return dist.Normal(0.0, 1.5).expand([rows + 1, columns])  # the last row is that of biases


def likelihood(params, x):
    for layer in range(len(WIDTHS) - 1):
        w = params[f"layer_{layer}"]
        x = (jnp.tanh(x) if layer else x) @ w[:-1] + w[-1]
    return dist.BernoulliLogits(x[:, 0])


x, y = make_moons(300, noise=0.25, random_state=0)
x_new, y_new = make_moons(1_000, noise=0.25, random_state=1)
model = credo.Model({f"layer_{i}": weights(*shape) for i, shape in enumerate(pairwise(WIDTHS))}, likelihood)
target = model.given(x, y)
posteriors = [credo.fit(target, credo.ADVI(), key=key, progress=False) for key in (2, 3, 4)]
posterior = max(posteriors, key=lambda posterior: posterior.log_evidence.value)
elbos = ", ".join(f"{posterior.log_evidence.value:.1f}" for posterior in posteriors)
print(f"Verdict of the best: {posterior.verdict.status}. ELBOs {elbos}.")

rule = credo.MonteCarlo(500)
p_new = posterior.predict(x_new, rule).probs
log_loss = -np.mean(np.log(np.where(y_new == 1, p_new, 1 - p_new)))
print(f"Held out: {np.mean((p_new > 0.5) == y_new):.1%} right, log loss {log_loss:.3f}.")

line, height = np.linspace(-2.5, 3.5, SIDE), np.linspace(-2.0, 2.5, SIDE)
plane = np.stack(np.meshgrid(line, height), axis=-1).reshape(-1, 2)
predictive = posterior.predict(plane, rule)
p, spread = predictive.probs, np.sqrt(predictive.epistemic)
is_near = np.min(np.linalg.norm(plane[:, None] - x, axis=-1), axis=1) < 0.3
is_boundary = np.abs(p - 0.5) < 0.2
near, away = spread[is_boundary & is_near].mean(), spread[is_boundary & ~is_near].mean()
print(f"Sd of the probability over draws of the weights, along the boundary: {near:.2f} near data, {away:.2f} away.")

figure, panels = plt.subplots(1, 2, figsize=(10.5, 4), sharey=True, layout="constrained")
for axes, values, colours, title in (
    (panels[0], p, "RdBu_r", "probability of a class"),
    (panels[1], spread, "viridis", "its sd over the weights"),
):
    levels = np.linspace(0, 1, 11) if title.startswith("probability") else 10
    shades = axes.contourf(line, height, values.reshape(SIDE, SIDE), levels, cmap=colours, alpha=0.85)
    axes.contour(line, height, p.reshape(SIDE, SIDE), [0.5], colors="black")
    axes.scatter(*x.T, c=y, cmap="RdBu_r", s=12, edgecolor="black", linewidth=0.4)
    axes.set_title(title)
    figure.colorbar(shades, ax=axes)

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "two_moons.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
