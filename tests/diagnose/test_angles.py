"""An angle about ±π has two ends of a line for neighbours: its mean there is no direction, and that is said."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo

MODEL = credo.Model(
    {"mu": dist.VonMises(0.0, 0.1).expand([2]), "k": dist.Gamma(2.0, 0.5)},
    lambda params, x: dist.VonMises(params["mu"][x], params["k"]),
)
X = np.repeat([0, 1], 60)


def fitted(away: float, method):
    """The second direction; the first is 1."""
    y = stats.vonmises.rvs(4.0, loc=np.where(X == 0, 1.0, away), random_state=3)
    return credo.fit(MODEL.given(X, y), method, key=0, progress=False)


@pytest.mark.parametrize("method", [credo.Grid(), credo.Laplace(), credo.NUTS()], ids=["Grid", "Laplace", "NUTS"])
def test_mass_at_the_cut_does_not_pass(method):
    verdict = fitted(np.pi, method).verdict
    assert verdict.status != "pass"
    assert any("'mu[1]' is an angle, and " in each for each in verdict.sentences)


@pytest.mark.parametrize("method", [credo.Grid(), credo.Laplace(), credo.NUTS()], ids=["Grid", "Laplace", "NUTS"])
def test_mass_away_from_it_says_nothing(method):
    verdict = fitted(-0.5, method).verdict
    assert not any("angle" in each for each in verdict.sentences)
    assert verdict.status == "pass" or isinstance(method, credo.Laplace)
