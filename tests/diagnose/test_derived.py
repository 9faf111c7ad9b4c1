"""What is derived of parameters is judged as they are: their draws may be right, and its mean nothing."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.diagnose import derived
from credo.diagnose.angles import cut

RNG = np.random.default_rng(0)
X = RNG.normal(size=10)
Y = 1.0 + 0.2 * X + RNG.normal(size=10)
PRIOR = {"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)}


def mean(params, x):
    return dist.Normal(params["a"] + params["b"] * x, 1.0)


def line(**quantities) -> credo.Target:
    return credo.Model(PRIOR, mean, derived=quantities).given(X, Y)


def ratio(a, b):
    return jnp.stack([a, a / b])


def said(posterior) -> str:
    return " ".join(each for each in posterior.verdict.sentences if "derived" in each)


@pytest.mark.parametrize(
    "method", [credo.NUTS(), credo.Laplace(), credo.Grid(), credo.SMC()], ids=lambda method: type(method).__name__
)
def test_a_ratio_whose_denominator_may_be_zero_does_not_pass(method):
    """Its mean does not exist."""
    posterior = credo.fit(line(r=ratio), method, key=2, progress=False)
    assert posterior.verdict.status == "doubtful"
    assert "'r[1]' has a" in said(posterior)
    assert "median and quantiles" in said(posterior)


@pytest.mark.parametrize("method", [credo.NUTS(), credo.Laplace()], ids=lambda method: type(method).__name__)
def test_what_is_no_number_at_some_draws_does_not_pass(method):
    posterior = credo.fit(line(log=lambda b: jnp.log(b)), method, key=2, progress=False)
    share = np.mean(~np.isfinite(posterior._drawn["log"]))
    assert posterior.verdict.status == "doubtful"
    assert f"At {share:.2g} of the draws the derived quantity 'log' is no finite number" in said(posterior)


@pytest.mark.parametrize(
    "method", [credo.NUTS(), credo.Laplace(), credo.Grid(), credo.MAP()], ids=lambda method: type(method).__name__
)
def test_what_is_known_passes(method):
    """An effect, a rare event, a whole number and a constant."""
    target = line(
        effect=lambda a, b: jnp.exp(a) + b * jnp.arange(3.0),
        rare=lambda a: a > 1.6,
        count=lambda b: jnp.round(2 * b),
        constant=lambda a: jnp.ones(2),
        nothing=lambda a: jnp.zeros(0),
    )
    posterior = credo.fit(target, method, key=2, progress=False)
    assert posterior.verdict.status == "pass"
    assert not said(posterior)


@pytest.mark.parametrize(("at_once", "is_judged"), [(3 * 4_000 - 1, True), (3 * derived.FEW - 1, False)])
def test_many_numbers_are_judged_by_some_draws_or_not_at_all(at_once, is_judged, monkeypatch):
    monkeypatch.setattr(derived, "AT_ONCE", at_once)
    posterior = credo.fit(line(log=lambda b: jnp.log(b)), credo.NUTS(), key=2, progress=False)
    assert bool(said(posterior)) == is_judged


@pytest.mark.parametrize("unit", [1.0, 1e100, 1e-100, 1e-150])
def test_units_of_a_derived_quantity_hide_no_tail(unit):
    """1/t has no mean; its fourth powers were no numbers in these units, and it passed."""
    model = credo.Model(
        {"t": dist.Normal(0.0, 1.0)},
        lambda params, x: dist.Normal(1e-3 * params["t"], 1.0),
        derived={"inverse": lambda t: unit / t},
    )
    posterior = credo.fit(model.given(y=np.array([0.3, -0.2, 0.1])), credo.NUTS(), key=0, progress=False)
    assert posterior.verdict.status == "doubtful"
    assert all(len(sentence) < 400 for sentence in posterior.verdict.sentences)


def direction(a, b):
    return jnp.arctan2(b, a)


@pytest.mark.parametrize("method", [credo.Grid(), credo.NUTS()], ids=lambda method: type(method).__name__)
@pytest.mark.parametrize(("a", "is_cut"), [(-1.0, True), (1.0, False)])
def test_an_angle_about_the_cut_does_not_pass(method, a, is_cut):
    """Two coordinates about (±1, 0): a mean of the direction near 0 and an sd above 2 had passed."""
    model = credo.Model(PRIOR, lambda p, x: dist.Normal(jnp.stack([p["a"], p["b"]]), 0.2), derived={"at": direction})
    posterior = credo.fit(model.given(y=np.array([a, 0.02])), method, key=2, progress=False)
    assert (posterior.verdict.status == "pass") == (not is_cut)
    assert ("'at' goes from −π to π as an angle does" in said(posterior)) == is_cut
    assert ("Derive its cosine and sine" in said(posterior)) == is_cut


@pytest.mark.parametrize("beyond", [0.0, 0.1])
def test_what_goes_beyond_is_no_angle(beyond):
    ends = np.pi + beyond
    values = np.random.default_rng(1).uniform(-ends, ends, size=(2_000, 1))
    share = float(np.mean(np.abs(values) > np.pi - 0.3))
    assert cut(values) == (0.0 if beyond else share)
    assert cut(np.abs(values)) == 0.0


def test_a_quantity_of_two_values_is_no_angle():
    posterior = credo.fit(line(side=lambda b: 3.0 * jnp.sign(b)), credo.NUTS(), key=2, progress=False)
    assert 0.005 < np.mean(posterior._drawn["side"] < 0) < 0.995
    assert "angle" not in said(posterior)
