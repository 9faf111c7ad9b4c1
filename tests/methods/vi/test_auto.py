"""The ladder stops at the first rung that can be trusted, and says why it climbed."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo.fitting import fit, resume
from credo.methods.vi import advi
from credo.methods.vi.advi import ADVI
from credo.methods.vi.auto import Auto, default_rungs
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.pathfinder.pathfinder import Pathfinder
from credo.model.model import Model
from credo.status import CredoError

PRECISION = np.array([[1.0, 0.95], [0.95, 1.0]])


def correlated_density(params):
    return -0.5 * params["w"] @ PRECISION @ params["w"]


def heavy_density(params):
    return jnp.sum(dist.Cauchy(0.0, 1.0).log_prob(params["w"]))


def target_of(density):
    return Model.from_log_density(density, {"w": constraints.real_vector}, {"w": (2,)}).given()


def test_it_climbs_from_independent_to_correlated_normals_and_stops_there():
    posterior = fit(target_of(correlated_density), Auto(rungs=(ADVI(MeanField()), ADVI(FullRank()))), progress=False)
    assert posterior.verdict.status == "pass"
    rungs = posterior.info["rungs"]
    assert [rung["name"] for rung in rungs] == ["ADVI(MeanField())", "ADVI(FullRank())"]
    assert [rung["status"] == "pass" for rung in rungs] == [False, True]
    assert rungs[0]["why"]
    assert not rungs[1]["why"]
    assert posterior.info["num_gradients"] == sum(rung["num_gradients"] for rung in rungs)
    assert "MeanField()) was left for a richer approximation" in posterior.verdict.sentences[-1]


def test_by_itself_it_begins_with_a_path_and_where_that_passes_ends_there():
    posterior = fit(target_of(correlated_density), Auto(), key=1, progress=False)
    assert [rung["name"] for rung in posterior.info["rungs"]] == ["Pathfinder()"]
    assert posterior.verdict.status == "pass"
    sds = np.sqrt(np.diag(np.linalg.inv(PRECISION)))
    np.testing.assert_allclose(posterior.sd()["w"], sds, rtol=0.1)  # what a pass promises
    assert np.all(np.abs(posterior.mean()["w"]) < 0.1 * sds)


class Seen:
    """A method that keeps where it was told to begin, and what it found."""

    def __init__(self, method):
        self.method = method

    def fit(self, target, *, key, start, options):
        self.start = start
        self.found = self.method.fit(target, key=key, start=start, options=options)
        return self.found


@pytest.mark.parametrize("given", [None, np.array([2.0, -1.0])])
def test_a_rung_begins_in_the_middle_of_the_one_below_unless_a_start_is_given(given):
    rungs = tuple(Seen(Pathfinder(num_draws=200)) for _ in range(3))
    posterior = fit(target_of(heavy_density), Auto(rungs=rungs), key=1, start=given, progress=False)
    assert len(posterior.info["rungs"]) == 3, "a Cauchy is no Gaussian"
    for below, rung in itertools.pairwise(rungs):
        assert below.found.verdict.status != "pass"
        np.testing.assert_array_equal(rung.start, below.found.kind.mean if given is None else given)


class Late(Seen):
    """A method that does not look at the clock."""

    def fit(self, target, *, key, start, options):
        answer = super().fit(target, key=key, start=start, options=options._replace(time_limit=None))
        time.sleep(options.time_limit)
        return answer


def test_rungs_that_a_time_limit_leaves_out_are_said():
    rungs = Late(ADVI(MeanField())), Seen(ADVI(FullRank()))
    posterior = fit(target_of(correlated_density), Auto(rungs=rungs), time_limit=0.1, progress=False)
    assert len(posterior.info["rungs"]) == 1
    assert posterior.info["is_complete"] is False
    assert "The time limit came before the others: raise time_limit" in posterior.verdict.sentences[-1]
    whole = fit(target_of(correlated_density), Auto(rungs=rungs[1:]), progress=False)
    assert whole.info["is_complete"] is True


def test_where_no_rung_holds_it_gives_the_best_and_says_so():
    rungs = ADVI(MeanField(), max_steps=100), ADVI(FullRank(), max_steps=100)
    posterior = fit(target_of(heavy_density), Auto(rungs=rungs), progress=False)
    assert posterior.verdict.status != "pass"
    assert "Use NUTS()" in posterior.verdict.sentences[-1]
    best = max(posterior.info["rungs"], key=lambda rung: rung["log_evidence"])
    assert best["name"] in posterior.verdict.sentences[-1]
    assert posterior.verdict.figures["elbo"] == best["log_evidence"]


def test_a_rung_that_memory_does_not_hold_is_left_out():
    target = Model.from_log_density(
        lambda params: -0.5 * jnp.sum(params["w"] ** 2), {"w": constraints.real_vector}, {"w": (200,)}
    ).given()
    posterior = fit(target, Auto(rungs=(ADVI(FullRank()), ADVI(MeanField()))), progress=False, max_memory=20_000_000)
    assert [rung["name"] for rung in posterior.info["rungs"]] == ["ADVI(MeanField())"]
    assert "Memory does not hold a rung: FullRank() needs" in posterior.verdict.sentences[-1]
    with pytest.raises(CredoError, match=r"FullRank\(\) needs .* MeanField\(\) needs"):
        fit(target, Auto(rungs=(ADVI(FullRank()),)), progress=False, max_memory=20_000_000)


@pytest.mark.slow
def test_a_rung_with_a_small_k_hat_in_the_wrong_place_is_not_given():
    """Its weights behaved over its own draws, 1.3 sds away from the posterior's mean."""
    model = Model(
        {"m": dist.Gamma(1.0, 0.1), "r": dist.HalfCauchy(1.0)},
        lambda params, x: dist.NegativeBinomial2(params["m"], params["r"]),
    )
    for key in range(2):
        posterior = fit(model.given(y=np.array([0, 0, 5, 1])), Auto(), key=key, progress=False)
        highest = max(rung["log_evidence"] for rung in posterior.info["rungs"])
        assert posterior.verdict.status == "pass" or posterior.verdict.figures["elbo"] == highest
        assert abs(posterior.mean()["m"] - 4.34) < 1.5


