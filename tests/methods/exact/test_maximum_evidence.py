"""Type-II maximum likelihood: a maximum of the evidence, equal to ridge regression, sparse under ARD."""

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import solve_triangular
from sklearn.linear_model import Ridge

from credo.methods.exact.evidence import EvidenceLinearRegression
from credo.methods.exact.relevance import coordinate_steps, evaluate
from credo.methods.exact.type_two import Data
from credo.status import CredoError


def table(num_rows, dim, num_relevant, noise=0.5, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, dim))
    weights = np.zeros(dim)
    weights[:num_relevant] = 2 * generator.choice([-1, 1], num_relevant) + generator.normal(size=num_relevant) / 3
    return x, x @ weights + noise * generator.normal(size=num_rows)


def evidence(x, y, alpha, beta):
    with np.errstate(divide="ignore"):
        prior = 1 / np.broadcast_to(alpha, x.shape[1])
    lower = np.linalg.cholesky(np.eye(len(y)) / beta + (x * prior) @ x.T)
    whitened = solve_triangular(lower, y, lower=True)
    return stats.norm.logpdf(whitened).sum() - np.log(np.diagonal(lower)).sum()


TABLES = {
    "N > D": table(60, 5, 3),
    "N < D": table(20, 40, 3, seed=6),
    "N = D": table(30, 30, 4, 0.1),
    "units of 0.1 to 10": (table(60, 5, 3)[0] * 10.0 ** np.linspace(-1, 1, 5), table(60, 5, 3)[1]),
    "collinear": (table(60, 5, 3)[0][:, [0, 1, 2, 0, 1]], table(60, 5, 3)[1]),
}
each = pytest.mark.parametrize("data", TABLES.values(), ids=TABLES.keys())


@each
def test_one_alpha_is_ridge_at_alpha_over_beta(data):
    x, y = data
    model = EvidenceLinearRegression().update(x, y)
    ridge = Ridge(alpha=model.alpha / model.beta, fit_intercept=False, solver="svd", tol=0.0).fit(x, y)
    np.testing.assert_allclose(model.mean()["weights"], ridge.coef_, rtol=1e-8, atol=1e-12 * abs(ridge.coef_).max())


@each
def test_one_alpha_beats_a_grid_and_has_no_gradient(data):
    x, y = data
    model = EvidenceLinearRegression().update(x, y)
    best = model.log_evidence.value
    assert best == pytest.approx(evidence(x, y, model.alpha, model.beta), rel=1e-9)
    assert model.maximum.gradient < 1e-9
    steps = np.exp(np.linspace(-6, 6, 13))
    assert max(evidence(x, y, model.alpha * a, model.beta * b) for a in steps for b in steps) <= best + 1e-9
    for moved in ((model.alpha * 1.001, model.beta), (model.alpha, model.beta * 1.001)):
        # the maximum is flat: moving by 0.1 % changes L in second order only, at most N/2 · 1e-6
        assert abs(evidence(x, y, *moved) - best) < len(y) * 1e-6


@pytest.mark.parametrize("c", [0.5 / 20, 1.5 / 20, 0.5, 1 - 1e-8])
@pytest.mark.parametrize("ard", [False, True])
def test_one_feature_in_closed_form(ard, c):
    """With c = cos² of the angle between x and y, λ/‖x‖² = (1 − c)/(Nc − 1), and no maximum below Nc = 1."""
    x, other = np.linalg.qr(np.random.default_rng(3).normal(size=(20, 2)))[0].T
    model = EvidenceLinearRegression(ard).update(10 * x[:, None], 3 * (np.sqrt(c) * x + np.sqrt(1 - c) * other))
    expected = 100 * (1 - c) / (20 * c - 1) if 20 * c > 1 else np.inf
    assert model.maximum.alpha[0] / model.beta == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shares", [(0.0, 0.6), (0.1, 0.85)])
