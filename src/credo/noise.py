"""Random numbers of many steps of a chain, drawn before them and outside of the compiled loop.

Within the loop they are a quarter or more of what there is to compile: the generator is a loop of its own, and a normal
number takes three polynomials. NumPy has its generator ready, and draws a normal number in ten nanoseconds (the
ziggurat of Marsaglia & Tsang 2000). Steps come in blocks, each with a generator seeded by the chain's key and the
block's number, so that step i of a chain sees the same numbers wherever a chunk of steps begins or ends.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

BLOCK, BLOCK_NUMBERS = 32, 1 << 14  # steps at most, and numbers, if one step does not take more


class Noise(NamedTuple):
    """Of one step; or of many, along a first axis: arrays of NumPy, or of JAX within a program."""

    normal: Any  # (…, normal)
    uniform: Any  # (…, uniform), on [0, 1)

    @property
    def block(self) -> int:
        return block(self.normal.shape[-1], self.uniform.shape[-1])


def block(num_normal: int, num_uniform: int) -> int:
    """Steps that share a generator: seeding one takes as long as drawing two thousand numbers."""
    return max(1, min(BLOCK, BLOCK_NUMBERS // (num_normal + num_uniform)))


def draw(key: np.ndarray, sizes: tuple[int, int], first: int, last: int, length: int, dtype) -> Noise:
    """For steps ``first`` to ``last``, ``length`` at most, of the chain ``key``; ``row`` finds that of a step.

    ``sizes``: how many normal and uniform numbers a step takes. What no step between the two needs is 0.
    """
    size = block(*sizes)
    begin = first // size
    normal, uniform = (np.zeros((length + 2 * size, number), dtype) for number in sizes)
    seed = np.append(key, np.uint32(0))  # of a list NumPy would make an array of each number first
    for number in range(begin, -(-last // size)):
        seed[-1] = number
        generator = np.random.Generator(np.random.SFC64(seed))
        rows = slice((number - begin) * size, (number - begin + 1) * size)
        generator.standard_normal(dtype=dtype, out=normal[rows])
        generator.random(dtype=dtype, out=uniform[rows])
    return Noise(normal, uniform)


def row(noise: Noise, step, first) -> Noise:
    """The noise of one step, within a compiled program, of what was drawn for steps from ``first`` on."""
    index = step - first + first % noise.block
    return jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, index, keepdims=False), noise)
