"""Standard errors of weighted draws are their spread over keys; Sobol points are far better than draws, and say so."""

import time

import jax.numpy as jnp
import jax.scipy.stats as jstats
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import gammaln

import credo
from credo.fitting import fit
from credo.linalg.diagonal import Diagonal
from credo.methods.particles.importance import Importance, log_evidence
from credo.methods.particles.points import Independent, Sobol
from credo.model.model import Model
from credo.posterior.kinds import Gaussian, Mixture
from credo.posterior.marginals import mcse_of_weighted_mean
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.status import CredoError, Verdict

MEAN, SD = np.array([0.4, -1.0]), np.array([0.6, 1.7])  # of the target, whose log evidence is 0
NUM_KEYS = 40


def density(params):
    return jstats.norm.logpdf(params["w"], MEAN, SD).sum()


def target():
    return Model.from_log_density(density, {"w": dist.constraints.real_vector}, {"w": (2,)}).given()


def proposal(factor=1.3, kind=None):
    return Posterior(kind or Gaussian(MEAN.copy(), Diagonal(factor * SD)), target(), verdict=Verdict("pass"))


@pytest.fixture(scope="module", params=[Independent(), Sobol()], ids=["independent", "sobol"])
def replicated(request):
    """Errors (key, estimate) in units of the truth's sd, and what was said of them: the evidence and both means."""
    found, said = [], []
    for key in range(NUM_KEYS):
        method = Importance(proposal(), num_draws=1_024, points=request.param)
        posterior = fit(target(), method, key=key, progress=False)
        table = posterior.summary()
        found.append([posterior.log_evidence.value, *((table["mean"].to_numpy() - MEAN) / SD)])
        said.append([posterior.log_evidence.error, *(table["mcse_mean"].to_numpy() / SD)])
    return request.param, np.array(found), np.array(said)


def test_standard_errors_are_the_spread_over_keys(replicated):
    _, found, said = replicated
    spread = np.sqrt(np.mean(found**2, axis=0))  # about the truth, so that a bias would show
    # the sd of a root mean square of 40 is 11 %: five of them, and with 16 scrambles the 3 % of what was said beside
    np.testing.assert_array_less(np.abs(spread / np.sqrt(np.mean(said**2, axis=0)) - 1), 0.6)


def test_intervals_cover(replicated):
    _, found, said = replicated
    misses = np.sum(np.abs(found) > stats.norm.isf(0.05) * said, axis=0)
    # 10 % are expected: a false alarm once in 28,000 for each of three estimates
    np.testing.assert_array_less(misses, stats.binom.isf(3.5e-5, NUM_KEYS, 0.1))
    assert misses.sum() > 0, "as many intervals as these do not all cover: once in 300,000"


def test_sobol_points_are_worth_many_times_the_draws():
    method = {points: Importance(proposal(), num_draws=4_096, points=points) for points in (Independent(), Sobol())}
    independent, sobol = (fit(target(), each, key=1, progress=False) for each in method.values())
    assert sobol.kind.positions.shape == (16, 256, 2)
    assert sobol.verdict.status == "pass"
    # measured: 20 to 30 times smaller, worth 400 times the draws
    assert sobol.log_evidence.error < independent.log_evidence.error / 10
    assert np.all(sobol.summary()["mcse_mean"] < independent.summary()["mcse_mean"] / 10)
    assert abs(sobol.log_evidence.value) < stats.t.isf(3e-6, 15) * sobol.log_evidence.error


def test_equal_groups_of_one_are_the_plain_error():
    values = np.random.default_rng(0).normal(size=(50, 3))
    found = mcse_of_weighted_mean(values, np.full(50, 1 / 50), 50)
    np.testing.assert_allclose(found, values.std(axis=0, ddof=1) / np.sqrt(50) * stats.t.std(49))
    assert np.isnan(mcse_of_weighted_mean(values, np.full(50, 1 / 50), 1)).all()


@pytest.mark.parametrize("num_groups", [8, 16])
def test_errors_that_few_groups_know_are_as_large_as_they_must_be(num_groups):
    """Means of groups that are normal: standardised errors are those of a normal variable in square and at 95 %."""
    num, size = 20_000, 2
    values = np.random.default_rng(0).normal(size=(num_groups * size, num))
    weights = np.full(len(values), 1 / len(values))
    z = values.mean(axis=0) / mcse_of_weighted_mean(values, weights, num_groups)
    kurtosis = 3 + float(stats.t.stats(num_groups - 1, moments="k"))
    assert abs(np.mean(z**2) - 1) < 5 * np.sqrt((kurtosis - 1) / num)
    assert abs(np.mean(np.abs(z) < stats.norm.isf(0.025)) - 0.95) < 0.01  # 0.909 and 0.931 by the plain error


