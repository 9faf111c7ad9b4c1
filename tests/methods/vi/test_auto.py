"""The ladder stops at the first rung that can be trusted, and says why it climbed."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from credo.fitting import fit
from credo.methods.vi.advi import ADVI
from credo.methods.vi.auto import Auto, default_rungs
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
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
    posterior = fit(target_of(correlated_density), Auto(), progress=False)
    assert posterior.verdict.status == "pass"
    rungs = posterior.info["rungs"]
    assert [rung["name"] for rung in rungs] == ["ADVI(MeanField())", "ADVI(FullRank())"]
    assert [rung["status"] == "pass" for rung in rungs] == [False, True]
    assert rungs[0]["why"]
    assert not rungs[1]["why"]
    assert posterior.info["num_gradients"] == sum(rung["num_gradients"] for rung in rungs)
    assert "MeanField()) was left for a richer approximation" in posterior.verdict.sentences[-1]


def test_where_no_rung_holds_it_gives_the_best_and_says_so():
    rungs = ADVI(MeanField(), max_steps=100), ADVI(FullRank(), max_steps=100)
    posterior = fit(target_of(heavy_density), Auto(rungs=rungs), progress=False)
    assert posterior.verdict.status != "pass"
    assert "Use NUTS()" in posterior.verdict.sentences[-1]
    best = min(posterior.info["rungs"], key=lambda rung: rung["pareto_k"])
    assert best["name"] in posterior.verdict.sentences[-1]
    assert posterior.verdict.figures["pareto_k"] == best["pareto_k"]


def test_rungs_follow_the_dimension():
    assert [type(method.family).__name__ for method in default_rungs(5)] == ["MeanField", "FullRank", "Flow"]
    assert len(default_rungs(1)) == 1
    assert isinstance(default_rungs(2_000)[-1].family, LowRank)


def test_what_it_cannot_do_is_said(tmp_path):
    with pytest.raises(CredoError, match="nothing to fit"):
        fit(target_of(correlated_density), Auto(rungs=()), progress=False)
    with pytest.raises(CredoError, match="keeps no checkpoint"):
        fit(target_of(correlated_density), Auto(), checkpoint=tmp_path / "run", progress=False)
