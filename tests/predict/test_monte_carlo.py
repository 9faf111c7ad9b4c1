"""Prediction by draws: a mixture, held against the same mixture written with scipy."""

import functools
import logging
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions.transforms import SigmoidTransform
from scipy import optimize, special, stats

import credo
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.model.model import Model
from credo.posterior.kinds import Draws, Gaussian, Mixture, Point
from credo.posterior.marginals import weighted_quantile
from credo.posterior.posterior import Posterior
from credo.predict import predictive as module
from credo.predict import stream
from credo.predict.monte_carlo import MonteCarlo, _thin
from credo.status import CredoError, Verdict

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
NUM_STORED = 40


def regression(params, x):
    return dist.Normal(x @ params["w"], params["sigma"])


def counts(params, x):
    return dist.Poisson(jnp.exp(x @ params["w"]))


W = dist.Normal(0.0, 1.0).expand([2])
LOG_WEIGHTS = np.log(RNG.dirichlet(np.ones(NUM_STORED))).reshape(2, 20)


@functools.cache
def posterior(likelihood=regression, is_weighted=False, y=None):
    prior = {"w": W, "sigma": dist.LogNormal(0.0, 1.0)} if likelihood is regression else {"w": W}
    target = Model(prior, likelihood).given(X, np.zeros(20, int) if y is None else np.asarray(y))
    positions = np.random.default_rng(1).normal(size=(2, 20, target.dim)) * 0.5
    return Posterior(Draws(positions, LOG_WEIGHTS if is_weighted else None), target, verdict=Verdict("pass"))


def components(p):
    """scipy's version of each draw's likelihood: (locations (S, M), scales (S, 1), weights (S,))."""
    positions = p.kind.positions.reshape(-1, 3)
    weights = np.full(NUM_STORED, 1 / NUM_STORED) if p.weights is None else p.weights
    return positions[:, :2] @ X.T, np.exp(positions[:, 2:]), weights


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_mixture_of_normals(is_weighted):
    p = posterior(regression, is_weighted)
    predictive = p.predict(X)
    location, scale, weights = components(p)
    mean = weights @ location
    np.testing.assert_allclose(predictive.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(predictive.aleatoric, weights @ np.broadcast_to(scale**2, location.shape), rtol=1e-12)
    np.testing.assert_allclose(predictive.epistemic, weights @ (location - mean) ** 2, rtol=1e-11)
    np.testing.assert_allclose(predictive.variance, predictive.aleatoric + predictive.epistemic, rtol=1e-15)
    y = RNG.normal(size=20) * 3
    expected = special.logsumexp(stats.norm.logpdf(y, location, scale), axis=0, b=weights[:, None])
    np.testing.assert_allclose(predictive.log_prob(y), expected, rtol=1e-11)
    levels = [0.01, 0.5, 0.975]
    for level, q in zip(levels, predictive.quantile(levels), strict=True):
        np.testing.assert_allclose(weights @ stats.norm.cdf(q, location, scale), level, rtol=1e-9)
    root = optimize.brentq(
        lambda v: weights @ stats.norm.cdf(v, location[:, 0], scale[:, 0]) - 0.5, -50, 50, xtol=1e-14
    )
    np.testing.assert_allclose(predictive.quantile(0.5)[0], root, atol=1e-10)


def test_a_mixture_of_counts_sums_to_one_and_has_exact_quantiles():
    p = posterior(counts)
    predictive = p.predict(X[:3])
    rate = np.exp(p.kind.positions.reshape(-1, 2) @ X[:3].T)
    k = np.arange(400)
    pmf = stats.poisson.pmf(k[:, None, None], rate).mean(axis=1)
    np.testing.assert_allclose(pmf.sum(axis=0), 1.0, rtol=1e-9)
    for value in (0, 3, 20):
        np.testing.assert_allclose(np.exp(predictive.log_prob(np.full(3, value))), pmf[value], rtol=1e-10)
    np.testing.assert_array_equal(predictive.log_prob(np.array([-1, -1, -1])), -np.inf)
    for level in (0.05, 0.5, 0.99):
        found = predictive.quantile(level)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, (pmf.cumsum(axis=0) < level).sum(axis=0))
    np.testing.assert_allclose(predictive.variance, k**2 @ pmf - (k @ pmf) ** 2, rtol=1e-9)


