"""laplace-torch (Daxberger et al. 2021), by its default backend or by BackPACK's."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from laplaces import LackingError, networks

BATCH_SIZE = 256
KINDS = {"full": "full", "kronecker": "kron", "diagonal": "diag", "last layer": "full"}


def library(name: str):
    """A module of laplace-torch, whose name this folder's own program has too."""
    own = str(Path(__file__).parents[1])
    hidden, sys.path[:] = sys.path[:], [folder for folder in sys.path if folder != own]
    try:
        return import_module(name)
    finally:
        sys.path[:] = hidden


def module(problem: networks.Problem) -> torch.nn.Module:
    from torch import nn

    def tensor(name):
        return torch.tensor(problem.weights[name])

    def dense(layer):
        w = tensor(f"{layer}.w")
        made = nn.Linear(*w.shape)
        made.weight.data, made.bias.data = w.T.contiguous(), tensor(f"{layer}.b")
        return made

    def convolution(layer):
        w = tensor(f"{layer}.w")
        made = nn.Conv2d(w.shape[2], w.shape[3], 3, padding=1)
        made.weight.data, made.bias.data = w.permute(3, 2, 0, 1).contiguous(), tensor(f"{layer}.b")
        return made

    if problem.name != "cnn":
        layers = [dense(f"dense{i + 1}") for i in range(len(problem.weights) // 2)]
        between = [each for layer in layers[:-1] for each in (layer, nn.Tanh())]
        return nn.Sequential(*between, layers[-1])
    first = dense("dense1")  # channels come last in the weights as they are given, first in torch
    first.weight.data = first.weight.data.reshape(-1, 2, 2, 64).permute(0, 3, 1, 2).reshape(-1, 256).contiguous()
    blocks = [convolution("conv1"), nn.ReLU(), nn.AvgPool2d(2), convolution("conv2"), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten(), first, nn.ReLU(), dense("dense2"))


class LaplaceTorch:
    def __init__(self, problem: networks.Problem, structure: str, backend: str):
        self.problem, self.structure = problem, structure
        self.module = module(problem)
        x = self.inputs(problem.x)
        y = torch.tensor(problem.y)[:, None] if problem.is_regression else torch.tensor(problem.y)
        data = torch.utils.data.TensorDataset(x, y)
        self.loader = torch.utils.data.DataLoader(data, batch_size=BATCH_SIZE)
        self.package, self.backend = library("laplace"), {}
        if backend == "backpack":
            self.backend = {"backend": library("laplace.curvature.backpack").BackPackGGN}

    def inputs(self, x) -> torch.Tensor:
        x = torch.tensor(np.asarray(x, np.float32))
        return x.permute(0, 3, 1, 2).contiguous() if self.problem.name == "cnn" else x

    def fit(self) -> None:
        noise = {"sigma_noise": networks.NOISE} if self.problem.is_regression else {}
        self.laplace = self.package.Laplace(
            self.module,
            "regression" if self.problem.is_regression else "classification",
            subset_of_weights="last_layer" if self.structure == "last layer" else "all",
            hessian_structure=KINDS[self.structure],
            prior_precision=networks.PRECISION,
            **noise,
            **self.backend,
        )
        self.laplace.fit(self.loader)

    def predict(self, x) -> np.ndarray:
        if self.problem.is_regression:
            _, variance = self.laplace(self.inputs(x))
            return variance.reshape(len(x), 1).detach().numpy() + networks.NOISE**2
        return self.laplace(self.inputs(x), link_approx="probit").detach().numpy()

    def evidence_step(self) -> float:
        """The log evidence and its derivative in the prior's precision."""
        precision = torch.tensor([networks.PRECISION], requires_grad=True)
        value = self.laplace.log_marginal_likelihood(precision)
        if not value.requires_grad:
            raise LackingError("no derivative")
        value.backward()
        return float(value)
