"""The trained networks, as NumPy weights: the same numbers for every library.

mlp         64-50-50-10, tanh, scikit-learn's digits: 6,310 weights
cnn         8 × 8 digits: convolutions 1 → 32 → 64 of 3 × 3, two poolings, 256-310-10: about 101,000 weights
regression  8-50-1, tanh, 1,000 rows of Friedman's first function in eight inputs: 501 weights

Weights are in float32, of prior precision 1; the noise of the regression is known. ``train`` is an Adam of a few
hundred steps on all data, run once: what is measured begins at its end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NOISE = 0.3  # sd of the regression's standardised outcome
PRECISION = 1.0
SIZES = {"mlp": (64, 50, 50, 10), "regression": (8, 50, 1)}
NETWORKS = ("mlp", "cnn", "regression")


@dataclass(frozen=True)
class Problem:
    name: str
    weights: dict[str, np.ndarray]
    x: np.ndarray
    y: np.ndarray
    x_new: np.ndarray  # 1,000 rows

    @property
    def is_regression(self) -> bool:
        return self.name == "regression"


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name == "regression":
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, size=(1_000, 8))
        f = np.sin(np.pi * x[:, 0] * x[:, 1]) + 2 * x[:, 2] ** 2 + x[:, 3] + 0.5 * x[:, 4]
        y = (f - f.mean()) / f.std() + NOISE * rng.normal(size=len(x))
        return x.astype(np.float32), y.astype(np.float32)
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32)
    return (x.reshape(-1, 8, 8, 1) if name == "cnn" else x), y.astype(np.int64)


def start(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    if name == "cnn":
        shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "dense1": (256, 310), "dense2": (310, 10)}
    else:
        sizes = SIZES[name]
        shapes = {f"dense{i + 1}": (sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)}
    weights: dict[str, np.ndarray] = {}
    for layer, shape in shapes.items():
        weights[f"{layer}.w"] = (rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)
        weights[f"{layer}.b"] = np.zeros(shape[-1], np.float32)
    return weights


def apply(name: str):
    """The network in JAX: images (M, 8, 8, 1), rows otherwise -> outputs (M, K)."""
    import jax
    import jax.numpy as jnp

    def dense(w, layer, x):
        return x @ w[f"{layer}.w"] + w[f"{layer}.b"]

    def convolve(w, layer, x):
        lax = jax.lax.conv_general_dilated(
            x, w[f"{layer}.w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return lax + w[f"{layer}.b"]

    def pool(x):
        m, height, width, channels = x.shape
        return x.reshape(m, height // 2, 2, width // 2, 2, channels).mean((2, 4))

    def cnn(w, x):
        x = pool(jax.nn.relu(convolve(w, "conv1", x)))
        x = pool(jax.nn.relu(convolve(w, "conv2", x)))
        x = jax.nn.relu(dense(w, "dense1", x.reshape(x.shape[0], -1)))
        return dense(w, "dense2", x)

    def mlp(w, x):
        last = len(w) // 2
        for i in range(1, last):
            x = jnp.tanh(dense(w, f"dense{i}", x))
        return dense(w, f"dense{last}", x)

    return cnn if name == "cnn" else mlp


def train(name: str) -> Problem:
    import jax
    import jax.numpy as jnp
    import optax

    x, y = data(name)
    network, steps = apply(name), 50 if name == "cnn" else 300
    optimiser = optax.adam(optax.cosine_decay_schedule(5e-3, steps))

    def loss(w):
        z = network(w, x)
        penalty = 0.5 * PRECISION * sum(jnp.sum(leaf**2) for leaf in w.values())
        if name == "regression":
            return 0.5 * jnp.sum((z[:, 0] - y) ** 2) / NOISE**2 + penalty
        return -jnp.sum(jax.nn.log_softmax(z)[jnp.arange(len(y)), y]) + penalty

    @jax.jit
    def run(w):
        def step(carry, _):
            w, state = carry
            updates, state = optimiser.update(jax.grad(loss)(w), state)
            return (optax.apply_updates(w, updates), state), None

        return jax.lax.scan(step, (w, optimiser.init(w)), length=steps)[0][0]

    weights: dict[str, Any] = run(start(name))
    return Problem(name, {k: np.asarray(v) for k, v in weights.items()}, x, y, _new_rows(x))


def _new_rows(x: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(2)
    rows = x[rng.choice(len(x), 1_000, replace=len(x) < 1_000)]
    return (rows + 0.05 * rng.normal(size=rows.shape)).astype(np.float32)


def save(problem: Problem, folder: Path) -> None:
    np.savez(folder / f"{problem.name}.npz", **problem.weights)


def load(name: str, folder: Path) -> Problem:
    with np.load(folder / f"{name}.npz") as file:
        weights = {key: file[key] for key in file.files}
    x, y = data(name)
    return Problem(name, weights, x, y, _new_rows(x))