def test_samples_follow_the_mixture():
    p = posterior()
    predictive = p.predict(X)
    draws = predictive.sample(5, 8_000)
    assert draws.shape == (8_000, 20)
    sd = np.sqrt(predictive.variance)
    assert np.all(np.abs(draws.mean(axis=0) - predictive.mean) < 5 * sd / np.sqrt(8_000))
    low, high = predictive.interval(0.8)
    inside = np.mean((draws > low) & (draws < high), axis=0)
    assert np.all(np.abs(inside - 0.8) < 5 * np.sqrt(0.16 / 8_000))
    np.testing.assert_array_equal(draws, predictive.sample(5, 8_000))
    assert not np.array_equal(draws[:10], predictive.sample(6, 8_000)[:10])
    # all rows of one sample share a draw of the parameters
    location, scale, _ = components(p)
    total = draws.sum(axis=1)
    expected = np.sqrt(location.sum(axis=1).var() + 20 * np.mean(scale**2))
    assert abs(total.std() / expected - 1) < 0.1


def test_stored_draws_are_thinned_at_random_and_weights_respected():
    """Every second draw of a chain that steps from side to side would all be on one of them."""
    positions, random = np.arange(1_000.0)[:, None], np.random.default_rng(0)
    chosen = _thin(positions, None, 500, random)[0][:, 0]
    assert len(np.unique(chosen)) == 500
    assert abs(np.mean(chosen % 2) - 0.5) < 0.07
    weights = np.where(np.arange(1_000) < 500, 3.0, 1.0)
    thinned, none = _thin(positions, weights / weights.sum(), 100, random)
    assert none is None
    assert np.sum(thinned < 500) == 75
    kept, same = _thin(positions, weights, 2_000, random)
    assert kept is positions
    assert same is weights


def test_other_kinds_are_drawn_from():
    target = posterior().target
    C = np.diag([0.1, 0.2, 0.05])
    gaussian = Gaussian(np.array([1.0, -1.0, 0.0]), Dense.from_covariance(C))
    predictive = Posterior(gaussian, target, verdict=Verdict("pass")).predict(X, MonteCarlo(4_000), key=2)
    exact = np.einsum("ij,jk,ik->i", X, C[:2, :2], X)
    assert np.all(np.abs(predictive.mean - X @ [1.0, -1.0]) < 5 * np.sqrt(exact / 4_000))
    np.testing.assert_allclose(predictive.epistemic, exact, rtol=5 * np.sqrt(2 / 4_000))


def test_a_mixture_of_kinds_is_drawn_from():
    target = posterior().target
    mixture = Mixture(np.log([0.5, 0.5]), (Point(np.zeros(3)), Point(np.array([2.0, 0.0, 0.0]))))
    predictive = Posterior(mixture, target, verdict=Verdict("pass")).predict(X, MonteCarlo(2_000))
    np.testing.assert_allclose(predictive.epistemic, X[:, 0] ** 2, rtol=0.01)


def test_intervals_cover_new_data():
    """90 % intervals of a correct posterior hold 90 % of outcomes drawn from it."""
    rng = np.random.default_rng(4)
    x, sigma = rng.normal(size=(4_000, 2)), 0.6
    S = np.linalg.inv(np.eye(2) + X.T @ X / sigma**2)
    m = S @ X.T @ (X @ [0.5, -1.0] + sigma * rng.normal(size=20)) / sigma**2
    target = Model({"w": W}, lambda params, x: dist.Normal(x @ params["w"], sigma)).given(X, np.zeros(20))
    p = Posterior(Gaussian(m, Dense.from_covariance(S)), target, verdict=Verdict("pass"))
    low, high = p.predict(x, MonteCarlo(1_000)).interval(0.9)
    # outcomes with parameters of their own: rows are then independent, and the binomial error is right
    y = np.einsum("ij,ij->i", x, rng.multivariate_normal(m, S, size=4_000)) + sigma * rng.normal(size=4_000)
    assert abs(np.mean((low < y) & (y < high)) - 0.9) < 4 * np.sqrt(0.09 / 4_000) + 0.01


