"""What ``fit`` and a posterior take from a user, and what they answer where it cannot be used."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo import CredoError, Model
from credo.posterior.posterior import as_key

X = np.random.default_rng(0).normal(size=(20, 2))


def line(params, x):
    return dist.Normal(x @ params["w"], params["sd"])


MODEL = Model({"w": dist.Normal(0.0, 1.0).expand([2]), "sd": dist.HalfNormal(1.0)}, line)
TARGET = MODEL.given(X, X @ np.array([1.0, -1.0]) + np.cos(np.arange(20.0)))


def test_starts_from_parameters():
    """Lists stand for arrays."""
    found = credo.fit(TARGET, credo.Laplace(), start={"w": [0, 0], "sd": 1.0})
    np.testing.assert_allclose(found.mean()["w"], credo.fit(TARGET, credo.Laplace()).mean()["w"], atol=1e-6)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ({"w": [0.0, 0.0]}, "lack 'sd'"),
        ({"w": [0.0, 0.0, 0.0], "sd": 1.0}, r"'w' the shape \(3,\); in the model it has \(2,\)"),
        ({"w": [0.0, 0.0], "sd": -1.0}, "'sd' a value that is not finite or not inside its support"),
        ("map", "start is a posterior"),
    ],
)
def test_refuses_a_start(start, sentence):
    with pytest.raises(CredoError, match=sentence):
        credo.fit(TARGET, credo.Laplace(), start=start)


@pytest.mark.parametrize("key", ["a", 1.5, None])
def test_refuses_what_is_no_key(key):
    with pytest.raises(CredoError, match="key is an int or a JAX key"):
        credo.fit(TARGET, credo.Laplace(), key=key)


def test_a_class_is_no_method():
    with pytest.raises(CredoError, match="with its brackets"):
        credo.fit(TARGET, credo.Laplace)  # type: ignore[arg-type]


def test_large_ints_are_keys_of_their_own():
    """Whatever JAX's setting: without its 64-bit mode 2**40 would be cut off to 0."""
    posterior = credo.fit(TARGET, credo.Laplace())
    zero, large = (posterior.sample(key, 3)["sd"] for key in (0, 2**40))
    assert not np.allclose(zero, large)
    key = as_key(2**40)
    assert np.any(jax.random.key_data(key) != jax.random.key_data(jax.random.key(0)))


def test_wrong_requests_of_a_posterior():
    posterior = credo.fit(TARGET, credo.Laplace())
    with pytest.raises(CredoError, match="number of draws"):
        posterior.sample(0, -1)
    with pytest.raises(CredoError, match="function of y"):
        posterior.check("max")  # type: ignore[arg-type]
    with pytest.raises(CredoError, match="reduce y to one number"):
        posterior.check(lambda y: y)
    with pytest.raises(CredoError, match="dict of name"):
        credo.compare([posterior])  # type: ignore[arg-type]
    with pytest.raises(CredoError, match="'a' is a int"):
        credo.compare({"a": 1})  # type: ignore[dict-item]


def test_groups_without_their_column():
    model = Model(
        {"level": dist.Normal(0.0, 1.0).expand([3])},
        lambda params, x: dist.Normal(params["level"][x["town"]], 1.0),
        groups={"town": "level"},
    )
    with pytest.raises(CredoError, match="groups by column 'town'"):
        model.given(y=np.zeros(4))
    assert model.given().dim == 3  # the prior alone needs no column


def test_exact_says_why_not():
    """The noise is unknown and its prior no conjugate one: a sentence, not numpyro's complaint about a scale."""
    unit = 77.0
    model = Model(
        {"a": dist.Normal(152.0, 2.5 * unit), "sd": dist.Exponential(1 / unit)},
        lambda p, x: dist.Normal(p["a"] + 0.0 * x, p["sd"]),
    )
    y = 152.0 + unit * np.sin(np.arange(50.0) ** 2)
    with pytest.raises(CredoError, match="No closed form"):
        credo.fit(model.given(np.ones(50), y), credo.Exact())
