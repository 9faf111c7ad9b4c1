"""Predictions of a mixture of Gaussians: sums over its components, and quadrature."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from credo.linalg.dense import Dense
from credo.model.model import Model
from credo.posterior.kinds import Draws, Gaussian, Mixture
from credo.posterior.posterior import Posterior
from credo.predict.linearised import Linearised, Quadrature
from credo.predict.monte_carlo import MonteCarlo
from credo.predict.probit import Probit
from credo.status import CredoError, Verdict

RNG = np.random.default_rng(1)
X = RNG.normal(size=(20, 2))
X_NEW = RNG.normal(size=(5, 2))
NOISE, WEIGHTS = 0.5, np.array([0.2, 0.5, 0.3])
MEANS = np.array([[1.0, -2.0], [-1.5, 0.5], [0.0, 3.0]])
COVS = np.array([[[0.2, 0.05], [0.05, 0.1]], [[0.5, -0.2], [-0.2, 0.3]], [[0.05, 0.0], [0.0, 0.4]]])
PRIOR = {"w": dist.Normal(0.0, 2.0).expand([2])}


def mixture(likelihood, y) -> Posterior:
    parts = tuple(Gaussian(m, Dense.from_covariance(C)) for m, C in zip(MEANS, COVS, strict=True))
    return Posterior(Mixture(np.log(WEIGHTS), parts), Model(PRIOR, likelihood).given(X, y), verdict=Verdict("pass"))


def line() -> Posterior:
    return mixture(lambda p, x: dist.Normal(x @ p["w"], NOISE), np.zeros(20))


def logistic() -> Posterior:
    return mixture(lambda p, x: dist.Bernoulli(logits=x @ p["w"]), np.zeros(20, int))


def three_classes() -> Posterior:
    mixing = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    return mixture(lambda p, x: dist.Categorical(logits=(x * p["w"]) @ mixing), np.zeros(20, int))


def normals():
    """Means and sds (component, row) of y under each component."""
    variances = np.einsum("mi,kij,mj->km", X_NEW, COVS, X_NEW) + NOISE**2
    return MEANS @ X_NEW.T, np.sqrt(variances)


def test_regression_is_the_mixture_of_normals():
    predictive, (means, sds) = line().predict(X_NEW, Linearised()), normals()
    y = RNG.normal(size=5)
    density = WEIGHTS @ stats.norm.pdf(y, means, sds)
    np.testing.assert_allclose(predictive.log_prob(y), np.log(density), rtol=1e-8)
    mean = WEIGHTS @ means
    np.testing.assert_allclose(predictive.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(predictive.aleatoric, NOISE**2, rtol=1e-8)
    np.testing.assert_allclose(predictive.variance, WEIGHTS @ (sds**2 + means**2) - mean**2, rtol=1e-8)
    for p in (0.05, 0.5, 0.9):
        at = predictive.quantile(p)
        np.testing.assert_allclose(WEIGHTS @ stats.norm.cdf(at, means, sds), p, atol=1e-6)


def test_the_weights_of_components_have_no_unit():
    """A variational mixture's log weights are known up to a constant."""
    posterior, y = line(), np.zeros(5)
    parts = posterior.kind.components  # type: ignore[attr-defined]
    scaled = Posterior(Mixture(np.log(WEIGHTS) + 1.0, parts), posterior.target, verdict=Verdict("pass"))
    one, other = (each.predict(X_NEW, Linearised()) for each in (posterior, scaled))
    np.testing.assert_allclose(other.mean, one.mean, rtol=1e-12)
    np.testing.assert_allclose(other.log_prob(y), one.log_prob(y), rtol=1e-12)


