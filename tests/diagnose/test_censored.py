"""Held-out censored outcomes have a log score and no place in a distribution."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo


def test_what_asks_where_outcomes_stand_is_refused_or_left_out():
    """Times of censoring as outcomes gave a coverage of 0.49 of 0.9 to a model that was right."""
    random = np.random.default_rng(0)
    time, end = random.normal(10, 2, 200), random.uniform(4, 9, 200)
    is_censored, y = (time > end).astype(float), np.minimum(time, end)

    def likelihood(p, x):
        return dist.RightCensoredDistribution(dist.Normal(p["m"] * jnp.ones_like(x), 2.0), x)

    model = credo.Model({"m": dist.Normal(0.0, 20.0)}, likelihood)
    posterior = credo.fit(model.given(is_censored, y), credo.Laplace(), key=0, progress=False)
    predictive = posterior.predict(is_censored)
    for figure in (credo.diagnose.pit, credo.diagnose.interval_coverage):
        with pytest.raises(credo.CredoError, match="censored"):
            figure(predictive, y)
    table = credo.compare({"a": posterior}, (is_censored, y), show=False)
    assert np.isfinite(table["log_score"].iloc[0])
    for name in ("crps", "coverage_90"):
        assert name not in table or np.isnan(table[name].iloc[0])
