"""Divergences between Gaussians are known in closed form, and so are their Monte Carlo errors: 4 of them at most."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import credo
from credo.linalg.dense import Dense
from credo.linalg.embedded import Embedded
from credo.posterior.kinds import Draws, Gaussian
from credo.precision import double

PRECISION = np.linalg.inv(np.array([[1.0, 0.4], [0.4, 1.0]]))
MEAN = np.array([1.0, -2.0])
LOG_Z = 3.0  # of the target's density


def target():
    def log_density(params):
        y = params["x"] - MEAN
        return LOG_Z - 0.5 * y @ PRECISION @ y - np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(PRECISION)[1]

    return credo.Model.from_log_density(log_density, {"x": dist.constraints.real_vector}, {"x": (2,)}).given()


def approximation(mean, covariance):
    with double():
        kind = Gaussian(np.asarray(mean), Dense.from_covariance(np.asarray(covariance)))
    return credo.Posterior(kind, target(), verdict=credo.Verdict("pass"))


def kl(mean, covariance, other_mean, other_precision) -> float:
    """KL(N(mean, covariance) ‖ N(other_mean, other_precision⁻¹))."""
    product, y = other_precision @ covariance, other_mean - mean
    return 0.5 * (np.trace(product) - len(y) + y @ other_precision @ y - np.linalg.slogdet(product)[1])


@pytest.fixture(scope="module")
def found():
    mean, covariance = MEAN + np.array([0.2, 0.0]), np.diag([0.9, 0.8])
    return mean, covariance, credo.vi.divergences(approximation(mean, covariance), target(), key=3, num_draws=20_000)


def test_equal_their_closed_forms(found):
    mean, covariance, divergences = found
    slope, J = np.linalg.inv(covariance) - PRECISION, np.linalg.cholesky(covariance)  # of ∇ log p − ∇ log q
    offset = J.T @ PRECISION @ (MEAN - mean)
    truth = {
        "elbo": LOG_Z - kl(mean, covariance, MEAN, PRECISION),
        "log_evidence": LOG_Z,
        "kl_q_p": kl(mean, covariance, MEAN, PRECISION),
        "kl_p_q": kl(MEAN, np.linalg.inv(PRECISION), mean, np.linalg.inv(covariance)),
        "fisher": np.sum((J.T @ slope @ J) ** 2) + offset @ offset,
    }
    for name, value in truth.items():
        estimate = getattr(divergences, name)
        assert 0 < estimate.error < 0.05
        assert abs(estimate.value - value) < 4 * estimate.error, name
    k = 1 - 1 / np.linalg.eigvalsh(_relative(covariance)).max()
    assert abs(divergences.pareto_k.value - k) < 4 * divergences.pareto_k.error


def _relative(covariance):
    """The covariance of p in the units of q."""
    root = np.diag(np.diagonal(covariance) ** -0.5)
    return root @ np.linalg.inv(PRECISION) @ root


def test_moments_by_weights_and_by_a_reference(found):
    mean, covariance, by_weights = found
    exact = credo.vi.divergences(
        approximation(mean, covariance), reference=approximation(MEAN, np.linalg.inv(PRECISION)), num_draws=100
    )
    truth = [(0.2, 0.9), (0.0, 0.8)]
    for name, (off, ratio) in zip(("x[0]", "x[1]"), truth, strict=True):
        m, m_error, r, r_error = by_weights.scalars[name]
        assert abs(m - off) < 4 * m_error
        assert abs(r - ratio) < 4 * r_error
        np.testing.assert_allclose(exact.scalars[name], (off, 0.0, ratio, 0.0), atol=1e-12)


def test_a_reference_brings_its_own_errors():
    """Independent draws of N(MEAN, 3² I), and an evidence that is known to 0.3."""
    draws = MEAN + 3 * np.random.default_rng(0).normal(size=(4, 500, 2))
    q, nothing = approximation(MEAN, np.eye(2)), np.full((4, 500), -np.log(2_000))
    for log_weights in (None, nothing):
        reference = credo.Posterior(
            Draws(draws, log_weights),
            target(),
            verdict=credo.Verdict("pass"),
            log_evidence=credo.Estimate(LOG_Z + 1, 0.3, "monte carlo"),
        )
        found = credo.vi.divergences(q, reference=reference, num_draws=100)
        assert found.kl_q_p.value == pytest.approx(LOG_Z + 1 - found.elbo.value)
        assert found.kl_q_p.error == pytest.approx(np.hypot(0.3, found.elbo.error))
        for each in found.scalars.values():
            assert each.variance_ratio == pytest.approx(1 / 9, rel=0.2)
            if log_weights is None:
                assert each.mean_error == pytest.approx(1 / np.sqrt(2_000), rel=0.2)
                assert each.ratio_error == pytest.approx(each.variance_ratio * np.sqrt(2 / 2_000), rel=0.25)
            else:
                assert np.isnan([each.mean_error, each.ratio_error]).all(), "of weighed draws it is not known"


def test_an_exact_approximation_is_at_no_distance():
    same = credo.vi.divergences(approximation(MEAN, np.linalg.inv(PRECISION)), num_draws=200)
    for name in ("kl_q_p", "kl_p_q", "fisher"):
        estimate = getattr(same, name)
        assert estimate.value == pytest.approx(0.0, abs=1e-9)
        assert estimate.error == pytest.approx(0.0, abs=1e-9)
    assert same.pareto_k.value == 0.0


def test_what_rests_on_wild_weights_is_unknown():
    narrow = credo.vi.divergences(approximation(MEAN, 0.04 * np.eye(2)), num_draws=2_000)
    assert narrow.pareto_k.value > 0.7
    assert np.isnan(narrow.kl_p_q.error)
    assert np.isnan(narrow.kl_q_p.error)
    assert np.isfinite(narrow.elbo.error)


def test_where_the_posterior_has_an_edge_that_q_does_not():
    """Of N(0, 1) cut off at −3 from N(0, 1): KL(p ‖ q) = −log Φ(3), KL(q ‖ p) = ∞."""

    def cut(params):
        return jnp.where(params["x"] > -3, -0.5 * params["x"] ** 2, -jnp.inf)

    edged = credo.Model.from_log_density(cut, {"x": dist.constraints.real}).given()
    found = credo.vi.divergences(credo.fit(edged, credo.Laplace(), progress=False), edged)
    assert 0 < found.kl_p_q.error < 0.002
    assert abs(found.kl_p_q.value + norm.logcdf(3)) < 4 * found.kl_p_q.error
    assert found.kl_q_p.value == np.inf


def test_entries_that_are_always_the_same_are_left_out():
    """Of a correlation matrix its diagonal, of its Cholesky factor a one and a zero."""
    y = np.random.default_rng(0).multivariate_normal([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]], size=200)
    model = credo.Model(
        {"L": dist.LKJCholesky(2, 1.0)},
        lambda params, x: dist.MultivariateNormal(np.zeros((x.shape[0], 2)), scale_tril=params["L"]),
    )
    q = credo.fit(model.given(np.zeros(200), y), credo.Laplace(), progress=False)
    for reference in (None, q):
        scalars = credo.vi.divergences(q, reference=reference).scalars
        assert list(scalars) == ["L[1,0]", "L[1,1]"]
        assert all(abs(found.mean_off) < 0.1 and abs(found.variance_ratio - 1) < 0.2 for found in scalars.values())


def test_tables(found):
    divergences = found[2]
    assert list(divergences.table().columns) == ["value", "error", "meaning"]
    assert divergences.table().loc["kl_q_p", "value"] == divergences.kl_q_p.value
    assert list(divergences.moments().index) == ["x[0]", "x[1]"]
    assert "variance_ratio" in divergences._repr_html_()
    assert "kl_p_q" in str(divergences)


def test_refuses_with_a_sentence():
    q = approximation(MEAN, np.eye(2))
    point = credo.fit(target(), credo.MAP(), progress=False)
    other = credo.Model({"v": dist.Normal(0.0, 1.0)}, None).given()
    with pytest.raises(credo.CredoError, match="kind Point has no density"):
        credo.vi.divergences(point)
    with pytest.raises(credo.CredoError, match="not those of the target"):
        credo.vi.divergences(q, other)
    plane = approximation(MEAN, np.eye(2))
    plane.kind = Gaussian(MEAN, Embedded(Dense(np.eye(1)), ((0, 1),), 2))
    with pytest.raises(credo.CredoError, match="approximation is a Gaussian of some parameters"):
        credo.vi.divergences(plane)
    with pytest.raises(credo.CredoError, match="reference is a dict"):
        credo.vi.divergences(q, reference={})
    with pytest.raises(credo.CredoError, match="num_draws is 3"):
        credo.vi.divergences(q, num_draws=3)
