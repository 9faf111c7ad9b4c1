"""An edge of the density is named, and a model whose chains diverge for its shape alone has none."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform

import credo
from credo.diagnose.edges import edge_sentence
from targets import TARGETS

EDGE = credo.Model({"top": dist.HalfNormal(10.0)}, lambda params, x: dist.Uniform(0.0, params["top"]))
TARGET = EDGE.given(y=np.linspace(0.1, 3.0, 50))


@pytest.mark.parametrize("method", [credo.NUTS(), credo.HMC(chains=2)], ids=["nuts", "hmc"])
def test_the_edge_comes_first_and_names_the_rows_beyond_it(method):
    verdict = credo.fit(TARGET, method, progress=False).verdict
    assert verdict.status == "failed"
    assert verdict.sentences[0].startswith("The density is zero at ")
    assert "the log likelihood of y is -inf in" in verdict.sentences[0]
    assert "outside the likelihood's support at these parameters (high = 2.9" in verdict.sentences[0]


def test_what_it_advises_passes():
    """p(top | y) ∝ top⁻⁵⁰ exp(−top²/200) above 3, by quadrature."""
    posterior = credo.fit(TARGET, credo.Slice(), progress=False)
    grid = np.linspace(3.0, 6.0, 400_001)
    weights = grid**-50.0 * 3.0**50 * np.exp(-(grid**2) / 200)
    mean = weights @ grid / weights.sum()
    assert posterior.verdict.status == "pass"
    assert float(posterior.mean()["top"]) == pytest.approx(mean, abs=5 * 0.063 / 400**0.5)


def test_a_funnel_has_no_edge():
    posterior = credo.fit(TARGETS["funnel"]().target, credo.NUTS(num_draws=300, num_warmup=300), progress=False)
    positions = np.random.default_rng(0).normal(size=(4, 300, posterior.kind.positions.shape[-1]))
    assert edge_sentence(posterior.target, positions, np.ones((4, 300), bool)) is None
    assert not any("an edge" in sentence for sentence in posterior.verdict.sentences)


def test_an_edge_that_was_meant_is_not_to_be_guarded_against():
    model = credo.Model.from_log_density(
        lambda params: jnp.where(params["x"] > 1.0, -params["x"], -jnp.inf), {"x": constraints.real}
    )
    positions = 1.0 + np.random.default_rng(0).exponential(size=(2, 100, 1))
    said = edge_sentence(model.given(), positions, np.ones((2, 100), bool))
    assert "the log density is -inf at x = 0." in said
    assert "guard" not in said


def test_few_divergences_are_not_looked_at():
    positions = np.full((2, 100, 1), np.log(3.1)) + 0.03 * np.random.default_rng(0).normal(size=(2, 100, 1))
    is_divergent = np.zeros((2, 100), bool)
    is_divergent[0, 0] = True
    assert edge_sentence(TARGET.flat(), positions, is_divergent) is None
    assert edge_sentence(TARGET.flat(), positions, ~is_divergent) is not None


def test_outcomes_below_a_shift_lie_outside_of_the_support():
    """numpyro's density there is NaN, which was told as a root or log of a negative number."""

    def likelihood(p, x):
        law = dist.LogNormal(p["m"] * jnp.ones(len(x)), 0.5)
        return dist.TransformedDistribution(law, AffineTransform(p["shift"], 1.0))

    y = np.array([0.5, 2.0, -1.0, 1.5])
    model = credo.Model({"m": dist.Normal(0.0, 1.0), "shift": dist.Uniform(0.0, 0.4)}, likelihood)
    with pytest.raises(credo.CredoError, match=r"is -inf in 1 of 4 rows.*y = -1, outside the likelihood's support"):
        credo.fit(model.given(np.zeros(4), y), credo.NUTS(), progress=False)