# shapes of outcomes -------------------------------------------------------------------------------------------------

NORMALS = {"w": dist.Normal(0.0, 1.0).expand([2, 3])}
SHAPES = {
    "columns": (NORMALS, lambda q, x: dist.Normal(x @ q["w"], 1.0), np.zeros((20, 3)), (20, 3)),
    "columns as one event": (
        NORMALS,
        lambda q, x: dist.Normal(x @ q["w"], 1.0).to_event(1),
        np.zeros((20, 3)),
        (20, 3),
    ),
    "joint columns": (
        NORMALS,
        lambda q, x: dist.MultivariateNormal(x @ q["w"], jnp.eye(3)),
        np.zeros((20, 3)),
        (20, 3),
    ),
    "several outcomes": (
        NORMALS,
        lambda q, x: {"a": dist.Normal(x @ q["w"][:, 0], 1.0), "b": dist.Poisson(jnp.exp(x @ q["w"][:, 1]))},
        {"a": np.zeros(20), "b": np.zeros(20, int)},
        (20,),
    ),
    "joint rows": (NORMALS, lambda q, x: dist.MultivariateNormal(x @ q["w"][:, 0], jnp.eye(20)), np.zeros(20), (20,)),
}


@pytest.mark.parametrize("name", list(SHAPES))
def test_shapes(name):
    prior, likelihood, y, shape = SHAPES[name]
    target = Model(prior, likelihood).given(X, y)
    positions = RNG.normal(size=(2, 5, target.dim))
    posterior = Posterior(Draws(positions), target, verdict=Verdict("pass"))
    predictive = posterior.predict(X)
    first = (lambda value: value["a"]) if isinstance(y, dict) else (lambda value: value)
    w = positions.reshape(10, 2, 3)
    location = np.einsum("mi,sij->smj", X, w)[..., : shape[1] if len(shape) > 1 else 1].reshape(10, *shape)
    np.testing.assert_allclose(first(predictive.mean), location.mean(axis=0), rtol=1e-11)
    np.testing.assert_allclose(first(predictive.variance), location.var(axis=0) + 1, rtol=1e-11)
    assert predictive.log_prob(y).shape == ((1,) if name == "joint rows" else (20,))
    if name == "columns":  # a datum's columns are taken together, under one draw of the parameters
        expected = special.logsumexp(stats.norm.logpdf(0.0, location).sum(axis=-1), axis=0, b=0.1)
        np.testing.assert_allclose(predictive.log_prob(y), expected, rtol=1e-11)
    if "joint" not in name:  # numpyro knows those marginals by samples alone
        q = first(predictive.quantile(0.9))
        np.testing.assert_allclose(stats.norm.cdf(q, location).mean(axis=0), 0.9, rtol=1e-9)
    assert first(predictive.sample(0, 4)).shape == (4, *shape)


def test_quantiles_from_samples_where_no_distribution_function_is_known():
    target = Model({"w": W}, lambda q, x: dist.BetaBinomial(jnp.exp(x @ q["w"]), 2.0, 10)).given(X, np.zeros(20, int))
    predictive = Posterior(Point(np.zeros(2)), target, verdict=Verdict("pass")).predict(X)
    exact = stats.betabinom(10, 1, 2)
    q = predictive.quantile(0.7)
    assert q.dtype == np.int64
    assert np.all((exact.cdf(q - 1) < 0.7 + 0.03) & (exact.cdf(q) > 0.7 - 0.03))  # four standard errors of 4,096


def test_a_model_without_inputs_predicts_any_number_of_rows():
    model = Model({"mu": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["mu"], 1.0))
    p = Posterior(Point(np.array([0.3])), model.given(None, np.zeros(7)), verdict=Verdict("pass"))
    predictive = p.predict()
    assert predictive.mean.tolist() == [0.3]
    y = np.linspace(-1, 1, 5)
    np.testing.assert_allclose(predictive.log_prob(y), stats.norm.logpdf(y, 0.3), rtol=1e-12)
    with pytest.raises(CredoError, match="without inputs"):
        p.predict(np.zeros((3, 1)))


