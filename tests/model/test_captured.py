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
from credo.model.captured import captured, is_written_by_user, reads

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


def test_what_a_function_calls_its_arguments_is_not_read_by_those_within_it():
    """A global of the name, such as the posterior of a script, was taken for what the inner one reads."""
    code = compile("def f(p, x):\n    y = x + outside\n    return (lambda h: h * p + y + within)(x)", "f", "exec")
    (function,) = (each for each in code.co_consts if hasattr(each, "co_code"))
    assert set(reads(function)) == {"outside", "within"}


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
    assert not is_written_by_user("thing.inner")
    assert not is_written_by_user("jax.numpy")
    assert is_written_by_user(__name__)


class Ops:
    def add(self, b):
        return b * SLOPE * jnp.ones(6)


OPS = Ops()


def test_an_object_whose_method_has_the_name_of_a_list_s_is_read(monkeypatch):
    model = Model({"b": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(OPS.add(p["b"]), 1.0))
    assert mean(model.given(y=Y)) == pytest.approx(expected(1.0))
    use_global(monkeypatch, 3.0)
    assert mean(model.given(y=Y)) == pytest.approx(expected(3.0))


def test_which_of_two_objects_comes_again_is_told():
    one, other = types.SimpleNamespace(slope=1.0), types.SimpleNamespace(slope=2.0)
    steps = [one, other, one]
    model = Model({"b": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["b"] * steps[-1].slope * jnp.ones(6), 1.0))
    before = captured(model)
    steps[-1] = other
    assert before != captured(model)


@pytest.mark.parametrize("way", ["a name within a package", "a closure"])
def test_a_constant_of_a_module_within_a_package_is_read(way, tmp_path, monkeypatch):
    """The fit before was given back, with the old constant in it."""
    package = tmp_path / "my_package_of_settings"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "settings.py").write_text("SD = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_package_of_settings.settings as settings  # type: ignore[import-not-found]

    if way == "a closure":

        def likelihood(params, x):
            return dist.Normal(params["b"], settings.SD)
    else:
        space = {"dist": dist, "my_package_of_settings": __import__("my_package_of_settings"), "__name__": __name__}
        exec("def likelihood(params, x): return dist.Normal(params['b'], my_package_of_settings.settings.SD)", space)
        likelihood = space["likelihood"]
    found = []
    for sd in (1.0, 5.0):
        monkeypatch.setattr(settings, "SD", sd)
        target = credo.Model({"b": dist.Normal(0.0, 1.0)}, likelihood).given(y=np.ones(20))
        found.append(float(credo.fit(target, credo.MAP(), progress=False).mean()["b"]))
    np.testing.assert_allclose(found, [20 / 21, 20 / 45], rtol=1e-6)
