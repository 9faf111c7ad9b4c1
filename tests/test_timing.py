"""Compile seconds are those of the fit, once where threads compile side by side."""

import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.nn import BayesianNetwork, Gaussian, Isotropic
from credo.timing import counted, stopwatch, union_length


def test_union_of_intervals():
    assert union_length([]) == 0.0
    assert union_length([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0), (0.6, 0.7)]) == pytest.approx(3.0)


def test_compilation_is_counted_and_running_is_not():
    def slow(x):
        return jnp.linalg.inv(x) @ jnp.sin(x)

    with stopwatch() as first:
        jax.jit(slow)(jnp.eye(3)).block_until_ready()
        time.sleep(0.2)
    assert 0.0 < first["compile"] <= first["total"] - 0.2 + 1e-3


def test_threads_do_not_count_twice():
    with stopwatch() as seconds, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda k: jax.jit(lambda x: jnp.linalg.svd(x + k)[1])(jnp.eye(4 + k)), range(4)))
    assert seconds["compile"] <= seconds["total"] + 1e-3


def test_a_part_is_counted_by_name_once_where_parts_lie_in_each_other():
    @counted("verdict")
    def judge(depth: int):
        time.sleep(0.02)
        if depth:
            judge(depth - 1)

    with stopwatch() as seconds:
        time.sleep(0.02)
        judge(2)
    assert 0.06 <= seconds["verdict"] <= seconds["total"] - 0.02
    with stopwatch() as seconds:
        pass
    assert "verdict" not in seconds


def straight_line():
    return credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["w"] * x, 1.0))


def network():
    return BayesianNetwork(
        lambda p, x: x[:, None] @ p["w"] @ np.ones(2), {"w": np.ones((1, 2))}, head=Gaussian(1.0), prior=Isotropic(1.0)
    )


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (straight_line, credo.Laplace()),
        (straight_line, credo.DADVI()),
        (network, credo.Laplace(num_steps=0)),
        (network, credo.DeepEnsemble(2, num_steps=5)),
    ],
    ids=["Laplace", "DADVI", "Laplace of a network", "DeepEnsemble"],
)
def test_what_a_verdict_took_is_told(model, method):
    seconds = credo.fit(model().given(np.arange(3.0), np.ones(3)), method, progress=False).info["seconds"]
    assert 0 < seconds["verdict"] < seconds["total"]