@pytest.mark.parametrize("num_rows", [3, 1_500])
def test_outcomes_of_unlike_lengths_are_asked_of_a_law_without_inputs_together(num_rows, monkeypatch):
    """Of the longer ones no rows are left out, where they are many too; they are one datum."""
    monkeypatch.setattr(stream, "MEMORY", 2**20)
    model = Model(
        {"a": dist.Normal(0.0, 1.0)},
        lambda params, x: {"z": dist.Normal(params["a"], 2.0), "y": dist.Normal(params["a"], 1.0)},
    )
    data = {"z": np.array([0.5]), "y": np.linspace(-1.0, 1.0, num_rows)}
    positions = np.linspace(-0.1, 0.1, 200).reshape(1, 200, 1)
    target = model.given(y={"z": np.array([0.5]), "y": np.zeros(1)})
    predictive = Posterior(Draws(positions), target, verdict=Verdict("pass")).predict()
    of_y = stats.norm.logpdf(data["y"], positions.reshape(-1, 1)).sum(axis=1)
    joint = of_y + stats.norm.logpdf(0.5, positions.ravel(), 2.0)
    np.testing.assert_allclose(predictive.log_prob(data), [special.logsumexp(joint) - np.log(200)], rtol=1e-10)


def test_quantiles_of_outcomes_of_unlike_lengths_without_inputs(monkeypatch):
    monkeypatch.setattr(stream, "MEMORY", 2**20)

    def program():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("any", dist.Normal(a, 1.0), obs=np.zeros(1))
        numpyro.sample("y", dist.Normal(a + np.arange(400.0), 1.0), obs=np.zeros(400))

    target = credo.adapters.from_numpyro(program).given()
    posterior = Posterior(Draws(np.zeros((1, 200, 1))), target, verdict=Verdict("pass"))
    found = posterior.predict().quantile(0.9)
    np.testing.assert_allclose(found["any"], [stats.norm.ppf(0.9)], rtol=1e-8)
    np.testing.assert_allclose(found["y"], np.arange(400) + stats.norm.ppf(0.9), rtol=1e-8)


def test_a_law_without_draws_is_said():
    class Own(dist.Distribution):
        arg_constraints, support = {}, dist.constraints.real

        def __init__(self, mean):
            self.mean_of = mean
            super().__init__(jnp.shape(mean))

        def log_prob(self, value):
            return -0.5 * (value - self.mean_of) ** 2

    model = Model({"w": W}, lambda q, x: Own(x @ q["w"]))
    posterior = Posterior(Point(np.zeros(2)), model.given(X, np.zeros(20)), verdict=Verdict("pass"))
    predictive = posterior.predict(X)
    asked = {
        "sample": lambda: predictive.sample(0, 3),
        "quantile": lambda: predictive.quantile(0.5),
        "check": lambda: posterior.check(np.mean),
        "prior": lambda: model.sample_prior_predictive(0, X, 2),
    }
    for ask in asked.values():
        with pytest.raises(CredoError, match="Own has no draws: give it sample"):
            ask()
    np.testing.assert_allclose(predictive.log_prob(np.ones(20)), -0.5)


def test_no_moments_is_said_and_quantiles_remain():
    target = Model({"w": W}, lambda q, x: dist.Cauchy(x @ q["w"], 1.0)).given(X, np.zeros(20))
    predictive = Posterior(Point(np.array([1.0, 0.0])), target, verdict=Verdict("pass")).predict(X)
    np.testing.assert_allclose(predictive.quantile(0.75), X[:, 0] + 1.0, rtol=1e-8)
    truncated = Model({"w": W}, lambda q, x: dist.LowerTruncatedPowerLaw(-2.0, jnp.exp(x @ q["w"])))
    predictive = Posterior(Point(np.zeros(2)), truncated.given(X, np.full(20, 9.0)), verdict=Verdict("pass")).predict(X)
    with pytest.raises(CredoError, match="numpyro knows no mean"):
        _ = predictive.mean
    np.testing.assert_allclose(predictive.quantile(0.5), 2.0, rtol=1e-9)
    squashed = Model(
        {"w": W}, lambda q, x: dist.TransformedDistribution(dist.Normal(x @ q["w"], 1.0), SigmoidTransform())
    )
    predictive = Posterior(Point(np.zeros(2)), squashed.given(X, np.full(20, 0.5)), verdict=Verdict("pass")).predict(X)
    with pytest.raises(CredoError, match="no mean and variance of TransformedDistribution"):
        _ = predictive.mean
    np.testing.assert_allclose(predictive.quantile(0.5), 0.5, rtol=1e-9)


