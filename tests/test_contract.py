"""Every method against every target it claims: one fit each, all of the protocol."""

import functools
import logging

import jax
import numpy as np
import pytest

import credo
from contract import METHODS, check_accuracy, check_protocol
from credo import lowered
from credo.posterior.kinds import Draws
from targets import TARGETS


def marked(target, *case):
    """A case whose first entry is a method, among the slow ones where that leaves the target to them."""
    return pytest.param(*case, marks=[pytest.mark.slow] if target in METHODS[case[0]].slow else [])


NAMES = [marked(entry.fits[0], method) for method, entry in METHODS.items()]
FITS = [marked(target, method, target) for method, entry in METHODS.items() for target in entry.fits]
ACCURATE = [marked(target, method, target) for method, entry in METHODS.items() for target in entry.accurate]
OF_A_TABLE = [marked("logistic", method) for method, entry in METHODS.items() if "logistic" in entry.fits]


@functools.cache
def known(target):
    return TARGETS[target]()


@functools.cache
def fitted(method, target):
    return credo.fit(known(target).target, METHODS[method].make(known(target)), key=7, progress=False)


@pytest.mark.parametrize(("method", "target"), FITS)
def test_protocol(method, target):
    check_protocol(fitted(method, target), known(target))


@pytest.mark.parametrize(("method", "target"), ACCURATE)
def test_accuracy(method, target):
    assert fitted(method, target).verdict.status == "pass"
    entry = METHODS[method]
    check_accuracy(fitted(method, target), known(target), entry.sd_error, entry.evidence_error)


@pytest.mark.parametrize("method", NAMES)
def test_same_key_same_answer_and_nothing_is_compiled_twice(method, monkeypatch, caplog):
    target = METHODS[method].fits[0]
    first = fitted(method, target)
    monkeypatch.setattr(lowered, "CONTEXTS", -1)  # how programs were written is let go before the fit
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        again = credo.fit(known(target).target, METHODS[method].make(known(target)), key=7, progress=False)
    assert not [record.message for record in caplog.records if "ompil" in record.message]
    for name, value in first.mean().items():
        np.testing.assert_array_equal(value, again.mean()[name])
    if isinstance(first.kind, Draws):
        np.testing.assert_array_equal(first.kind.positions, again.kind.positions)


@pytest.mark.parametrize("method", NAMES)
def test_saved_and_loaded(method, tmp_path):
    target = METHODS[method].fits[0]
    posterior = fitted(method, target)
    posterior.save(tmp_path / "p.credo")
    models = [None, known(target).target]
    if target == "constrained":  # the end of an interval is another parameter: code, which no file holds
        with pytest.raises(credo.CredoError, match="load it with the model"):
            credo.load(tmp_path / "p.credo", models.pop(0))
    for model in models:
        loaded = credo.load(tmp_path / "p.credo", model)
        assert loaded.verdict == posterior.verdict
        for name, value in posterior.mean().items():
            np.testing.assert_array_equal(value, loaded.mean()[name])


@pytest.mark.parametrize("method", OF_A_TABLE)
def test_predicts_the_logistic_table(method):
    target = known("logistic").target
    predictive = fitted(method, "logistic").predict(target.x)
    accuracy = np.mean((np.asarray(predictive.mean) > 0.5) == target.y)
    assert accuracy > 0.85
    np.testing.assert_allclose(predictive.variance, predictive.aleatoric + predictive.epistemic, rtol=1e-10)


@pytest.mark.parametrize("method", OF_A_TABLE)
def test_evidence_of_the_logistic_table(method):
    evidence = fitted(method, "logistic").log_evidence
    if evidence is None:
        return
    truth = known("logistic").log_evidence
    if evidence.kind == "lower bound":
        assert evidence.value <= truth + 4 * evidence.error
    elif evidence.kind == "exact":
        assert abs(evidence.value - truth) < 1e-6
    elif evidence.kind == "monte carlo":
        assert abs(evidence.value - truth) < 4 * evidence.error
    else:
        assert abs(evidence.value - truth) < 0.05  # Laplace on 569 rows and 3 parameters: O(1/N)
