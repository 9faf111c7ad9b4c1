"""How programs were written for XLA is let go of where there are many; what is compiled stays."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
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