@pytest.mark.parametrize("name", ["VonMises", "to_event"])
def test_an_angle_has_no_mean_on_the_line(name):
    def likelihood(q, x):
        angles = dist.VonMises(x @ q["w"], 8.0)
        return angles if name == "VonMises" else dist.VonMises((x @ q["w"])[:, None], 8.0).to_event(1)

    y = np.zeros(20) if name == "VonMises" else np.zeros((20, 1))
    target = Model({"w": W}, likelihood).given(X, y)
    predictive = Posterior(Point(np.zeros(2)), target, verdict=Verdict("pass")).predict(X)
    for ask in (lambda: predictive.mean, lambda: predictive.variance, lambda: predictive.interval()):
        with pytest.raises(CredoError, match="an angle, of which 3.1 and -3.1 are neighbours"):
            ask()
    with pytest.raises(CredoError, match=r"use sample\(key, n\) or log_prob"):
        _ = predictive.probs
    assert predictive.sample(0, 3).shape == (3, *y.shape)
    assert np.all(np.isfinite(predictive.log_prob(y)))


def test_ordered_classes_have_quantiles():
    cuts = np.array([-1.0, 0.5, 2.0])
    target = Model({"w": W}, lambda q, x: dist.OrderedLogistic(x @ q["w"], cuts)).given(X, np.zeros(20, int))
    predictive = Posterior(Point(np.array([1.0, 0.0])), target, verdict=Verdict("pass")).predict(X)
    below = stats.logistic.cdf(cuts - X[:, :1])  # Pr(Y ≤ k)
    np.testing.assert_array_equal(predictive.quantile(0.3), np.sum(below < 0.3, axis=1))
    low, high = predictive.interval(0.5)
    np.testing.assert_array_equal(low, np.sum(below < 0.25, axis=1))
    np.testing.assert_array_equal(high, np.sum(below < 0.75, axis=1))


def test_a_probability_that_is_just_reached_is_not_exceeded():
    """Of two classes with half of the probability each the lower is the median."""
    target = Model({"w": W}, lambda q, x: dist.OrderedLogistic(x @ q["w"], np.zeros(1))).given(X, np.zeros(20, int))
    predictive = Posterior(Point(np.zeros(2)), target, verdict=Verdict("pass")).predict(X)
    np.testing.assert_array_equal(predictive.quantile(0.5), 0)


def test_quantiles_do_not_leave_the_support():
    """One in ten of Gamma(0.01, 1) is below 1e-100: the search ends near it on either side."""
    target = Model({"w": W}, lambda q, x: dist.Gamma(0.01 * jnp.exp(x @ q["w"]), 1.0)).given(X, np.ones(20))
    predictive = Posterior(Point(np.zeros(2)), target, verdict=Verdict("pass")).predict(X)
    assert np.all(predictive.quantile([1e-9, 0.1]) >= 0)


# streaming ----------------------------------------------------------------------------------------------------------


def test_chunks_change_nothing(monkeypatch):
    p, y = posterior(), np.linspace(-3, 3, 20)
    whole = p.predict(X)
    monkeypatch.setattr(stream, "MEMORY", 7 * 10 * 8 * NUM_STORED)
    cut = p.predict(X)
    assert whole._stream.chunk == 20
    assert 1 < cut._stream.chunk < 10
    for name in ("mean", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), rtol=1e-13)
    np.testing.assert_allclose(cut.log_prob(y), whole.log_prob(y), rtol=1e-13)
    np.testing.assert_allclose(cut.quantile([0.1, 0.9]), whole.quantile([0.1, 0.9]), rtol=1e-9)
    assert cut.sample(0, 6).shape == (6, 20)


