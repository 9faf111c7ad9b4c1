"""Calibration, ranking and selective prediction: identities, exact enumeration, and figures under repetition."""

import numpy as np
import pytest

from credo.diagnose import calibration
from credo.diagnose.ranking import auroc
from credo.diagnose.reliability import brier_decomposition, calibration_error
from credo.diagnose.selective import risk_coverage
from credo.status import CredoError

RNG = np.random.default_rng(0)


def table(size, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.ones(classes), size)
    y = (generator.uniform(size=(size, 1)) > probs.cumsum(axis=1)).sum(axis=1)
    return probs, np.minimum(y, classes - 1)


# calibration error --------------------------------------------------------------------------------------------------


def test_the_top_label_error_is_that_of_compare():
    probs, y = table(237)
    assert abs(calibration_error(probs, y).value - calibration.expected_calibration_error(probs, y)) < 1e-12


def test_the_error_of_one_bin_is_known():
    p, y = np.array([0.2, 0.4, 0.6]), np.array([0, 1, 1])
    assert abs(calibration_error(p, y, num_bins=1).value - (2 / 3 - 0.4)) < 1e-12


def test_the_floor_of_one_bin_against_enumeration():
    """E|Σ p − Σ y| / M over all 2⁴ outcomes of four rows."""
    p = np.array([0.15, 0.4, 0.75, 0.9])
    outcomes = (np.arange(16)[:, None] >> np.arange(4)) & 1
    chances = np.prod(np.where(outcomes, p, 1 - p), axis=1)
    gaps = np.abs(p.sum() - outcomes.sum(axis=1)) / 4
    mean = chances @ gaps
    sd = np.sqrt(chances @ (gaps - mean) ** 2)
    found = calibration_error(p, np.array([0, 0, 1, 1]), num_bins=1, num_simulations=40_000)
    assert abs(found.floor - mean) < 4 * sd / 200
    assert abs(found.floor_sd / sd - 1) < 0.03
    value = abs(p.sum() - 2) / 4
    exact = chances @ (gaps >= value - 1e-9)
    assert abs(found.p_value - exact) < 4 * np.sqrt(exact * (1 - exact) / 40_000) + 1e-4


@pytest.mark.parametrize("is_binary", [True, False])
def test_a_calibrated_predictor_is_within_noise_as_often_as_promised(is_binary):
    p_values, values, floors = [], [], []
    for seed in range(200):
        probs, y = table(150, 2 if is_binary else 4, seed)
        found = calibration_error(probs[:, 1] if is_binary else probs, y, num_simulations=99, key=seed)
        p_values.append(found.p_value)
        values.append(found.value)
        floors.append(found.floor)
    # uniform p values: 5 % of 200 tables, beyond which lies one count in 10,000
    assert np.sum(np.array(p_values) <= 0.05) <= 23
    assert abs(np.mean(p_values) - 0.5) < 4 * np.sqrt(1 / 12 / 200) + 0.01
    assert abs(np.mean(values) - np.mean(floors)) < 4 * np.std(values) / np.sqrt(200)


def test_a_predictor_too_sure_is_found():
    probs, y = table(400, 2)
    logit = np.log(probs[:, 1] / probs[:, 0])
    found = calibration_error(1 / (1 + np.exp(-3 * logit)), y)
    assert not found.is_within_noise
    assert found.value > found.floor + 3 * found.floor_sd


# Brier --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 7, 300])
def test_the_parts_add_to_the_brier_score(size):
    probs, y = table(size)
    parts = brier_decomposition(probs, y, num_bins=5)
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.within_bins
    assert abs(parts.score - total) < 1e-12
    assert abs(parts.score - calibration.brier(probs, y)) < 1e-12
    one = brier_decomposition(probs[:, 0], (y == 0).astype(int))
    assert abs(one.score - np.mean((probs[:, 0] - (y == 0)) ** 2)) < 1e-12


def test_parts_of_forecasts_that_take_three_values():
    """Calibrated, a bin a value: reliability 0 on average, and the others those of the rows' population, by Var P̂."""
    p = np.repeat([0.1, 0.5, 0.8], 40)
    found = []
    for seed in range(400):
        y = (np.random.default_rng(seed).uniform(size=120) < p).astype(int)
        found.append(brier_decomposition(p, y, num_bins=3))
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / 20
    rate = p.mean()
    spread = p.var(ddof=1)  # unbiased for rows drawn from a population, as p̄ (1 − p̄) alone is not
    expected = [np.mean(p * (1 - p)), 0.0, spread, rate * (1 - rate) + spread / 120, 0.0]
    assert np.all(np.abs(mean - expected) < 4 * error + 1e-12)


