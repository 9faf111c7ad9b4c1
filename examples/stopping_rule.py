"""Nine heads and three tails: the posterior asks what was seen, a p-value asks what else might have been.

One experimenter meant to toss a coin twelve times, another to toss it until the third tail. Both saw the same tosses,
their likelihoods are proportional, and so their posteriors are one: of the two curves on the left only one is to be
seen. The p-value of a fair coin counts results at least as extreme, and which these are depends on when each would
have stopped: the coloured bars weigh 0.073 for one and 0.033 for the other (Lindley & Phillips, 1976).
"""

import sys
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from scipy import stats

import credo

HEADS, TAILS = 9, 3
PLANS = {  # plan -> likelihood of the number of heads, and its distribution if the coin is fair
    "twelve tosses": (
        lambda params, x: dist.Binomial(HEADS + TAILS, params["p"]),
        stats.binom(HEADS + TAILS, 0.5),
    ),
    "until the third tail": (
        lambda params, x: dist.NegativeBinomialProbs(TAILS, params["p"]),
        stats.nbinom(TAILS, 0.5),
    ),
}
p, heads = np.linspace(0.001, 0.999, 400), np.arange(16)
figure, (left, *right) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
styles = ({"color": "C0", "linewidth": 5, "alpha": 0.4}, {"color": "C1", "linestyle": "--"})

for (plan, (likelihood, if_fair)), axes, style in zip(PLANS.items(), right, styles, strict=True):
    target = credo.Model({"p": dist.Beta(1.0, 1.0)}, likelihood).given(y=np.array([HEADS]))
    posterior = credo.fit(target, credo.Grid(), progress=False)
    low, high = posterior.quantile([0.05, 0.95])["p"]
    p_value = if_fair.sf(HEADS - 1)
    print(
        f"{plan:20}: p-value {p_value:.4f}, posterior mean {posterior.mean()['p']:.4f}, 90 % in [{low:.4f}, {high:.4f}]"
    )
    # the density of p: that of its log-odds, where targets live, times their slope
    log_joint = jax.vmap(target.log_density)({"p": np.log(p) - np.log1p(-p)})
    density = np.exp(log_joint - posterior.log_evidence.value) / (p * (1 - p))
    left.plot(p, density, label=plan, **style)
    colours = np.where(heads >= HEADS, style["color"], "lightgrey")
    axes.bar(heads, if_fair.pmf(heads), color=colours)
    axes.set(title=f"{plan}: p = {p_value:.3f}", xlabel="heads, if the coin is fair", xticks=heads[::3], ylim=(0, 0.24))

left.axvline(0.5, color="grey", linewidth=0.8, linestyle=":")
left.set(title="one posterior", xlabel="probability of heads", ylabel="density", xlim=(0, 1), ylim=(0, None))
left.legend(frameon=False, loc="upper left", fontsize="small", handlelength=1.5)
right[0].set(ylabel="probability")

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "stopping_rule.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
