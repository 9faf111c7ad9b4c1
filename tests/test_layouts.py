"""Chains that share one compiled loop: each makes the steps it would make alone, and none waits within a phase."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credo
from credo import crew
from credo.algorithm import Algorithm, Options, Phase, Stages
from credo.precision import double
from credo.progress import _describe
from credo.run import run
from interrupted import at_chunk, out_of_time
from targets import TARGETS

NUM_CHAINS = 8


class State(NamedTuple):
    position: jax.Array


class Info(NamedTuple):
    num_pieces: jax.Array


@dataclass(frozen=True)
class Wander:
    """Each step makes a random number of moves, 1 to 6; with stages, or as a step alone."""

    has_stages: bool = True

    def algorithm(self, target, tuning):
        def begin(key, state, previous):
            k_length, k_move = jax.random.split(key)
            return k_move, jax.random.randint(k_length, (), 1, 7), jnp.int64(0), state

        def advance(unfinished):
            key, length, done, state = unfinished
            move = tuning * jax.random.normal(jax.random.fold_in(key, done), state.position.shape)
            return key, length, done + 1, State(0.9 * state.position + move)

        stages = Stages(begin, advance, lambda u: u[2] >= u[1], lambda u: (u[3], Info(u[1])))
        return Algorithm(lambda key, position: State(position), stages.step, stages if self.has_stages else None)

    def record(self, state):
        return {"position": state.position}


def start(_target):
    return np.float64(0.5), [State(np.full(2, float(c))) for c in range(NUM_CHAINS)]


def widen(records, tuning, states):
    return tuning + 0.1 * records[0]["position"].std(), states


PHASES = (Phase("warmup", 40, ("position",), widen), Phase("sampling", 200, ("position",)))


def wander(layout="vectorized", program=Wander(), **options):
    with double():
        return run(
            program,
            np.zeros(0),
            begin=start,
            like=(np.float64(0), State(np.zeros(2))),
            phases=PHASES,
            key=np.array([0, 1], np.uint32),
            num_chains=NUM_CHAINS,
            options=Options(layout=layout, **options),
        )


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, (a.records, a.info, a.states), (b.records, b.info, b.states))


@pytest.fixture(scope="module")
def reference():
    return wander()


@pytest.mark.parametrize("program", [Wander(), Wander(has_stages=False)])
def test_every_chain_is_the_one_it_would_be_alone(program):
    alone, together = wander("threads", program), wander("vectorized", program)
    assert (alone.layout, together.layout) == ("threads", "vectorized")
    np.testing.assert_array_equal(together.info["sampling"].num_pieces, alone.info["sampling"].num_pieces)
    np.testing.assert_allclose(together.records["position"], alone.records["position"], rtol=1e-12, atol=1e-12)
    assert together.records["position"].shape == (NUM_CHAINS, 200, 2)


def test_chains_wait_for_one_another_at_the_end_of_a_chunk_only(monkeypatch):
    """The work of the loop is what its slowest chain asks for in each phase, were it alone; not one piece more."""
    monkeypatch.setattr(crew, "FIRST_CHUNK", 1_024)
    reference = wander()
    pieces = [reference.info[name].num_pieces.sum(axis=1) for name in ("warmup", "sampling")]
    executed = NUM_CHAINS * sum(each.max() for each in pieces)
    assert reference.useful_share == pytest.approx(sum(each.sum() for each in pieces) / executed)
    lockstep = NUM_CHAINS * sum(reference.info[n].num_pieces.max(axis=0).sum() for n in ("warmup", "sampling"))
    assert executed < 0.7 * lockstep


@pytest.mark.parametrize("length", [1, 7, 64])
def test_chunks_change_nothing(reference, monkeypatch, length):
    monkeypatch.setattr(crew, "MAX_CHUNK", length)
    same(reference, wander())


@pytest.mark.parametrize("num_chunks", [1, 2, 4, 6])
@pytest.mark.parametrize("before_state", [False, True])
def test_resumed_run_is_the_uninterrupted_one(reference, tmp_path, monkeypatch, num_chunks, before_state):
    with monkeypatch.context() as patch, at_chunk(num_chunks, before_state=before_state):
        patch.setattr(crew, "MAX_CHUNK", 32)
        wander(checkpoint=tmp_path)
    resumed = wander(checkpoint=tmp_path, resume=True)
    same(reference, resumed)
    assert np.isnan(resumed.useful_share)  # nobody counted the turns before


def test_the_layout_of_a_checkpoint_is_kept(reference, tmp_path):
    wander(checkpoint=tmp_path)
    with pytest.raises(
        credo.CredoError, match=r"its layout differs: vectorized there, threads here\. Ask for layout='vectorized'"
    ):
        wander("threads", checkpoint=tmp_path, resume=True)


# samplers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [credo.NUTS(chains=16), credo.HMC(chains=16)])
def test_moments(method):
    """Five standard errors: a false alarm once in 1.7 million scalars.

    A half chain is worth about 120 draws, which makes R-hat 1.004 where all is well; of 250 draws, 1.015.
    """
    known = TARGETS["skewed"]()
    posterior = credo.fit(known.target, method, key=4, layout="vectorized", progress=False)
    assert posterior.info["layout"] == "vectorized"
    assert posterior.verdict.status == "pass", posterior.verdict
    table = posterior.summary()
    assert abs(table["mean"].iloc[0] - known.mean["x"]) < 5 * table["mcse_mean"].iloc[0]
    info = posterior.info
    assert info["num_gradients"] <= info["num_gradients_executed"]


def test_first_steps_are_those_of_threads():
    """The same keys: without warm-up, trajectories part only as rounding grows."""
    target, method = TARGETS["gaussian"]().target, credo.NUTS(num_warmup=0, num_draws=10)
    threads, vectorized = (
        credo.fit(target, method, key=2, layout=layout, progress=False).kind.positions
        for layout in ("threads", "vectorized")
    )
    np.testing.assert_allclose(vectorized, threads, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("max_memory", [None, 1_000_000])
def test_a_time_limit_stops_all_chains_at_one_draw(max_memory):
    """And what was drawn by then are the first draws of the whole run."""
    target, options = (
        TARGETS["gaussian"]().target,
        {"layout": "vectorized", "max_memory": max_memory, "progress": False},
    )
    whole = credo.fit(target, credo.NUTS(num_warmup=30, num_draws=50), key=2, **options)  # and compiles
    method = credo.NUTS(num_warmup=30, num_draws=2_000_000)
    with out_of_time():
        posterior = credo.fit(target, method, key=2, time_limit=1_000.0, **options)
    positions = posterior.kind.positions
    assert not posterior.info["is_complete"]
    assert posterior.info["sample_stats"]["energy"].shape == positions.shape[:2]
    assert positions.shape[1] < 2_000_000
    assert any("The time limit came after" in sentence for sentence in posterior.verdict.sentences)
    num_draws = min(50, positions.shape[1])
    np.testing.assert_array_equal(positions[:, :num_draws], whole.kind.positions[:, :num_draws])


def test_the_bar_moves_and_says_how_it_goes(monkeypatch, capsys):
    """One compiled program for all chains, and windows of thousands of steps: begun in short chunks all the same."""
    said = []
    monkeypatch.setattr("credo.progress.DELAY", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("credo.progress._describe", lambda *a: said.append((_describe(*a), sum(a[1]))) or said[-1][0])
    method = credo.NUTS(chains=8, num_warmup=50, num_draws=3_000)
    credo.fit(TARGETS["gaussian"]().target, method, key=2, layout="vectorized")
    in_sampling = [done for text, done in said if text.startswith("sampling, step size 1.") and "0 divergences" in text]
    assert len(set(in_sampling)) >= 3
