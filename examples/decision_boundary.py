"""What averaging over the weights does to a decision: logistic regression in two dimensions, with dear misses.

A missed case costs five times a false alarm, so one acts where p > 1/6 (black line; dashed: p = ½). With one set of
weights, the mode, both lines are straight, and far from the data p is surer than near them. Averaging over the weights
bends the line where there are few data: p moves towards ½ there, and to act is the cheaper mistake. NUTS says how far.
Laplace goes too far: its symmetric Gaussian believes in flatter slopes than the skewed posterior does.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import credo
from credo.decisions import CostMatrix

COSTS = CostMatrix.binary(false_positive=1.0, false_negative=5.0)
SIDE = 81


def likelihood(params, x):
    return dist.Bernoulli(logits=params["intercept"] + x @ params["weights"])


rng = np.random.default_rng(4)
healthy, ill = rng.normal([-1.2, -0.8], 0.9, (14, 2)), rng.normal([1.2, 0.8], 0.9, (10, 2))
x, y = np.concatenate([healthy, ill]), np.repeat([0, 1], [14, 10])
model = credo.Model(
    {"intercept": dist.Normal(0.0, 3.0), "weights": dist.Normal(0.0, 3.0).expand([2])},
    likelihood,
)
fits = {
    "plug-in (mode)": credo.fit(model.given(x, y), credo.MAP(), progress=False),
    "Laplace": credo.fit(model.given(x, y), credo.Laplace(), progress=False),
    "NUTS": credo.fit(model.given(x, y), credo.NUTS(), key=1, progress=False),
}
line = np.linspace(-6.0, 6.0, SIDE)
plane = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)

figure, panels = plt.subplots(1, 3, figsize=(12.5, 4.2), sharey=True, layout="constrained")
plug_in = None
for (name, fit), axes in zip(fits.items(), panels, strict=True):
    predictive = fit.predict(plane, credo.MonteCarlo(1_000))
    decision = credo.decide(predictive, COSTS)
    plug_in = decision.action if plug_in is None else plug_in
    never, always = (credo.decide(predictive, COSTS, [action]).expected_loss for action in (0, 1))
    print(
        f"{name:15} acts on {np.mean(decision.action):.3f} of the plane, unlike the mode on "
        f"{np.mean(decision.action != plug_in):.3f}; mean expected cost {np.mean(decision.expected_loss):.3f}"
    )
    p = predictive.probs.reshape(SIDE, SIDE)
    shades = axes.contourf(line, line, p, np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.75)
    axes.contour(line, line, p, [0.5], colors="black", linestyles="--", linewidths=0.8)
    axes.contour(line, line, (never - always).reshape(SIDE, SIDE), [0.0], colors="black", linewidths=2)
    axes.scatter(*healthy.T, marker="o", color="white", edgecolor="black")
    axes.scatter(*ill.T, marker="^", color="black")
    axes.set(title=f"{name}: acts on {np.mean(decision.action):.0%} of the plane", aspect="equal")
    axes.set_xlabel("first feature")
panels[0].set_ylabel("second feature")
figure.colorbar(shades, ax=panels, label="probability of a case", pad=0.01, aspect=30)

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "decision_boundary.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
