"""A step of descent on a network of two convolutions within a loop: as JAX compiles it, and by ``credo.convolutions``.

    python benchmarks/convolutions.py

A CPU; 128 images of 8 × 8, filters of 3 × 3 with 16 and 32 channels; or with 16, and then a depthwise one of each and a
product that makes 32 of them. The two take turns; the least of five, or of one that takes more than a second a step.
"""

import functools
import itertools
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
PLAIN = {"first": (3, 3, 1, 16), "second": (3, 3, 16, 32), "last": (2_048, 10)}
DEPTHWISE = {"first": (3, 3, 1, 16), "second": (3, 3, 1, 16), "mix": (16, 32), "last": (2_048, 10)}
KINDS, SLOW = {"plain": PLAIN, "depthwise": DEPTHWISE}, 1e3  # milliseconds


def loss(weights, x):
    settings = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    for layer in ("first", "second"):
        num_groups = x.shape[-1] // weights[layer].shape[-2]
        x = lax.conv_general_dilated(x, weights[layer], (1, 1), "SAME", feature_group_count=num_groups, **settings)
        x = jax.nn.relu(x)
    x = x @ weights["mix"] if "mix" in weights else x
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
    print("| second layer | precision | networks | JAX, ms a step | credo.convolutions | times quicker |")
    print("|---|---|---|---|---|---|")
    for (kind, of_one), dtype, number in itertools.product(KINDS.items(), (np.float32, np.float64), (1, 5)):
        shapes = {name: (number, *shape) if number > 1 else shape for name, shape in of_one.items()}
        weights = {name: jnp.asarray(0.1 * RNG.normal(size=shape), dtype) for name, shape in shapes.items()}
        runs = [descent(wrap, number, jnp.asarray(X, dtype)) for wrap in (lambda step: step, canonical)]
        first, second = (jax.block_until_ready(run(weights)) for run in runs)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), first, second)
        turns = [[1e3 * seconds(run, weights) for run in runs]]
        while len(turns) < NUM_TURNS and np.max(turns) < SLOW:
            turns.append([1e3 * seconds(run, weights) for run in runs])
        plain, own = np.min(turns, axis=0)
        print(f"| {kind} | {np.dtype(dtype)} | {number} | {plain:.1f} | {own:.1f} | {plain / own:.1f} |", flush=True)


if __name__ == "__main__":
    main()
