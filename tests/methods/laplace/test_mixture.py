"""Mixtures of Laplace approximations: masses of modes, what is mixed, and what is said where a member is no mode."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy import stats as jstats
from numpyro.distributions import constraints
from scipy.integrate import quad

import credo
from credo.linalg.diagonal import Diagonal
from credo.methods.laplace.mixture import SAME, distinct
from credo.nn import BayesianNetwork, Categorical, Gaussian
from credo.posterior.kinds import Draws, Mixture
from credo.posterior.kinds import Gaussian as Normal
from credo.posterior.posterior import Posterior
from targets import mixture as two_modes

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 2))
X_NEW = 2.0 * RNG.normal(size=(7, 2))
Y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * RNG.normal(size=60)
WEIGHTS = {"in": RNG.normal(size=(2, 5)), "out": RNG.normal(size=(5,))}
CLASSES = (Y > 0).astype(int) + (Y > 1)


def regression(head=None) -> credo.Target:
    return BayesianNetwork(lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"], WEIGHTS, head=head or Gaussian(0.3)).given(
        X, Y
    )


def classes() -> credo.Target:
    weights = {"in": WEIGHTS["in"], "out": RNG.normal(size=(5, 3))}
    network = BayesianNetwork(lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"], weights, head=Categorical())
    return network.given(X, CLASSES)


def of_density(log_density, shape=()) -> credo.Target:
    return credo.Model.from_log_density(log_density, {"x": constraints.real}, shape={"x": shape}).given()


@functools.cache
def ensemble(number: int = 3) -> Posterior:
    return credo.fit(regression(), credo.DeepEnsemble(members=number, num_steps=500), key=1, progress=False)


@functools.cache
def mixture() -> Posterior:
    return credo.fit(regression(), credo.MixtureOfLaplaces(), start=ensemble(), key=2, progress=False)


def components(posterior: Posterior) -> tuple[Normal, ...]:
    assert isinstance(posterior.kind, Mixture)
    return posterior.kind.components  # type: ignore[return-value]


def alone(posterior: Posterior) -> list[Posterior]:
    return [Posterior(kind, posterior.target, verdict=posterior.verdict) for kind in components(posterior)]


# masses ---------------------------------------------------------------------------------------------------------------


def test_evidence_weighs_two_gaussians_by_their_masses():
    """In two dimensions, correlated and of different widths; 20 sds apart, so that each is a mode of its own."""
    first, second = np.array([[1.0, 0.6], [0.6, 0.5]]), np.array([[0.2, -0.1], [-0.1, 0.3]])
    center = np.array([3.0, -2.0])

    def log_density(params):
        parts = (
            jnp.log(0.15) + jstats.multivariate_normal.logpdf(params["x"], center, first),
            jnp.log(0.85) + jstats.multivariate_normal.logpdf(params["x"], -center, second),
        )
        return jnp.logaddexp(*parts)

    method = credo.MixtureOfLaplaces(
        members=6, weights="evidence", init=lambda key: {"x": dist.Normal(0.0, 3.0).expand([2]).sample(key)}
    )
    posterior = credo.fit(of_density(log_density, (2,)), method, key=0, progress=False)
    np.testing.assert_allclose(posterior.info["weights"], [0.85, 0.15], atol=1e-8)
    assert posterior.log_evidence is not None
    assert posterior.log_evidence.value == pytest.approx(0.0, abs=1e-8)
    mean = 0.7 * -center
    np.testing.assert_allclose(posterior.mean()["x"], mean, atol=1e-8)
    variance = 0.15 * (np.diag(first) + (center - mean) ** 2) + 0.85 * (np.diag(second) + (center + mean) ** 2)
    np.testing.assert_allclose(posterior.sd()["x"] ** 2, variance, rtol=1e-8)
    assert posterior.verdict.status == "pass"


def test_both_wells_are_found_and_their_masses_are_those_of_quadrature():
    """−a (x² − 4)² + x/8: the error of each mass is of the order of 1 / (curvature · 4), and is alike in both wells."""

    def log_density(x):
        return -2.0 * (x * x - 4.0) ** 2 + x / 8.0

    method = credo.MixtureOfLaplaces(members=8, weights="evidence")
    posterior = credo.fit(of_density(lambda params: log_density(params["x"])), method, key=1, progress=False)
    masses = [quad(lambda x: np.exp(log_density(x)), *ends, epsabs=1e-12)[0] for ends in ((0.0, 4.0), (-4.0, 0.0))]
    np.testing.assert_allclose(posterior.info["weights"], np.array(masses) / sum(masses), atol=2e-3)
    assert posterior.log_evidence is not None
    assert posterior.log_evidence.value == pytest.approx(np.log(sum(masses)), abs=0.02)
    assert posterior.verdict.figures["unseen_share"] == 0.0


def test_modes_that_are_one_count_once():
    target = of_density(lambda params: jstats.norm.logpdf(params["x"], 2.0, 0.5))
    for weights in ("equal", "evidence"):
        posterior = credo.fit(target, credo.MixtureOfLaplaces(members=4, weights=weights), progress=False)
        assert isinstance(posterior.kind, Normal)
        np.testing.assert_array_equal(posterior.info["mode_of"], 0)
        assert posterior.log_evidence is not None
        assert posterior.log_evidence.value == pytest.approx(0.0, abs=1e-8)
        assert posterior.verdict.status == "pass"


def test_modes_are_told_apart_by_their_distance_in_sds():
    def at(*places):
        found = []
        for x in places:
            kind = credo.fit(of_density(lambda params: jstats.norm.logpdf(params["x"], 0.0, 2.0)), credo.Laplace()).kind
            moved = Normal(np.asarray(kind.mean) + 2.0 * x, kind.scale)  # type: ignore[attr-defined]
            found.append(Posterior(moved, regression(), verdict=credo.Verdict("pass"), info={"log_density": -abs(x)}))
        return [mode.members for mode in distinct(found)]

    assert at(0.0, 0.9 * SAME) == [(0, 1)]
    assert at(0.0, 1.1 * SAME) == [(0,), (1,)]
    assert at(1.1 * SAME, 0.0, 3.0, 0.2 * SAME) == [(1, 3), (0,), (2,)]


def test_a_narrow_mode_within_a_wide_one_is_its_own():
    def around(x, sd):
        kind = Normal(np.array([x]), Diagonal(np.array([sd])))
        return Posterior(kind, regression(), verdict=credo.Verdict("pass"), info={"log_density": 0.0})

    for x, number in ((0.5 * SAME, 1), (1.5 * SAME, 2)):  # in sds of the narrow one, a tenth as far in the other's
        for pair in ((around(0.0, 10.0), around(x, 1.0)), (around(x, 1.0), around(0.0, 10.0))):
            assert len(distinct(pair)) == number


# what is mixed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [None, 0])
def test_one_member_is_laplace(num_steps):
    """Around the same weights: with Laplace(num_steps=0) as they are, otherwise polished."""
    laplace = credo.Laplace(num_steps=num_steps)
    found = credo.fit(regression(), credo.MixtureOfLaplaces(laplace=laplace), start=ensemble(1), key=5, progress=False)
    if num_steps == 0:
        expected = credo.fit(regression(), laplace, start=ensemble(1), key=5, progress=False)
    else:
        expected = credo.fit(regression(), credo.Laplace(num_steps=0), start=found, key=5, progress=False)
        before = credo.fit(regression(), credo.Laplace(num_steps=0), start=ensemble(1), key=5, progress=False)
        assert found.verdict.figures["mode_distance"] < 0.2 * before.verdict.figures["mode_distance"]
    assert isinstance(found.kind, Normal)
    assert isinstance(expected.kind, Normal)
    np.testing.assert_array_equal(found.kind.mean, expected.kind.mean)
    np.testing.assert_allclose(found.kind.scale.dense(), expected.kind.scale.dense(), rtol=1e-6, atol=1e-9)
    assert found.log_evidence is not None
    assert expected.log_evidence is not None
    assert found.log_evidence.value == pytest.approx(expected.log_evidence.value, abs=1e-6)
    for name in ("mode_distance", "min_curvature"):
        assert found.verdict.figures[name] == pytest.approx(expected.verdict.figures[name], rel=1e-5)
    assert found.verdict.status == expected.verdict.status
    np.testing.assert_allclose(found.predict(X_NEW).variance, expected.predict(X_NEW).variance, rtol=1e-6)


def test_predictions_are_the_average_of_the_members():
    posterior, y = mixture(), RNG.normal(size=7)
    each = [part.predict(X_NEW, credo.Linearised()) for part in alone(posterior)]
    assert len(each) == 3
    predictive = posterior.predict(X_NEW)
    assert posterior.info["predicts"] == "linearised"
    np.testing.assert_allclose(predictive.log_prob(y), np.log(np.mean([np.exp(p.log_prob(y)) for p in each], axis=0)))
    means, mean = np.array([p.mean for p in each]), np.mean([p.mean for p in each], axis=0)
    np.testing.assert_allclose(predictive.mean, mean)
    np.testing.assert_allclose(predictive.aleatoric, np.mean([p.aleatoric for p in each], axis=0))
    between = np.mean([p.epistemic for p in each], axis=0) + np.var(means, axis=0)
    np.testing.assert_allclose(predictive.epistemic, between, rtol=1e-10)
    assert np.any(np.var(means, axis=0) > 1e-3)


def test_probabilities_are_the_average_of_the_members():
    method = credo.MixtureOfLaplaces(members=2, num_steps=300, batch_size=None)
    posterior = credo.fit(classes(), method, key=3, progress=False)
    for rule in (credo.Linearised(), credo.Probit()):
        each = [part.predict(X_NEW, rule).probs for part in alone(posterior)]
        np.testing.assert_allclose(posterior.predict(X_NEW, rule).probs, np.mean(each, axis=0), rtol=1e-10)


def test_members_are_those_of_a_deep_ensemble():
    posterior = credo.fit(
        regression(),
        credo.MixtureOfLaplaces(members=2, num_steps=50, laplace=credo.Laplace(num_steps=0)),
        key=4,
        progress=False,
    )
    assert posterior.info["num_gradients"] == 100
    starts = sorted(np.linalg.norm(part.mean) for part in components(posterior))
    again = credo.fit(
        regression(),
        credo.MixtureOfLaplaces(laplace=credo.Laplace(num_steps=0)),
        start=np.array([part.mean for part in components(posterior)]),
        progress=False,
    )
    np.testing.assert_allclose(sorted(np.linalg.norm(part.mean) for part in components(again)), starts)


@pytest.mark.slow
def test_what_the_model_leaves_unknown_is_tuned_for_each_member():
    posterior = credo.fit(
        regression(Gaussian()), credo.MixtureOfLaplaces(members=2, num_steps=500), key=6, progress=False
    )
    for part in alone(posterior):
        assert 0.15 < part.mean()["noise"] < 0.5
    assert np.all(posterior.sd()["noise"] > 0)


# verdicts -------------------------------------------------------------------------------------------------------------


def test_equal_weights_of_unequal_modes_do_not_pass():
    def log_density(params):
        return jnp.logaddexp(
            jnp.log(0.02) + jstats.norm.logpdf(params["x"], -4.0, 0.5), jstats.norm.logpdf(params["x"], 4.0, 0.5)
        )

    target = of_density(log_density)
    start = np.array([[-4.0], [4.0], [-4.1], [4.1]])
    posterior = credo.fit(target, credo.MixtureOfLaplaces(), start=start, progress=False)
    assert posterior.verdict.status != "pass"
    assert any("weights='evidence'" in sentence for sentence in posterior.verdict.sentences)
    weighed = credo.fit(target, credo.MixtureOfLaplaces(weights="evidence"), start=start, progress=False)
    assert weighed.verdict.status == "pass"


def test_a_mode_that_one_member_alone_found_is_doubtful():
    target = two_modes().target
    posterior = credo.fit(
        target, credo.MixtureOfLaplaces(weights="evidence"), start=np.array([[-4.0], [4.0], [4.2]]), progress=False
    )
    assert posterior.verdict.figures["unseen_share"] == pytest.approx(1 / 3)
    assert posterior.verdict.status == "doubtful"


def test_members_that_are_no_modes_fail():
    """Ten updates are no training."""
    method = credo.MixtureOfLaplaces(members=2, num_steps=10, laplace=credo.Laplace(num_steps=0))
    posterior = credo.fit(regression(), method, progress=False)
    assert posterior.verdict.figures["mode_distance"] > 10
    assert posterior.verdict.status == "failed"


def test_a_saddle_has_no_weight_by_evidence_and_is_named():
    def log_density(params):
        return jstats.norm.logpdf(params["x"][1]) - 2.0 * (params["x"][0] ** 2 - 4.0) ** 2

    start = np.array([[2.0, 0.0], [0.0, 0.0], [-2.0, 0.0]])
    method = credo.MixtureOfLaplaces(weights="evidence", laplace=credo.Laplace(num_steps=0))
    posterior = credo.fit(of_density(log_density, (2,)), method, start=start, progress=False)
    assert posterior.verdict.status == "doubtful"
    assert any("members 1" in sentence for sentence in posterior.verdict.sentences)
    np.testing.assert_allclose(np.sort(posterior.info["weights"]), [0.0, 0.5, 0.5], atol=1e-10)
    equal = credo.fit(
        of_density(log_density, (2,)),
        credo.MixtureOfLaplaces(laplace=credo.Laplace(num_steps=0)),
        start=start,
        progress=False,
    )
    assert equal.verdict.status == "failed"


def test_last_layers_of_members_are_mixed():
    laplace = credo.Laplace(subset=credo.laplace.LastLayer())
    posterior = credo.fit(regression(), credo.MixtureOfLaplaces(laplace=laplace), start=ensemble(), progress=False)
    each = [part.predict(X_NEW, credo.Linearised()).mean for part in alone(posterior)]
    np.testing.assert_allclose(posterior.predict(X_NEW).mean, np.mean(each, axis=0), rtol=1e-10)
    assert posterior.verdict.status != "pass"


# requests that cannot be answered -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "start", "sentence"),
    [
        (credo.MixtureOfLaplaces(members=0), None, "1 or more"),
        (credo.MixtureOfLaplaces(weights="mass"), None, "'equal' or 'evidence'"),
        (credo.MixtureOfLaplaces(members=5), "ensemble", "members=5.* was given start= with 3"),
        (credo.MixtureOfLaplaces(), "laplace", "kind Gaussian, and MixtureOfLaplaces\\(\\) begins at the members"),
        (
            credo.MixtureOfLaplaces(laplace=credo.Laplace(structure=credo.laplace.MatrixFree())),
            None,
            "linear solves cannot be chosen among",
        ),
        (credo.MixtureOfLaplaces(laplace=credo.Laplace(num_steps=7)), None, "num_steps=7.*trained once"),
        (
            credo.MixtureOfLaplaces(weights="evidence", laplace=credo.Laplace(subset=credo.laplace.LastLayer())),
            None,
            "that given the others",
        ),
        (credo.MixtureOfLaplaces(laplace="laplace"), "prior", "Leave prior out"),
    ],
)
def test_wrong_settings_are_said(method, start, sentence):
    known = {
        "ensemble": ensemble,
        "laplace": lambda: credo.fit(regression(), credo.Laplace(num_steps=0), progress=False),
    }
    if start == "prior":
        method, start = credo.MixtureOfLaplaces(laplace=credo.Laplace(prior=known["laplace"]())), None
    with pytest.raises(credo.CredoError, match=sentence):
        credo.fit(regression(), method, start=known[start]() if start else None, progress=False)


def test_no_evidence_to_weigh_by_is_said():
    model = credo.Model(
        {"a": dist.ImproperUniform(constraints.real, (), ())},
        lambda params, x: dist.Normal(params["a"] ** 2, 0.0 * x + 1),
    )
    with pytest.raises(credo.CredoError, match="improper priors leave none"):
        credo.fit(
            model.given(np.ones(6), np.ones(6)),
            credo.MixtureOfLaplaces(weights="evidence", batch_size=None, num_steps=50),
            progress=False,
        )


def test_memory_of_all_members_is_planned():
    wide = BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"],
        {"in": np.zeros((2, 300)) + RNG.normal(size=(2, 300)), "out": RNG.normal(size=300)},
        head=Gaussian(0.3),
    ).given(X, Y)
    method = credo.MixtureOfLaplaces(members=50, laplace=credo.Laplace(structure=credo.laplace.Dense()))
    with pytest.raises(credo.CredoError, match="A mixture of 50 by Dense\\(\\) needs"):
        credo.fit(wide, method, max_memory=60_000_000, progress=False)
    assert isinstance(ensemble().kind, Draws)
