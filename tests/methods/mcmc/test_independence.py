"""The independence sampler: exact proposals are always taken, thin ones are found out, others are refused."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc import proposals
from credo.methods.mcmc.unmet import unmet
from credo.posterior.kinds import Gaussian, Mixture
from credo.posterior.posterior import Posterior

MODEL = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, lambda params, x: dist.Normal(x @ params["w"], 0.5))
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30, 2))
TARGET = MODEL.given(X, X @ [1.0, -1.0] + 0.5 * RANDOM.normal(size=30))


@pytest.fixture(scope="module")
def exact():
    return credo.fit(TARGET, credo.Exact())


def proposing(kind, like: Posterior) -> Posterior:
    return Posterior(kind, like.target, verdict=like.verdict)


@pytest.mark.parametrize(("precision", "rounding"), [("float64", 1e-9), ("float32", 1e-3)])
def test_an_exact_proposal_is_always_taken(exact, precision, rounding):
    method = credo.IndependenceMH(proposal=exact)
    posterior = credo.fit(TARGET, method, key=1, precision=precision, progress=False)
    figures = posterior.verdict.figures
    assert posterior.verdict.status == "pass"
    assert figures["acceptance_rate"] == pytest.approx(1, abs=rounding)
    assert figures["pareto_k"] == 0
    assert figures["min_ess_bulk"] > 0.8 * figures["num_draws"]
    assert posterior.info["num_densities"] == 4 * 1_100 * 5


def test_a_proposal_given_as_the_start_serves_too(exact):
    posterior = credo.fit(TARGET, credo.IndependenceMH(num_draws=50), key=1, start=exact, progress=False)
    assert posterior.verdict.figures["acceptance_rate"] == pytest.approx(1, abs=1e-9)


def test_chains_begin_where_they_are_told_to(exact):
    """At a point that a thin proposal hardly ever gives, and whose weight no proposal's comes near to."""
    thin = Gaussian(exact.kind.mean, Diagonal(np.full(2, 1e-3)))
    method = credo.IndependenceMH(proposal=proposing(thin, exact), num_draws=50)
    start = np.asarray(exact.kind.mean) + 0.1
    posterior = credo.fit(TARGET, method, key=1, start={"w": start}, progress=False)
    np.testing.assert_allclose(posterior.draws["w"], np.broadcast_to(start, (4, 50, 2)))


def test_a_wide_proposal_is_corrected(exact):
    """Twice too wide and off its place; a mixture, which has a density as well."""
    mean, sd = exact.kind.mean, np.sqrt(exact.kind.scale.diagonal())
    wide = Gaussian(mean + 0.5 * sd, Diagonal(2 * sd))
    kind = Mixture(np.log([0.3, 0.7]), (wide, exact.kind))
    method = credo.IndependenceMH(proposal=proposing(kind, exact))
    posterior = credo.fit(TARGET, method, key=2, progress=False)
    assert posterior.verdict.status == "pass", posterior.verdict
    ess = posterior.verdict.figures["min_ess_bulk"]
    np.testing.assert_array_less(np.abs(posterior.mean()["w"] - mean) / sd, 5 / np.sqrt(ess))


def test_a_thin_proposal_is_found_out(exact):
    """Half as wide as the posterior: the weights have no variance, and chains stick where they are large."""
    thin = Gaussian(exact.kind.mean, Diagonal(0.5 * np.sqrt(exact.kind.scale.diagonal())))
    posterior = credo.fit(TARGET, credo.IndependenceMH(proposal=proposing(thin, exact)), key=1, progress=False)
    assert posterior.verdict.figures["pareto_k"] > 0.7
    assert any("Pareto k-hat" in sentence for sentence in posterior.verdict.sentences)


@pytest.mark.parametrize("keeps", [0.9, 0.995, 1.0])
def test_what_the_proposal_never_offers_is_missed(keeps):
    """Independent draws of a t of five degrees, in the place of chains, without the farthest of them."""
    target = credo.Model({"x": dist.StudentT(5.0).expand([3])}, None).given()
    draws = np.random.default_rng(1).standard_t(5, size=(40_000, 3))
    length = np.linalg.norm(draws, axis=1)
    kept = draws[length <= np.quantile(length, keeps)][:20_000].reshape(1, -1, 3)
    found = unmet(Gaussian(np.zeros(3), Diagonal(np.full(3, 1.2))), target, kept, jax.random.key(0))
    missed = np.log(np.sqrt(5 / 3) / kept.std(axis=1)).max()
    assert found["log_sd_shift"] <= missed + 0.02
    assert (found["log_sd_shift"] > 0.095) == (keeps < 0.95)
    assert found["mean_shift"] < 0.05


def test_a_pass_takes_what_was_never_offered_into_account(exact, monkeypatch):
    method = credo.IndependenceMH(proposal=exact)
    monkeypatch.setattr(proposals, "unmet", lambda *_: {"mean_shift": 0.0, "log_sd_shift": 0.2})
    verdict = credo.fit(TARGET, method, key=1, progress=False).verdict
    assert verdict.status == "doubtful"
    assert "change the log of the worst sd by at least 0.20" in verdict.sentences[0]


def refuse(target, method, sentence, **settings):
    with pytest.raises(credo.CredoError, match=sentence):
        credo.fit(target, method, progress=False, **settings)


def test_what_cannot_be_proposed_from_is_refused(exact, tmp_path):
    draws = credo.fit(TARGET, credo.NUTS(num_warmup=20, num_draws=10), progress=False)
    point = credo.fit(TARGET, credo.MAP())
    refuse(TARGET, credo.IndependenceMH(), "needs a posterior to propose from")
    refuse(TARGET, credo.IndependenceMH(proposal=draws), "is a Draws posterior, which has no density")
    refuse(TARGET, credo.IndependenceMH(proposal=point), "is a Point posterior, which has no density")
    others = {
        r"the shape of 'w' is \(2,\) there and \(3,\) here": {"w": dist.Normal(0.0, 1.0).expand([3])},
        "the support of 'w' is real there and positive here": {"w": dist.HalfNormal(1.0).expand([2])},
        "'w' exists there alone": {"v": dist.Normal(0.0, 1.0).expand([2])},
        "'v' exists here alone": {"w": dist.Normal(0.0, 1.0).expand([2]), "v": dist.Normal(0.0, 1.0)},
    }
    for difference, prior in others.items():
        target = credo.Model(prior, None).given()
        refuse(target, credo.IndependenceMH(proposal=exact), rf"other parameters than this target \({difference}\)")
    first, second = {"a": dist.Normal(0.0, 1.0)}, {"b": dist.Normal(0.0, 1.0)}
    proposal = credo.fit(credo.Model(first | second, None).given(), credo.Laplace())
    swapped = credo.Model(second | first, None).given()
    refuse(swapped, credo.IndependenceMH(proposal=proposal), r"\(they come as a, b there and as b, a here\)")
    refuse(TARGET, credo.IndependenceMH(proposal=exact), "a Posterior among the method's settings", checkpoint=tmp_path)
