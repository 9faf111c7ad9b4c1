"""Probit regression by latent variables: its bound, its mode, its tails, and what its verdict says of its sds."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import log_ndtr, logsumexp

import credo
from credo.methods.vi.cavi import probit
from credo.methods.vi.cavi.probit import Latent, ProbitRegression, mills
from credo.status import CredoError


def labelled(seed, n=15, dim=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim)) * rng.gamma(1.0, 2.0, size=dim)
    return x, (x @ rng.normal(size=dim) + rng.normal(size=n) > 0).astype(float)


def fitted(seed, **settings):
    return ProbitRegression(**{"alpha": 0.7, "prior_mean": 0.3, **settings}).update(*labelled(seed))


def log_joint(w, x, y, alpha=0.7, center=0.3):
    """log p(y, w) with the latent variables integrated out, at rows w (n, D)."""
    prior = stats.norm.logpdf(w, center, np.broadcast_to(alpha, w.shape[-1]) ** -0.5).sum(axis=-1)
    return prior + stats.norm.logcdf((2 * y - 1) * (w @ x.T)).sum(axis=-1)


# the bound ----------------------------------------------------------------------------------------------------------


def test_the_elbo_never_falls():
    for seed in range(30):
        found = fitted(seed).ascent
        assert found.is_converged
        assert np.all(np.diff(found.elbo_path) >= -1e-11 * abs(found.elbo))


@pytest.mark.parametrize("move", [0.0, 0.5])
def test_the_elbo_is_the_expectation_that_it_claims_to_be(move, monkeypatch):
    """E_q[log p(y, z, w) − log q(z) − log q(w)] by draws of w and of cut normals z, at the fixed point and off it."""
    seen = spied(monkeypatch)
    model, (x, y), rng = fitted(3), labelled(3), np.random.default_rng(0)
    factors = model.ascent.factors
    side, location = 2 * y - 1, factors["latent"].location + move
    elbo = seen["elbo"]({**factors, "latent": Latent(location, location + side * mills(side * location))}, seen["data"])
    z = rng.normal(size=(40_000, x.shape[1]))
    w = factors["weights"] + z @ factors["half"].T
    low, high = np.where(side > 0, -location, -np.inf), np.where(side > 0, np.inf, -location)
    cut = stats.truncnorm(low, high, loc=location)
    latent = cut.rvs((40_000, len(y)), random_state=rng)
    log_p = stats.norm.logpdf(latent, w @ x.T).sum(axis=1) + stats.norm.logpdf(w, 0.3, 0.7**-0.5).sum(axis=1)
    log_q_w = stats.multivariate_normal(factors["weights"], factors["half"] @ factors["half"].T).logpdf(w)
    difference = log_p - log_q_w - cut.logpdf(latent).sum(axis=1)
    assert abs(difference.mean() - elbo) < 5 * difference.std() / 200


def test_each_update_is_the_highest_of_its_neighbours(monkeypatch):
    seen = spied(monkeypatch)
    factors = fitted(4).ascent.factors
    rng = np.random.default_rng(0)
    for name, update in seen["updates"].items():
        here = {**factors, name: update(factors, seen["data"])}
        top = seen["elbo"](here, seen["data"])
        for _ in range(5):
            high, low = (seen["elbo"](near, seen["data"]) for near in neighbours(here, name, rng, seen["data"].side))
            assert max(high, low) < top
            assert abs(high - low) < 0.02 * (2 * top - high - low)


def neighbours(factors, name, rng, side):
    step = 1e-3 * rng.normal(size=factors["weights"].size if name == "weights" else side.size)
    for by in (step, -step):
        if name == "weights":
            yield {**factors, name: factors[name] + by}
        else:
            location = factors[name].location + by
            yield {**factors, name: Latent(location, location + side * mills(side * location))}


def spied(monkeypatch):
    """What the model hands to the loop."""
    seen, ascend = {}, probit.ascend

    def watched(updates, elbo, start, data, **settings):
        seen.update(updates=updates, elbo=elbo, data=data)
        return ascend(updates, elbo, start, data, **settings)

    monkeypatch.setattr(probit, "ascend", watched)
    return seen


def test_below_the_evidence_by_quadrature():
    x, y = labelled(5, dim=2)
    model = ProbitRegression(alpha=[0.7, 1.5]).update(x, y)
    axis = np.linspace(-8.0, 8.0, 801)
    w = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    log_evidence = logsumexp(log_joint(w, x, y, np.array([0.7, 1.5]), 0.0)) + 2 * np.log(16 / 800)
    assert 0 < log_evidence - model.log_evidence.value < 5
    _, log_weights = model.weigh(np.random.default_rng(0), 20_000)
    assert log_weights.mean() > model.log_evidence.value, "with z integrated out the bound is the higher"
    assert log_weights.mean() < log_evidence


# what it converges to -----------------------------------------------------------------------------------------------


def test_the_mean_is_the_mode_and_the_covariance_that_of_complete_data():
    for seed in range(5):
        (x, y), model = labelled(seed), fitted(seed, tolerance=1e-12)
        mode = minimize(lambda w, x=x, y=y: -log_joint(w, x, y), np.zeros(3), method="BFGS", options={"gtol": 1e-8}).x
        np.testing.assert_allclose(model.mean()["weights"], mode, atol=1e-5)
        covariance = np.linalg.inv(0.7 * np.eye(3) + x.T @ x)
        np.testing.assert_allclose(model.sd()["weights"], np.sqrt(np.diag(covariance)), rtol=1e-9)


def test_linear_response_is_the_inverse_curvature_at_the_mode():
    (x, y), model = labelled(1), fitted(1, tolerance=1e-12)
    w, step = model.mean()["weights"], 1e-4
    axes = step * np.eye(3)
    shifted = np.array([[[[w + a * i + b * j for b in (1, -1)] for a in (1, -1)] for j in axes] for i in axes])
    values = log_joint(shifted.reshape(-1, 3), x, y).reshape(3, 3, 2, 2)
    curvature = -(values[..., 0, 0] - values[..., 0, 1] - values[..., 1, 0] + values[..., 1, 1]) / (4 * step**2)
    response = model.linear_response()["weights"]
    np.testing.assert_allclose(response, np.linalg.inv(curvature), rtol=1e-4, atol=1e-4 * response.max())


def test_predictions_integrate_the_weights():
    model = fitted(6)
    x = labelled(7)[0][:4]
    w = model.sample(0, 20_000)["weights"]
    p = stats.norm.cdf(w @ x.T)
    np.testing.assert_allclose(model.predictive(x).mean, p.mean(axis=0), atol=5 * p.std(axis=0).max() / 20_000**0.5)
    np.testing.assert_allclose(model.predictive(x).log_prob(np.ones(4)), np.log(model.predictive(x).mean))
    far = model.predictive(1e3 * x)
    assert np.all(np.isfinite(far.log_prob([0, 1, 0, 1])))


def test_any_split_of_the_data_gives_the_same():
    x, y = labelled(8)
    whole, split = fitted(8), ProbitRegression(alpha=0.7, prior_mean=0.3)
    for rows in (slice(0, 4), slice(4, None)):
        split = split.update(x[rows], y[rows])
    assert split.log_evidence == whole.log_evidence


def breast_cancer():
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return np.column_stack([np.ones(len(x)), (x - x.mean(axis=0)) / x.std(axis=0)]), y.astype(float)


def test_the_verdict_says_that_sds_are_too_narrow():
    for model in (ProbitRegression().update(*breast_cancer()), fitted(0)):
        assert model.verdict.status != "pass"
        assert model.ascent.is_converged


@pytest.mark.slow
def test_beside_nuts_on_breast_cancer():
    """Means half an sd off in the middle, sds several times too small, class probabilities close all the same."""
    import jax.numpy as jnp
    import numpyro.distributions as dist
    from jax.scipy.special import log_ndtr

    x, y = breast_cancer()
    model = ProbitRegression().update(x, y)

    def density(params, data):
        return jnp.sum(log_ndtr(data["side"] * (data["x"] @ params["w"]))) - 0.5 * jnp.sum(params["w"] ** 2)

    built = credo.Model.from_log_density(density, {"w": dist.constraints.real_vector}, {"w": (31,)})
    draws = credo.fit(built.given({"x": x, "side": 2 * y - 1}), credo.NUTS(num_draws=500), key=0)
    mean, sd = draws.mean()["w"], draws.sd()["w"]
    assert np.median(np.abs(model.mean()["weights"] - mean) / sd) < 0.5
    assert np.all(model.sd()["weights"] < 1.1 * sd)
    assert np.min(model.sd()["weights"] / sd) < 0.4
    response = np.sqrt(np.diag(model.linear_response()["weights"])) / sd
    assert np.all((response > 0.8) & (response < 1.3)), "which linear response repairs"
    assert abs(np.median(response) - 1) < 0.05
    p = stats.norm.cdf(draws.draws["w"].reshape(-1, 31) @ x.T).mean(axis=0)
    assert np.mean(np.abs(model.predictive(x).mean - p)) < 0.03


# tails ----------------------------------------------------------------------------------------------------------------


def test_the_ratio_of_density_and_distribution_is_right_in_both_tails():
    t = np.array([-1e8, -1e3, -30.0, -3.0, 0.0, 3.0, 30.0])
    known = np.exp(stats.norm.logpdf(t) - log_ndtr(t))
    np.testing.assert_allclose(mills(t)[2:], known[2:], rtol=1e-12)
    np.testing.assert_allclose(mills(t)[:2], -t[:2] - 1 / t[:2], rtol=1e-9)
    assert mills(np.array([1e3])) == 0.0


def test_rows_far_from_the_boundary_and_on_the_wrong_side():
    """An outlier thousands of sds on the wrong side, classes that a plane separates, and huge features."""
    x = np.array([[1.0], [2.0], [-1.0], [-2.0], [5_000.0]])
    for features, y in ((x, [1, 1, 0, 0, 0]), (x, [1, 1, 0, 0, 1]), (1e6 * x, [1, 0, 0, 0, 1])):
        model = ProbitRegression(alpha=1e-3).update(features, y)
        assert model.ascent.is_converged
        assert np.isfinite(model.log_evidence.value)
        assert np.all(np.isfinite(model.mean()["weights"]))


# what cannot be right -------------------------------------------------------------------------------------------------

NONE = ProbitRegression()
WRONG = {
    "labels of −1": (lambda: NONE.update(np.eye(2), [-1, 1]), "label, 0 or 1, but row 0 holds -1"),
    "labels that are shares": (lambda: NONE.update(np.eye(2), [0.0, 0.5]), "row 1 holds 0.5"),
    "text": (lambda: NONE.update(np.eye(2), ["yes", "no"]), "not numeric"),
    "no rows": (lambda: NONE.update(np.ones((0, 2)), []), "no rows"),
    "NaN": (lambda: NONE.update([[np.nan]], [1]), "not finite"),
    "rows that do not meet": (lambda: NONE.update(np.eye(2), [1, 0, 1]), "2 rows"),
    "one dimension": (lambda: NONE.update([1.0, 2.0], [1, 0]), r"\(rows, features\)"),
    "alpha of another size": (lambda: ProbitRegression(alpha=[1.0, 2.0, 3.0]).update(np.eye(2), [1, 0]), "alpha has"),
    "alpha of zero": (lambda: ProbitRegression(alpha=0.0), "alpha is 0"),
    "alpha below zero": (lambda: ProbitRegression(alpha=[1.0, -1.0]), "positive"),
    "before any data": (lambda: NONE.predictive([[1.0]]), "before any data"),
    "columns of a prediction": (lambda: NONE.update(np.eye(2), [1, 0]).predictive(np.ones((1, 3))), "columns"),
}


@pytest.mark.parametrize(("call", "text"), WRONG.values(), ids=WRONG.keys())
def test_wrong_requests_are_sentences(call, text):
    with pytest.raises(CredoError, match=text):
        call()


def test_one_class_alone():
    """All labels alike: the prior keeps the weights finite."""
    model = NONE.update(np.ones((5, 1)), np.ones(5))
    assert model.ascent.is_converged
    assert float(model.mean()["weights"][0]) > 0
