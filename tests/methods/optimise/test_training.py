"""A batch of as many rows as there are, or of more, is all of them, whatever the method."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import credo
from credo import CredoError, Model
from credo.vi import NaturalGradient

X = np.random.default_rng(0).normal(size=(20, 2))
LINE = Model({"w": dist.Normal(0.0, 1.0).expand([2])}, lambda params, x: dist.Normal(x @ params["w"], 1.0))
TARGET = LINE.given(X, X @ [1.0, -2.0])


@pytest.mark.parametrize(
    "method",
    [
        credo.MAP(optimiser=optax.adam(0.01), num_steps=20),
        credo.ADVI(max_steps=50),
        NaturalGradient(max_steps=50),
        credo.SVGD(num_particles=5, num_steps=20),
        credo.DeepEnsemble(2, num_steps=20),
        credo.SGLD(batch_size=None, chains=2, num_draws=20),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_batch_of_more_rows_than_there_are_is_all_of_them(method):
    def draws(batch_size):
        fitted = credo.fit(TARGET, replace(method, batch_size=batch_size), key=1, progress=False)
        return fitted.sample(1, 7)["w"]

    for batch_size in (20, 21):
        np.testing.assert_array_equal(draws(batch_size), draws(None))


@pytest.mark.parametrize("method", [credo.MAP, credo.ADVI, NaturalGradient, credo.SVGD])
def test_batches_of_no_data_are_refused(method):
    with pytest.raises(CredoError, match="no data to take minibatches of"):
        credo.fit(LINE.given(), method(batch_size=5), key=0, progress=False)


def test_batches_that_nobody_asked_for_are_left_out_where_there_is_no_data():
    ensemble = credo.fit(LINE.given(), credo.DeepEnsemble(2, num_steps=20), key=0, progress=False)
    assert np.all(np.isfinite(ensemble.mean()["w"]))
