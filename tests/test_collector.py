"""The garbage collector is slowed while programs are traced, and never for longer."""

import gc
import math

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import credo
from credo.algorithm import Options
from credo.collector import RARELY, collect_as_usual, collecting_rarely
from credo.course import Course
from credo.noise import draw


@pytest.fixture(autouse=True)
def usual():
    before = gc.get_threshold()
    yield before
    assert gc.get_threshold() == before
    gc.set_threshold(*before)


def test_threshold_is_raised_and_put_back(usual):
    with collecting_rarely():
        assert gc.get_threshold() == (RARELY, *usual[1:])
        with collecting_rarely():
            assert gc.get_threshold()[0] == RARELY
        assert gc.get_threshold() == usual  # the inner block's end is the end: slower, and never wrong
    with pytest.raises(ZeroDivisionError), collecting_rarely():
        _ = 1 / 0


@pytest.mark.parametrize("threshold", [0, 10 * RARELY])
def test_what_the_user_chose_stays(threshold, usual):
    gc.set_threshold(threshold, *usual[1:])
    with collecting_rarely():
        assert gc.get_threshold()[0] == threshold
    collect_as_usual()
    assert gc.get_threshold()[0] == threshold
    gc.set_threshold(*usual)


def test_a_density_is_traced_under_the_raised_threshold():
    seen = []

    def log_density(params):
        seen.append(gc.get_threshold()[0])
        return -0.5 * jnp.sum(params["w"] ** 2)

    target = credo.Model.from_log_density(log_density, {"w": constraints.real_vector}, {"w": (2,)}).given()
    seen.clear()
    credo.fit(target, credo.MAP(), key=0, progress=False)
    assert set(seen) == {RARELY}


def test_a_long_loop_collects_as_usual(usual):
    """What a user's iterator leaves behind may be large."""
    seen = []

    def advance(state, first, last):
        seen.append(gc.get_threshold()[0])
        return state + last - first

    with collecting_rarely():
        course = Course("training", np.zeros(()), Options())
        course.run(advance, [7], math.inf)
    assert seen[0] == RARELY
    assert set(seen[1:]) == {usual[0]}


def test_chains_at_work_collect_as_usual(usual, monkeypatch):
    """Noise is drawn once while the chunk is traced and compiled, then by every chunk that runs."""
    seen = []

    def watched(*args):
        seen.append(gc.get_threshold()[0])
        return draw(*args)

    monkeypatch.setattr("credo.crew.draw", watched)
    target = credo.Model.from_log_density(
        lambda params: -0.5 * jnp.sum(params["w"] ** 2), {"w": constraints.real_vector}, {"w": (2,)}
    ).given()
    credo.fit(target, credo.NUTS(num_warmup=20, num_draws=20, chains=2), key=0, progress=False)
    assert seen[0] == RARELY
    assert seen[-1] == usual[0]
