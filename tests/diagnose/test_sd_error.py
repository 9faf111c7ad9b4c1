"""Errors of sds: by kurtosis, in the user's space, and never small where there is no variance."""

from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.diagnose.sd_error import heaviest_tail, kurtoses_of, sd_error, sd_figures
from credo.storage import release, stored

RANDOM = np.random.default_rng(4)


def structure_of(spec):
    return credo.Model(spec, lambda p, x: dist.Normal(0.0, 1.0)).given(y=np.zeros(3)).structure


NORMAL = structure_of({"a": dist.Normal(0.0, 1.0)})
SCALE = structure_of({"s": dist.LogNormal(0.0, 1.0)})
PAIR = structure_of({"a": dist.Normal(0.0, 1.0).expand([2])})


def test_of_a_normal_parameter_it_is_that_of_its_log_sd():
    x = RANDOM.normal(size=(400, 4, 250, 1))
    spread = np.std(np.log(np.std(x, axis=(1, 2))))
    found = [sd_error(each, np.array([1_000.0]), NORMAL) for each in x]
    assert np.mean(found) == pytest.approx(spread, rel=0.1)


def test_of_a_scale_it_is_that_of_the_scale_and_not_of_its_log():
    u = RANDOM.normal(size=(4, 1_000, 1))
    assert sd_error(u, np.array([4_000.0]), NORMAL) < 0.02
    assert sd_error(u, np.array([4_000.0]), SCALE) > 0.04  # of a log-normal one κ is 114


