"""Coordinate ascent: it never falls, stops where nothing is left to gain, and says where a derivation is wrong."""

import time

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import digamma, gammaln

import credo
from credo.methods.vi.cavi.sweeps import Leap, ascend, best_of
from credo.posterior.product import Product
from credo.status import CredoError

MEAN, PRECISION = dist.Normal(0.5, 2.0), dist.Gamma(2.0, 1.5)
Y = np.random.default_rng(4).normal(1.0, 0.7, 12)


# y_i ~ N(mean, 1/precision), mean ~ N(0.5, 2²), precision ~ Gamma(2, 1.5): the updates and the ELBO by hand


def update_mean(q, data):
    total = 0.25 + len(data.y) * q["precision"].mean
    return dist.Normal((0.25 * 0.5 + q["precision"].mean * np.sum(data.y)) / total, total**-0.5)


def expected_squares(q, data):
    return np.sum((data.y - q["mean"].loc) ** 2 + q["mean"].scale ** 2)


def update_precision(q, data):
    return dist.Gamma(2.0 + len(data.y) / 2, 1.5 + 0.5 * expected_squares(q, data))


def elbo(q, data):
    n, m, s = len(data.y), q["mean"].loc, q["mean"].scale
    a, b = q["precision"].concentration, q["precision"].rate
    log_precision = digamma(a) - np.log(b)
    likelihood = 0.5 * n * (log_precision - np.log(2 * np.pi)) - 0.5 * a / b * expected_squares(q, data)
    prior = -0.5 * np.log(2 * np.pi * 4) - ((m - 0.5) ** 2 + s**2) / 8
    prior += 2 * np.log(1.5) - gammaln(2.0) + log_precision - 1.5 * a / b
    entropy = 0.5 * np.log(2 * np.pi * np.e * s**2) + a - np.log(b) + gammaln(a) + (1 - a) * digamma(a)
    return likelihood + prior + entropy


UPDATES = {"mean": update_mean, "precision": update_precision}
START = {"precision": dist.Gamma(1.0, 1.0)}


def likelihood(params, x):
    return dist.Normal(params["mean"], params["precision"] ** -0.5)


def target():
    return credo.Model({"mean": MEAN, "precision": PRECISION}, likelihood).given(y=Y)


def cavi(**changes):
    return credo.vi.cavi.CAVI(**{"updates": UPDATES, "elbo": elbo, "start": START, **changes})


# the loop ---------------------------------------------------------------------------------------------------------


def test_what_is_left_is_extrapolated_from_the_gains():
    """L_t = −r^t: after sweep t the sweeps to come gain r^t exactly."""
    for r in (0.3, 0.9, 0.99):
        found = ascend({"t": lambda q, _: q["t"] + 1}, lambda q, _, r=r: -(r ** q["t"]), {"t": 0.0}, tolerance=1e-3)
        assert found.is_converged
        assert found.remaining == pytest.approx(-found.elbo, rel=1e-6)
        assert 1e-3 * r < -found.elbo <= 1e-3 * (1 + 1e-9), "no sweep more than the tolerance asks"


def test_a_plateau_before_a_rise_is_no_end():
    heights = [0.0, 1e-7, 3e-7, 1e-5, 1.0, 5.0, 5.0, 5.0]
    found = ascend({"t": lambda q, _: q["t"] + 1}, lambda q, _: heights[q["t"]], {"t": -1})
    assert found.elbo == 5.0


