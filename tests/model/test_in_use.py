"""Models as they are used: exposures and offsets, rows that count more than once, group effects that go together."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import credo
from credo import Model, MonteCarlo

RNG = np.random.default_rng(0)


def test_exposure_is_a_column_that_the_likelihood_uses():
    """Poisson counts of known exposure under a Gamma(a, b) prior: Gamma(a + Σy, b + Σe), and so the prediction."""
    model = Model(
        {"rate": dist.Gamma(2.0, 3.0)},
        lambda params, x: dist.Poisson(params["rate"] * x["exposure"]),
    )
    table = pd.DataFrame({"exposure": [10.0, 200.0, 3.5, 40.0]})
    y = np.array([4, 90, 1, 17])
    posterior = credo.fit(model.given(table, y), credo.Exact())
    shape, rate = 2.0 + y.sum(), 3.0 + table["exposure"].sum()
    np.testing.assert_allclose(posterior.mean()["rate"], shape / rate, rtol=1e-8)
    new = posterior.predict(pd.DataFrame({"exposure": [1.0, 1_000.0]}), MonteCarlo(4_000))
    expected = np.array([1.0, 1_000.0]) * shape / rate
    assert np.all(np.abs(new.mean - expected) < 4.5 * np.sqrt(new.epistemic / 4_000))


def test_an_offset_shifts_the_linear_predictor():
    """The same as subtracting it from y, where the link is the identity."""
    x, offset = RNG.normal(size=(20, 2)), RNG.normal(size=20)
    y = RNG.normal(size=20)
    prior = {"w": dist.Normal(0.0, 1.0).expand([2])}
    shifted = Model(prior, lambda params, x: dist.Normal(x["z"] @ params["w"] + x["offset"], 1.0))
    plain = Model(prior, lambda params, x: dist.Normal(x["z"] @ params["w"], 1.0))
    one = credo.fit(shifted.given({"z": x, "offset": offset}, y), credo.Exact())
    other = credo.fit(plain.given({"z": x}, y - offset), credo.Exact())
    np.testing.assert_allclose(one.mean()["w"], other.mean()["w"], atol=1e-10)
    np.testing.assert_allclose(one.log_evidence.value, other.log_evidence.value, rtol=1e-10)


def logits(params, x):
    return dist.BernoulliLogits(params["a"] + params["b"] * x)


LOGISTIC = Model({"a": dist.Normal(0.0, 1.5), "b": dist.Normal(0.0, 1.5)}, logits)
DOSE = np.linspace(-1.0, 1.0, 8)
DIED = np.array([0, 0, 1, 0, 1, 0, 1, 1])
COUNTS = np.array([5, 1, 0, 2, 7, 1, 3, 4])


@pytest.mark.parametrize(
    "method",
    [credo.Laplace(), credo.Exact(), credo.NUTS(num_warmup=200, num_draws=1_000)],
    ids=lambda m: type(m).__name__,
)
def test_weights_are_repeated_rows(method):
    """By every route: mode and curvature, closed form, and draws. A weight of zero is a row that is not there."""
    model, x, y = LOGISTIC, DOSE, DIED
    if isinstance(method, credo.Exact):
        model = Model({"p": dist.Beta(2.0, 1.0)}, lambda params, x: dist.Bernoulli(params["p"] + 0.0 * x))
    weighted = credo.fit(model.given(x, y, weights=COUNTS), method, progress=False)
    repeated = credo.fit(model.given(np.repeat(x, COUNTS), np.repeat(y, COUNTS)), method, progress=False)
    unweighted = credo.fit(model.given(x, y), method, progress=False)
    for name, sd in repeated.sd().items():
        error = 1e-5 * sd
        if isinstance(method, credo.NUTS):  # two independent means, each with its Monte Carlo error
            error = 4.5 * np.hypot(*(p.summary().loc[name, "mcse_mean"] for p in (weighted, repeated)))
        assert abs(weighted.mean()[name] - repeated.mean()[name]) < error
        assert abs(weighted.mean()[name] - unweighted.mean()[name]) > 2 * error
        assert weighted.sd()[name] < unweighted.sd()[name]


NUM_GROUPS, ROWS = 6, 5
SCALE_TRIL = np.array([[0.8, 0.0], [-0.9, 0.5]])  # intercepts and slopes, strongly correlated


def varying(params, x):
    effect = params["effect"][x["school"]]
    return dist.Normal(effect[:, 0] + effect[:, 1] * x["hours"] + params["year"][x["year"]], 0.5)


VARYING = Model(
    {
        "centre": dist.Normal(0.0, 1.0).expand([2]),
        "effect": lambda centre: dist.MultivariateNormal(centre, scale_tril=SCALE_TRIL).expand([NUM_GROUPS]),
        "year": dist.Normal(0.0, 0.3).expand([2]),
    },
    varying,
    groups={"school": "effect", "year": "year"},
)


def test_unseen_levels_of_intercepts_and_slopes_that_go_together():
    """Both come from the joint conditional prior of a row: the outcome's variance at h is (1, h) S Sᵀ (1, h)ᵀ more.

    A new school and a known year, and both new; the closed form is the law of total variance over the draws of the
    centre and of the known year.
    """
    table = pd.DataFrame(
        {
            "school": np.repeat([f"s{i}" for i in range(NUM_GROUPS)], ROWS),
            "year": np.tile(["old", "new"], NUM_GROUPS * ROWS)[: NUM_GROUPS * ROWS],
            "hours": RNG.normal(size=NUM_GROUPS * ROWS),
        }
    )
    truth = VARYING.sample_prior_predictive(1, table, 1)[0]
    method = credo.NUTS(chains=2, num_warmup=300, num_draws=2_000)
    posterior = credo.fit(VARYING.given(table, truth), method, progress=False)
    hours = np.array([-1.0, 0.0, 2.0])
    draws = posterior.draws
    design = np.stack([np.ones(3), hours], axis=1)
    centre = draws["centre"].reshape(-1, 2) @ design.T
    extra = np.einsum("ij,jk,ik->i", design, SCALE_TRIL @ SCALE_TRIL.T, design)
    for year, of_year, more in (("new", draws["year"][..., 0].ravel(), 0.0), ("future", 0.0, 0.3**2)):
        new = pd.DataFrame({"school": ["unseen"] * 3, "year": [year] * 3, "hours": hours})
        predictive = posterior.predict(new, MonteCarlo(4_000))
        known = (centre + np.reshape(of_year, (-1, 1))).var(axis=0)
        expected = known + extra + more
        # the variance of 4,000 draws of a normal is known to √(2 / 4000) = 2.2 %
        assert np.all(np.abs(predictive.epistemic / expected - 1) < 4.5 * np.sqrt(2 / 4_000))
        mean = (centre + np.reshape(of_year, (-1, 1))).mean(axis=0)
        assert np.all(np.abs(predictive.mean - mean) < 4.5 * np.sqrt((extra + more) / 4_000))
        assert np.all(np.isfinite(predictive.mean))
    one = posterior.predict(pd.DataFrame({"school": ["s0"], "year": ["old"], "hours": [1.0]}), MonteCarlo(4_000))
    effect = draws["effect"][..., 0, :].sum(axis=-1) + draws["year"][..., 1]
    np.testing.assert_allclose(one.mean[0], effect.mean(), rtol=1e-8)
    assert jnp.shape(one.mean) == (1,)