def test_rungs_follow_the_dimension():
    path, *rest = default_rungs(5)
    assert isinstance(path, Pathfinder)
    assert [type(method.family).__name__ for method in rest] == ["MeanField", "FullRank", "Flow"]
    assert len(default_rungs(1)) == 1
    assert all(isinstance(method, ADVI) for method in default_rungs(2_000))
    assert isinstance(default_rungs(2_000)[-1].family, LowRank)


def test_no_rungs_are_a_sentence():
    with pytest.raises(CredoError, match="nothing to fit"):
        fit(target_of(correlated_density), Auto(rungs=()), progress=False)


@pytest.mark.parametrize(
    ("rung", "match"),
    [
        (3, r"takes methods such as ADVI\(FullRank\(\)\), with their brackets; got 3"),
        (ADVI, "with their brackets; got <class 'credo.methods.vi.advi.ADVI'>"),
        (ADVI(max_steps=1.5), r"ADVI\(max_steps=1.5\): max_steps is a whole number"),
    ],
)
def test_rungs_that_are_no_methods_are_refused_before_any_is_fitted(rung, match):
    seen = Seen(ADVI())
    with pytest.raises(CredoError, match=match):
        fit(target_of(correlated_density), Auto(rungs=(seen, rung)), progress=False)


def test_a_climb_that_was_cut_goes_on_bit_for_bit(tmp_path, monkeypatch):
    target = target_of(correlated_density)
    method = Auto(rungs=(ADVI(MeanField()), ADVI(FullRank())))
    whole = fit(target, method, progress=False)
    assert len(whole.info["rungs"]) == 2
    measure, calls = advi.measure, []

    def interrupted(*args, **settings):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*args, **settings)

    monkeypatch.setattr(advi, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(target, method, checkpoint=tmp_path / "run", progress=False)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"run.safetensors", "rung-0", "rung-1"}
    resumed = resume(tmp_path / "run", target, progress=False)
    for found, expected in zip(jax.tree.leaves(resumed.kind), jax.tree.leaves(whole.kind), strict=True):
        np.testing.assert_array_equal(found, expected)
    names = [[rung["name"] for rung in posterior.info["rungs"]] for posterior in (resumed, whole)]
    assert names[0] == names[1]


def test_a_rung_that_was_cut_says_so_and_nothing_else():
    """Its k-hat may be fine: it had no steps to end with."""
    model = credo.Model({"m": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["m"], 1.0))
    method = credo.Auto(rungs=(credo.ADVI(max_steps=5), credo.ADVI(credo.FullRank())))
    story = credo.fit(model.given(y=np.array([1.0, 2.0])), method, progress=False).info["rungs"]
    assert "weights would correct" not in story[0]["why"]
    assert story[0]["why"]
