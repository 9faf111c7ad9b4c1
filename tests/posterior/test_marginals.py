"""Moments and quantiles: what is its own coordinate or has a named law is read off, the rest integrated at any size."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import optimize, stats
from scipy.special import expit

import credo
from credo.compiling import sound
from credo.linalg.diagonal import Diagonal
from credo.linalg.lowrank import LowRank
from credo.posterior import marginals
from credo.posterior.factors import LogGamma, Sticks
from credo.posterior.kinds import Gaussian, Independent, Mixture
from credo.posterior.posterior import Posterior
from credo.posterior.product import Product
from credo.precision import double
from credo.status import Verdict

MEAN, SD = np.array([0.3, -1.2, 2.0]), np.array([0.5, 1.5, 0.2])


def posterior_of(scale):
    model = credo.Model(
        {"tau": dist.HalfNormal(1.0), "w": dist.Normal(0.0, 1.0).expand([2])}, lambda params, x: dist.Normal(0.0, 1.0)
    )
    return Posterior(Gaussian(MEAN, scale), model.given(y=np.zeros(2)).flat(), verdict=Verdict("pass"))


@pytest.mark.parametrize("at_once", [10_000_000, 1], ids=["together", "one after another"])
def test_transformed_parameters_are_integrated_and_the_others_are_their_coordinates(at_once, monkeypatch):
    monkeypatch.setattr(marginals, "AT_ONCE", at_once)
    program = marginals._moved
    monkeypatch.setattr(marginals, "_moved", sound(program.function, **program.settings))  # traced anew
    posterior = posterior_of(Diagonal(SD))
    tau = stats.lognorm(SD[0], scale=np.exp(MEAN[0]))
    assert posterior.mean()["tau"] == pytest.approx(tau.mean(), rel=1e-10)
    assert posterior.sd()["tau"] == pytest.approx(tau.std(), rel=1e-10)
    np.testing.assert_array_equal(posterior.mean()["w"], MEAN[1:])
    np.testing.assert_allclose(posterior.sd()["w"], SD[1:], rtol=1e-15)
    found = posterior.quantile([0.1, 0.5, 0.9])
    np.testing.assert_allclose(found["tau"], tau.ppf([0.1, 0.5, 0.9]), rtol=1e-8)
    expected = stats.norm(MEAN[1:], SD[1:]).ppf(np.array([0.1, 0.5, 0.9])[:, None])
    np.testing.assert_allclose(found["w"], expected, rtol=1e-8)


@pytest.mark.parametrize("sd", [0.1, 2.0, 8.0, 100.0])
def test_moments_are_right_however_wide_the_coordinate_is(sd):
    """Of exp(u) the sd was half its size at 8, and of a probability the mean off by 0.004 at 20."""
    shifted = dist.TransformedDistribution(dist.HalfNormal(1.0), dist.transforms.AffineTransform(5.0, -2.0))
    low = dist.TruncatedNormal(0.0, 1.0, low=3.0)
    prior = {"tau": dist.HalfNormal(1.0), "low": low, "shifted": shifted, "p": dist.Beta(1.0, 1.0)}
    target = credo.Model(prior, lambda params, x: dist.Normal(0.0, 1.0)).given(y=np.zeros(2)).flat()
    posterior = Posterior(Gaussian(np.full(4, -1.0), Diagonal(np.full(4, sd))), target, verdict=Verdict("pass"))
    mean, spread = posterior.mean(), posterior.sd()
    size = np.exp(-1 + sd**2 / 2) if sd < 30 else np.inf
    of_tau = size * np.sqrt(np.expm1(sd**2)) if sd < 15 else np.inf
    np.testing.assert_allclose([mean[n] for n in prior if n != "p"], [size, 3 + size, 5 - 2 * size], rtol=1e-9)
    np.testing.assert_allclose([spread[n] for n in prior if n != "p"], of_tau * np.array([1, 1, 2]), rtol=1e-9)
    z, h = np.linspace(-9, 9, 400_001, retstep=True)
    p, weights = expit(-1 + sd * z), h * stats.norm.pdf(z)
    assert mean["p"] == pytest.approx(weights @ p, abs=1e-8)
    assert spread["p"] == pytest.approx(np.sqrt(weights @ (p - weights @ p) ** 2), abs=1e-8)


def test_no_weight_is_evaluated_at_nodes(monkeypatch):
    """Sixty-four positions of ten million weights would be 5 GB."""
    monkeypatch.setattr(marginals, "_moved", None)
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([3])}, lambda params, x: dist.Normal(0.0, 1.0))
    factor = np.arange(6.0).reshape(3, 2)
    with double():
        kind = Gaussian(MEAN, LowRank.from_factor(SD, factor))
    posterior = Posterior(kind, model.given(y=np.zeros(2)).flat(), verdict=Verdict("pass"))
    np.testing.assert_allclose(posterior.sd()["w"], np.sqrt(SD**2 + np.sum(factor**2, axis=1)), rtol=1e-12)
    np.testing.assert_allclose(posterior.quantile(0.5)["w"], MEAN)


def test_draws_of_long_positions_are_few_at_a_time(monkeypatch):
    together = posterior_of(Diagonal(SD)).sample(0, 5)
    monkeypatch.setattr(marginals, "AT_ONCE", 1)
    program = marginals._sample_positions
    monkeypatch.setattr(marginals, "_sample_positions", sound(program.function, **program.settings))  # traced anew
    apart = posterior_of(Diagonal(SD)).sample(0, 5)
    np.testing.assert_array_equal(together["w"], apart["w"])


def test_quantiles_of_mixtures_are_those_of_their_marginals():
    """Between two modes, where draws know a median to a tenth of their distance; rising and falling transforms."""
    free = dist.Normal(0.0, 1.0)
    falling = dist.TransformedDistribution(dist.HalfNormal(1.0), dist.transforms.AffineTransform(0.0, -1.0))
    model = credo.Model({"w": free.expand([2]), "tau": dist.HalfNormal(1.0), "fall": falling}, None)
    target = model.given().flat()
    middles, sds, shares = np.array([[-1.0] * 4, [3.0, 2.0, 1.0, 1.5]]), np.array([0.3, 0.5]), np.array([0.3, 0.7])
    parts = tuple(Gaussian(m, Diagonal(np.full(4, sd))) for m, sd in zip(middles, sds, strict=True))
    posterior = Posterior(Mixture(np.log(shares), parts), target, verdict=Verdict("pass"))
    levels = np.array([0.01, 0.3, 0.5, 0.99])

    def inverse(coordinate: int, level: float) -> float:
        laws = [stats.norm(m[coordinate], sd) for m, sd in zip(middles, sds, strict=True)]
        return optimize.brentq(lambda u: shares @ [law.cdf(u) for law in laws] - level, -9.0, 9.0, xtol=1e-13)

    assert [leaf.name for leaf in target.structure.leaves] == ["w", "tau", "fall"]
    found = posterior.quantile(levels)
    np.testing.assert_allclose(found["w"], [[inverse(i, p) for i in (0, 1)] for p in levels], rtol=1e-9)
    np.testing.assert_allclose(found["tau"], np.exp([inverse(2, p) for p in levels]), rtol=1e-9)
    np.testing.assert_allclose(found["fall"], -np.exp([inverse(3, 1 - p) for p in levels]), rtol=1e-9)
    np.testing.assert_array_equal(posterior.quantile([0.0, 1.0])["tau"], [0.0, np.inf])
    assert posterior.quantile([])["w"].shape[0] == 0


SHARE = stats.beta([1.0, 2.0, 4.0], [6.0, 5.0, 3.0])  # of a Dirichlet law of 1, 2 and 4
LAWS = {
    "normal": (dist.Normal(np.array([0.5, -2.0]), np.array([1.0, 0.3])), stats.norm([0.5, -2.0], [1.0, 0.3])),
    "joint": (
        dist.MultivariateNormal(np.array([0.5, -2.0]), np.array([[2.0, 0.5], [0.5, 1.0]])),
        stats.norm([0.5, -2.0], [np.sqrt(2.0), 1.0]),
    ),
    "gamma": (dist.Gamma(3.0, 2.0), stats.gamma(3.0, scale=0.5)),
    "inverse": (dist.InverseGamma(3.0, 2.0), stats.invgamma(3.0, scale=2.0)),
    "beta": (dist.Beta(2.0, 5.0).expand([2, 3]), stats.beta(2.0, 5.0)),
    "simplex": (dist.Dirichlet(np.array([1.0, 2.0, 4.0])), SHARE),
    "simplices": (dist.Dirichlet(np.array([1.0, 2.0, 4.0])).expand([2]), SHARE),
}


@pytest.mark.parametrize("name", LAWS)
def test_quantiles_of_products_are_those_of_their_marginals(name):
    law, marginal = LAWS[name]
    target = credo.Model({"a": law}, lambda params, x: dist.Normal(0.0, 1.0)).given(y=np.zeros(2)).flat()
    with double():
        posterior = Posterior(Product({"a": law}, target.structure), target, verdict=Verdict("pass"))
    levels = np.array([0.05, 0.5, 0.9, 0.99])
    found = posterior.quantile(levels)["a"]
    assert found.shape == (4, *law.shape())
    np.testing.assert_array_equal(posterior.quantile(0.5)["a"], found[1])
    below = marginal.cdf(found)
    assert np.max(np.abs(below - levels.reshape(-1, *(1,) * (below.ndim - 1)))) < 0.005
    assert posterior.quantile(0.0)["a"].min() in (0.0, -np.inf)


def factors():
    """Parameters in an order of their own, and a kind whose parts have another; the simplices are rows."""
    prior = {
        "rate": dist.Gamma(2.0, 1.0).expand([2]),
        "w": dist.Normal(0.0, 1.0),
        "shares": dist.Dirichlet(np.ones(3)).expand([2]).to_event(1),
        "p": dist.Beta(1.0, 1.0),
        "scale": dist.HalfNormal(1.0),
        "bounded": dist.Uniform(-1.0, 3.0),
    }
    target = credo.Model(prior, lambda params, x: dist.Normal(0.0, 1.0)).given(y=np.zeros(2)).flat()
    ends = np.cumsum([leaf.size for leaf in target.structure.leaves])
    place = {leaf.name: (int(e - leaf.size), int(e)) for leaf, e in zip(target.structure.leaves, ends, strict=True)}
    alphas = {"shares": [[1.0, 2.0, 3.0], [4.0, 5.0, 0.5]], "p": [[2.0, 7.0]], "bounded": [[3.0, 2.0]]}
    parts = {
        ("shares",): Sticks(np.log(alphas["shares"])),
        ("rate",): LogGamma(np.log([3.0, 0.2]), np.log([15.0, 0.7])),
        ("w", "scale"): Gaussian(np.array([0.4, -0.3]), Diagonal(np.array([0.2, 0.6]))),
        ("p",): Sticks(np.log(alphas["p"])),
        ("bounded",): Sticks(np.log(alphas["bounded"])),
    }
    spans = tuple(tuple(place[name] for name in names) for names in parts)
    known = {
        "rate": stats.gamma([15.0, 0.7], scale=[3.0 / 15.0, 0.2 / 0.7]),
        "shares": stats.beta(alphas["shares"], np.sum(alphas["shares"], axis=1, keepdims=True) - alphas["shares"]),
        "p": stats.beta(2.0, 7.0),
        "w": stats.norm(0.4, 0.2),
        "scale": stats.lognorm(0.6, scale=np.exp(-0.3)),
    }
    assert place["w"] < place["scale"], "spans are in order"
    return Posterior(Independent(tuple(parts.values()), spans), target, verdict=Verdict("pass")), known


@pytest.mark.slow
def test_factors_have_the_moments_and_quantiles_of_their_laws():
    posterior, known = factors()
    mean, sd, median = posterior.mean(), posterior.sd(), posterior.quantile([0.1, 0.5])
    for name, law in known.items():
        np.testing.assert_allclose(mean[name], law.mean(), rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(sd[name], law.std(), rtol=1e-9, err_msg=name)
        expected = law.ppf(np.reshape([0.1, 0.5], (2, *(1,) * np.ndim(mean[name]))))
        np.testing.assert_allclose(median[name], expected, rtol=1e-8, err_msg=name)
    beta = stats.beta(3.0, 2.0, loc=-1.0, scale=4.0)  # whose bounds the structure does not know: by draws
    assert mean["bounded"] == pytest.approx(beta.mean(), abs=4 * beta.std() / np.sqrt(marginals.NUM_DRAWS))


def test_a_factor_alone_has_the_moments_of_its_law():
    target = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    posterior = credo.fit(target.given(y=np.array([3, 5, 1, 4])), credo.ADVI(family=credo.vi.Gamma()), progress=False)
    assert float(posterior.mean()["rate"]) == pytest.approx(3.0, rel=1e-4)
    assert float(posterior.sd()["rate"]) == pytest.approx(np.sqrt(15.0) / 5.0, rel=1e-4)


def test_a_factor_without_moments_says_so_and_does_not_warn():
    model = credo.Model({"v": dist.InverseGamma(0.5, 1.0)}, lambda params, x: dist.Normal(0.0, params["v"] ** 0.5))
    target = model.given(y=np.array([1.0])).flat()
    # NumPy's parameters, at which NumPyro's formula of the mean divides by zero.
    product = Product({"v": dist.InverseGamma(np.array(1.0), np.array(1.5))}, target.structure)
    posterior = Posterior(product, target, verdict=Verdict("pass"))
    assert posterior.mean()["v"] == np.inf
    assert not np.isfinite(posterior.sd()["v"])


def test_quantiles_of_what_is_undefined_are_undefined():
    """With weights NaN counted as the largest value, so that log(a) had quantiles where half of its draws had none."""
    values = np.array([[1.0, np.nan, np.nan], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
    for weights in (None, np.array([0.3, 0.3, 0.4])):
        is_nan = np.isnan(marginals.weighted_quantile(values, [0.1, 0.5], weights))
        np.testing.assert_array_equal(is_nan, [[False, True, True]] * 2)
    assert not np.isnan(marginals.weighted_quantile(values, 0.5, np.array([0.0, 0.5, 0.5]))).any()