def test_the_error_of_the_evidence_is_as_large_for_few_groups_as_it_must_be():
    generator, num = np.random.default_rng(0), 2_000
    found = [log_evidence(np.log1p(0.01 * generator.normal(size=8)), 0.0, 8) for _ in range(num)]
    z = np.array([each.value / each.error for each in found])
    assert abs(np.mean(z**2) - 1) < 5 * np.sqrt(4 / num)  # 5 is the kurtosis of Student's t with 7 degrees of freedom


def test_two_groups_have_the_plain_error():
    values = np.array([[0.0], [1.0]])
    np.testing.assert_allclose(mcse_of_weighted_mean(values, np.full(2, 0.5), 2), 0.5)


def test_no_error_is_named_where_none_can_be_known():
    narrow = fit(target(), Importance(proposal(0.3), points=Independent(wide_share=0.0)), progress=False)
    assert narrow.verdict.figures["pareto_k"] > 0.7
    assert narrow.summary()["mcse_mean"].isna().all()
    assert np.isnan(narrow.log_evidence.error)
    assert "A wide_share of the points can reach far" in str(narrow.verdict)
    assert "mcse_mean" not in fit(target(), credo.Grid(), progress=False).summary(), "nodes are no sample"


def test_decisions_know_the_groups_too():
    posterior = fit(target(), Importance(proposal(), num_draws=1_024, points=Sobol()), progress=False)
    decision = credo.decide(posterior, lambda action, params: (action - params["w"][..., 0]) * 1.0, actions=[0.0])
    np.testing.assert_allclose(decision.expected_loss, -posterior.mean()["w"][0], rtol=1e-9)
    np.testing.assert_allclose(decision.error, posterior.summary()["mcse_mean"].iloc[0], rtol=1e-6)


def test_numbers_of_draws_are_rounded_up_to_powers_of_two():
    assert Sobol().shape(4_000) == (16, 256)
    assert Sobol(replications=10).shape(10_240) == (10, 1_024)
    assert Sobol().shape(3) == (16, 1)
    posterior = fit(target(), Importance(proposal(), num_draws=900, points=Sobol(replications=4)), progress=False)
    assert posterior.verdict.figures["num_draws"] == 1_024


def test_points_do_not_depend_on_how_many_memory_holds():
    key = np.array([1, 2], np.uint32)
    with double():
        few, many = (Sobol().draw_and_weigh(proposal().kind, target().flat(), key, 1_024, n) for n in (37, 64))
    np.testing.assert_allclose(few[0], many[0], rtol=1e-12)
    np.testing.assert_allclose(few[1], many[1], rtol=1e-12)


def test_errors_are_known_where_tails_are_too_light():
    """Of plain points 47 % of 60 keys lay beyond 1.96 of what was said, a median of 0.01."""
    law = Model.from_log_density(
        lambda p: jstats.t.logpdf(p["w"], 5.0).sum(), {"w": dist.constraints.real_vector}, {"w": (5,)}
    ).given()
    light = Posterior(Gaussian(np.zeros(5), Diagonal(np.full(5, 1.2))), law, verdict=Verdict("pass"))
    found = [fit(law, Importance(light, points=Sobol()), key=key, progress=False) for key in range(24)]
    assert {each.kind.positions.shape for each in found} == {(16, 512, 5)}
    value, error = np.array([(each.log_evidence.value, each.log_evidence.error) for each in found]).T
    assert np.median(error) < 0.004
    assert np.sum(np.abs(value) > 1.96 * error) <= stats.binom.isf(1e-5, 24, 0.05)


def test_weights_that_met_no_tail_do_not_decide_that_there_is_none():
    """In 46 of 60 keys 4,096 points of a t of ten degrees had a k̂ below 0.25, and an evidence too low for its error."""
    scale = -2.5 * np.log(10 * np.pi) + float(gammaln(7.5) - gammaln(5.0))
    law = Model.from_log_density(
        lambda p: scale - 7.5 * jnp.log1p(p["w"] @ p["w"] / 10), {"w": dist.constraints.real_vector}, {"w": (5,)}
    ).given()
    light = Posterior(Gaussian(np.zeros(5), Diagonal(np.full(5, 1.2))), law, verdict=Verdict("pass"))
    found = [fit(law, Importance(light, points=Sobol()), key=key, progress=False) for key in range(12)]
    assert {each.kind.positions.shape for each in found} == {(16, 512, 5)}
    value, error = np.array([(each.log_evidence.value, each.log_evidence.error) for each in found]).T
    assert np.sum(np.abs(value) > 1.96 * error) <= stats.binom.isf(1e-5, 12, 0.05)


@pytest.mark.parametrize(("factor", "size"), [(1.3, 256), (1.01, 256), (0.95, 512)])
def test_points_are_added_where_the_target_is_wider(factor, size):
    assert fit(target(), Importance(proposal(factor), points=Sobol()), progress=False).kind.positions.shape[1] == size


