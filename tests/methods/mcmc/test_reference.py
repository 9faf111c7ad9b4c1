"""The Gaussian round which NUTS moves is found where there is one, and not looked for where tails are others'."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

import credo
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.lowrank import LowRank
from credo.methods.mcmc.metric import AutomaticMetric, DenseMetric
from credo.methods.mcmc.reference import LONGEST, LONGEST_OF_TURNS, _products, metric_and_reference, reference_of
from credo.methods.mcmc.switched import Switched
from credo.methods.mcmc.warmup import restart, update

CHAINS, DRAWS = 4, 300
LOWER = np.array([[2.0, 0.0, 0.0, 0.0], [0.5, 3.0, 0.0, 0.0], [-1.0, 0.3, 2.5, 0.0], [0.7, -0.4, 1.1, 3.5]])
VECTORS = np.linalg.qr(LOWER[:, :2])[0]
METRICS = {
    "diagonal": Diagonal(np.array([0.5, 2.0, 1.0, 3.0])),
    "dense": Dense(LOWER).with_inverse(),
    "low rank": LowRank.from_eigen(np.array([0.5, 2.0, 1.0, 3.0]), VECTORS, np.array([4.0, 0.3])),
}
METRICS["switched"] = Switched(METRICS["diagonal"], METRICS["dense"], np.bool_(True))
# the law, and the derivative of its log density
LAWS = {
    "normal": (stats.norm(), lambda x: -x),
    "t": (stats.t(3), lambda x: -4 * x / (3 + x**2)),
    "flat top": (stats.gennorm(8), lambda x: -8 * np.sign(x) * np.abs(x) ** 7),
}


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def windows(rng, *laws):
    """Draws and gradients of independent coordinates."""
    columns = [LAWS[law][0].rvs((CHAINS, DRAWS), random_state=rng) for law in laws]
    gradients = [LAWS[law][1](x) for law, x in zip(laws, columns, strict=True)]
    return np.stack(columns, axis=-1), np.stack(gradients, axis=-1)


@pytest.mark.parametrize("name", list(METRICS))
def test_products_are_those_of_the_metric(name, rng):
    metric, rows = METRICS[name], rng.normal(size=(3, 4))
    products = _products(metric)
    for product in ("matvec", "transpose_matvec", "solve"):
        expected = np.stack([getattr(metric, product)(row) for row in rows])
        np.testing.assert_allclose(getattr(products, product)(rows), expected, rtol=1e-5)  # JAX's are in float32


@pytest.mark.parametrize("is_rich", [False, True])
def test_a_switched_metric_is_the_one_that_it_is(is_rich):
    plain, rich, z = METRICS["diagonal"], METRICS["dense"], np.array([1.0, -2.0, 0.5, 3.0])
    found, expected = Switched(plain, rich, np.bool_(is_rich)), rich if is_rich else plain
    for part, arguments in (("matvec", [z]), ("transpose_matvec", [z]), ("solve", [z]), ("log_det", [])):
        np.testing.assert_allclose(getattr(found, part)(*arguments), getattr(expected, part)(*arguments), rtol=1e-6)
    for part in ("diagonal", "dense"):
        np.testing.assert_allclose(getattr(found, part)(), getattr(expected, part)(), rtol=1e-6)


@pytest.mark.parametrize("name", list(METRICS))
def test_of_a_gaussian_the_centre_is_exact_however_few_the_draws(name, rng):
    metric, mean = METRICS[name], np.array([1.0, -2.0, 30.0, 0.0])
    scale = np.asarray(_products(metric).matvec(np.eye(4))).T  # S, a column for each unit vector
    white = rng.normal(size=(2, 30, 4))
    positions, gradients = mean + white @ scale.T, -white @ np.linalg.inv(scale)
    found = reference_of(positions, gradients, metric)
    np.testing.assert_allclose(found.centre, mean, atol=1e-12)
    assert found.is_whole
    assert found.rotates
    assert found.longest == LONGEST


@pytest.mark.parametrize("law", ["t", "flat top"])
def test_other_tails_in_one_coordinate_do_not_rotate(law, rng):
    positions, gradients = windows(rng, *["normal"] * 30, law)
    scale = np.append(np.ones(30), np.sqrt(positions[..., -1].std() / gradients[..., -1].std()))
    assert not reference_of(positions, gradients, Diagonal(scale)).rotates
    found = reference_of(positions[..., :-1], gradients[..., :-1], Diagonal(scale[:-1]))
    assert found.rotates
    assert found.is_whole


def test_a_wrong_scale_rotates_and_is_not_the_whole(rng):
    positions, gradients = windows(rng, *["normal"] * 3)
    found = reference_of(positions, gradients, Diagonal(np.array([1.0, 1.0, 1.2])))
    assert found.rotates
    assert not found.is_whole
    assert found.longest == LONGEST_OF_TURNS


def test_what_is_not_finite_does_not_rotate(rng):
    for value in (np.nan, np.inf):
        positions, gradients = windows(rng, *["normal"] * 3)
        assert reference_of(positions, gradients, Diagonal(np.ones(3))).rotates
        gradients[0, 0, 1] = value
        found = reference_of(positions, gradients, Diagonal(np.ones(3)))
        assert not found.rotates
        assert np.all(np.isfinite(found.centre))


def automatic(positions, gradients):
    """The metric of a window, before and after it is asked what the reference gains."""
    estimator = AutomaticMetric()
    found = estimator.estimate(positions, gradients, estimator.initial(gradients[:, 0]))
    return found, *metric_and_reference(found, positions, gradients)


def test_the_dense_metric_is_taken_where_it_alone_makes_the_target_whole(rng):
    """A correlation of 0.3 in 40 dimensions, for which it would not pay otherwise."""
    covariance = np.eye(40)
    covariance[0, 1] = covariance[1, 0] = 0.3
    lower = np.linalg.cholesky(covariance)
    white = rng.normal(size=(CHAINS, DRAWS, 40))
    found, metric, reference = automatic(white @ lower.T, -white @ np.linalg.inv(lower))
    assert not found.is_rich
    assert metric.is_rich
    assert reference.is_whole
    np.testing.assert_allclose(metric.rich.lower @ metric.rich.lower.T, covariance, atol=0.01)


@pytest.mark.parametrize("law", ["normal", "t"])
def test_the_diagonal_metric_stays_where_the_dense_one_does_no_better(law, rng):
    found, metric, reference = automatic(*windows(rng, *["normal"] * 39, law))
    assert not found.is_rich
    assert not metric.is_rich
    assert reference.is_whole == (law == "normal")


def test_few_draws_say_nothing(rng):
    positions, gradients = windows(rng, *["normal"] * 3)
    assert reference_of(positions[:, :10], gradients[:, :10], Diagonal(np.ones(3))).longest == np.inf


def test_a_gaussian_posterior_takes_one_gradient_a_draw(rng):
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([3])}, lambda p, x: dist.Normal(x @ p["w"], 0.5))
    x = rng.normal(size=(40, 3)) @ np.array([[1.0, 0.9, 0.0], [0.0, 0.4, 0.0], [0.3, 0.0, 2.0]])
    target = model.given(x, rng.normal(size=40))
    split = credo.fit(target, credo.NUTS(num_draws=500), key=0)
    plain = credo.fit(target, credo.NUTS(num_draws=500, integrator=credo.mcmc.LEAPFROG), key=0)
    assert split.info["num_gradients_useful"] == 4 * 500
    assert plain.info["num_gradients_useful"] > 2 * 4 * 500
    assert split.verdict.status == "pass"
    assert split.verdict.figures["min_ess_bulk"] > 1_000
    exact = credo.fit(target, credo.Exact(), key=0)
    for fit in (split, plain):
        error = fit.summary()["mcse_mean"].to_numpy()
        assert np.all(np.abs(fit.mean()["w"] - exact.mean()["w"]) < 4.5 * error)
        np.testing.assert_allclose(fit.sd()["w"], exact.sd()["w"], rtol=0.12)


def test_scales_of_groups_in_non_centred_form_keep_the_leapfrog():
    """Rotations let steps grow until the neck diverges: 12 keys, three of which were doubtful for it."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(40), 3)
    y = rng.poisson(np.exp(0.5 + 0.3 * rng.normal(size=40)[group]))
    model = credo.Model(
        {"a": dist.Normal(0.0, 2.0), "tau": dist.HalfNormal(1.0), "z": dist.Normal(0.0, 1.0).expand([40])},
        lambda p, x: dist.Poisson(np.e ** (p["a"] + p["tau"] * p["z"][x])),
    )
    for key in (0, 1, 11):
        fit = credo.fit(model.given(group, y), credo.NUTS(), key=key, progress=False)
        assert fit.verdict.figures["num_divergences"] < 4
        assert fit.verdict.status == "pass"


