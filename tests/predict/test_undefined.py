"""Predictions at rows where the likelihood has no numbers: told by row, whatever is asked."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo

POSITIVE = np.abs(np.random.default_rng(0).normal(size=(60, 2)))
OUTCOMES = (POSITIVE[:, 0] > POSITIVE[:, 1]).astype(int)
HEADS = {"Categorical": credo.nn.Categorical(), "Bernoulli": credo.nn.Bernoulli(), "Poisson": credo.nn.Poisson(),
         "Gaussian": credo.nn.Gaussian(noise=1.0)}  # fmt: skip
ASKED = {
    "mean": lambda q: q.mean,
    "sample": lambda q: q.sample(0, 6),
    "mutual information": lambda q: q.mutual_information,
    "log_prob": lambda q: q.log_prob(np.array([0, 0])),
    "novelty": credo.diagnose.novelty_scores,
    "quantile": lambda q: q.quantile(0.3),
}


ENSEMBLE = credo.DeepEnsemble(2, num_steps=20)
CASES = [
    ("Categorical", credo.Laplace(), credo.Linearised()),
    ("Poisson", credo.Laplace(), credo.Linearised()),
    ("Gaussian", credo.Laplace(), credo.MonteCarlo()),
    ("Bernoulli", credo.Laplace(), credo.Probit()),
    ("Categorical", ENSEMBLE, credo.MonteCarlo()),
]
OTHERS = [
    *((head, credo.Laplace(), credo.Linearised()) for head in ("Bernoulli", "Gaussian")),
    *((head, credo.Laplace(), credo.MonteCarlo()) for head in ("Categorical", "Bernoulli", "Poisson")),
    ("Categorical", credo.Laplace(), credo.Probit()),
    *((head, ENSEMBLE, credo.MonteCarlo()) for head in ("Bernoulli", "Poisson", "Gaussian")),
]


@functools.cache
def logarithmic(head, method):
    """A network trained on positive inputs, whose output is NaN at others."""
    rng = np.random.default_rng(1)
    params = {"w": rng.normal(size=(2, 3)), "o": rng.normal(size=(3, 2 if head == "Categorical" else 1))}
    model = credo.nn.BayesianNetwork(lambda p, x: jnp.tanh(jnp.log(x) @ p["w"]) @ p["o"], params, head=HEADS[head])
    return credo.fit(model.given(POSITIVE, OUTCOMES), method, progress=False)


@pytest.mark.parametrize(
    ("head", "method", "rule"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
)
def test_rows_without_a_prediction_are_named(head, method, rule):
    """They were class 0, a count of -1, and the least novel of all."""
    predictive = logarithmic(head, method).predict(np.array([[1.0, 2.0], [-1.0, 2.0]]), rule)
    for name, ask in ASKED.items():
        if name != "quantile" or head != "Categorical":  # whose classes have no order
            with pytest.raises(credo.CredoError, match=r"undefined at 1 of 2 rows of x \(the first is row 1\)"):
                ask(predictive)


X = np.linspace(1.0, 5.0, 40)
LINES = {
    "Poisson": (lambda m, x: dist.Poisson(m), np.round(X)),
    "Poisson, shared": (lambda m, x: dist.Poisson(m[0]).expand([len(x)]), np.round(X)),
    "Normal": (lambda m, x: dist.Normal(0.0, m), np.cos(9 * X) * X),
    "LogNormal": (lambda m, x: dist.LogNormal(0.0, m), np.exp(np.cos(9 * X) * X)),
    "Gamma": (lambda m, x: dist.Gamma(2.0, 2.0 / m), X),
    "Bernoulli": (lambda m, x: dist.BernoulliProbs(1.0 - m / 12), (np.cos(9 * X) < 0.5).astype(int)),
    "columns": (lambda m, x: dist.Normal(0.0, m[:, None] * jnp.ones(2)).to_event(1), np.outer(X, [1.0, -1.0])),
    "zeros": (lambda m, x: dist.ZeroInflatedPoisson(0.1, m), np.round(X)),
}


@pytest.mark.filterwarnings("ignore:At 1 of 40 rows .* fewer than 40 of 400 draws")  # exp(m²/2) of m = 10
@pytest.mark.parametrize(
    "name",
    [
        *("Poisson, shared", "Bernoulli", "columns", "zeros"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("Poisson", "Normal", "LogNormal", "Gamma")),
    ],
)
def test_lines_that_leave_their_bounds_are_named(name):
    """NumPyro computes with a negative rate: the mean was negative, and log p of a count above 0."""
    law, y = LINES[name]
    model = credo.Model({"b": dist.LogNormal(0.0, 0.1)}, lambda params, x: law(params["b"] * x, x))
    posterior = credo.fit(model.given(X, y), credo.NUTS(num_warmup=100, num_draws=100), progress=False)
    assert np.isfinite(posterior.predict(X).mean).all()
    beyond = np.array([-1.0, 2.0]) if "shared" in name else np.array([2.0, -1.0])
    for ask in (lambda q: q.mean, lambda q: q.sample(0, 6), lambda q: q.log_prob(y[:2])):
        with pytest.raises(
            credo.CredoError, match="undefined at .* of 2 rows of x .* outside of what the distribution"
        ):
            ask(posterior.predict(beyond))


def test_a_few_draws_beyond_the_bounds_are_enough():
    """Of 1,000 draws some ten have a negative rate, which 32 looks may miss."""
    model = credo.Model({"rate": dist.Normal(3.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"] + x))
    posterior = credo.fit(model.given(np.ones(4), np.full(4, 4)), credo.Laplace(), progress=False)
    sd = float(posterior.sd()["rate"])
    with pytest.raises(credo.CredoError, match="undefined at 1 of 2 rows"):
        _ = posterior.predict(np.array([1.0, 2.3 * sd - float(posterior.mean()["rate"])])).mean


def test_rates_of_zero_are_defined():
    model = credo.Model({"b": dist.LogNormal(0.0, 0.1)}, lambda params, x: dist.Poisson(params["b"] * x))
    posterior = credo.fit(model.given(X, np.round(X)), credo.Laplace(), progress=False)
    np.testing.assert_array_equal(posterior.predict(np.zeros(2)).mean, 0.0)


def test_a_likelihood_without_a_mean_is_defined():
    model = credo.Model({"m": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Cauchy(p["m"] * x, 1.0))
    posterior = credo.fit(model.given(np.ones(5), np.zeros(5)), credo.Laplace(), progress=False)
    assert np.isfinite(posterior.predict(np.ones(2)).sample(0, 3)).all()


def test_a_row_of_no_number_is_seen_in_binary_data():
    """Where its logit was NaN, 0 was as good as certain."""
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda p, x: dist.BernoulliLogits(p["w"] * jnp.log(x)))
    with pytest.raises(credo.CredoError, match="row 2"):
        credo.fit(model.given(np.array([1.0, 2.0, -1.0]), np.array([0, 1, 0])), credo.Laplace(), progress=False)