def test_the_best_of_several_maxima_is_taken(shares):
    """Two features of sizes 10³ and 10⁻³: each has a maximum of its own, and there is that at alpha = inf."""
    u, s = np.linalg.qr(np.random.default_rng(3).normal(size=(20, 3)))[0], np.array([1e3, 1e-3])
    parts = np.array([*shares, 1 - sum(shares)])
    model = EvidenceLinearRegression().update(u[:, :2] * s, u @ np.sqrt(parts))
    ratio = s**2 / np.geomspace(1e-12, 1e12, 2_001)[:, None]
    residual = parts[2] + np.sum(parts[:2] / (1 + ratio), axis=1)
    profile = -10 * (np.log(2 * np.pi * residual / 20) + 1) - 0.5 * np.sum(np.log1p(ratio), axis=1)
    assert model.log_evidence.value >= np.max(profile)


def test_coordinate_steps_are_maxima_and_know_their_gain():
    x, y = table(30, 4, 2, noise=2.0)
    for beta in (None, 0.3):
        data = Data(x, y, 30, beta)
        for g in ([0.0, 0.0, 0.0, 0.0], [0.1, 0.0, 2.0, 0.01]):
            state = evaluate(data, np.array(g))
            best, gain = coordinate_steps(data, state)
            for j in range(4):
                reached = [evaluate(data, np.where(np.arange(4) == j, t * best, g)) for t in (1.0, 0.99, 1.01)]
                top, *beside = (each.log_evidence for each in reached)
                assert top - state.log_evidence == pytest.approx(gain[j], abs=1e-10)
                assert max(beside) <= top + 1e-12


@pytest.mark.parametrize("ard", [False, True])
def test_hardly_any_noise_is_no_perfect_fit(ard):
    x, y = table(60, 5, 3, noise=1e-5)
    model = EvidenceLinearRegression(ard).update(x, y)
    assert model.maximum.gradient < 1e-9
    assert model.beta == pytest.approx(1e10, rel=5 * np.sqrt(2 / 60))


def test_sds_are_those_of_the_inverse_precision():
    x, y = table(40, 4, 3)
    model = EvidenceLinearRegression().update(x, y)
    covariance = np.linalg.inv(model.alpha * np.eye(4) + model.beta * x.T @ x)
    np.testing.assert_allclose(model.sd()["weights"], np.sqrt(np.diagonal(covariance)), rtol=1e-9)


def assert_is_maximum_along_every_alpha(model, x, y):
    assert model.maximum.gradient < 1e-8
    for j in range(x.shape[1]):
        for value in [np.inf, *np.geomspace(1e-3, 1e5, 17)]:
            moved = model.alpha.copy()
            moved[j] = value
            assert evidence(x, y, moved, model.beta) <= model.log_evidence.value + 1e-8


@pytest.mark.parametrize("name", ["N > D", "N = D", "collinear"])
def test_ard_is_a_maximum_along_every_alpha(name):
    x, y = TABLES[name]
    model = EvidenceLinearRegression(ard=True).update(x, y)
    best = model.log_evidence.value
    assert best == pytest.approx(evidence(x, y, model.alpha, model.beta), rel=1e-9)
    assert best >= EvidenceLinearRegression().update(x, y).log_evidence.value
    assert_is_maximum_along_every_alpha(model, x, y)
    for factor in np.geomspace(0.1, 10, 21):
        assert evidence(x, y, model.alpha, factor * model.beta) <= best + 1e-8


def test_ard_with_two_features_beats_a_grid():
    x, y = table(25, 2, 1, noise=2.0, seed=4)
    model = EvidenceLinearRegression(ard=True).update(x, y)
    grid = np.append(np.geomspace(1e-3, 1e4, 15), np.inf)
    betas = np.geomspace(0.05, 1, 12)
    best = max(evidence(x, y, np.array([a, b]), beta) for a in grid for b in grid for beta in betas)
    assert model.log_evidence.value >= best