def test_what_parameters_alone_compute_cuts_no_rows(monkeypatch):
    """Each draw of many weights would be made again for each chunk of rows."""
    monkeypatch.setattr(stream, "MEMORY", 2**20)
    model = Model({"w": dist.Normal(0.0, 1.0).expand([2, 10_000])}, lambda q, x: dist.Normal(x @ q["w"].sum(1), 1.0))
    p = Posterior(Point(np.zeros(20_000)), model.given(X, np.zeros(20)), verdict=Verdict("pass"))
    assert p.predict(X)._stream.chunk == 20
    assert p.predict(np.zeros((100_000, 2)))._stream.chunk < 20_000


def test_draws_too_large_to_store_are_made_anew(monkeypatch):
    from credo.predict import monte_carlo, stratified

    target = posterior().target
    gaussian = Gaussian(np.zeros(3), Dense.from_covariance(np.eye(3) * 0.1))
    p = Posterior(gaussian, target, verdict=Verdict("pass"))
    monkeypatch.setattr(stratified, "MAX_NUMBERS", 0)  # independent draws, each by a key of its own
    stored = p.predict(X, MonteCarlo(64), key=1)
    monkeypatch.setattr(monte_carlo, "MAX_STORED", 0)
    recipe = p.predict(X, MonteCarlo(64), key=1)
    assert recipe._stream.law.positions is None
    np.testing.assert_allclose(recipe.mean, stored.mean, rtol=1e-12)


def test_a_second_prediction_compiles_nothing(caplog):
    def use(p):
        predictive = p.predict(X[:9], MonteCarlo(16), key=1)
        predictive.log_prob(np.zeros(9, int))
        return predictive.mean, predictive.quantile(0.3), predictive.sample(0, 3)

    use(posterior(counts))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        use(posterior(counts, False, tuple(range(20))))  # other data of the same shapes
    compiled = [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]
    assert not compiled


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from Linux's /proc")
def test_a_hundred_thousand_rows_in_little_memory():
    """10⁵ rows × 256 draws: moments, densities and intervals in less than 1 GB."""
    script = """
import numpy as np, numpyro.distributions as dist
from pathlib import Path
from credo.model.model import Model
from credo.posterior.kinds import Draws
from credo.posterior.marginals import weighted_quantile
from credo.posterior.posterior import Posterior
from credo.status import Verdict
x = np.random.default_rng(0).normal(size=(100_000, 10))
model = Model({"w": dist.Normal(0.0, 1.0).expand([10])}, lambda q, x: dist.Bernoulli(logits=x @ q["w"]))
draws = Draws(np.random.default_rng(1).normal(size=(4, 250, 10)))
predictive = Posterior(draws, model.given(x, np.zeros(100_000)), verdict=Verdict("pass")).predict(x)
assert predictive.mean.shape == predictive.log_prob(np.ones(100_000)).shape == (100_000,)
predictive.interval(0.9)
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1e6  # kilobytes


def test_the_moments_are_made_once_and_lazily():
    predictive = posterior().predict(X)
    assert "_moments" not in vars(predictive)
    assert predictive.mean is predictive.mean
    assert module.Predictive.__doc__


def test_a_posterior_in_single_precision_predicts_in_double():
    double_precision = posterior()
    single = Posterior(
        Draws(double_precision.kind.positions.astype(np.float32)),
        double_precision.target.cast(np.float32),
        verdict=Verdict("pass"),
    )
    predictive, reference = single.predict(X), double_precision.predict(X)
    assert predictive.mean.dtype == predictive.quantile(0.3).dtype == np.float64
    np.testing.assert_allclose(predictive.mean, reference.mean, atol=1e-6)
    np.testing.assert_allclose(predictive.quantile(0.3), reference.quantile(0.3), atol=1e-5)


@pytest.mark.slow
def test_a_failed_posterior_predicts_numbers_or_a_sentence():
    """sqrt of a negative number: the likelihood is undefined at every draw."""
    model = Model({"w": W}, lambda params, x: dist.Normal(jnp.sqrt(-1.0 - (x @ params["w"]) ** 2), 1.0))
    kind = Gaussian(np.zeros(2), Dense(np.eye(2)))
    target = model.given(X, np.zeros(20))
    predictive = Posterior(kind, target, verdict=Verdict("failed")).predict(X)
    for ask in (
        lambda p: p.mean,
        lambda p: p.log_prob(np.zeros(20)),
        lambda p: p.quantile(0.5),
        lambda p: p.sample(0, 3),
    ):
        with pytest.raises(CredoError, match="predictions are no numbers: .* verdict is failed"):
            ask(predictive)
    known = Posterior(kind, Model({"w": W}, counts).given(X, np.zeros(20, int)), verdict=Verdict("doubtful"))
    failed = Posterior(kind, target, verdict=Verdict("failed"))
    compared = credo.compare({"known": known, "failed": failed}, held_out=(X, np.zeros(20, int)), show=False)
    assert np.isfinite(compared.loc["known", "log_score"])
    assert np.isnan(compared.loc["failed", "log_score"])


def test_as_many_draws_as_the_error_of_the_chains_asks():
    """Of a network's weights, or of a posterior that stores none, fewer."""
    positions = np.random.default_rng(2).normal(size=(2, 1_000, 3))
    target = posterior().target
    many = Posterior(Draws(positions), target, verdict=Verdict("pass"))
    assert many.predict(X)._stream.law.width == 1_024
    assert many.predict(X, MonteCarlo(300))._stream.law.width == 300
    gaussian = Posterior(Gaussian(np.zeros(3), Dense.from_covariance(np.eye(3))), target, verdict=Verdict("pass"))
    assert gaussian.predict(X)._stream.law.width == 256