def test_leaps_reach_the_same_end_in_fewer_sweeps():
    """x ← A x + b, whose slow directions take thousands of plain sweeps; the ELBO rises with leaps as well."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    slow, end = (Q * [0.998, 0.98, 0.6, 0.1]) @ Q.T, rng.normal(size=4)
    updates = {"x": lambda q, _: end + slow @ (q["x"] - end)}

    def height(q, _):
        return -np.sum((q["x"] - end) ** 2)

    leap = Leap(lambda q: q["x"], lambda q, x: {**q, "x": x})
    plain, quick = (ascend(updates, height, {"x": np.zeros(4)}, leap=each, tolerance=1e-10) for each in (None, leap))
    for found in (plain, quick):
        assert found.is_converged
        assert found.elbo == pytest.approx(0.0, abs=1e-8)
        assert np.all(np.diff(found.elbo_path) > -1e-15)
    assert quick.num_sweeps < plain.num_sweeps / 10


def test_a_leap_too_far_is_not_taken():
    """Where the ELBO of the extrapolation is no number, or lower, the sweeps go on from where they were."""
    updates = {"x": lambda q, _: 0.9 * q["x"] if np.isfinite(q["x"]) else 1 / 0}
    for wild in (np.nan, 1e3):
        leap = Leap(lambda q: np.array([q["x"]]), lambda q, x, wild=wild: {**q, "x": wild})
        found = ascend(updates, lambda q, _: -(q["x"] ** 2), {"x": 1.0}, leap=leap, tolerance=1e-9)
        assert found.is_converged
        assert found.elbo == pytest.approx(0.0, abs=1e-8)


def test_sweeps_that_are_not_enough_and_the_best_of_several_starts():
    def climb(start):
        return ascend(
            {"t": lambda q, _: q["t"] / 2}, lambda q, _: q["top"] - q["t"], {"t": 1.0, "top": start}, max_sweeps=3
        )

    best = best_of(climb(start) for start in (1.0, 3.0, 2.0))
    assert not best.is_converged
    assert best.num_sweeps == 3
    np.testing.assert_allclose(best.restarts, np.array([1.0, 3.0, 2.0]) - 1 / 8)
    assert best.elbo == best.restarts.max()


def test_time_limit_ends_after_a_sweep_and_begins_no_start():
    def climb(_):
        return ascend({"t": lambda q, _: q["t"] + 1}, lambda q, _: float(q["t"]), {"t": 0}, deadline=0.0)

    best = best_of(climb(i) for i in range(5))
    assert best.is_cut_off
    assert best.num_sweeps == 1
    assert len(best.restarts) == 1


@pytest.mark.parametrize("scale", [0.5, 0.9, 1.1, 2.0])
def test_a_wrong_update_is_caught_and_named(scale):
    """The rate of the precision off by a factor: from one side of the wrong answer or the other, the ELBO falls."""

    def wrong(q, data):
        right = update_precision(q, data)
        return dist.Gamma(right.concentration, scale * right.rate)

    caught = []
    for first in (1e-3, 1e3):
        try:
            cavi(updates={**UPDATES, "precision": wrong}, start={"precision": dist.Gamma(first, 1.0)}).ascend(Data)
        except CredoError as error:
            caught.append(str(error))
    assert caught
    assert all("fell" in text and "'precision'" in text for text in caught)
    assert all("at the update of 'mean'" not in text for text in caught)


class Data:
    y = Y


# as a method ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def posterior():
    return credo.fit(target(), cavi(), key=3)


def test_a_posterior_of_named_factors(posterior):
    assert isinstance(posterior.kind, Product)
    assert posterior.verdict.status == "pass"
    assert posterior.log_evidence.kind == "lower bound"
    assert posterior.log_evidence.error == 0.0
    path = posterior.info["elbo_path"][1]
    assert np.all(np.diff(path) > -1e-12)
    assert path[-1] == posterior.log_evidence.value
    assert posterior.info["num_sweeps"] == len(path)
    q = posterior.info["factors"]
    np.testing.assert_allclose(posterior.mean()["precision"], q["precision"].concentration / q["precision"].rate)
    again = update_mean(q, Data)
    assert abs(again.loc - q["mean"].loc) < 1e-4 * q["mean"].scale, "a fixed point, to the tolerance"


def test_below_the_evidence_by_quadrature(posterior):
    mean, log_precision = np.meshgrid(np.linspace(-3.0, 5.0, 801), np.linspace(-5.0, 4.0, 901), indexing="ij")
    precision = np.exp(log_precision)
    squares = np.sum((Y - Y.mean()) ** 2) + len(Y) * (Y.mean() - mean) ** 2
    log_joint = (
        0.5 * len(Y) * (log_precision - np.log(2 * np.pi)) - 0.5 * precision * squares
        + stats.norm.logpdf(mean, 0.5, 2.0) + stats.gamma.logpdf(precision, 2.0, scale=1 / 1.5) + log_precision
    )  # fmt: skip
    evidence = np.sum(np.exp(log_joint)) * 0.01 * 0.01  # smooth and zero at the edges: no better rule exists
    assert 0 < np.log(evidence) - posterior.log_evidence.value < 0.1


def test_a_product_is_a_start(posterior):
    again = credo.fit(target(), cavi(start={}), start=posterior, key=3)
    assert again.info["elbo_path"][1][0] == pytest.approx(posterior.log_evidence.value, abs=1e-6)


def test_an_elbo_of_another_model_is_said():
    """A constant forgotten: monotone, and caught by draws all the same."""
    found = credo.fit(target(), cavi(elbo=lambda q, data: elbo(q, data) + 1.0, num_draws=500))
    assert found.verdict.status == "failed"
    assert "differs from" in str(found.verdict)
    assert found.log_evidence is None


def test_sweeps_that_end_early_are_no_pass():
    found = credo.fit(target(), cavi(max_sweeps=1, num_draws=500))
    assert found.verdict.status == "doubtful"
    assert "max_sweeps" in str(found.verdict)


def test_the_time_limit_is_obeyed():
    def slow(q, data):
        time.sleep(0.05)
        return update_precision(q, data)

    method = cavi(updates={**UPDATES, "precision": slow}, tolerance=0.0, relative_tolerance=0.0, num_draws=500)
    found = credo.fit(target(), method, time_limit=0.01)
    assert not found.info["is_complete"]
    assert found.info["num_sweeps"] == 1
    assert "Raise time_limit" in str(found.verdict)


def test_latent_factors_stay_beside_the_parameters():
    """With a factor that the model does not know, the ELBO may lie below that of the parameters, and not above."""
    updates = {**UPDATES, "latent": lambda q, data: np.zeros(3)}
    lower = credo.fit(target(), cavi(updates=updates, elbo=lambda q, data: elbo(q, data) - 1.0, num_draws=500))
    assert lower.verdict.status != "failed"
    assert "elbo gives" not in str(lower.verdict)
    assert set(lower.mean()) == {"mean", "precision"}
    higher = credo.fit(target(), cavi(updates=updates, elbo=lambda q, data: elbo(q, data) + 1.0, num_draws=500))
    assert higher.verdict.status == "failed"
    assert "is above" in str(higher.verdict)


def draw_start(key, data):
    import jax

    return {"precision": dist.Gamma(1.0, jax.random.uniform(key, dtype=float) + 0.1)}


def test_restarts_are_those_of_the_key():
    method = cavi(start=draw_start, num_starts=3)
    first, second, other = (method.ascend(Data, key=key) for key in (1, 1, 2))
    np.testing.assert_array_equal(first.elbo_path, second.elbo_path)
    assert first.elbo_path[0] != other.elbo_path[0]
    assert len(first.restarts) == 3
    np.testing.assert_allclose(first.restarts, first.elbo, atol=1e-5)


# what cannot be right -----------------------------------------------------------------------------------------------


WRONG = {
    "no updates": ({"updates": {}}, "updates is a dict"),
    "an update that is no function": ({"updates": {"mean": 3}}, r"updates\['mean'\] is 3"),
    "one start, many restarts": ({"num_starts": 3}, "climb the same hill"),
    "a factor that nothing sets": ({"start": {}}, "looked up 'precision'.*so far are none"),
    "a parameter without a factor": (
        {"updates": {"mean": lambda q, data: MEAN}, "elbo": lambda q, data: 0.0, "start": {}},
        "'precision' has no factor",
    ),
    "a start that is no dict": ({"start": lambda key, data: 1.0}, "gives a dict"),
    "an ELBO that is an array": ({"elbo": lambda q, data: np.zeros(2)}, "one number"),
    "an ELBO that is NaN": ({"elbo": lambda q, data: np.nan}, "although every factor is finite"),
    "tolerance below zero": ({"tolerance": -1.0}, "tolerance"),
    "no sweeps": ({"max_sweeps": 0}, "max_sweeps"),
    "a factor that the ELBO alone knows": ({"elbo": lambda q, data: q["nope"]}, "elbo looked up 'nope'.*'mean'"),
}


@pytest.mark.parametrize(("changes", "text"), WRONG.values(), ids=WRONG.keys())
def test_wrong_requests_are_sentences(changes, text):
    with pytest.raises(CredoError, match=text):
        credo.fit(target(), cavi(**changes))


@pytest.mark.parametrize("changes", [{"max_sweeps": 0}, {"num_starts": 0}, {"tolerance": np.nan}])
def test_wrong_settings_are_sentences_without_a_model_too(changes):
    with pytest.raises(CredoError, match=next(iter(changes))):
        cavi(**changes).ascend(Data)


def strict_mean(q, y):
    return dist.Normal(y.mean(), q["precision"].mean ** -0.5, validate_args=True)


def strict_elbo(q, y):
    raise FloatingPointError("too large")


def no_scale(q, y):
    raise CredoError("The scale is not given: give one.")


@pytest.mark.parametrize(
    ("update", "precision", "y", "text"),
    [
        (
            strict_mean,
            1.0,
            [1.0, np.nan],
            r"The update of 'mean' ended in a ValueError.*data hold values that are NaN",
        ),
        (strict_mean, np.inf, [1.0, 2.0], "The update of 'mean' ended in a ValueError.*the factor 'precision' holds"),
        (strict_mean, 1.0, [1.0, 2.0], r"The ELBO ended in a FloatingPointError \(too large\), with data and factors"),
        (no_scale, 1.0, [1.0, 2.0], "^The scale is not given: give one.$"),
    ],
)
def test_what_an_update_cannot_compute_is_a_sentence_that_names_it(update, precision, y, text):
    method = cavi(updates={"mean": update}, elbo=strict_elbo, start={"precision": dist.Gamma(precision, 1.0)})
    with pytest.raises(CredoError, match=text):
        method.ascend(np.array(y))


BAD_FACTORS = {
    "not finite": (lambda q, data: dist.Gamma(np.nan, 1.0, validate_args=False), "'precision' holds values"),
    "another support": (lambda q, data: dist.Normal(3.0, 1.0), "support"),
    "another shape": (lambda q, data: dist.Gamma(np.ones(2), 1.0), "shape"),
    "a point": (lambda q, data: dist.Delta(1.0), "point"),
    "no distribution": (lambda q, data: np.ones(1), "is a ndarray"),
}


@pytest.mark.parametrize(("update", "text"), BAD_FACTORS.values(), ids=BAD_FACTORS.keys())
def test_factors_that_are_none_of_the_model_are_sentences(update, text):
    def level(q, data):  # an ELBO that reads no factor by its name
        return np.sum(getattr(q["precision"], "concentration", 0.0)) * 0.0

    with pytest.raises(CredoError, match=text):
        credo.fit(target(), cavi(updates={"mean": lambda q, data: MEAN, "precision": update}, elbo=level))


def test_a_position_is_no_start():
    with pytest.raises(CredoError, match="starts from factors"):
        credo.fit(target(), cavi(), start={"mean": 0.0, "precision": 1.0})
