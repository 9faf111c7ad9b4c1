"""The mixture of Gaussians beside scikit-learn's: EM and variational Bayes from the same start, number for number."""

import warnings

import numpy as np
import pytest
from scipy.special import gammaln, multigammaln

from credo.methods.vi.cavi.mixture import Diagonal, Full, GaussianMixture, NormalWishart, PointMass

pytestmark = pytest.mark.oracle

N, D, K = 400, 3, 4
rng = np.random.default_rng(11)
LABELS = rng.integers(K, size=N)
X = rng.normal(size=(K, D))[LABELS] * 3 + rng.normal(size=(N, D)) @ rng.normal(size=(D, D))
START = np.random.default_rng(1).dirichlet(np.ones(K), N) * 0.4 + 0.6 * np.eye(K)[LABELS]


def peer(kind, start, num_iterations, **settings):
    """scikit-learn's mixture ``kind``, begun with these responsibilities."""
    mixture = kind(n_components=K, tol=0.0, reg_covar=0.0, max_iter=num_iterations, **settings)
    mixture._initialize_parameters = lambda x, state, xp=None: mixture._initialize(x, start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it did not converge
        return mixture.fit(X)


@pytest.mark.parametrize(("covariance", "theirs"), [(Full(), "full"), (Diagonal(), "diag")])
@pytest.mark.parametrize("num_iterations", [1, 30])
def test_em_is_that_of_scikit_learn(covariance, theirs, num_iterations):
    """After so many iterations: weights, means, covariances, log likelihood and responsibilities to 1e-6."""
    from sklearn.mixture import GaussianMixture as Peer

    other = peer(Peer, START, num_iterations, covariance_type=theirs)
    ours = GaussianMixture(
        K, PointMass(), covariance=covariance, max_sweeps=num_iterations, tolerance=0.0, relative_tolerance=0.0
    ).fit(X, start=START)
    order = np.argsort(-other.weights_)
    mean = ours.mean()
    np.testing.assert_allclose(mean["weights"], other.weights_[order], rtol=1e-6)
    np.testing.assert_allclose(mean["means"], other.means_[order], rtol=1e-6, atol=1e-6)
    found = mean["covariances" if theirs == "full" else "variances"]
    np.testing.assert_allclose(found, other.covariances_[order], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.log_density(X), other.score_samples(X), rtol=1e-6)
    np.testing.assert_allclose(ours.responsibilities(X), other.predict_proba(X)[:, order], atol=1e-6)


def test_variational_bayes_is_that_of_scikit_learn():
    """Full covariances, Dirichlet weights: its bound, given the constants that it leaves out, is our ELBO.

    ``lower_bound_`` is H(r) + log Z_Dir(α) + Σ_k [log Z_W(ν_k, S_k) − (D/2) log β_k], Z_W without its powers of π. What
    it lacks is −log Z_Dir(α₀) − K [log Z_W(ν₀, S₀) − (D/2) log β₀] − (N D/2) log 2π; nothing is approximated, but for
    10 ε added to counts, and ``reg_covar``, where it is not zero, which enters the update and not the bound.

    Its diagonal mixture is none of Normal-Gamma factors: it takes E log λ from a D-dimensional Wishart's digammas,
    Σ_i ψ((ν − i)/2), where each of the D precisions is Gamma(ν/2, ·) with ψ(ν/2). There is nothing to compare with.
    """
    from sklearn.mixture import BayesianGaussianMixture as Peer

    scale, mean = np.diag([1.0, 2.0, 3.0]) + 0.3, np.array([0.1, 0.2, -0.3])
    other = peer(
        Peer,
        START,
        40,
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=0.4,
        mean_precision_prior=0.7,
        mean_prior=mean,
        degrees_of_freedom_prior=4.5,
        covariance_prior=scale,
    )
    prior = NormalWishart(concentration=0.4, mean=mean, mean_precision=0.7, degrees_of_freedom=4.5, scale=scale)
    ours = GaussianMixture(K, prior, max_sweeps=40, tolerance=0.0, relative_tolerance=0.0).fit(X, start=START)
    order = np.argsort(-other.weight_concentration_)
    np.testing.assert_allclose(ours.mean()["means"], other.means_[order], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.mean()["weights"], other.weights_[order], rtol=1e-6)
    np.testing.assert_allclose(ours.responsibilities(X), other.predict_proba(X)[:, order], atol=1e-6)
    q = ours._q.q
    np.testing.assert_allclose(q.nu, other.degrees_of_freedom_[order], rtol=1e-6)
    unit = np.outer(ours.units.unit, ours.units.unit)
    np.testing.assert_allclose(
        q.scale[:, 0] * unit / q.nu[:, None, None], other.covariances_[order], rtol=1e-5, atol=1e-6
    )

    log_z_dirichlet = K * gammaln(0.4) - gammaln(0.4 * K)
    # of a Wishart (ν₀, S₀⁻¹); the powers of π of the K factors and of the prior's cancel
    log_z_wishart = 4.5 * D / 2 * np.log(2) + multigammaln(2.25, D) - 4.5 / 2 * np.linalg.slogdet(scale)[1]
    constant = -log_z_dirichlet - K * (log_z_wishart - D / 2 * np.log(0.7)) - N * D / 2 * np.log(2 * np.pi)
    pi = K * D * (D - 1) / 4 * np.log(np.pi)  # multigammaln holds it, their bound does not
    np.testing.assert_allclose(ours.log_evidence.value, other.lower_bound_ + constant + pi, rtol=1e-8)