def test_sd_and_no_rows():
    predictive = posterior().predict(X)
    np.testing.assert_array_equal(predictive.sd, np.sqrt(predictive.variance))
    with pytest.raises(CredoError, match="x has no rows"):
        posterior().predict(X[:0])


def test_draws_of_many_weights_are_taken_few_at_a_time():
    """32 draws of ten million weights at once, for 64 rows, took 5 GB: each draw's own numbers count too."""
    params = {"w": np.zeros((3_000, 2_000)), "v": np.zeros((2_000, 3))}
    network = credo.nn.BayesianNetwork(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], params, head=credo.nn.Categorical())
    target = network.given(np.zeros((4, 3_000)), np.array([0, 1, 2, 0]))
    kind = Gaussian(np.zeros(target.dim), Diagonal(np.full(target.dim, 0.01)))
    posterior = Posterior(kind, target, verdict=Verdict("doubtful"), info={})
    assert posterior.predict(np.zeros((40, 3_000)), credo.MonteCarlo(32))._stream.law.batch == 1
    few = Model({"w": W}, lambda params, x: dist.Normal(x @ params["w"], 1.0)).given(X, np.zeros(20))
    assert credo.fit(few, credo.Laplace()).predict(X, credo.MonteCarlo(32))._stream.law.batch == 32


@pytest.mark.parametrize("width", [200, 4_000], ids=["decisions alone", "predictions"])
def test_rows_that_lean_on_those_before_them_are_not_cut_apart(width):
    """A carry along x would begin anew with every chunk of rows."""

    def carried(x):
        return jax.lax.scan(lambda carry, row: (0.97 * carry + row,) * 2, 0.0, x)[1]

    x = np.random.default_rng(0).exponential(size=1_000)
    model = Model({"b": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["b"] * carried(x), 1.0))
    at = np.random.default_rng(1).normal(0.5, 0.01, size=(1, width, 1))
    posterior = Posterior(Draws(at, None), model.given(x, np.zeros(1_000)).flat(), verdict=Verdict("pass"))
    predictive = posterior.predict(x, MonteCarlo(width))
    expected = at.mean() * np.asarray(carried(x))
    np.testing.assert_allclose(predictive.mean, expected, rtol=1e-3)
    decision = credo.decide(predictive, lambda action, y: (action - y) ** 2, np.array([0.0, 1_000.0]))
    np.testing.assert_allclose(decision.expected_loss, 1.0 + expected**2, rtol=0.2)


