"""A regression with parameters that must be positive: full-rank ADVI beside NUTS, in the user's own units.

Progress of diabetes in 442 patients (scikit-learn's table). Body mass, blood pressure and three blood measurements are
believed to do harm or nothing: their weights are positive, and so is the noise. Both methods work with the logarithms;
what they report are weights. Where the data leave a weight near zero its posterior leans against the edge, and a
Gaussian of the logarithm has another shape than it: there ADVI and NUTS part, and the verdict of ADVI says so.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from sklearn.datasets import load_diabetes

import credo

HARMFUL, OTHER = ["bmi", "bp", "s4", "s5", "s6"], ["age", "sex"]
table = load_diabetes(as_frame=True)
features = table.data / table.data.std(ddof=0)
y = table.target.to_numpy(float)


def likelihood(params, x):
    mean = params["intercept"] + x["harmful"] @ params["harm"] + x["other"] @ params["effect"]
    return dist.Normal(mean, params["noise"])


model = credo.Model(
    {
        "intercept": dist.Normal(150.0, 50.0),
        "harm": dist.HalfNormal(30.0).expand([len(HARMFUL)]),
        "effect": dist.Normal(0.0, 30.0).expand([len(OTHER)]),
        "noise": dist.HalfNormal(100.0),
    },
    likelihood,
)
target = model.given({"harmful": features[HARMFUL].to_numpy(), "other": features[OTHER].to_numpy()}, y)
nuts = credo.fit(target, credo.NUTS(), key=1, progress=False)
advi = credo.fit(target, credo.ADVI(family=credo.vi.FullRank()), key=1, progress=False)
print(f"NUTS: {nuts.verdict.status}, {nuts.info['num_gradients']:,} gradients.")
print(f"Full-rank ADVI: {advi.verdict.status}, {advi.info['num_gradients']:,} gradients.")
print("parameter  NUTS mean    sd   ADVI mean    sd")
rows = [("noise", lambda stat: float(stat["noise"]))]
rows += [(name, lambda stat, i=i: float(stat["harm"][i])) for i, name in enumerate(HARMFUL)]
for name, pick in rows:
    figures = [pick(stat) for fit in (nuts, advi) for stat in (fit.mean(), fit.sd())]
    print(f"{name:9} {figures[0]:10.2f} {figures[1]:5.2f} {figures[2]:11.2f} {figures[3]:5.2f}")
lowest = float(advi.quantile(0.001)["harm"].min())
print(f"No weight of ADVI is negative: the lowest of their 0.1 % quantiles is {lowest:.3f}.")

figure, panels = plt.subplots(1, len(HARMFUL), figsize=(13, 2.8), layout="constrained")
grid = np.linspace(0.0, 1.0, 60)
for i, (name, axes) in enumerate(zip(HARMFUL, panels, strict=True)):
    drawn = [fit.sample(key, 8_000)["harm"][:, i] for key, fit in enumerate((nuts, advi))]
    bins = grid * max(np.quantile(each, 0.999) for each in drawn)
    axes.hist(drawn[0], bins, density=True, color="lightgrey", label="NUTS")
    axes.hist(drawn[1], bins, density=True, histtype="step", color="C1", linewidth=1.5, label="full-rank ADVI")
    axes.set(title=name, xlabel="weight", yticks=[])
panels[0].legend(frameon=False)

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "positive_weights.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
