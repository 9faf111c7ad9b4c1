"""One small network, ten posteriors: what each of them knows where there are no data.

y = sin 3x + 0.3 x plus noise of sd 0.1, seen on two stretches of x; the network has 12 tanh units in one layer and its
noise is known. Bands are two standard deviations of y. In the gap and beyond the data the right answer is that of long
chains (NUTS, bottom right). The table compares the others with it in the gap, and gives the log density of new outcomes
where there were data: some are sure of what nobody saw, others underfit what was seen.
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import credo
from credo.laplace import LastLayer

UNITS, NOISE = 12, 0.1
rng = np.random.default_rng(0)


def truth(x):
    return np.sin(3 * x) + 0.3 * x


def draw(n):
    x = np.concatenate([rng.uniform(-2.2, -0.8, n // 2), rng.uniform(0.5, 2.0, n - n // 2)])
    return x[:, None], truth(x) + NOISE * rng.normal(size=n)


def apply(w, x):
    return jnp.tanh(x @ w["in"]["w"] + w["in"]["b"]) @ w["out"]["w"] + w["out"]["b"]


start = {
    "in": {"w": rng.normal(size=(1, UNITS)), "b": rng.normal(size=UNITS)},
    "out": {"w": rng.normal(size=UNITS) / np.sqrt(UNITS), "b": np.zeros(())},
}
x, y = draw(60)
x_new, y_new = draw(400)
network = credo.nn.BayesianNetwork(apply, start, head=credo.nn.Gaussian(NOISE))
target = network.given(x, y)
ensemble = credo.fit(target, credo.DeepEnsemble(members=5), key=0, progress=False)
METHODS = {
    "MAP": credo.MAP(),
    "Laplace, last layer": credo.Laplace(subset=LastLayer()),
    "Laplace": credo.Laplace(),
    "mean-field ADVI": credo.ADVI(),
    "variational last layer": credo.VBLL(),
    "MC dropout": credo.MCDropout(),
    "SWAG": credo.SWAG(batch_size=15),
    "deep ensemble": None,
    "SGHMC": credo.SGHMC(batch_size=None),
    "NUTS from the ensemble": credo.NUTS(num_draws=250),
}

line = np.linspace(-3.5, 3.5, 141)[:, None]
bands = {}
for name, method in METHODS.items():
    begin = ensemble if name.startswith("NUTS") else None
    posterior = ensemble if method is None else credo.fit(target, method, key=1, start=begin, progress=False)
    predictive = posterior.predict(line)
    score = np.mean(posterior.predict(x_new).log_prob(y_new))
    bands[name] = predictive.mean, np.sqrt(predictive.variance), score, posterior.verdict.status

reference_mean, reference_sd, *_ = bands["NUTS from the ensemble"]
gap = (line[:, 0] > -0.6) & (line[:, 0] < 0.3)
print(f"{'':24}{'sd in the gap':>14}{'mean off, sd':>14}{'log density':>13}  verdict")
for name, (mean, sd, score, status) in bands.items():
    off = np.sqrt(np.mean(((mean - reference_mean) / reference_sd)[gap] ** 2))
    print(f"{name:24}{sd[gap].mean():14.2f}{off:14.2f}{score:13.3f}  {status}")

figure, panels = plt.subplots(2, 5, figsize=(15, 6), sharex=True, sharey=True, layout="constrained")
for axes, (name, (mean, sd, *_)) in zip(panels.flat, bands.items(), strict=True):
    axes.fill_between(line[:, 0], mean - 2 * sd, mean + 2 * sd, color="C0", alpha=0.25, linewidth=0)
    axes.plot(line[:, 0], mean, "C0", line[:, 0], truth(line[:, 0]), "k:", linewidth=1)
    axes.plot(x[:, 0], y, "k.", markersize=3)
    axes.set(title=name, ylim=(-3.5, 3.5))
path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "toy_regression.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=110)