@pytest.mark.parametrize("num_draws", [33, 49, 100])
def test_a_probability_is_never_beyond_one_by_rounding(num_draws):
    model = credo.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Bernoulli(logits=params["a"] + 60.0 * x))
    fitted = credo.fit(model.given(np.array([1.0, -1.0]), np.array([1, 0])), credo.Laplace(), progress=False)
    predictive = fitted.predict(np.array([1.0, -1.0]), credo.MonteCarlo(num_draws))
    for probs in (predictive.probs, (predictive.variance, predictive.probs)[1]):  # alone, and with the variances
        assert np.all((probs >= 0) & (probs <= 1))


def test_draws_of_no_weight_have_no_say():
    """Where they are, the rate is negative: 0 times NaN was NaN, and a quantile 0, without a word."""
    x = np.array([1.0, 2.0])
    model = credo.Model(
        {"s": dist.Normal(0.0, 3.0)},
        lambda params, x: dist.Poisson(params["s"] * x),
        derived={"log": lambda s: jnp.log(s)},
    )
    target = model.given(x, np.array([1, 4]))
    wide = Posterior(Gaussian(np.array([1.0]), Diagonal(np.array([3.0]))), target, verdict=Verdict("pass"))
    fitted = credo.fit(target, credo.Importance(proposal=wide, num_draws=1_000), progress=False)
    s, weights = fitted.draws["s"].ravel(), fitted.weights
    assert weights is not None
    assert np.any(weights == 0)
    counted = weights > 0
    mean, predictive = weights[counted] @ s[counted], fitted.predict(x)
    np.testing.assert_allclose(fitted.mean()["s"], mean, rtol=1e-6)
    np.testing.assert_allclose(fitted.mean()["log"], weights[counted] @ np.log(s[counted]), rtol=1e-6)
    np.testing.assert_allclose(predictive.mean, mean * x, rtol=1e-6)
    np.testing.assert_allclose(predictive.variance, mean * x + (weights[counted] @ s[counted] ** 2 - mean**2) * x**2)
    assert np.all(predictive.quantile(0.9) > predictive.mean)
    assert np.all(predictive.mutual_information > 0.01)


def test_a_quantile_is_not_drawn_towards_draws_of_no_weight():
    values, weights = np.array([900.0, 0.9, 1.0, 1.1, np.nan]), np.array([0.0, 1.0, 1.0, 1.0, 0.0]) / 3
    assert weighted_quantile(values, 0.95, weights) == pytest.approx(1.1)


OFFSET = 0.0


def with_offset(params, x):
    return dist.Normal(x @ params["w"] + OFFSET, 1.0)


@pytest.mark.parametrize("rule", [credo.MonteCarlo(), credo.Linearised()])
def test_a_global_that_changed_since_the_fit_is_said(monkeypatch, rule):
    """Programs that were compiled before it keep what the fit read; others would read it anew, and be kept."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    target = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, with_offset).given(x, x[:, 0])
    posterior = credo.fit(target, credo.Laplace(), progress=False)
    before = posterior.predict(x, rule=rule).mean
    monkeypatch.setattr(sys.modules[__name__], "OFFSET", 5.0)
    np.testing.assert_array_equal(posterior.predict(x, rule=rule).mean, before)
    with pytest.raises(credo.CredoError, match="has changed since the fit: set it back, or fit again"):
        _ = posterior.predict(x[:7], rule=rule).mean
    monkeypatch.setattr(sys.modules[__name__], "OFFSET", 0.0)
    np.testing.assert_allclose(posterior.predict(x[:7], rule=rule).mean, before[:7], rtol=1e-6)


class Counting:
    calls = 0

    def __call__(self, params, x):
        self.calls += 1
        return dist.Normal(x @ params["w"], 1.0)


def test_what_a_call_changes_itself_is_no_change():
    x = np.random.default_rng(0).normal(size=(40, 2))
    likelihood = Counting()
    target = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, likelihood).given(x, x[:, 0])
    posterior = credo.fit(target, credo.Laplace(), progress=False)
    calls, before = likelihood.calls, posterior.predict(x).mean
    np.testing.assert_allclose(posterior.predict(x[:7]).mean, before[:7], rtol=1e-6)
    assert likelihood.calls > calls
