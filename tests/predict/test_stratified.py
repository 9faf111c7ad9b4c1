"""Even draws: each by the posterior's law, means of nearly linear predictions almost exact, variances unbiased."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.posterior.kinds import Flow, Gaussian
from credo.posterior.posterior import Posterior
from credo.posterior.product import Product
from credo.precision import double
from credo.predict import MonteCarlo, stratified
from credo.predict.stratified import hypercube, stratified_positions
from credo.status import Verdict

C = np.array([[1.0, 0.6, 0.0], [0.6, 0.5, -0.2], [0.0, -0.2, 2.0]])
CENTRE = np.array([0.5, -1.0, 2.0])
X = np.array([[1.0, 2.0, -1.0], [0.3, 0.0, 0.4]])
SPREAD = np.einsum("ij,jk,ik->i", X, C, X)


@functools.cache
def gaussian(link=lambda z: z) -> Posterior:
    model = credo.Model(
        {"w": dist.Normal(0.0, 1.0).expand([3])}, lambda params, x: dist.Normal(link(x @ params["w"]), 0.5)
    )
    return Posterior(Gaussian(CENTRE, Dense.from_covariance(C)), model.given(X, np.zeros(2)), verdict=Verdict("pass"))


def test_every_stratum_of_every_coordinate_holds_one_point():
    v = hypercube(np.random.default_rng(0), 50, 4)
    np.testing.assert_array_equal(np.sort((v * 50).astype(int), axis=0), np.tile(np.arange(50)[:, None], 4))
    assert abs(np.corrcoef(hypercube(np.random.default_rng(1), 4_000, 2).T)[0, 1]) < 4 / np.sqrt(4_000)


@pytest.mark.parametrize("at_once", [7, 40, 120])
def test_draws_made_in_parts_are_moved_as_one(at_once, monkeypatch):
    """Ten draws of three coordinates: by single coordinates, by pairs, and all together."""
    whole = stratified_positions(gaussian().kind, np.random.default_rng(5), 10, 3)
    monkeypatch.setattr(stratified, "AT_ONCE", at_once)
    with double():
        found = stratified_positions(gaussian().kind, np.random.default_rng(5), 10, 3)
    white = stats.norm.cdf(np.linalg.solve(np.linalg.cholesky(C), (found - CENTRE).T)).T
    np.testing.assert_array_equal(np.sort((white * 10).astype(int), axis=0), np.tile(np.arange(10)[:, None], 3))
    if at_once == 120:
        np.testing.assert_allclose(found, whole, rtol=1e-5)


def test_each_draw_alone_has_the_law_of_the_posterior():
    """The first two of 8 draws, over 2,000 keys; two draws of one key are correlated by −1/7 at most in size."""
    with double():
        pairs = np.asarray(
            [
                stratified_positions(gaussian().kind, np.random.default_rng(key), 8, 3)[:2]  # type: ignore[index]
                for key in range(2_000)
            ]
        )
    flat = np.linalg.solve(np.linalg.cholesky(C), (pairs.reshape(-1, 3) - CENTRE).T)
    white = flat.reshape(3, 2_000, 2)
    assert min(stats.kstest(coordinate[:, i], "norm").pvalue for coordinate in white for i in (0, 1)) > 1e-4
    covariance = np.cov(pairs[:, 0].T)
    np.testing.assert_allclose(covariance, C, atol=5 * 2.0 * np.sqrt(2 / 2_000))
    # of n draws, one to a stratum, each pair has correlation −1 / (n − 1) at most in size
    assert np.all(
        np.abs([np.mean(coordinate[:, 0] * coordinate[:, 1]) for coordinate in white]) < 1 / 7 + 5 / np.sqrt(2_000)
    )


def test_a_linear_mean_is_almost_exact_and_the_split_unbiased():
    means, epistemic = [], []
    for key in range(60):
        predictive = gaussian().predict(X, key=key)
        means.append(predictive.mean)
        epistemic.append(predictive.epistemic)
        np.testing.assert_allclose(np.asarray(predictive.aleatoric), 0.25, rtol=1e-12)
    errors = (np.asarray(means) - X @ CENTRE) / np.sqrt(SPREAD)
    assert np.sqrt(np.mean(errors**2)) < 0.1 / np.sqrt(256)  # of independent draws: 1 / √256
    assert np.all(np.abs(errors.mean(axis=0)) < 5 * errors.std(axis=0) / np.sqrt(60))
    epistemic = np.asarray(epistemic) / SPREAD
    assert np.all(np.abs(epistemic.mean(axis=0) - 1.0) < 5 * epistemic.std(axis=0) / np.sqrt(60))
    assert np.all(epistemic.std(axis=0) < 1.2 * np.sqrt(2 / 256))  # and no more noisy than of independent draws


def test_a_curved_mean_is_unbiased_and_no_worse():
    exact = np.exp(X @ CENTRE * 0.5 + SPREAD / 8)
    sd = exact * np.sqrt(np.expm1(SPREAD / 4))
    p = gaussian(lambda z: jnp.exp(0.5 * z))
    errors = np.asarray([p.predict(X, MonteCarlo(64), key=key).mean - exact for key in range(200)]) / sd
    assert np.all(np.abs(errors.mean(axis=0)) < 5 * errors.std(axis=0) / np.sqrt(200))
    # Owen's bound, and the sd of 200 errors known to 5 %; the second row is bent little where its mass lies
    assert np.all(errors.std(axis=0) < 1.2 * np.sqrt(1 / 63))
    assert errors[:, 1].std() < 0.3 / np.sqrt(64)


def test_a_probability_is_known_as_its_posterior_mean():
    """Beta(1 + 3, 1 + 2): 7 / 12 of Beta(1, 1) after 6 of 10, which independent draws missed by 0.025."""
    model = credo.Model({"p": dist.Beta(1.0, 1.0)}, lambda params, x: dist.Bernoulli(probs=params["p"]))
    posterior = credo.fit(model.given(y=np.array([1] * 6 + [0] * 4)), credo.Exact())
    assert isinstance(posterior.kind, Product)
    for key in range(5):
        assert abs(posterior.predict(key=key).mean[0] - 7 / 12) < 1e-3


PRODUCTS = {
    "normal": (dist.Normal(np.array([1.0, -2.0]), np.array([0.5, 3.0])), stats.norm([1.0, -2.0], [0.5, 3.0])),
    "beta": (dist.Beta(np.array([0.5, 4.0]), 2.0), stats.beta([0.5, 4.0], 2.0)),
    "gamma": (dist.Gamma(3.0, np.array([2.0, 0.1])), stats.gamma(3.0, scale=[0.5, 10.0])),
    "inverse gamma": (dist.InverseGamma(3.0, np.array([2.0, 0.1])), stats.invgamma(3.0, scale=[2.0, 0.1])),
    "events": (dist.Gamma(3.0, 2.0).expand([2]).to_event(1), stats.gamma([3.0, 3.0], scale=0.5)),
}


@pytest.mark.parametrize("name", list(PRODUCTS))
def test_products_are_drawn_by_their_quantiles(name):
    d, exact = PRODUCTS[name]
    target = credo.Model({"a": d}, lambda params, x: dist.Normal(jnp.sum(params["a"]), 1.0)).given(y=np.zeros(3)).flat()
    kind = Product({"a": d}, target.structure)
    with double():
        positions = stratified_positions(kind, np.random.default_rng(0), 400, target.dim)
        assert positions is not None
        values = np.asarray(jax.vmap(target.constrain)(positions)["a"])
    strata = np.sort((exact.cdf(values) * 400), axis=0)
    assert np.all((strata > np.arange(400)[:, None] - 1e-6) & (strata < np.arange(1, 401)[:, None] + 1e-6))


def test_kinds_without_quantiles_and_very_many_numbers_are_drawn_independently(monkeypatch):
    generator = np.random.default_rng(0)
    flow = Flow((), Gaussian(np.zeros(3), Diagonal(np.ones(3))))
    heavy = dist.Cauchy(np.zeros(3), 1.0)
    target = credo.Model({"a": heavy}, lambda params, x: dist.Normal(params["a"], 1.0)).given(y=np.zeros(3))
    assert stratified_positions(flow, generator, 8, 3) is None
    assert stratified_positions(Product({"a": heavy}, target.structure), generator, 8, 3) is None
    monkeypatch.setattr(stratified, "MAX_NUMBERS", 23)
    assert stratified_positions(gaussian().kind, generator, 8, 3) is None


MULTIVARIATE = {
    "dirichlet": (
        lambda: dist.Dirichlet(jnp.array([[2.0, 3.0, 5.0], [0.05, 0.1, 40.0]])),
        lambda: np.stack([stats.dirichlet([2, 3, 5]).mean(), stats.dirichlet([0.05, 0.1, 40]).mean()]),
    ),
    "multivariate normal": (lambda: dist.MultivariateNormal(CENTRE, covariance_matrix=C), lambda: CENTRE),
}


@pytest.mark.parametrize("name", MULTIVARIATE)
def test_vectors_are_drawn_evenly(name):
    """Means of 256 draws, far nearer than those of independent ones, and second moments over many keys."""
    make, mean = MULTIVARIATE[name]
    with double():
        d = make()
        draws = np.array([stratified._draw(d, np.random.default_rng(key), 256) for key in range(40)])
        independent, variance = np.asarray(d.sample(jax.random.key(0), (40_000,))), np.asarray(d.variance)
    error = np.sqrt(np.mean((draws.mean(axis=1) - mean()) ** 2, axis=0))
    np.testing.assert_array_less(error, 0.5 * np.sqrt(variance / 256))
    flat, wanted = (each.reshape(-1, *d.event_shape) for each in (draws, independent))
    if name == "dirichlet":
        np.testing.assert_allclose(flat.sum(axis=-1), 1.0, rtol=1e-12)
        assert (flat > 0).all()
    covariance = np.cov(draws.reshape(-1, *draws.shape[2:]).reshape(40 * 256, -1).T)
    np.testing.assert_allclose(covariance, np.cov(wanted.reshape(40_000, -1).T), atol=0.06 * np.abs(covariance).max())


def test_shares_of_classes_are_predicted_nearly_exactly():
    model = credo.Model(
        {"p": dist.Dirichlet(jnp.ones(3))}, lambda params, x: dist.Categorical(params["p"][None].repeat(30, 0))
    )
    y = np.repeat([0, 1, 2], [5, 8, 17])
    posterior = credo.fit(model.given(y=y), credo.Exact(), progress=False)
    right = (1 + np.bincount(y)) / 33
    for key in range(5):
        np.testing.assert_allclose(posterior.predict(key=key).probs[0], right, atol=2e-3)
