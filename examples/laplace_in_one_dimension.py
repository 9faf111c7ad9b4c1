"""Laplace's approximation beside the exact posterior, for one probability and more and more data.

Three of four tosses are heads; the same result is then seen 4, 16 and 64 times over. The probability has a uniform
prior. Laplace puts a Gaussian at the mode of the log-odds, which the left picture shows carried back to the
probability: it leans left of the exact posterior at four tosses and lies on it at 256. The right picture says how fast
it gets there: the error of its log evidence falls as 1/N (Kass & Raftery, 1995).
"""

import sys
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import credo

TOSSES = np.array([1, 1, 1, 0])
p = np.linspace(0.002, 0.998, 500)

model = credo.Model({"p": dist.Beta(1.0, 1.0)}, lambda params, x: dist.Bernoulli(params["p"]))
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
sizes, errors = [], []

for colour, times in zip(("C0", "C1", "C2", "C3"), (1, 4, 16, 64), strict=True):
    target = model.given(y=TOSSES, weights=np.full(4, times))
    exact = credo.fit(target, credo.Grid(), progress=False)
    laplace = credo.fit(target, credo.Laplace(), progress=False)
    error = laplace.log_evidence.value - exact.log_evidence.value
    print(
        f"N = {4 * times:3}: exact {exact.mean()['p']:.4f} ± {exact.sd()['p']:.4f}, "
        f"Laplace {laplace.mean()['p']:.4f} ± {laplace.sd()['p']:.4f}, error of log evidence {error:+.5f}"
    )
    # the density of p: that of its log-odds, where targets live, times their slope
    log_joint = jax.vmap(target.log_density)({"p": np.log(p) - np.log1p(-p)})
    density = np.exp(log_joint - exact.log_evidence.value) / (p * (1 - p))
    left.plot(p, density, color=colour, label=f"{4 * times} tosses")
    left.plot(p, np.exp(laplace.log_prob({"p": p})), color=colour, linestyle="--")
    sizes.append(4 * times)
    errors.append(abs(error))

left.plot([], [], color="grey", label="exact")
left.plot([], [], color="grey", linestyle="--", label="Laplace")
left.set(xlabel="probability of heads", ylabel="posterior density", xlim=(0, 1), ylim=(0, None))
left.legend(frameon=False, loc="upper left")
right.loglog(sizes, errors, "o-", color="black", label="|error of the log evidence|")
right.loglog(sizes, errors[-1] * sizes[-1] / np.array(sizes), color="grey", linestyle=":", label="1/N")
right.set(xlabel="number of tosses N", ylabel="nats", xticks=sizes, xticklabels=sizes)
right.minorticks_off()
right.legend(frameon=False)

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "laplace_in_one_dimension.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
print(f"Fourfold data divide the error of the log evidence by {errors[-2] / errors[-1]:.2f}.")