def test_negative_log_likelihood():
    probs, y = table(50)
    assert abs(calibration.negative_log_likelihood(probs, y) + np.log(probs[np.arange(50), y]).mean()) < 1e-12
    of_one = calibration.negative_log_likelihood(np.array([0.25, 0.5]), np.array([1, 0]))
    assert abs(of_one - 0.5 * np.log(8)) < 1e-12
    assert calibration.negative_log_likelihood(np.array([0.0]), np.array([1])) == np.inf


@pytest.mark.parametrize("y", [[2, 1, 2], [-1, 0, 1], [[1], [0], [1]], [np.nan, 0, 1], [1.7, 0, 1], [1, 0]])
def test_negative_log_likelihood_of_what_are_no_labels(y):
    with pytest.raises(CredoError, match=r"Labels are 0 to 1|one label a row"):
        calibration.negative_log_likelihood(np.array([0.9, 0.2, 0.6]), np.array(y))


# ranking ------------------------------------------------------------------------------------------------------------


def test_auroc_against_scikit_learn_with_ties():
    from sklearn.metrics import roc_auc_score

    for seed in range(5):
        generator = np.random.default_rng(seed)
        y = generator.integers(0, 2, 60)
        scores = np.round(generator.normal(size=60) + 0.7 * y, 0 if seed % 2 else 3)
        assert abs(auroc(scores, y).value - roc_auc_score(y, scores)) < 1e-12


def test_the_error_of_auroc_is_that_of_delong():
    """√(Var V / P + Var W / N), V and W the means over rows and columns of the table of all pairs."""
    positive, negative = np.round(RNG.normal(size=4), 1), np.round(RNG.normal(size=30) - 0.5, 1)
    pairs = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    v, w = pairs.mean(axis=1), pairs.mean(axis=0)
    found = auroc(np.concatenate([positive, negative]), np.repeat([1, 0], [4, 30]))
    assert found.value == pytest.approx(pairs.mean())
    assert found.error == pytest.approx(np.sqrt(v.var(ddof=1) / 4 + w.var(ddof=1) / 30))


def test_crps_is_its_definition_over_distinct_pairs():
    """E|X − y| − ½ E|X − X'|, which does not depend on where zero is."""
    draws, y = RNG.normal(size=(7, 3)) + 50.0, RNG.normal(size=3) + 50.0
    pairs = np.abs(draws[:, None] - draws).sum(axis=(0, 1)) / (7 * 6)
    np.testing.assert_allclose(calibration.crps_of_rows(draws, y), np.abs(draws - y).mean(axis=0) - 0.5 * pairs)


def test_the_error_of_auroc_is_its_spread_over_tables():
    found = []
    for seed in range(500):
        generator = np.random.default_rng(seed)
        y = np.repeat([0, 1], [40, 25])
        found.append(auroc(np.round(generator.normal(size=65) + 1.0 * y, 1), y))
    values, errors = np.array(found).T
    # the sd of 500 values is known to 3.2 %
    assert abs(np.sqrt(np.mean(errors**2)) / values.std() - 1) < 4 * 0.032


def test_labels_of_another_kind_than_0_and_1_are_named():
    with pytest.raises(CredoError, match="is_positive holds -1 in row 1"):
        auroc(np.zeros(3), np.array([1, -1, 1]))


def test_auroc_at_its_ends():
    assert auroc(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 0, 1, 1])) == (1.0, 0.0)
    assert auroc(np.ones(6), np.array([0, 1, 0, 1, 1, 0])) == (0.5, 0.0)
    value, error = auroc(np.array([0.0, np.inf, 1.0]), np.array([0, 1, 0]))
    assert value == 1.0
    assert np.isnan(error)


# selective prediction -----------------------------------------------------------------------------------------------


