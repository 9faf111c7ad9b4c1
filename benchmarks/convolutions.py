"""A step of descent on a network of two convolutions within a loop: as JAX compiles it, and by ``credo.convolutions``.

    python benchmarks/convolutions.py

A CPU; 128 images of 8 × 8, filters of 3 × 3 with 16 and 32 channels. The two take turns; the least of five.
"""

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credo.convolutions import canonical

NUM_STEPS, NUM_TURNS = 10, 5
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(128, 8, 8, 1)), RNG.integers(0, 10, 128)
SHAPES = {"first": (3, 3, 1, 16), "second": (3, 3, 16, 32), "last": (2_048, 10)}


def loss(weights, x):
    for layer in ("first", "second"):
        x = lax.conv_general_dilated(x, weights[layer], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x)
    log_probs = jax.nn.log_softmax(x.reshape(len(x), -1) @ weights["last"])
    return -jnp.mean(log_probs[jnp.arange(len(Y)), Y])


def descent(wrap: Callable, number: int, x):
    """A compiled function of the weights, of ``number`` networks along a first axis."""

    def step(_, weights):
        slopes = jax.vmap(jax.grad(loss), (0, None))(weights, x) if number > 1 else jax.grad(loss)(weights, x)
        return jax.tree.map(lambda w, s: w - 0.01 * s, weights, slopes)

    return jax.jit(lambda weights: lax.fori_loop(0, NUM_STEPS, wrap(step), weights))


def seconds(run: Callable, weights) -> float:
    begun = time.perf_counter()
    jax.block_until_ready(run(weights))
    return (time.perf_counter() - begun) / NUM_STEPS


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print("| precision | networks | JAX, ms a step | credo.convolutions | times quicker |\n|---|---|---|---|---|")
    for dtype in (np.float32, np.float64):
        for number in (1, 5):
            shapes = {name: (number, *shape) if number > 1 else shape for name, shape in SHAPES.items()}
            weights = {name: jnp.asarray(0.1 * RNG.normal(size=shape), dtype) for name, shape in shapes.items()}
            runs = [descent(wrap, number, jnp.asarray(X, dtype)) for wrap in (lambda step: step, canonical)]
            first, second = (jax.block_until_ready(run(weights)) for run in runs)
            close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5)
            jax.tree.map(close, first, second)
            turns = [[1e3 * seconds(run, weights) for run in runs] for _ in range(NUM_TURNS)]
            plain, own = np.min(turns, axis=0)
            print(f"| {np.dtype(dtype)} | {number} | {plain:.1f} | {own:.1f} | {plain / own:.1f} |", flush=True)


if __name__ == "__main__":
    main()