@pytest.mark.parametrize("number", [4_000, 40_000])
def test_without_a_variance_it_is_never_small(number):
    u = np.log(1 / RANDOM.uniform(size=(4, number // 4, 1)))  # a tail of θ^-2
    assert sd_error(u, np.array([float(number)]), SCALE) > 0.15


def test_other_parameters_are_left_out():
    shares = structure_of({"p": dist.Dirichlet(np.ones(3)), "k": dist.Poisson(1.0)})
    assert sd_error(RANDOM.normal(size=(4, 100, 3)), np.full(3, 400.0), shares) is None
    both = structure_of({"p": dist.Dirichlet(np.ones(2)), "a": dist.Normal(0.0, 1.0).expand([2])})
    x = RANDOM.normal(size=(4, 100, 3))
    assert sd_error(x, np.full(3, 400.0), both) == pytest.approx(sd_error(x[..., 1:], np.full(2, 400.0), PAIR))


@pytest.mark.parametrize("law", [dist.Uniform(0.0, 1.0), dist.Uniform(-3.0, 50.0), dist.Beta(2.0, 2.0)])
def test_of_a_bounded_parameter_it_is_that_of_its_value(law):
    u = RANDOM.normal(size=(4, 1_000, 1)) - 4.0
    p = 1 / (1 + np.exp(-u))
    ess = np.array([3_000.0])
    assert sd_error(u, ess, structure_of({"p": law})) == pytest.approx(sd_error(p, ess, NORMAL))


@pytest.mark.parametrize("method", [credo.NUTS(), pytest.param(credo.HMC(), marks=pytest.mark.slow), credo.SMC()])
def test_a_bound_far_away_is_no_reason_to_trust_an_sd(method):
    """Two lifetimes under a flat prior: a tail of θ^-2. All twelve passed, HMC with 0.4 to 0.6 of the true sd."""
    model = credo.Model({"theta": dist.Uniform(0.0, 1e4)}, lambda p, x: dist.Exponential(1 / p["theta"]))
    target = model.given(y=np.array([1.3, 0.8]))
    fits = [credo.fit(target, method, key=key, progress=False) for key in range(10, 14)]
    assert not any(each.verdict.status == "pass" for each in fits)


def test_draws_of_twice_the_weight_count_as_two():
    x = RANDOM.normal(size=(1, 50, 1))
    twice = np.concatenate([x, x[:, :20]], axis=1)
    weights = np.where(np.arange(50) < 20, 2, 1)[None] / 70
    ess = np.array([100.0])
    assert sd_error(x, ess, SCALE, weights) == pytest.approx(sd_error(twice, ess, SCALE))


@pytest.mark.parametrize("spec", [NORMAL, SCALE])
def test_the_tail_of_what_has_no_variance_shows_in_its_shape(spec):
    """Of 100 samples of a t with two degrees of freedom; an exponential tail, of kurtosis nine, is light."""
    ess = np.array([4_000.0])
    heavy, light = RANDOM.standard_t(2, (100, 4, 1_000, 1)), RANDOM.laplace(size=(100, 4, 1_000, 1))
    if spec is SCALE:
        heavy, light = np.log(np.abs(heavy)), np.log(np.abs(light))
    shapes = [[sd_figures(x, ess, spec).get("tail_shape", 0.0) for x in many] for many in (heavy, light)]
    # k̂ of the 190 largest draws has an sd near 0.1; it is 0.5 here, or a little more at a finite distance, and 0
    assert np.mean(np.array(shapes[0]) > 0.4) > 0.75
    assert np.mean(np.array(shapes[1]) > 0.4) <= 0.01


def test_a_tail_on_either_side_counts():
    x = np.abs(RANDOM.standard_t(1.5, (4, 1_000, 1)))
    ess = np.array([4_000.0])
    assert sd_figures(x, ess, NORMAL)["tail_shape"] == pytest.approx(sd_figures(-x, ess, NORMAL)["tail_shape"])


def test_an_sd_that_does_not_exist_passes_seldom():
    """A t with two degrees of freedom: by its kurtosis alone half of the fits passed, with sds that mean nothing."""
    target = credo.Model({"x": dist.StudentT(2.0, 0.0, 1.0)}, None).given()
    fits = [credo.fit(target, credo.Slice(), key=key, progress=False) for key in range(20)]
    assert sum(each.verdict.status == "pass" for each in fits) <= 8  # 17 without the shape of the tail


@pytest.mark.parametrize("method", [credo.NUTS(), credo.SMC()])
def test_a_mean_that_does_not_exist_is_no_pass(method):
    model = credo.Model({"k": dist.HalfCauchy(1.0)}, lambda p, x: dist.BetaBinomial(p["k"], p["k"], 5))
    posterior = credo.fit(model.given(y=np.array([2, 3, 2, 3, 2])), method, key=0, progress=False)
    assert posterior.verdict.status == "doubtful"
    assert any("may not exist" in sentence for sentence in posterior.verdict.sentences)


def test_a_scale_of_any_size_is_known():
    for sd in (20.0, 300.0):
        assert sd_error(sd * RANDOM.normal(size=(4, 1_000, 1)), np.array([3_000.0]), SCALE) > 0.3
    assert sd_error(np.ones((4, 10, 1)), np.array([10.0]), SCALE) is None


def test_each_parameter_has_its_own_ess():
    two = structure_of({"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)})
    x, ess = RANDOM.normal(size=(4, 1_000, 2)), np.array([4_000.0, 40.0])
    assert sd_figures(x, ess, two)["sd_error"] == sd_error(x, ess, two) > 0.1


def test_the_heaviest_tail_is_named_after_shares():
    """Three shares are two coordinates."""
    structure = structure_of({"p": dist.Dirichlet(np.ones(3)), "a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)})
    x = RANDOM.normal(size=(4, 1_000, 4)) * [1.0, 1.0, 1.0, 0.0] + [0, 0, 0, 1] * RANDOM.standard_t(2, (4, 1_000, 1))
    assert heaviest_tail(x, structure)[0] == "b"


def test_the_parameter_with_the_heaviest_tail_is_named():
    prior = {"mild": dist.Normal(0.0, 1.0).expand([2]), "wild": dist.HalfCauchy(1.0).expand([2, 2])}
    verdict = credo.fit(credo.Model(prior, None).given(), credo.NUTS(num_draws=400), key=0, progress=False).verdict
    assert verdict.status != "pass"
    assert any("The heaviest tail is that of wild[" in sentence for sentence in verdict.sentences)
    verdict = credo.fit(
        credo.Model({"mild": dist.Normal(0.0, 1.0)}, None).given(), credo.NUTS(), progress=False
    ).verdict
    assert not any("heaviest tail" in sentence for sentence in verdict.sentences)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads what Linux holds of a mapping")
def test_draws_on_disk_are_handed_back_as_it_goes(monkeypatch):
    """Pages that were read count as the process's memory: of 5 GB of draws it held all at a time."""
    monkeypatch.setattr("credo.diagnose.sd_error.AT_ONCE", 40_000)
    u = stored((4, 10_000, 20), np.float64)
    u[...] = RANDOM.normal(size=u.shape)
    release(u)
    wide = structure_of({"a": dist.Normal(0.0, 1.0).expand([20])})
    held = []
    monkeypatch.setattr(
        "credo.diagnose.sd_error.kurtoses_of", lambda *args: held.append(resident(u)) or kurtoses_of(*args)
    )
    found = sd_figures(u, np.full(20, 40_000.0), wide)
    assert len(held) == 20
    assert max(held) + resident(u) < 0.3 * u.nbytes
    assert found == sd_figures(np.array(u), np.full(20, 40_000.0), wide)


def resident(array) -> int:
    """Bytes in memory of the mapping where ``array`` lies."""
    address, is_here = array.__array_interface__["data"][0], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds = line.split()[0].split("-")
        if len(bounds) == 2:
            is_here = int(bounds[0], 16) <= address < int(bounds[1], 16)
        elif is_here and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such mapping")
