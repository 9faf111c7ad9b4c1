"""Which tumours to label next: those that tell most of the weights, the least certain ones, or any.

Logistic regression on the breast-cancer table, its 31 weights by Laplace. From ten labelled rows, ten more are
labelled at a time: those of greatest mutual information between label and weights (BALD), each judged alone, or those
that together tell most of the weights; those of greatest entropy; or any at random. Six loops a rule start from six
draws of the first rows; a difference to random is taken loop by loop, and beside each figure stands one standard error
over loops. Rows without a label have the weight 0, so that one compiled program serves all fits.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from sklearn.datasets import load_breast_cancer

import credo
from credo.decisions import bald, choose, entropy, expected_information_gain

LOOPS, START, STEP, ROUNDS, POOL = 6, 10, 10, 4, 300

table, y = load_breast_cancer(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
x, y = table[order], y[order]
x = np.column_stack([(x - x[:POOL].mean(axis=0)) / x[:POOL].std(axis=0), np.ones(len(x))])
model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([31])}, lambda params, x: dist.BernoulliLogits(x @ params["w"]))


def loop(rule, seed):
    """Log loss and accuracy on held-out rows after each round of labels, (ROUNDS + 1, 2)."""
    generator = np.random.default_rng(seed)
    is_labelled = np.isin(np.arange(POOL), generator.permutation(POOL)[:START])
    found = []
    for _ in range(ROUNDS + 1):
        target = model.given(x[:POOL], y[:POOL], weights=is_labelled.astype(float))
        posterior = credo.fit(target, credo.Laplace(), progress=False)
        pool = posterior.predict(x[:POOL], credo.Linearised())
        p = posterior.predict(x[POOL:], credo.Linearised()).probs
        found.append([-np.mean(np.log(np.where(y[POOL:] == 1, p, 1 - p))), np.mean((p > 0.5) == y[POOL:])])

        def acquisition(pool, chosen=()):
            return np.where(is_labelled, -np.inf, rule(pool, chosen, generator))

        is_labelled[choose(pool, acquisition, STEP)] = True
    return found


rules = {
    "BALD": lambda pool, chosen, generator: bald(pool),
    "together": lambda pool, chosen, generator: expected_information_gain(pool, chosen),
    "entropy": lambda pool, chosen, generator: entropy(pool),
    "random": lambda pool, chosen, generator: generator.uniform(size=POOL),
}
found = {name: np.array([loop(rule, seed) for seed in range(LOOPS)]) for name, rule in rules.items()}
labels = START + STEP * np.arange(ROUNDS + 1)


def shown(values, digits):
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / np.sqrt(LOOPS):.{digits}f}"


print(f"{'rule':8s} {'labels':>6s} {'log loss':>15s} {'less random':>16s} {'accuracy, %':>12s} {'less random':>12s}")
for name, values in found.items():
    for i in (1, 2, 4):
        loss, right = values[:, i, 0], 100 * values[:, i, 1]
        less = loss - found["random"][:, i, 0], right - 100 * found["random"][:, i, 1]
        print(f"{name:8s} {labels[i]:6d} {shown(loss, 3):>15s} {shown(less[0], 3):>16s} {shown(right, 1):>12s} "
              f"{shown(less[1], 1):>12s}")  # fmt: skip

figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
for name, values in found.items():
    for axes, column, title in zip(panels, values.transpose(2, 0, 1), ("held-out log loss", "accuracy"), strict=True):
        mean, error = column.mean(axis=0), column.std(axis=0, ddof=1) / np.sqrt(LOOPS)
        axes.plot(labels, mean, label=name)
        axes.fill_between(labels, mean - error, mean + error, alpha=0.25)
        axes.set(title=title, xlabel="labelled rows")
panels[0].legend(frameon=False)

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "active_learning.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