def test_ard_is_no_worse_than_one_alpha_for_all():
    """Here features that enter one at a time end at a maximum below that: the other start is needed."""
    generator = np.random.default_rng(130)
    x = generator.normal(size=(25, 6)) @ (np.eye(6) + generator.normal(size=(6, 6)))
    y = x @ generator.normal(size=6) + 3 * generator.normal(size=25)
    x = x / np.linalg.norm(x, axis=0)
    ard, one = (EvidenceLinearRegression(ard).update(x, y).log_evidence.value for ard in (True, False))
    assert ard >= one


def test_ard_prunes_features_that_do_not_matter():
    x, y = table(200, 20, 4, noise=1.0)
    model = EvidenceLinearRegression(ard=True).update(x, y)
    assert np.all(model.active[:4])
    assert np.mean(model.active[4:]) < 0.6  # under no effect at all a feature stays with probability P(χ² > 1) = 0.32
    assert np.all(model.mean()["weights"][~model.active] == 0)
    assert np.all(model.sd()["weights"][~model.active] == 0)
    assert model.sample(0, 3)["weights"].shape == (3, 20)
    assert "pruned" in model.sentences[0]
    assert 0.7 < model.beta < 1.4


def test_ard_does_not_depend_on_units_or_order():
    x, y = table(80, 8, 3)
    model = EvidenceLinearRegression(ard=True).update(x, y)
    order, units = np.random.default_rng(1).permutation(8), 10.0 ** np.arange(-4, 4)
    other = EvidenceLinearRegression(ard=True).update(x[:, order] * units, y)
    np.testing.assert_allclose(other.alpha / units**2, model.alpha[order], rtol=1e-6)
    np.testing.assert_allclose(other.mean()["weights"] * units, model.mean()["weights"][order], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("ard", [False, True])
def test_any_split_of_the_data_gives_the_same_answer(ard):
    x, y = table(40, 6, 3)
    batch = EvidenceLinearRegression(ard).update(x, y)
    parts = EvidenceLinearRegression(ard)
    for rows in np.split(np.random.default_rng(2).permutation(40), [1, 4, 20]):  # the first have no maximum
        parts = parts.update(x[rows], y[rows])
    assert parts.num_rows == 40
    assert parts.log_evidence.value == pytest.approx(batch.log_evidence.value, rel=1e-10)
    np.testing.assert_allclose(parts.mean()["weights"], batch.mean()["weights"], rtol=1e-8)
    np.testing.assert_allclose(parts.sd()["weights"], batch.sd()["weights"], rtol=1e-8)


@pytest.mark.parametrize("ard", [False, True])
def test_predictive_matches_the_posterior(ard):
    x, y = table(40, 6, 3)
    model = EvidenceLinearRegression(ard).update(x, y)
    predictive = model.predictive(x[:5])
    np.testing.assert_allclose(predictive.mean, x[:5] @ model.mean()["weights"])
    draws = model.sample(0, 20_000)["weights"] @ x[:5].T
    variance = predictive.variance - 1 / model.beta
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=5 * np.sqrt(2 / 20_000))


@pytest.mark.parametrize("ard", [False, True])
def test_useless_features_are_all_pruned(ard):
    generator = np.random.default_rng(0)
    y = generator.normal(size=50)
    x = generator.normal(size=(50, 1))
    x -= np.outer(y, y @ x) / (y @ y)  # orthogonal to y
    model = EvidenceLinearRegression(ard).update(x, y)
    assert np.all(np.isinf(model.alpha))
    assert np.all(model.mean()["weights"] == 0)
    assert model.beta == pytest.approx(50 / (y @ y))
    assert "no interior maximum" in model.sentences[0]
    assert model.predictive(x).variance == pytest.approx(1 / model.beta)
    assert model.sample(0, 2)["weights"].shape == (2, 1)


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        (np.column_stack([np.ones(20), table(20, 2, 1)[0]]), np.full(20, 3.0)),  # constant y and an intercept
        (table(20, 3, 3)[0], np.zeros(20)),
        (table(20, 3, 3)[0], table(20, 3, 3)[0] @ [1.0, 2.0, 3.0]),
        (table(4, 2, 2)[0][:, [0, 1, 0, 1]], table(4, 2, 2)[0] @ [1.0, 2.0]),
        ([[1.0, 2.0]], [1.0]),
    ],
    ids=["constant y", "y = 0", "no noise", "no noise, collinear", "one row"],
)
def test_a_perfect_fit_has_no_maximum(ard, data):
    model = EvidenceLinearRegression(ard).update(*data)
    with pytest.raises(CredoError, match="no interior maximum"):
        model.mean()


