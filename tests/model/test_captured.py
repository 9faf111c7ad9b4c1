"""What a likelihood reads from outside of its arguments may change between two fits: the second sees what is there."""

import functools
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import credo
from credo import Model
from credo.model.captured import Shared, _is_written_by_user, captured, shared

Y = np.random.default_rng(0).normal(size=6)
SLOPE = 1.0
SLOPES = np.ones(6)
TABLE = pd.DataFrame({"slope": np.ones(6)})


class Settings:
    slope = 1.0

    def __init__(self):
        self.slopes = np.ones(6)


SETTINGS = Settings()


def slope_of(factor):
    return factor * SLOPES


class Scaled:
    def __init__(self):
        self.settings = SETTINGS

    def likelihood(self, p, x):
        return dist.Normal(p["b"] * self.settings.slopes, 1.0)


SCALED = Scaled()


def use_global(monkeypatch, value):
    monkeypatch.setitem(globals(), "SLOPE", value)


def use_array_in_place(monkeypatch, value):
    SLOPES[:] = value


def use_frame(monkeypatch, value):
    TABLE["slope"] = value


def use_attribute(monkeypatch, value):
    SETTINGS.slopes = np.full(6, value)


MODULE = types.ModuleType("settings_of_a_project")
MODULE.__dict__["slope"] = 1.0


def use_module(monkeypatch, value):
    monkeypatch.setattr(MODULE, "slope", value)


def use_class(monkeypatch, value):
    monkeypatch.setattr(Settings, "slope", value)


def once(b):
    return 1.0 * b * jnp.ones(6)


def thrice(b):
    return 3.0 * b * jnp.ones(6)


HELPER, JITTED, OPAQUE = once, jax.jit(once), threading.local()
OPAQUE.slope = 1.0
NAMESPACE = types.SimpleNamespace(slope=1.0)


def use_function(monkeypatch, value):
    assert value == 3.0
    monkeypatch.setitem(globals(), "HELPER", thrice)


def use_compiled_function(monkeypatch, value):
    assert value == 3.0
    monkeypatch.setitem(globals(), "JITTED", jax.jit(thrice))


def use_another_object(monkeypatch, value):
    another = threading.local()
    another.slope = value
    monkeypatch.setitem(globals(), "OPAQUE", another)


def use_namespace(monkeypatch, value):
    NAMESPACE.slope = value


class Slotted:
    __slots__ = ("slope",)

    def __init__(self):
        self.slope = 1.0


class Base:
    def __call__(self, b):
        return b * jnp.ones(6)


class Derived(Base):
    """A layer, whose class a cell defines anew."""


SLOTTED, STEPS, DERIVED = Slotted(), range(1), Derived()


def use_slots(monkeypatch, value):
    SLOTTED.slope = value


def use_range(monkeypatch, value):
    monkeypatch.setitem(globals(), "STEPS", range(int(value)))


def use_operator_of_a_base(monkeypatch, value):
    monkeypatch.setattr(Base, "__call__", lambda self, b: 3.0 * b * jnp.ones(6))


WAYS = {
    "slots": (use_slots, lambda p, x: dist.Normal(p["b"] * SLOTTED.slope * jnp.ones(6), 1.0)),
    "a range": (use_range, lambda p, x: dist.Normal(p["b"] * len(STEPS) * jnp.ones(6), 1.0)),
    "a base's operator": (use_operator_of_a_base, lambda p, x: dist.Normal(DERIVED(p["b"]), 1.0)),
    "a function": (use_function, lambda p, x: dist.Normal(HELPER(p["b"]), 1.0)),
    "a compiled function": (use_compiled_function, lambda p, x: dist.Normal(JITTED(p["b"]), 1.0)),
    "a closed object": (use_another_object, lambda p, x: dist.Normal(p["b"] * OPAQUE.slope * jnp.ones(6), 1.0)),
    "a namespace": (use_namespace, lambda p, x: dist.Normal(p["b"] * NAMESPACE.slope * jnp.ones(6), 1.0)),
    "a global": (use_global, lambda p, x: dist.Normal(p["b"] * SLOPE * jnp.ones(6), 1.0)),
    "an array changed in place": (use_array_in_place, lambda p, x: dist.Normal(p["b"] * SLOPES, 1.0)),
    "by a function": (use_array_in_place, lambda p, x: dist.Normal(p["b"] * slope_of(1.0), 1.0)),
    "within a function": (use_global, lambda p, x: dist.Normal(*(lambda b: (b * SLOPE * jnp.ones(6), 1.0))(p["b"]))),
    "under jit": (use_global, jax.jit(lambda p, x: dist.Normal(p["b"] * SLOPE * jnp.ones(6), 1.0))),
    "a module": (use_module, lambda p, x: dist.Normal(p["b"] * MODULE.slope * jnp.ones(6), 1.0)),
    "a module within": (use_module, lambda p, x: dist.Normal((lambda b: b * MODULE.slope)(p["b"]) * jnp.ones(6), 1.0)),
    "a column": (use_frame, lambda p, x: dist.Normal(p["b"] * TABLE["slope"].to_numpy(), 1.0)),
    "a method": (use_attribute, SCALED.likelihood),
    "a class": (use_class, lambda p, x: dist.Normal(p["b"] * SETTINGS.slope * jnp.ones(6), 1.0)),
    "a default": (use_array_in_place, lambda p, x, *, slopes=SLOPES: dist.Normal(p["b"] * slopes, 1.0)),
    "a partial": (use_array_in_place, functools.partial(lambda s, p, x: dist.Normal(p["b"] * s, 1.0), SLOPES)),
}


