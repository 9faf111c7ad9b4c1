"""An angle about ±π has two ends of a line for neighbours: its mean there is no direction, and that is said."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo

MODEL = credo.Model({"mu": dist.VonMises(0.0, 0.1).expand([2])}, lambda params, x: dist.VonMises(params["mu"][x], 4.0))
X = np.repeat([0, 1], 60)
METHODS = pytest.mark.parametrize(
    "method",
    [credo.Grid(), credo.Laplace(), credo.NUTS()],
    ids=["Grid", "Laplace", "NUTS"],
)


def fitted(away: float, method, start=None):
    """The second direction; the first is 1."""
    y = stats.vonmises.rvs(4.0, loc=np.where(X == 0, 1.0, away), random_state=3)
    return credo.fit(MODEL.given(X, y), method, key=0, start=start, progress=False)


@METHODS
def test_mass_at_the_cut_does_not_pass(method):
    verdict = fitted(np.pi, method).verdict
    assert verdict.status != "pass"
    assert any("'mu[1]' is an angle, and " in each for each in verdict.sentences)


@METHODS
def test_mass_away_from_it_says_nothing(method):
    # from the prior a chain may end at the cut, opposite to the data, and that is said
    start = {"mu": np.array([1.0, -0.5])} if isinstance(method, credo.NUTS) else None
    verdict = fitted(-0.5, method, start).verdict
    assert not any("angle" in each for each in verdict.sentences)
    assert verdict.status == "pass" or isinstance(method, credo.Laplace)