def test_fewer_rows_than_features_may_leave_no_noise():
    x, y = table(10, 50, 2, seed=1)
    model = EvidenceLinearRegression().update(x, y)
    assert "no interior maximum" in model.sentences[0]
    np.testing.assert_allclose(model.mean()["weights"], np.linalg.pinv(x) @ y, rtol=1e-6, atol=1e-9)
    best = model.log_evidence.value
    assert best == pytest.approx(evidence(x, y, model.alpha, model.beta), abs=1e-6)
    for step in np.exp(np.linspace(-3, 3, 7)):
        assert all(
            evidence(x, y, step * model.alpha, factor * model.beta) < best + 1e-6 for factor in (0.01, 1.0, 100.0)
        )
    with pytest.raises(CredoError, match="no interior maximum"):
        EvidenceLinearRegression(ard=True).update(x, y).mean()
    known = EvidenceLinearRegression(ard=True, noise_precision=4.0).update(x, y)
    assert known.active.sum() < 10
    assert_is_maximum_along_every_alpha(known, x, y)


@pytest.mark.parametrize("name", ["N > D", "N = D", "collinear"])
@pytest.mark.parametrize("ard", [False, True])
def test_a_known_noise_precision_is_kept(name, ard):
    x, y = TABLES[name]
    model = EvidenceLinearRegression(ard, noise_precision=2.5).update(x, y)
    assert model.beta == 2.5
    if ard:
        assert_is_maximum_along_every_alpha(model, x, y)
    else:
        values = [evidence(x, y, model.alpha * a, 2.5) for a in np.exp(np.linspace(-4, 4, 17))]
        assert np.argmax(values) == 8
    assert model.log_evidence.value == pytest.approx(evidence(x, y, model.alpha, 2.5), rel=1e-9)


@pytest.mark.parametrize("ard", [False, True])
def test_constant_y_without_an_intercept_has_an_answer(ard):
    x, _ = table(20, 3, 3)
    model = EvidenceLinearRegression(ard).update(x, np.full(20, 3.0))
    assert np.isfinite(model.log_evidence.value)


def test_a_feature_of_zeros_is_pruned():
    x, y = table(30, 3, 3)
    model = EvidenceLinearRegression(ard=True).update(np.column_stack([x, np.zeros(30)]), y)
    assert list(model.active) == [True, True, True, False]


def test_asking_before_data_is_a_sentence():
    model = EvidenceLinearRegression()
    assert model.log_evidence.value == 0.0
    with pytest.raises(CredoError, match="before any data"):
        model.mean()
    with pytest.raises(CredoError, match="2 columns, but the model has 3 weights"):
        model.update(*table(5, 3, 1)).update(*table(5, 2, 1))


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("unit", [1e160, 1e-160])
@pytest.mark.parametrize("name", ["x", "y"])
def test_units_in_which_precisions_are_no_numbers_are_refused(ard, unit, name):
    """All weights were zero, or the features were said to fit y exactly."""
    x, y = table(40, 3, 2)
    with pytest.raises(CredoError, match=f"{name} has values of size .* give it in other units"):
        EvidenceLinearRegression(ard).update(*((unit * x, y) if name == "x" else (x, unit * y))).mean()