@pytest.fixture(autouse=True)
def as_before():
    yield
    SLOPES[:] = 1.0
    TABLE["slope"] = 1.0
    SETTINGS.slopes = np.ones(6)


def mean(target) -> float:
    return float(credo.fit(target, credo.Laplace()).mean()["b"])


def expected(slope: float) -> float:
    return slope * Y.sum() / (1.0 + 6.0 * slope**2)


@pytest.mark.parametrize("way", WAYS)
def test_a_fit_sees_what_the_likelihood_reads_now(way, monkeypatch):
    change, likelihood = WAYS[way]
    model = Model({"b": dist.Normal(0.0, 1.0)}, likelihood)
    early = model.given(y=Y)
    assert mean(early) == pytest.approx(expected(1.0))
    change(monkeypatch, 3.0)
    for target in (early, model.given(y=Y), Model({"b": dist.Normal(0.0, 1.0)}, likelihood).given(y=Y)):
        assert mean(target) == pytest.approx(expected(3.0))


def test_so_does_a_numpyro_program(monkeypatch):
    def program(y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(b * SLOPE * jnp.ones(6), 1.0), obs=y)

    model = credo.adapters.from_numpyro(program)
    assert mean(model.given(y=Y)) == pytest.approx(expected(1.0))
    use_global(monkeypatch, 3.0)
    assert mean(model.given(y=Y)) == pytest.approx(expected(3.0))


def test_so_do_draws_of_the_prior(monkeypatch):
    model = Model({"a": dist.Normal(0.0, 1.0), "b": lambda a: dist.Normal(a, 1e-3 * SLOPE)}, None)
    narrow = model.sample_prior(0, 100)
    use_global(monkeypatch, 1e5)
    wide = model.sample_prior(0, 100)
    assert np.std(narrow["b"] - narrow["a"]) < 1e-2
    assert np.std(wide["b"] - wide["a"]) > 10


def test_hyperparameters_and_data_are_arguments_and_make_no_other_program():
    def likelihood(p, x):
        return dist.Normal(p["b"] * SLOPES, 1.0)

    one = Model({"b": dist.Normal(0.0, 1.0)}, likelihood).given(y=Y)
    other = Model({"b": dist.Normal(2.0, 3.0)}, likelihood).given(y=Y + 1)
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_what_is_only_written_to_is_not_read():
    calls: list = []

    def likelihood(p, x):
        calls.append(1)
        return dist.Normal(p["b"] * SLOPES, 1.0)

    model = Model({"b": dist.Normal(0.0, 1.0)}, likelihood)
    first = captured(model)
    model.given(y=Y)
    assert calls
    assert captured(model) == first


def test_values_that_refer_to_each_other_are_read_once():
    ring: list = [1.0]
    ring.append(ring)
    model = Model({"b": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["b"] * ring[0] * jnp.ones(6), 1.0))
    before = captured(model)
    assert before == captured(model)
    ring[0] = 2.0
    assert before != captured(model)


def test_installed_packages_are_not_read_wherever_they_lie(monkeypatch):
    """Their globals change with use, such as caches: each fit would compile anew."""
    package = types.ModuleType("thing")
    package.__file__ = "/home/me/.local/lib/python3.11/site-packages/thing/__init__.py"
    monkeypatch.setitem(sys.modules, "thing", package)
    assert not _is_written_by_user("thing.inner")
    assert not _is_written_by_user("jax.numpy")
    assert _is_written_by_user(__name__)


class Ops:
    def add(self, b):
        return b * SLOPE * jnp.ones(6)


OPS = Ops()


def test_an_object_whose_method_has_the_name_of_a_list_s_is_read(monkeypatch):
    model = Model({"b": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(OPS.add(p["b"]), 1.0))
    assert mean(model.given(y=Y)) == pytest.approx(expected(1.0))
    use_global(monkeypatch, 3.0)
    assert mean(model.given(y=Y)) == pytest.approx(expected(3.0))


# functions that are written again -------------------------------------------------------------------------------------


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
        "a global": lambda p, x: dist.Normal(p["b"] * SLOPE * x, 1.0),
        "a function": lambda p, x: dist.Normal(HELPER(p["b"]), 1.0),
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
    use_global(monkeypatch, 3.0)
    _ = early.predict(np.ones(5)).mean
    use_global(monkeypatch, 1.0)
    assert cell().predict(np.ones(5)).quantile(0.5)[0] == pytest.approx(float(early.mean()["b"]), rel=0.1)


def test_heads_with_equal_priors_are_one_and_their_functions_are_their_own():
    def network(head):
        return credo.nn.BayesianNetwork(slope_of, np.ones(6), head=head).network.head

    one, again, another = (network(credo.nn.Gaussian(dist.HalfNormal(scale))) for scale in (1.0, 1.0, 2.0))
    assert one is again is not another
    assert isinstance(another, credo.nn.Gaussian)
    assert float(another.priors()["noise"].scale) == 2.0  # type: ignore[attr-defined]
    settings = [{"scale": 1.0}, {"scale": 1.0}]
    mine, yours = (network(lambda z, s=s: dist.Normal(z, s["scale"])) for s in settings)
    assert mine is not yours
    assert mine != yours