def test_the_dense_metric_solves_by_its_inverse(rng):
    positions, gradients = windows(rng, *["normal"] * 3)
    estimator = AutomaticMetric()
    metric = estimator.estimate(positions, gradients, estimator.initial(gradients[:, 0]))
    np.testing.assert_allclose(metric.rich.inverse @ metric.rich.lower, np.eye(3), atol=1e-12)


def rotated_gaussian(rng, num_draws):
    """Draws and gradients of a Gaussian of condition number 10⁴ in 30 dimensions, and its covariance."""
    axes = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    sd = np.logspace(0, 2, 30)
    white = rng.normal(size=(CHAINS, num_draws, 30))
    return white * sd @ axes.T, -(white / sd) @ axes.T, (axes * sd**2) @ axes.T


def test_of_a_gaussian_the_dense_metric_is_not_shrunk(rng):
    positions, gradients, covariance = rotated_gaussian(rng, 50)
    found = DenseMetric().estimate(positions, gradients, DenseMetric().initial(gradients[:, 0]))
    whitened = found.inverse @ covariance @ found.inverse.T
    np.testing.assert_allclose(np.linalg.eigvalsh(whitened), 1, atol=0.05)


def test_where_gradients_are_no_gaussians_the_dense_metric_is_shrunk(monkeypatch, rng):
    """Its covariances are noise then: of the same draws with another's gradients less is believed."""
    positions, gradients, _ = rotated_gaussian(rng, 50)
    gradients = gradients * np.exp(rng.normal(size=(CHAINS, 50, 1)))
    initial = DenseMetric().initial(gradients[:, 0])
    found = DenseMetric().estimate(positions, gradients, initial)
    monkeypatch.setattr("credo.methods.mcmc.metric.NEARLY_GAUSSIAN", np.inf)
    believed = DenseMetric().estimate(positions, gradients, initial)

    def condition(metric):
        return np.linalg.cond(metric.lower / np.sqrt(metric.diagonal())[:, None])

    assert condition(found) < 0.99 * condition(believed)


