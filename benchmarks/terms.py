"""The gradient of a formula of named terms, b₁ x₁ + … + bₙ xₙ: as JAX compiles it, and as Credo's samplers have it.

    python benchmarks/terms.py

A CPU; a normal regression of 200 rows in double precision. The two take turns; the least of five.
"""

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax

import credo
from credo.gradients import value_and_gradient

NUM_ROWS, NUM_GRADIENTS, NUM_TURNS = 200, 200, 5


def target_of(number: int):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(NUM_ROWS, number)), rng.normal(size=NUM_ROWS)
    prior = {f"b{i}": dist.Normal(0.0, 1.0) for i in range(number)} | {"noise": dist.HalfNormal(1.0)}

    def likelihood(params, x):
        return dist.Normal(sum(params[f"b{i}"] * x[:, i] for i in range(number)), params["noise"])

    return credo.Model(prior, likelihood).given(x, y).flat()


def walk(both: Callable, target):
    """A compiled function of a position: that many gradients, one after another."""

    def step(_, u):
        return u + 1e-6 * both(target.log_density)(u)[1]

    return jax.jit(lambda u: lax.fori_loop(0, NUM_GRADIENTS, step, u))


def seconds(run: Callable, u) -> float:
    begun = time.perf_counter()
    jax.block_until_ready(run(u))
    return time.perf_counter() - begun


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print("| terms | JAX, compile s | µs a gradient | Credo, compile s | µs a gradient | times quicker |")
    print("|---|---|---|---|---|---|")
    for number in (10, 40, 80):
        target = target_of(number)
        u = jnp.zeros(target.dim)
        runs = [walk(both, target) for both in (jax.value_and_grad, value_and_gradient)]
        firsts = [seconds(run, u) for run in runs]
        close = functools.partial(np.testing.assert_allclose, rtol=1e-9)
        close(*(run(u) for run in runs))
        turns = [[1e6 * seconds(run, u) / NUM_GRADIENTS for run in runs] for _ in range(NUM_TURNS)]
        plain, own = np.min(turns, axis=0)
        told = f"{firsts[0]:.1f} | {plain:.1f} | {firsts[1]:.1f} | {own:.1f} | {plain / own:.1f}"
        print(f"| {number} | {told} |", flush=True)


if __name__ == "__main__":
    main()
