"""Random numbers drawn before the loop: the same for a step wherever its chunk begins, and of the right law."""

import jax
import numpy as np
import pytest
from scipy import stats

from credo.algorithm import stream
from credo.noise import BLOCK, BLOCK_NUMBERS, draw, row

KEY = stream(jax.random.key(3), 0)


def of_step(step: int, first: int, last: int, sizes=(3, 2), dtype=np.float64):
    return row(draw(KEY, sizes, first, last, 100, dtype), step, first)


@pytest.mark.parametrize(("first", "last"), [(0, 100), (41, 42), (40, 70), (17, 117), (BLOCK, 2 * BLOCK), (41, 141)])
def test_a_step_sees_the_same_numbers_in_every_chunk(first, last):
    expected, found = of_step(41, 0, 60), of_step(41, first, last)
    np.testing.assert_array_equal(found.normal, expected.normal)
    np.testing.assert_array_equal(found.uniform, expected.uniform)


def test_steps_and_chains_differ():
    numbers = [of_step(step, 0, 100).normal[0] for step in range(100)]
    other = draw(stream(jax.random.key(3), 1), (3, 2), 0, 100, 100, np.float64).normal[:, 0]
    assert len({*map(float, numbers), *other[:100].tolist()}) == 200


def test_one_step_of_many_numbers_is_a_block_of_its_own():
    noise = draw(KEY, (BLOCK_NUMBERS, 1), 5, 8, 4, np.float32)
    assert noise.block == 1
    assert noise.normal.dtype == np.float32
    assert np.all(np.any(noise.normal[:3], axis=1))  # steps 5, 6, 7, and nothing for others
    assert not np.any(noise.normal[3:])


def test_normal_and_uniform():
    noise = draw(KEY, (6, 5), 0, 4_000, 4_000, np.float64)
    normal, uniform = noise.normal[:4_000], noise.uniform[:4_000]
    assert stats.kstest(normal.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 1e-3
    correlation = np.corrcoef(np.concatenate([normal, uniform], axis=1).T) - np.eye(11)
    assert np.abs(correlation).max() < 5 / np.sqrt(4_000)
    lagged = np.mean(normal[1:] * normal[:-1], axis=0)  # blocks do not resemble one another
    assert np.abs(lagged).max() < 5 / np.sqrt(4_000)