def test_draws_share_a_component_over_rows():
    """Each draw is of one component for all rows: covariances between rows are those of the mixture."""
    n = 20_000
    y = line().predict(X_NEW, Linearised()).sample(3, n)
    means, _ = normals()
    mean = WEIGHTS @ means
    within = np.einsum("k,mi,kij,nj->mn", WEIGHTS, X_NEW, COVS, X_NEW) + NOISE**2 * np.eye(5)
    expected = within + np.einsum("k,km,kn->mn", WEIGHTS, means - mean, means - mean)
    sds = np.sqrt(np.diag(expected))
    # five standard errors of a mean, and of a covariance whose products have a kurtosis of 9 at most
    np.testing.assert_array_less(np.abs(y.mean(axis=0) - mean) / sds, 5 / np.sqrt(n))
    np.testing.assert_array_less(np.abs(np.cov(y.T) - expected) / np.outer(sds, sds), 5 * np.sqrt(9 / n))


def test_information_of_a_regression_is_that_of_quadrature():
    """H(mixture of normals) − H(noise); 512 outcomes give the share between components to 6 %."""
    means, sds = normals()
    expected = []
    for m, s in zip(means.T, sds.T, strict=True):
        y = np.linspace(np.min(m - 12 * s), np.max(m + 12 * s), 40_001)
        p = WEIGHTS @ stats.norm.pdf(y, m[:, None], s[:, None])
        entropy = np.trapezoid(-p * np.log(np.maximum(p, 1e-300)), y)
        expected.append(entropy - 0.5 * np.log(2 * np.pi * np.e * NOISE**2))
    np.testing.assert_allclose(line().predict(X_NEW, Linearised()).mutual_information, expected, rtol=0.06)


@pytest.mark.parametrize("make", [logistic, three_classes])
@pytest.mark.parametrize("rule", [Linearised(), Quadrature(64), Probit()])
def test_classes_are_the_average_of_the_components(make, rule):
    posterior = make()
    predictive = posterior.predict(X_NEW, rule)
    each = [
        Posterior(part, posterior.target, verdict=Verdict("pass")).predict(X_NEW, rule)
        for part in posterior.kind.components  # type: ignore[attr-defined]
    ]
    probs = np.tensordot(WEIGHTS, np.array([p.probs for p in each]), axes=1)
    np.testing.assert_allclose(predictive.probs, probs, rtol=1e-10)
    between = np.tensordot(WEIGHTS, np.array([p.epistemic + (p.mean - probs) ** 2 for p in each]), axes=1)
    np.testing.assert_allclose(predictive.epistemic, between, rtol=1e-8)

    def entropy(p):
        p = np.stack([1 - p, p], axis=-1) if p.ndim == 1 else p
        return -np.sum(p * np.log(p), axis=-1)

    conditional = sum(
        w * (entropy(np.asarray(p.probs)) - p.mutual_information) for w, p in zip(WEIGHTS, each, strict=True)
    )
    np.testing.assert_allclose(predictive.mutual_information, entropy(probs) - conditional, rtol=1e-8)


def test_linear_outputs_agree_with_draws():
    posterior = logistic()
    by_draws = posterior.predict(X_NEW, MonteCarlo(20_000), key=1)
    exact = posterior.predict(X_NEW, Linearised())
    # five standard errors: the epistemic sd is 1/2 at most
    np.testing.assert_allclose(exact.probs, by_draws.probs, atol=5 * 0.5 / np.sqrt(20_000))


def test_moments_of_a_mixture_are_exact():
    posterior, mean = line(), WEIGHTS @ MEANS
    np.testing.assert_allclose(posterior.mean()["w"], mean, rtol=1e-12)
    variance = WEIGHTS @ (np.diagonal(COVS, axis1=1, axis2=2) + (MEANS - mean) ** 2)
    np.testing.assert_allclose(posterior.sd()["w"] ** 2, variance, rtol=1e-12)


def test_components_that_are_no_gaussians_are_refused():
    posterior = line()
    parts = (posterior.kind.components[0], Draws(np.zeros((1, 3, 2))))  # type: ignore[attr-defined]
    other = Posterior(Mixture(np.log([0.5, 0.5]), parts), posterior.target, verdict=Verdict("pass"))
    with pytest.raises(CredoError, match="needs a Gaussian posterior, and this one is Draws"):
        other.predict(X_NEW, Linearised())
