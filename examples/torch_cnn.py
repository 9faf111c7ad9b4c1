"""A torch network made Bayesian: brought in, given a posterior, asked what it does not know, and sent back.

A small convolutional network learns the digits 0 to 4 from 450 images, in torch, with the weight decay that is a unit
normal prior, and is then shown 5 to 9 as well. Averaged over a Laplace approximation with Kronecker factors it is far
less sure of the digits that it has never seen. It pays for that: it is too modest about those that it knows.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import credo
from credo.diagnose import auroc, calibration_error, negative_log_likelihood

torch.manual_seed(0)
torch.set_num_threads(1)
images, digits = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
order = np.random.default_rng(0).permutation(np.flatnonzero(digits < 5))
x, y, x_new, y_new = images[order[:450]], digits[order[:450]], images[order[450:]], digits[order[450:]]
strange = images[digits >= 5]

module = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Linear(64, 5),
)  # fmt: skip
optimiser = torch.optim.Adam(module.parameters(), lr=1e-2, weight_decay=1 / len(x))
for _ in range(300):
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    optimiser.step()

# the five lines
network = credo.adapters.from_torch(module, x)
model = credo.nn.BayesianNetwork(network.apply, network.params, head=credo.nn.Categorical())
posterior = credo.fit(model.given(x, y), credo.Laplace(credo.laplace.Kronecker(), num_steps=100), progress=False)
probs, probs_strange = posterior.predict(x_new).probs, posterior.predict(strange).probs
module_after = credo.adapters.to_torch(module, posterior.mean()["weights"])


def plug_in(module, images):
    with torch.no_grad():
        return torch.softmax(module(torch.from_numpy(images)).double(), dim=1).numpy()


before, before_strange = plug_in(module, x_new), plug_in(module, strange)
names = ("torch, as trained", "Laplace, averaged")
for name, known, unknown in zip(names, (before, probs), (before_strange, probs_strange), strict=True):
    is_strange = np.repeat([0, 1], [len(known), len(unknown)])
    apart = auroc(1 - np.concatenate([known, unknown]).max(axis=1), is_strange)
    error = calibration_error(known, y_new)
    print(f"{name}: right {100 * np.mean(known.argmax(axis=1) == y_new):.1f} %, log loss "
          f"{negative_log_likelihood(known, y_new):.3f}, calibration error {error.value:.3f} (by chance "
          f"{error.floor:.3f}), AUROC of new digits {apart.value:.3f} ± {apart.error:.3f}, mean confidence in them "
          f"{unknown.max(axis=1).mean():.2f}")  # fmt: skip
share = np.mean(plug_in(module_after, x_new).argmax(axis=1) == y_new)
print(f"torch, with the posterior's mean sent back: right {100 * share:.1f} %")

figure, panels = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained", sharey=True)
bins = np.linspace(0.2, 1, 25)
for axes, name, known, unknown in zip(panels, names, (before, probs), (before_strange, probs_strange), strict=True):
    axes.hist(known.max(axis=1), bins, density=True, alpha=0.6, label="digits 0 to 4, held out")
    axes.hist(unknown.max(axis=1), bins, density=True, alpha=0.6, label="digits 5 to 9, never seen")
    axes.set(title=name, xlabel="probability of the likeliest class")
panels[0].legend(frameon=False)

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "torch_cnn.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
