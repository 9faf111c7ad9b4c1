"""Maximum likelihood: closed forms, and regions that cover the truth as often as they say."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

from credo.fitting import fit
from credo.methods.laplace import Laplace
from credo.methods.optimise import MAP, MLE, confidence_ellipsoid
from credo.model.model import Model
from credo.status import CredoError

RNG = np.random.default_rng(30)
X = np.column_stack([np.ones(200), RNG.normal(size=(200, 2))])
W, SIGMA = np.array([0.5, -1.0, 1.0]), 0.7


def free(support=constraints.real, *shape):
    return dist.ImproperUniform(support, shape, ())


def known_noise(params, x):
    return dist.Normal(x @ params["w"], SIGMA)


def unknown_noise(params, x):
    return dist.Normal(x @ params["w"], params["sigma"])


def logistic(params, x):
    return dist.BernoulliLogits(x @ params["w"])


KNOWN = Model({"w": free(constraints.real, 3)}, known_noise)
UNKNOWN = Model({"w": free(constraints.real, 3), "sigma": free(constraints.positive)}, unknown_noise)
LOGISTIC = Model({"w": free(constraints.real, 3)}, logistic)


def test_linear_regression_is_least_squares():
    y = X @ W + SIGMA * RNG.normal(size=200)
    posterior = fit(UNKNOWN.given(X, y), MLE())
    w, residual = np.linalg.lstsq(X, y)[:2]
    sigma = np.sqrt(residual[0] / 200)
    assert posterior.verdict.status == "pass"
    np.testing.assert_allclose(posterior.mean()["w"], w, rtol=1e-9)
    np.testing.assert_allclose(posterior.mean()["sigma"], sigma, rtol=1e-9)
    expected = np.zeros((4, 4))
    expected[:3, :3] = sigma**2 * np.linalg.inv(X.T @ X)
    expected[3, 3] = sigma**2 / (2 * 200)  # observed information of σ: 2N/σ²
    assert posterior.info["scalar_names"] == ["w[0]", "w[1]", "w[2]", "sigma"]
    np.testing.assert_allclose(posterior.info["covariance"], expected, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(posterior.info["standard_errors"]["sigma"], sigma / 20, rtol=1e-8)


def test_priors_are_ignored():
    y = X @ W + SIGMA * RNG.normal(size=200)
    informed = Model({"w": dist.Normal(100.0, 0.01).expand([3])}, known_noise)
    np.testing.assert_allclose(
        fit(informed.given(X, y), MLE()).mean()["w"], fit(KNOWN.given(X, y), MLE()).mean()["w"], rtol=1e-9
    )


def test_multinomial_proportions_have_a_singular_covariance():
    counts = np.array([20, 30, 50])
    model = Model(
        {"p": dist.ImproperUniform(constraints.simplex, (), (3,))},
        lambda params, x: dist.CategoricalProbs(np.ones((len(x), 1)) * params["p"]),
    )
    y = np.repeat([0, 1, 2], counts)
    posterior = fit(model.given(np.zeros(100), y), MLE())
    p = counts / 100
    np.testing.assert_allclose(posterior.mean()["p"], p, rtol=1e-9)
    np.testing.assert_allclose(posterior.info["covariance"], (np.diag(p) - np.outer(p, p)) / 100, atol=1e-12)
    region = confidence_ellipsoid(posterior)
    assert region.contains(posterior.mean())
    assert not region.contains({"p": p + 0.01}), "these do not sum to one"
    np.testing.assert_allclose(region.radius_squared, stats.chi2.ppf(0.95, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["known noise", "unknown noise", "logistic"])
def test_confidence_regions_cover_the_truth(name):
    """Distances of the truth, in the metric of the region, follow χ²: exactly with known noise, else to O(1/N)."""
    model = {"known noise": KNOWN, "unknown noise": UNKNOWN, "logistic": LOGISTIC}[name]
    num_data_sets, rng = 1_000, np.random.default_rng(31)
    true = {"w": W, "sigma": SIGMA} if name == "unknown noise" else {"w": W}
    truth = np.concatenate([np.atleast_1d(each) for each in true.values()])

    def simulate():
        if name == "logistic":
            return (rng.uniform(size=200) < 1 / (1 + np.exp(-X @ W))).astype(int)
        return X @ W + SIGMA * rng.normal(size=200)

    target, distances = model.given(X, simulate()), []
    for _ in range(num_data_sets):
        posterior = fit(eqx.tree_at(lambda t: t.y, target, simulate()), MLE(), start=true)
        distances.append(confidence_ellipsoid(posterior).distance_squared(truth))
    dim = len(truth)
    if name == "known noise":
        assert stats.kstest(distances, stats.chi2(dim).cdf).pvalue > 1e-3  # one false alarm in 1,000
    for level in (0.5, 0.95):
        coverage = np.mean(np.array(distances) <= stats.chi2.ppf(level, dim))
        # 3.3 standard errors: one false alarm in 1,000; the regions' own error is of order 1/N
        bias = 0.0 if name == "known noise" else 3 / 200
        assert abs(coverage - level) < 3.3 * np.sqrt(level * (1 - level) / num_data_sets) + bias


def test_region_holds_what_it_should():
    posterior = fit(KNOWN.given(X, X @ W + SIGMA * RNG.normal(size=200)), MLE())
    region = confidence_ellipsoid(posterior, level=0.9)
    np.testing.assert_allclose(region.radius_squared, stats.chi2.ppf(0.9, 3))
    direction = np.linalg.cholesky(region.covariance)[:, 0]
    edge = np.sqrt(region.radius_squared) * direction
    assert region.contains(region.center + 0.999 * edge)
    assert region.contains(jnp.asarray(region.center))
    assert not region.contains({"w": region.center + 1.001 * edge})
    with pytest.raises(CredoError, match="lack 'w'"):
        region.contains({"v": 1.0})


def test_no_maximum_no_region():
    y = (X[:, 1] > 0).astype(int)
    posterior = fit(LOGISTIC.given(X, y), MLE())
    assert posterior.verdict.status == "failed"
    assert any("separate the classes" in sentence for sentence in posterior.verdict.sentences)
    assert any(sentence.startswith("w[1] is") for sentence in posterior.verdict.sentences)
    assert np.isnan(posterior.info["covariance"]).all()
    with pytest.raises(CredoError, match="no maximum"):
        confidence_ellipsoid(posterior)
    with pytest.raises(CredoError, match="MLE"):
        confidence_ellipsoid(fit(Model({"m": dist.Normal(0.0, 1.0)}, None).given(), Laplace()))


@pytest.mark.parametrize("x", [X, X[:2]], ids=["perfect fit", "fewer rows than parameters"])
def test_variance_that_runs_to_zero_is_named(x):
    posterior = fit(UNKNOWN.given(x, x @ W), MLE())
    assert posterior.verdict.status == "failed"
    assert posterior.verdict.figures["mode_on_boundary"] == 1
    assert any(sentence.startswith("sigma is") for sentence in posterior.verdict.sentences)


def test_needs_a_likelihood():
    with pytest.raises(CredoError, match="needs a likelihood"):
        fit(Model({"m": dist.Normal(0.0, 1.0)}, None).given(), MLE())


def test_nearly_collinear_inputs_leave_the_distances_their_digits():
    """Two eigenvalues of the covariance apart by 1e-13: both directions are free, and none is a constraint."""
    x = np.column_stack([np.ones(6), 1e6 + np.arange(6.0)])
    model = Model({"w": dist.Normal(0.0, 1.0).expand([2])}, lambda params, x: dist.Normal(x @ params["w"], 1.0))
    region = confidence_ellipsoid(fit(model.given(x, RNG.normal(size=6)), MLE(), progress=False))
    step = np.array([1.0, -1e-6])
    step *= 7 / np.sqrt(step @ x.T @ x @ step)
    np.testing.assert_allclose(region.distance_squared(region.center + step), 49.0, rtol=1e-4)
    assert not region.contains(list(region.center + step))


def test_rounding_of_a_large_number_excuses_no_distance_that_is_seen():
    """A mean of 10⁵ known to 0.01, which float32 has to 0.008: one such step away are 0.78 sds."""
    model = Model({"m": dist.Normal(0.0, 1e9)}, lambda params, x: dist.Normal(params["m"], 0.1))
    target, step = model.given(y=np.full(100, 1e5)), 2.0**-7
    away = fit(target, Laplace(num_steps=0), start={"m": 1e5 + step}, precision="float32", progress=False)
    np.testing.assert_allclose(away.verdict.figures["gradient_norm"], step / 0.01, atol=0.02)
    assert away.verdict.status != "pass"


@pytest.mark.parametrize("method", [MLE(), MAP(), Laplace()], ids=["MLE", "MAP", "Laplace"])
def test_single_precision_is_not_blamed_for_its_rounding(method):
    """2e-6 sds from the mode, which no iteration in float32 comes nearer to, and weights of two or three values."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(5_000), rng.normal(size=(5_000, 4)) * [1, 10, 0.1, 3]])
    y = (rng.random(5_000) < 1 / (1 + np.exp(-x @ [0.2, 0.5, -0.05, 2, 0.1]))).astype(int)
    prior = {"w": dist.Normal(0.0, 5.0).expand([5])}
    logistic = Model(prior, lambda params, x: dist.Bernoulli(logits=x @ params["w"]))
    linear = Model(prior, lambda params, x: dist.Normal(x @ params["w"], 1.0))
    for target in (logistic.given(x, y), linear.given(x[:80], rng.normal(size=80))):
        assert fit(target, method, precision="float32", progress=False).verdict.status == "pass"