def test_the_curve_of_ties_is_its_mean_over_orders():
    confidence, losses = RNG.integers(0, 4, 30).astype(float), RNG.uniform(size=30)
    curves = []
    for seed in range(4_000):
        order = np.random.default_rng(seed).permutation(30)
        order = order[np.argsort(-confidence[order], kind="stable")]
        curves.append(np.cumsum(losses[order]) / np.arange(1, 31))
    found = risk_coverage(confidence, losses)
    error = np.std(curves, axis=0) / np.sqrt(4_000)
    assert np.all(np.abs(found.risk - np.mean(curves, axis=0)) < 4.5 * error + 1e-12)
    assert abs(found.area - found.risk.mean()) < 1e-12


def test_areas_lie_between_the_best_and_none():
    losses = (RNG.uniform(size=200) < 0.3).astype(float)
    best = risk_coverage(-losses, losses)
    assert abs(best.area - best.best_area) < 1e-12
    assert best.risk_at(0.5) == 0.0
    constant = risk_coverage(np.zeros(200), losses)
    assert abs(constant.area - losses.mean()) < 1e-12
    assert abs(constant.random_area - losses.mean()) < 1e-12
    assert best.coverage[-1] == 1.0
    assert abs(best.risk[-1] - losses.mean()) < 1e-12


# bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: calibration_error(np.array([0.5, 1.5]), np.array([0, 1])), "outside"),
        (lambda: calibration_error(np.array([[0.5, 0.6]]), np.array([0])), "sums to 1.1"),
        (lambda: calibration_error(np.array([0.5]), np.array([2])), "Labels are 0 to 1; one is 2"),
        (lambda: calibration_error(np.array([0.5]), np.array([0, 1])), "one label a row"),
        (lambda: calibration_error(np.array([0.5]), np.array([0]), num_bins=0), "num_bins"),
        (lambda: brier_decomposition(np.array([0.5]), np.array([0])), "two rows"),
        (lambda: auroc(np.array([0.5, 0.1]), np.array([1, 1])), "both kinds"),
        (lambda: auroc(np.array([0.5, np.nan]), np.array([1, 0])), "Score 1 is NaN"),
        (lambda: auroc(np.array([0.5]), np.array([1, 0])), "one score"),
        (lambda: risk_coverage(np.array([0.5]), np.array([np.nan])), "not finite"),
        (lambda: risk_coverage(np.array([0.5]), np.array([0, 1])), "one number"),
        (lambda: risk_coverage(np.array([0.5]), np.array([1.0])).risk_at(0.0), "coverage lies"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(CredoError, match=sentence):
        call()


# ties ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [[0.5], [0.2, 0.8], [0.1, 0.5, 0.5, 0.9]])
def test_rows_of_one_probability_stay_together_in_any_order(levels):
    """And a forecast that comes true to the last row has no error, whatever the order."""
    p = np.repeat(levels, 100)
    y = np.concatenate([np.arange(100) < round(100 * level) for level in levels]).astype(int)
    order = np.random.default_rng(3).permutation(len(p))
    for rows in (np.arange(len(p)), np.argsort(y, kind="stable"), order):
        assert calibration_error(p[rows], y[rows]).value < 1e-12
        assert calibration.expected_calibration_error(np.stack([1 - p, p], axis=1)[rows], y[rows]) < 0.11
        parts = brier_decomposition(p[rows], y[rows])
        assert abs(parts.reliability) < 0.01
        np.testing.assert_allclose(parts.score, np.mean((p - y) ** 2))
        total = parts.reliability - parts.resolution + parts.uncertainty + parts.within_bins
        np.testing.assert_allclose(parts.score, total)


def test_bins_of_ties_hold_two_rows_at_least():
    p = np.array([0.1, 0.2, 0.2, 0.2, 0.2, 0.3, 0.9])
    parts = brier_decomposition(p, np.array([0, 0, 1, 0, 0, 1, 1]), num_bins=7)
    assert np.all(np.isfinite(parts))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"num_simulations": 1}, "from 2; got 1"), ({"num_bins": 2.5}, "from 1; got 2.5"), ({"num_bins": 0}, "got 0")],
)
def test_settings_of_the_calibration_error(settings, sentence):
    with pytest.raises(CredoError, match=sentence):
        calibration_error(np.array([0.5, 0.5]), np.array([0, 1]), **settings)


def test_probabilities_in_single_precision_may_be_above_one_by_rounding():
    p = np.array([0.2, 1.0000002, -1e-7, 0.9], np.float32)
    assert np.isfinite(calibration_error(p, np.array([0, 1, 0, 1])).value)
