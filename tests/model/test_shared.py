"""Functions that are written again share compiled programs, where they depend on their arguments alone."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo import Model
from credo.model.shared import Shared, shared

Y = np.random.default_rng(0).normal(size=6)
SLOPE = 1.0


def mean(target) -> float:
    return float(credo.fit(target, credo.Laplace()).mean()["b"])


def expected(slope: float) -> float:
    return slope * Y.sum() / (1.0 + 6.0 * slope**2)


def helper(b):
    return b * jnp.ones(6)


def times(w, x):
    return w * x


def of(likelihood):
    return Model({"b": dist.Normal(0.0, 1.0)}, likelihood).given(np.ones(6), Y)


def written_again():
    return of(lambda p, x: dist.Normal(jnp.sum(x) / 6 * p["b"] * jnp.ones(6), 1.0))


def test_a_function_that_is_written_again_is_the_one_before():
    """As in a loop, or in a notebook's cell that runs again: each model took seconds to compile."""
    one, other = written_again(), written_again()
    assert one.model.likelihood is not other.model.likelihood
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert hash(jax.tree.structure(one)) == hash(jax.tree.structure(other))
    networks = [credo.nn.BayesianNetwork(lambda w, x: x * w, np.ones(6), head=credo.nn.Gaussian()) for _ in range(2)]
    assert networks[0].network.apply == networks[1].network.apply


PAIRS = {
    "constants": (
        lambda p, x: dist.Normal((p["b"] + 1.0) * x, 23.0),
        lambda p, x: dist.Normal((p["b"] + 1.02) * x, 3.0),
    ),
    "signs": (lambda p, x: dist.Normal(p["b"] * x, 0.0), lambda p, x: dist.Normal(p["b"] * x, -0.0)),
    "types": (lambda p, x: dist.Normal(p["b"] * x, 1.0), lambda p, x: dist.Normal(p["b"] * x, 1)),
    "names": (lambda p, x: dist.Normal(jnp.sin(p["b"]) * x, 1.0), lambda p, x: dist.Normal(jnp.cos(p["b"]) * x, 1.0)),
    "within": (
        lambda p, x: dist.Normal((lambda b: b)(p["b"]) * x, 1.0),
        lambda p, x: dist.Normal((lambda b: -b)(p["b"]) * x, 1.0),
    ),
    "defaults": (lambda p, x, s=1.0: dist.Normal(p["b"] * x, s), lambda p, x, s=2.0: dist.Normal(p["b"] * x, s)),
    "keywords": (lambda p, x, *, s=1.0: dist.Normal(p["b"] * x, s), lambda p, x, *, s=2.0: dist.Normal(p["b"] * x, s)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_that_differs_anywhere_is_another(name):
    one, other = map(shared, PAIRS[name])
    assert isinstance(one, Shared)
    assert isinstance(other, Shared)
    assert one != other


def attributed(p, x):
    return dist.Normal(p["b"] * x, attributed.scale)


attributed.scale = 1.0


def written_with(slope, mutable):
    return {
        "a closure": lambda p, x: dist.Normal(p["b"] * slope, 1.0),
        "a closure with a builtin's name": (lambda max: lambda p, x: dist.Normal(p["b"] * max, 1.0))(slope),
        "a global": lambda p, x: dist.Normal(p["b"] * SLOPE * x, 1.0),
        "a function": lambda p, x: dist.Normal(helper(p["b"]), 1.0),
        "a mutable default": lambda p, x, s=mutable: dist.Normal(p["b"] * s[0] * x, 1.0),
        "random numbers": lambda p, x: dist.Normal(p["b"] * np.random.normal() * x, 1.0),  # noqa: NPY002
        "attributes": attributed,
    }


@pytest.mark.parametrize("name", list(written_with(1.0, [1.0])))
def test_one_that_reads_a_variable_is_itself_alone(name):
    """A program of its earlier value may serve a prediction after it has changed."""
    likelihood = written_with(1.0, [1.0])[name]
    assert shared(likelihood) is likelihood


def test_a_variable_that_a_loop_moves_on_is_read_where_it_is():
    found = []
    for slope in (1.0, 3.0, 1.0):
        model = Model({"b": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["b"] * slope * jnp.ones(6), 1.0))  # noqa: B023
        found.append(mean(model.given(y=Y)))
    np.testing.assert_allclose(found, [expected(1.0), expected(3.0), expected(1.0)], rtol=1e-6)


def test_predictions_after_a_change_do_not_serve_another_model(monkeypatch):
    def cell():
        model = Model({"b": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["b"] * SLOPE * x, 1.0))
        return credo.fit(model.given(np.ones(6), Y), credo.Laplace(), key=0, progress=False)

    early = cell()
    monkeypatch.setitem(globals(), "SLOPE", 3.0)
    with pytest.raises(credo.CredoError, match="has changed since the fit"):
        _ = early.predict(np.ones(5)).mean
    monkeypatch.setitem(globals(), "SLOPE", 1.0)
    assert cell().predict(np.ones(5)).mean[0] == pytest.approx(float(early.mean()["b"]), rel=0.1)
    assert cell().predict(np.ones(5)).quantile(0.5)[0] == pytest.approx(float(early.mean()["b"]), rel=0.1)


def test_heads_with_equal_priors_are_one_and_their_functions_are_their_own():
    def network(head):
        return credo.nn.BayesianNetwork(times, np.ones(6), head=head).network.head

    one, again, another = (network(credo.nn.Gaussian(dist.HalfNormal(scale))) for scale in (1.0, 1.0, 2.0))
    assert one is again is not another
    assert isinstance(another, credo.nn.Gaussian)
    assert float(another.priors()["noise"].scale) == 2.0  # type: ignore[attr-defined]
    settings = [{"scale": 1.0}, {"scale": 1.0}]
    mine, yours = (network(lambda z, s=s: dist.Normal(z, s["scale"])) for s in settings)
    assert mine is not yours
    assert mine != yours