def test_no_step_is_longer_than_rotations_have_use_of():
    state = restart(np.asarray(1.0))
    for _ in range(20):
        state = update(state, 1.0, 0.8, 1.2)
        assert state.log_step <= np.log(1.2) + 1e-6
    assert state.log_average <= np.log(1.2) + 1e-6
    assert update(restart(np.asarray(1.0)), 1.0, 0.8).log_step > np.log(1.2)


@pytest.mark.slow
def test_windows_end_where_draws_confirm_the_gaussian_of_those_before(rng):
    """A nearly Gaussian posterior has less warm-up than it is given, another one all of it; both are right."""
    X = rng.normal(size=(2_000, 8))
    y = (rng.random(2_000) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    prior = {"w": dist.Normal(0.0, 2.5).expand([8])}
    near = credo.Model(prior, lambda p, x: dist.BernoulliLogits(x @ p["w"])).given(X, y)
    far = credo.Model.from_log_density(
        lambda p: -jnp.sum(jnp.cosh(p["x"])), {"x": constraints.real}, {"x": (8,)}
    ).given()
    short, whole = (credo.fit(target, credo.NUTS(num_draws=500), key=0, progress=False) for target in (near, far))
    assert short.verdict.status == whole.verdict.status == "pass"
    num_short, num_whole = (fit.info["num_gradients"] - fit.info["num_gradients_useful"] for fit in (short, whole))
    assert num_short < 4 * 300
    assert num_whole > 4 * 900
    laplace = credo.fit(near, credo.Laplace(), key=0, progress=False)
    np.testing.assert_allclose(short.sd()["w"], laplace.sd()["w"], rtol=0.15)


def test_tails_lighter_than_a_gaussians_keep_the_leapfrog():
    """Forces that grow as sinh x: of six keys four were doubtful for rotations that diverged."""
    target = credo.Model.from_log_density(lambda p: -jnp.sum(jnp.cosh(p["x"])), {"x": constraints.real}, {"x": (8,)})
    for key in range(3):
        fit = credo.fit(target.given(), credo.NUTS(), key=key, progress=False)
        assert fit.verdict.figures["num_divergences"] == 0
        assert fit.verdict.status == "pass"
