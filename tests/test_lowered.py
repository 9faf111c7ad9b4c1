"""How programs were written for XLA is let go of where there are many; what is compiled stays."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jaxlib.mlir import ir

import credo
from credo import lowered
from targets import gaussian

num_live = ir.Context._get_live_count


@pytest.fixture
def programs():
    """Compiled functions of the user's."""
    found = [jax.jit(lambda x, i=i: jnp.sin(x) + i) for i in range(12)]
    for each in found:
        each(1.0)
    return found


def test_a_fit_lets_go_of_what_many_programs_left(programs, monkeypatch, caplog):
    monkeypatch.setattr(lowered, "CONTEXTS", 4)
    if num_live() < len(programs):
        pytest.skip("this JAX keeps none")  # 0.12
    credo.fit(gaussian().target, credo.Laplace(), progress=False)
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        answers = [each(1.0) for each in programs]
    assert not [record.message for record in caplog.records if "ompil" in record.message]
    np.testing.assert_allclose(answers, np.sin(1.0) + np.arange(12), rtol=1e-6)
    credo.fit(gaussian().target, credo.Laplace(), progress=False)
    assert num_live() <= 4


def test_few_are_kept(programs, monkeypatch):
    monkeypatch.setattr(lowered, "CONTEXTS", 1_000_000)
    before = num_live()
    lowered.let_go()
    assert num_live() >= before


@pytest.mark.skipif(not lowered.MOST_MAPS.exists(), reason="this system counts no memory maps")
def test_programs_are_forgotten_before_memory_maps_run_out(programs, monkeypatch, caplog):
    """With half of them in use; what is asked for again is compiled again."""

    def num_compiled() -> int:
        caplog.clear()
        with jax.log_compiles(True), caplog.at_level(logging.WARNING):
            answers = [each(1.0) for each in programs]
        np.testing.assert_allclose(answers, np.sin(1.0) + np.arange(12), rtol=1e-6)
        return sum("Finished XLA compilation" in record.message for record in caplog.records)

    model = credo.Model({"m": dist.Normal(0.0, 3.25)}, lambda params, x: dist.Normal(params["m"] + x[:, 0], 0.75))
    posterior = credo.fit(
        model.given(np.zeros((7, 1)), np.zeros(7)), credo.NUTS(num_warmup=50, num_draws=20), progress=False
    )
    assert num_compiled() == 0
    monkeypatch.setattr(lowered, "SHARE_OF_MAPS", 0.0)
    credo.fit(model.given(np.zeros((9, 1)), np.zeros(9)), credo.NUTS(num_warmup=50, num_draws=21), progress=False)
    assert num_compiled() == len(programs)
    assert posterior.predict(np.zeros((3, 1))).mean.shape == (3,)
