"""Modes that no chain has met, in few dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.methods.mcmc import modes


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch):
    """Where other tests have the cores too."""
    monkeypatch.setattr(modes, "PATIENCE", 100.0)


def lines(narrow: float):
    """A line with two identifications: modes of equal mass at 30 ± 1 and 70 ± ``narrow``."""

    def likelihood(params, x):
        shifted = dist.Normal(jnp.stack([params["mu"] - 30.0, params["mu"] - 70.0]), jnp.array([1.0, narrow]))
        return dist.MixtureSameFamily(dist.Categorical(jnp.array([0.5, 0.5])), shifted)

    return credo.Model({"mu": dist.Uniform(0.0, 100.0)}, likelihood).given(y=np.array([0.0]))


@pytest.mark.parametrize("method", [credo.NUTS(), credo.HMC()], ids=["NUTS", "HMC"])
def test_a_mode_that_catches_no_chain_is_found(method):
    """R-hat passes where all chains are about the wide one."""
    posteriors = [credo.fit(lines(0.05), method, key=jax.random.key(key), progress=False) for key in range(2)]
    assert all(posterior.verdict.status == "failed" for posterior in posteriors)
    shares = [p.verdict.figures["mode_share"] for p in posteriors if "mode_share" in p.verdict.figures]
    np.testing.assert_allclose(shares, 0.5, atol=0.02)
    assert len(shares) > 0


def test_a_mode_of_which_the_draws_have_their_share_is_no_other():
    def likelihood(params, x):
        return dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.5, 0.5])), dist.Normal(params["mu"] + jnp.array([-1.5, 1.5]), 1.0)
        )

    target = credo.Model({"mu": dist.Normal(0.0, 10.0)}, likelihood).given(y=np.array([0.0]))
    posterior = credo.fit(target, credo.NUTS(), key=jax.random.key(1), progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.verdict.figures["mode_share"] == 0.0


@pytest.mark.parametrize(
    "method",
    [credo.Slice(), credo.RandomWalkMetropolis(), credo.MALA(), credo.Gibbs({"x": credo.NUTS()})],
    ids=["Slice", "RandomWalkMetropolis", "MALA", "Gibbs"],
)
def test_other_samplers_look_for_modes_too(method):
    def log_density(params):
        """−5 ± 1 and 7 ± 0.5, of 0.3 and 0.7 of the mass."""
        modes = dist.Normal(jnp.array([-5.0, 7.0]), jnp.array([1.0, 0.5]))
        return jax.nn.logsumexp(jnp.log(jnp.array([0.3, 0.7])) + modes.log_prob(params["x"]))

    target = credo.Model.from_log_density(log_density, {"x": dist.constraints.real}).given()
    statuses = [credo.fit(target, method, key=key, progress=False).verdict.status for key in range(3)]
    assert "pass" not in statuses


@pytest.mark.parametrize("share", [0.05, 0.0])
def test_a_wide_part_that_no_chain_has_met_does_not_pass(share):
    """The sd is 9, and all chains say that it is 1."""
    parts = dist.Normal(0.0, np.array([1.0, 40.0]))
    law = dist.MixtureSameFamily(dist.Categorical(np.array([1 - share, share])), parts)
    target = credo.Model({"x": law, "other": dist.Normal(0.0, 3.0)}, None).given()
    posterior = credo.fit(target, credo.NUTS(), key=0, progress=False)
    assert posterior.sd()["x"] < 1.2
    assert posterior.verdict.figures["max_r_hat"] < 1.01
    assert (posterior.verdict.status == "pass") == (share == 0.0)
    assert (posterior.verdict.figures["unmet_shift"] > 0.095) == (share > 0.0)
