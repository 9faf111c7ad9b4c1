"""Why Laplace predicts by a linearised network: draws of the weights underfit where the linearised network does not.

One hidden layer of ten units is trained on a sine with a gap in the data; noise and prior precision are tuned by the
evidence. The Gaussian around the mode is the exact posterior of the network linearised there, and its predictions
widen in the gap. Draws of the same Gaussian, put through the network itself, are in regions where no curvature was
looked at: many miss the data, and the log likelihood of held-out rows says by how much.
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import credo

NOISE, UNITS = 0.1, 10
random = np.random.default_rng(1)


def data(number):
    x = np.concatenate([random.uniform(-3, -1, number), random.uniform(1, 3, number)])[:, None]
    return x, np.sin(2 * x[:, 0]) + NOISE * random.normal(size=len(x))


def apply(params, x):
    return jnp.tanh(x @ params["in"]["w"] + params["in"]["b"]) @ params["out"]


params = {
    "in": {"w": random.normal(size=(1, UNITS)), "b": random.normal(size=UNITS)},
    "out": random.normal(size=UNITS) / np.sqrt(UNITS),
}
network = credo.nn.BayesianNetwork(
    apply, params, head=credo.nn.Gaussian(), prior=credo.nn.Isotropic(dist.LogNormal(0.0, 2.0))
)
(x, y), (x_new, y_new) = data(30), data(500)
posterior = credo.fit(network.given(x, y), credo.Laplace(), progress=False)
mean = posterior.mean()
print(f"Verdict: {posterior.verdict.status}. Noise {mean['noise']:.2f} (the truth is {NOISE}).")

rules = {"linearised": credo.Linearised(), "draws of the weights": credo.MonteCarlo(500)}
grid = np.linspace(-4, 4, 200)[:, None]
figure, panels = plt.subplots(1, 2, figsize=(10.5, 3.8), sharey=True, layout="constrained")
for axes, (name, rule) in zip(panels, rules.items(), strict=True):
    score = posterior.predict(x_new, rule).log_prob(y_new).mean()
    print(f"Held-out log likelihood a row, {name}: {score:.2f}")
    predictive = posterior.predict(grid, rule)
    middle, sd = predictive.mean, np.sqrt(predictive.variance)
    axes.fill_between(grid[:, 0], middle - 2 * sd, middle + 2 * sd, alpha=0.25, linewidth=0, label="mean ± 2 sd")
    axes.plot(grid[:, 0], middle)
    axes.plot(x[:, 0], y, "k.", markersize=4)
    axes.set(title=f"{name}: {score:.2f} nats a row", ylim=(-3.5, 3.5), xlabel="x")
panels[0].legend(frameon=False, loc="upper left")

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "laplace_predictions.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
