"""Figures of held-out rows are of pairs that belong together: masks hide, and tables of pandas have one order."""

import functools

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import credo
from credo.diagnose import (
    auroc,
    brier_decomposition,
    calibration_error,
    interval_coverage,
    negative_log_likelihood,
    pit,
    risk_coverage,
)
from credo.status import CredoError

P = np.linspace(0.05, 0.95, 20)
Y = (np.random.default_rng(0).uniform(size=20) < P).astype(int)
MASK = np.arange(20) == 3
MODEL = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 1.0))
OF_PAIRS = [auroc, brier_decomposition, calibration_error, negative_log_likelihood, risk_coverage]


@functools.cache
def posterior():
    return credo.fit(MODEL.given(P, P), credo.Exact(), progress=False)


def compared(x, y):
    return credo.compare({"a": posterior()}, held_out=(x, y), show=False)


@pytest.mark.parametrize("figure", OF_PAIRS)
def test_pairs_of_pandas_are_in_one_order(figure):
    p, y = pd.Series(P), pd.Series(Y)
    assert str(figure(p, y)) == str(figure(P, Y))
    with pytest.raises(CredoError, match="in different orders"):
        figure(p, y[::-1])


@pytest.mark.parametrize("figure", OF_PAIRS)
def test_what_a_mask_hides_is_no_datum_of_a_pair(figure):
    for pair in ((np.ma.masked_array(P, MASK), Y), (P, np.ma.masked_array(Y, MASK))):
        with pytest.raises(CredoError, match=r"(?i)nan|not finite"):
            figure(*pair)


@pytest.mark.parametrize(
    "figure", [pit, interval_coverage, lambda _, y: compared(P, y)], ids=["pit", "coverage", "scores"]
)
def test_what_a_mask_hides_is_no_outcome(figure):
    with pytest.raises(CredoError, match="not finite|NaN"):
        figure(posterior().predict(P), np.ma.masked_array(P, MASK))


def test_held_out_pairs_are_in_one_order():
    with pytest.raises(CredoError, match="in different orders"):
        compared(pd.Series(P), pd.Series(P)[::-1])