def test_in_each_group_the_mixture_knows_the_integral_of_the_proposal():
    """The control variate: under Sobol points of r, q/r has mean one in each scramble, exactly."""
    law = Model.from_log_density(
        lambda p: jstats.t.logpdf(p["w"], 5.0).sum(), {"w": dist.constraints.real_vector}, {"w": (2,)}
    ).given()
    kind = Gaussian(np.zeros(2), Diagonal(np.ones(2)))
    with double():
        drawn = Sobol().draw_and_weigh(kind, law.flat(), np.array([1, 2], np.uint32), 4_000, 256)
    log_p = stats.t.logpdf(drawn.u, 5).sum(axis=1)
    log_q = stats.norm.logpdf(drawn.u).sum(axis=1)
    np.testing.assert_allclose(np.exp(drawn.log_weights - log_p + log_q).reshape(16, 512).mean(axis=1), 1, rtol=1e-12)
    assert np.abs(np.exp(drawn.log_own).reshape(16, 512).mean(axis=1) - 1).max() > 1e-4


def test_a_part_of_one_coordinate_far_out_is_met():
    """A twentieth with the sd 5 of the third coordinate, which plain points pass over: a sd of 1 and not of 1.48."""

    def heavy(params):
        one = jnp.logaddexp(
            jnp.log(0.95) + jstats.norm.logpdf(params["w"][2]), jnp.log(0.05) + jstats.norm.logpdf(params["w"][2], 0, 5)
        )
        return one + jstats.norm.logpdf(jnp.delete(params["w"], 2)).sum()

    law = Model.from_log_density(heavy, {"w": dist.constraints.real_vector}, {"w": (4,)}).given()
    light = Posterior(Gaussian(np.zeros(4), Diagonal(np.ones(4))), law, verdict=Verdict("pass"))
    posterior = fit(law, Importance(light, points=Sobol()), progress=False)
    np.testing.assert_allclose(posterior.sd()["w"], [1, 1, np.sqrt(0.95 + 0.05 * 25), 1], rtol=0.1)


def test_points_go_through_a_flow():
    flow = fit(target(), credo.ADVI(family=credo.vi.Flow()), progress=False)
    posterior = fit(target(), Importance(flow, points=Sobol()), progress=False)
    assert posterior.verdict.status == "pass"
    assert abs(posterior.log_evidence.value) < stats.t.isf(3e-6, 15) * posterior.log_evidence.error


def test_a_time_limit_keeps_whole_scrambles():
    method = Importance(proposal(), num_draws=4_096, points=Sobol())
    whole = fit(target(), method, progress=False)
    posterior = fit(target(), method, time_limit=1e-6, progress=False)
    assert posterior.kind.positions.shape == (2, 256, 2)
    np.testing.assert_array_equal(posterior.kind.positions, whole.kind.positions[:2])
    assert np.isfinite(posterior.log_evidence.error)
    assert any("after 512 of 4,096 draws" in sentence for sentence in posterior.verdict.sentences)


def test_a_time_limit_keeps_whole_groups_of_those_that_reach_far():
    method = Importance(proposal(0.6), num_draws=4_096, points=Sobol())
    whole = fit(target(), method, progress=False)
    assert whole.kind.positions.shape == (16, 512, 2)
    posterior = fit(target(), method, time_limit=1e-6, progress=False)
    np.testing.assert_array_equal(posterior.kind.positions, whole.kind.positions[:2])
    assert any("after 1,024 of 8,192 draws" in sentence for sentence in posterior.verdict.sentences)
    assert not posterior.info["is_complete"]
    assert whole.info["is_complete"]


def test_a_single_precision_fit():
    posterior = fit(target(), Importance(proposal(), points=Sobol()), precision="float32", progress=False)
    assert posterior.kind.positions.dtype == np.float32
    assert abs(posterior.log_evidence.value) < 5e-3


def test_what_sobol_points_cannot_do_has_its_sentence():
    mixture = Mixture(np.log([0.5, 0.5]), (proposal().kind, proposal(2.0).kind))
    with pytest.raises(CredoError, match="mapped to a Gaussian or a flow, and the proposal is a Mixture"):
        fit(target(), Importance(proposal(kind=mixture), points=Sobol()), progress=False)
    with pytest.raises(CredoError, match=r"Sobol\(replications=1\): replications is 2 or more"):
        fit(target(), Importance(proposal(), points=Sobol(replications=1)), progress=False)
    with pytest.raises(CredoError, match="points is of the kind Points, such as Independent"):
        fit(target(), Importance(proposal(), points="sobol"), progress=False)


def test_more_coordinates_than_sobol_sequences_have():
    wide = Gaussian(np.zeros(21_201), Diagonal(np.ones(21_201)))
    begun = time.monotonic()
    many = Model({"w": dist.Normal(0.0, 1.0).expand([21_201])}, None).given()
    with pytest.raises(CredoError, match="21,201 coordinates and Sobol points 21,200 at most"):
        Sobol().draw_and_weigh(wide, many, None, 16, 16)
    assert time.monotonic() - begun < 1
