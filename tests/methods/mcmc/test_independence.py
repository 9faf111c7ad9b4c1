"""The independence sampler: exact proposals are always taken, thin ones are found out, others are refused."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc import chains, proposals
from credo.methods.particles.unmet import far_shift, unmet
from credo.posterior.kinds import Gaussian, Mixture
from credo.posterior.posterior import Posterior
from credo.posterior.product import Product
from credo.precision import double

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


def slab(share: float, sd: float):
    """A standard normal with a share of another, ``sd`` as wide."""
    law = dist.MixtureSameFamily(dist.Categorical(np.array([1 - share, share])), dist.Normal(0.0, np.array([1.0, sd])))
    return credo.Model({"x": law}, None).given()


@pytest.mark.parametrize("keeps", [0.9, 0.995, 1.0])
def test_what_the_proposal_never_offers_is_missed(keeps):
    """Independent draws of a t of five degrees, in the place of chains, without the farthest of them."""
    target = credo.Model({"x": dist.StudentT(5.0).expand([3])}, None).given()
    draws = np.random.default_rng(1).standard_t(5, size=(40_000, 3))
    length = np.linalg.norm(draws, axis=1)
    kept = draws[length <= np.quantile(length, keeps)][:20_000].reshape(1, -1, 3)
    proposal, weights = Gaussian(np.zeros(3), Diagonal(np.full(3, 1.2))), np.random.default_rng(2).normal(size=10_000)
    found = unmet(proposal, target, kept, 0.1 * weights, {}, jax.random.key(0))
    missed = np.log(np.sqrt(5 / 3) / kept.std(axis=1)).max()
    assert found["unmet_shift"] <= missed + 0.02
    assert (found["unmet_shift"] > 0.095) == (keeps < 0.95)
    assert found["pareto_k"] == 0.0
    assert "pareto_k" not in unmet(proposal, target, kept, weights, {}, jax.random.key(0))


@pytest.mark.parametrize("is_product", [False, True])
def test_a_part_that_no_proposal_meets_does_not_pass(is_product):
    """The weights of the proposals are all but equal, and the sd is 9."""
    target = slab(0.05, 40.0)
    product = Product({"x": dist.Normal(np.zeros(()), np.ones(()))}, target.structure)
    kind = product if is_product else Gaussian(np.zeros(1), Diagonal(np.ones(1)))
    method = credo.IndependenceMH(proposal=Posterior(kind, target, verdict=credo.Verdict("pass")))
    posterior = credo.fit(target, method, key=1, progress=False)
    assert posterior.sd()["x"] < 1.2
    assert posterior.verdict.status != "pass"


@pytest.mark.parametrize("key", [1, 3])
def test_a_mode_that_no_proposal_meets_does_not_pass(key):
    """A third of a percent of the posterior, whose sd is half of what it is without. k-hat of such proposals says
    nothing sure, so modes were not looked for, and it was cleared by draws that know of none."""
    model = credo.Model({"m": dist.Normal(0.0, 20.0)}, lambda p, x: dist.Cauchy(p["m"], 0.5).expand([5]))
    target = model.given(None, np.array([-8.0, -7.2, 7.0, 7.5, 8.2]))
    proposal = credo.fit(target, credo.ADVI(family=credo.FullRank()), key=key, progress=False)
    posterior = credo.fit(target, credo.IndependenceMH(proposal=proposal), key=key, progress=False)
    assert posterior.draws["m"].min() > 0
    assert posterior.verdict.figures["mode_share"] == pytest.approx(0.003, abs=0.001)
    assert posterior.verdict.status != "pass"


def test_what_was_missed_has_its_sentence(exact, monkeypatch):
    method = credo.IndependenceMH(proposal=exact)
    monkeypatch.setattr(proposals, "unmet", lambda *_: {"unmet_shift": 0.2})
    verdict = credo.fit(TARGET, method, key=1, progress=False).verdict
    assert verdict.status == "doubtful"
    assert "put the worst mean or log sd of the chains off by at least 0.20" in verdict.sentences[0]


def test_light_weights_of_any_tail_pass_where_nothing_is_missed(monkeypatch):
    """A Gaussian of a skewed posterior: it is outgrown where that has no mass."""
    target = credo.Model({"x": dist.Gamma(30.0, 1.0)}, None).given()
    method = credo.IndependenceMH(proposal=credo.fit(target, credo.ADVI(family=credo.FullRank()), key=0))
    monkeypatch.setattr(chains, "judged_shape", lambda *_: 0.8)
    verdict = credo.fit(target, method, key=1, progress=False).verdict
    assert verdict.status == "pass"
    assert verdict.figures["pareto_k"] == 0.0
    monkeypatch.setattr(proposals, "unmet", lambda *_: {})
    verdict = credo.fit(target, method, key=1, progress=False).verdict
    assert verdict.status == "doubtful"


def test_no_time_is_no_answer():
    """One batch of 128 draws, the first, tells nothing."""
    target = credo.Model({"x": dist.Normal(0.0, 1.0)}, None).given()
    kind, positions = Gaussian(np.zeros(1), Diagonal(np.ones(1))), np.random.default_rng(0).normal(size=(2, 500, 1))
    with double():
        late = far_shift(kind, target.cast(np.float64), positions, {}, jax.random.key(0), deadline=0.0)
        found = far_shift(kind, target.cast(np.float64), positions, {}, jax.random.key(0))
    assert np.isnan(late[0])
    assert late[1] is None
    assert found == (0.0, pytest.approx(0.0, abs=0.02))


def test_a_heavy_tail_of_light_weights_is_no_excuse():
    """The wide part reaches further than the draws that look for it, so that a few of these have large weights."""
    target, kind = slab(0.05, 40.0), Gaussian(np.zeros(1), Diagonal(np.ones(1)))
    near = np.random.default_rng(0).normal(size=(4, 1_000, 1))
    with double():
        found = [far_shift(kind, target.cast(np.float64), near, {}, jax.random.key(key)) for key in range(8)]
    heavy = [shift for k_hat, shift in found if k_hat > 0.7]
    assert heavy, "else this shows nothing"
    assert min(shift or 0.0 for _, shift in found) > 0.4


def test_few_effective_draws_are_few():
    """Chains that repeat ten draws a hundred times miss the moments by what chance explains, as their sizes say."""
    target = credo.Model({"x": dist.Normal(0.0, 1.0)}, None).given()
    kind = Gaussian(np.zeros(1), Diagonal(np.ones(1)))
    repeated = np.repeat(0.6 * np.random.default_rng(0).normal(size=(1, 10, 1)), 100, axis=1)
    with double():
        shifts = [
            far_shift(kind, target.cast(np.float64), repeated, {"min_ess_bulk": size}, jax.random.key(0))[1]
            for size in (10.0, 1_000.0)
        ]
    assert shifts[0] < 0.7 * shifts[1]


def test_many_parameters():
    """Above 1,000 the size of a block of draws is asked of the density itself."""
    target = credo.Model({"x": dist.Normal(0.0, 1.0).expand([1_001])}, None).given()
    proposal = Posterior(Gaussian(np.zeros(1_001), Diagonal(np.ones(1_001))), target, verdict=credo.Verdict("pass"))
    method = credo.IndependenceMH(proposal=proposal, chains=2, num_warmup=0, num_draws=20)
    positions = np.random.default_rng(0).normal(size=(1, 50, 1_001))
    with double():
        found = unmet(proposal.kind, target.cast(np.float64), positions, np.zeros(50), {}, jax.random.key(0))
    assert found.keys() == {"unmet_shift", "pareto_k"}
    assert np.isfinite(credo.fit(target, method, key=0, progress=False).mean()["x"]).all()


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
