"""Stopping rules: blocks are one run, every asked figure is reached, limits are said, and means stay right."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo import crew
from credo.diagnose.convergence import convergence, mcse_mean
from interrupted import at_chunk, out_of_time
from targets import TARGETS

RULE = credo.StoppingRule(mcse=0.04, max_draws=3_000)
BLOCKS = credo.NUTS(num_warmup=100, num_draws=100, until=RULE)


@pytest.fixture(scope="module")
def target():
    return TARGETS["gaussian"]().target


@pytest.fixture(scope="module")
def posterior(target):
    return credo.fit(target, BLOCKS, key=3, progress=False)


def test_every_asked_figure_is_reached_and_no_earlier(target, posterior):
    draws = posterior.draws["w"]
    num_draws = draws.shape[1]
    assert num_draws in RULE.pauses(100)
    assert num_draws > 100
    assert posterior.verdict.status == "pass"

    def is_met(x):
        found = convergence(x)
        error = mcse_mean(x) / x.std(axis=(0, 1), ddof=1)
        return (
            error.max() <= 0.04 and found.r_hat.max() <= 1.01 and min(found.ess_bulk.min(), found.ess_tail.min()) >= 400
        )

    assert is_met(draws)
    assert not any(is_met(draws[:, :n]) for n in RULE.pauses(100) if n < num_draws)


def test_each_figure_alone_is_asked_for(target, posterior):
    """Just beyond what these draws have of it, with little asked of the others."""
    positions = posterior.kind.positions
    found = convergence(positions)
    bulk, tail = found.ess_bulk.min(), found.ess_tail.min()
    assert bulk != tail
    for settings, said in (
        ({"ess": 1.01 * min(bulk, tail)}, "bulk" if bulk < tail else "tail"),
        ({"ess": 1.01 * max(bulk, tail)}, "effective sample size"),
        ({"r_hat": 1 + 0.99 * (found.r_hat.max() - 1)}, "the R-hat of w"),
        ({"mcse": 0.99 * (mcse_mean(positions) / positions.std(axis=(0, 1), ddof=1)).max()}, "the Monte Carlo error"),
    ):
        rule = credo.StoppingRule(**{"mcse": 10.0, "ess": 100.0, "r_hat": 2.0} | settings)
        assert said in rule.unmet(target.flat(), positions, 100)
    assert credo.StoppingRule(mcse=10.0, ess=100.0, r_hat=2.0).unmet(target.flat(), positions, 100) is None


@pytest.mark.parametrize("layout", ["threads", "vectorized"])
def test_blocks_are_one_long_run(target, monkeypatch, layout):
    blocks = credo.fit(target, BLOCKS, key=3, layout=layout, progress=False)
    num_draws = blocks.kind.positions.shape[1]
    monkeypatch.setattr(crew, "FIRST_CHUNK", 64)
    whole = credo.fit(target, credo.NUTS(num_warmup=100, num_draws=num_draws), key=3, layout=layout, progress=False)
    np.testing.assert_array_equal(blocks.kind.positions, whole.kind.positions)
    assert blocks.info["num_gradients"] == whole.info["num_gradients"]


@pytest.mark.parametrize("num_chunks", [12, 30, 45])
def test_resumes_within_a_block(target, posterior, tmp_path, monkeypatch, num_chunks):
    with monkeypatch.context() as patch, at_chunk(num_chunks):
        patch.setattr(crew, "MAX_CHUNK", 32)
        credo.fit(target, BLOCKS, key=3, checkpoint=tmp_path, progress=False)
    resumed = credo.resume(tmp_path, target, progress=False)
    np.testing.assert_array_equal(resumed.kind.positions, posterior.kind.positions)
    assert resumed.verdict == posterior.verdict
    again = credo.resume(tmp_path, target, progress=False)
    np.testing.assert_array_equal(again.kind.positions, posterior.kind.positions)


def test_the_largest_number_of_draws_is_said(target):
    rule = credo.StoppingRule(mcse=0.001, max_draws=250)
    posterior = credo.fit(target, credo.NUTS(num_draws=100, until=rule), key=1, progress=False)
    assert posterior.kind.positions.shape[1] == 250
    assert posterior.verdict.status == "doubtful"
    said = posterior.verdict.sentences[-1]
    assert "The largest number of draws came first, after 250 draws in each chain: the Monte Carlo error of w" in said
    assert "0.001 sd was asked. Raise max_draws." in said


def test_a_time_limit_is_said(target):
    rule = credo.StoppingRule(mcse=1e-5, max_draws=50_000_000)
    method = credo.NUTS(num_warmup=50, num_draws=20_000, until=rule)
    with out_of_time():
        posterior = credo.fit(target, method, key=1, time_limit=1_000.0, progress=False)
    assert not posterior.info["is_complete"]
    assert posterior.verdict.status == "doubtful"
    assert any("The time limit came first, after" in sentence for sentence in posterior.verdict.sentences)


def correlated(params, x):
    return dist.Normal(jnp.sum(params["w"]), params["noise"])


def test_named_quantities_alone_are_monitored():
    """A quantity derived from the others, in its own units."""
    prior = {"w": dist.Normal(0.0, 1.0).expand([2]), "noise": dist.HalfNormal(1.0)}
    model = credo.Model(prior, correlated, derived={"level": lambda w: 10 * jnp.sum(w)})
    target = model.given(y=np.array([0.1, 0.5, 0.2, 0.9]))
    rule = credo.StoppingRule(mcse=0.1, is_relative=False, names=("level",))
    posterior = credo.fit(target, credo.NUTS(num_draws=200, until=rule), key=1, progress=False)
    assert mcse_mean(posterior.draws["level"][..., None])[0] <= 0.1
    assert posterior.draws["level"].shape[1] > 200


def test_what_never_moved_is_not_known_but_for_entries_that_are_constants():
    rng = np.random.default_rng(0)
    rule = credo.StoppingRule(mcse=0.1)
    single = credo.Model({"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)}, None).given().flat()
    positions = rng.normal(size=(4, 1_000, 2))
    assert rule.unmet(single, positions, 100) is None
    positions[..., 1] = 3.0
    assert "of b is nan" in rule.unmet(single, positions, 100)
    correlation = credo.Model({"c": dist.LKJ(2, 1.0)}, None).given().flat()
    assert rule.unmet(correlation, rng.normal(size=(4, 1_000, 1)), 100) is None


def test_bad_rules(target):
    for settings, sentence in (
        ({"mcse": 0.0}, "mcse is above 0"),
        ({"r_hat": 1.0}, "r_hat is above 1"),
        ({"mcse": "a"}, "mcse is above 0; got 'a'"),
        ({"r_hat": None}, "r_hat is above 1; got None"),
        ({"ess": None}, "ess is .* or more; got None"),
        ({"names": ()}, "names nothing to monitor: leave names out"),
    ):
        with pytest.raises(credo.CredoError, match=sentence):
            credo.StoppingRule(**settings)
    for settings, sentence in (
        ({"ess": 10}, "ess is 100 or more"),
        ({"names": ("nobody",)}, "names 'nobody'; the model has w"),
        ({"names": "w"}, "names is"),
    ):
        with pytest.raises(credo.CredoError, match=sentence):
            credo.fit(target, credo.NUTS(until=credo.StoppingRule(**settings)), progress=False)


def test_one_chain_has_no_r_hat(target):
    with pytest.raises(credo.CredoError, match=r"R-hat of 1.01, which is not known from 1 chain: run at least 2"):
        credo.fit(target, credo.NUTS(chains=1, until=RULE), progress=False)
    rule = credo.StoppingRule(mcse=0.04, r_hat=math.inf, max_draws=20_000)
    method = credo.NUTS(chains=1, num_warmup=100, num_draws=500, until=rule)
    draws = credo.fit(target, method, key=3, progress=False).draws["w"]
    assert 500 < draws.shape[1] < 20_000
    assert (mcse_mean(draws) / draws.std(axis=(0, 1), ddof=1)).max() <= 0.04


def test_pauses_grow():
    pauses = credo.StoppingRule(max_draws=100_000).pauses(1_000)
    assert pauses[:12] == tuple(1_000 * n for n in (*range(1, 12), 13))
    assert all(1 < b / a <= 2 for a, b in itertools.pairwise(pauses))
    assert pauses[-1] < 100_000
    assert len(pauses) < 40


@pytest.mark.slow
def test_means_stay_right_though_the_rule_looks_at_the_draws():
    """Over 40 keys, 5 standard errors on the mean error and on its size: a false alarm once in a million."""
    known = TARGETS["gaussian"]()
    rule = credo.StoppingRule(mcse=0.05, r_hat=1.05, max_draws=5_000)
    method = credo.HMC(num_warmup=100, num_draws=50, num_steps=2, until=rule)
    z = []
    for key in range(40):
        posterior = credo.fit(known.target, method, key=key, progress=False)
        x = posterior.draws["w"]
        z.append((x.mean(axis=(0, 1)) - known.mean["w"]) / mcse_mean(x))
    z = np.stack(z)[:, 0]
    assert abs(z.mean()) < 5 / np.sqrt(40)
    assert np.mean(z**2) < 1 + 5 * np.sqrt(2 / 40)
