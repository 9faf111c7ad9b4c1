"""Options of the compiler change how long it takes, never whether a program runs or what it answers."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo import compiling
from credo.compiling import BRIEF, LARGE, LIBRARY, LONG, NATIVE, SOUND, TINY, brief, known, refused, signature, sound

VECTOR = np.linspace(-1.0, 2.0, 7, dtype=np.float32)


def program(v, power):
    return jnp.sum(jnp.tanh(v) ** power), jnp.exp(v)


@pytest.mark.parametrize("options", [BRIEF, TINY, LONG, LARGE, NATIVE])
def test_same_numbers(options):
    quick = brief(program, static_argnames="power", options=options)
    for found, expected in zip(quick(VECTOR, power=3), program(VECTOR, 3), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_options_that_this_xla_does_not_know_are_left_out():
    other = "xla_cpu_no_such_option"
    assert refused((*LONG.items(), (other, True))) == {other}
    assert refused(tuple(LONG.items())) == set()
    assert known(LONG) == LONG
    if jax.__version_info__ < (0, 12):
        assert known(BRIEF) == BRIEF


def test_a_library_of_other_parts_is_not_called(monkeypatch):
    """Rather than as XLA would by itself."""
    if LIBRARY not in known(SOUND):
        pytest.skip("this XLA has no such library")
    monkeypatch.setitem(compiling.TINY, LIBRARY, "LIBRARY_FUSION_TYPE_NO_SUCH")
    assert known(SOUND) == {LIBRARY: ""}
    assert known(LONG)[LIBRARY] == ""
    monkeypatch.setattr(compiling, "refused", lambda options: frozenset({LIBRARY}))
    assert LIBRARY not in known(SOUND)


def test_a_program_of_a_program_is_its_own():
    """Even where the inner one has run, whose attributes a wrapper takes over."""
    total = sound(jnp.sum)
    assert float(total(VECTOR)) == pytest.approx(VECTOR.sum())
    rows = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(sound(jax.vmap(total))(rows), [3.0, 3.0])
    np.testing.assert_array_equal(sound(jax.grad(total))(VECTOR), np.ones(7))


def test_small_and_large_ones_have_programs_of_their_own():
    quick = brief(program, static_argnames="power", is_small=lambda v: v.size < 5, is_large=lambda v: v.size > 10)
    long = np.tile(VECTOR, 2)
    for v in (VECTOR[:3], VECTOR, long, VECTOR[:3]):
        np.testing.assert_allclose(quick(v, power=2)[1], np.exp(v), rtol=1e-6)
    assert quick.suited((long,), {}) is quick.large
    assert quick.suited((VECTOR[:3],), {}) is quick.tiny
    assert quick.suited((VECTOR,), {}) is quick.quick


def test_within_other_programs():
    quick = brief(program, static_argnames="power")
    expected = program(VECTOR, 2)[0]
    np.testing.assert_allclose(jax.jit(lambda v: quick(v, power=2)[0])(VECTOR), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda v: quick(v, power=2)[0])(VECTOR[None])[0], expected, rtol=1e-6)
    np.testing.assert_allclose(
        jax.grad(lambda v: quick(v, power=2)[0])(VECTOR), jax.grad(lambda v: program(v, 2)[0])(VECTOR), rtol=1e-5
    )
    assert jax.eval_shape(lambda v: quick(v, power=2), VECTOR)[1].shape == (7,)


@pytest.mark.parametrize("options", [BRIEF, TINY, LONG, NATIVE], ids=["brief", "tiny", "long", "native"])
@pytest.mark.parametrize("shape", [(50, 3), (75, 2)])
def test_the_gradient_of_a_maximum_over_an_axis_is_exact(options, shape):
    """Its rule compares the operand with the answer: where a program computes one of them anew with another rounding,
    nothing is equal. Of max_k (z_k a + a) it is z_k + 1 at the largest, for a > 0."""
    z = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for inner in (lambda a: a, jax.nn.relu):
        slope = brief(jax.grad(lambda a, inner=inner: jnp.sum(jnp.max(inner(z * a + a), axis=1))), options=options)
        top = z.max(axis=1).astype(float) + 1
        expected = top.sum() if inner is not jax.nn.relu else top[top > 0].sum()
        assert float(slope(np.float32(0.7))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 700, 10), (14, 955, 11)])
@pytest.mark.parametrize(
    "options", [None, BRIEF, NATIVE, LARGE, LONG], ids=["sound", "brief", "native", "large", "long"]
)
def test_sums_before_element_wise_operations_are_right(options, shape):
    """As in products with the Fisher information of a softmax: left to itself JAX 0.10 has them wrong on a CPU."""
    random = np.random.default_rng(0)
    share = random.random(shape[1:], np.float32)
    back = random.normal(size=(shape[-1], 16)).astype(np.float32)

    def product(z):
        return (share * (z - jnp.sum(share * z, axis=-1, keepdims=True))) @ back

    program = sound(product) if options is None else brief(product, options=options)
    z = random.normal(size=shape).astype(np.float32)
    w, v, b = (each.astype(np.float64) for each in (share, z, back))
    np.testing.assert_allclose(program(z), (w * (v - np.sum(w * v, axis=-1, keepdims=True))) @ b, atol=1e-3)


def test_signatures_tell_models_of_the_same_shapes_apart():
    """Whose trees differ in static data alone, which the hash of a tree's structure leaves out."""
    x = np.arange(6.0)

    def target(law):
        return credo.Model({"a": law}, lambda p, x: dist.Normal(p["a"], 1.0)).given(x, x)

    normal, again, cauchy = target(dist.Normal(0.0, 1.0)), target(dist.Normal(0.0, 2.0)), target(dist.Cauchy(0.0, 1.0))
    assert hash(jax.tree.structure(normal)) == hash(jax.tree.structure(cauchy))
    found = [signature((each, x), {"n": 1}) for each in (normal, cauchy)]
    assert found[0] != found[1] != signature((cauchy, x), {"n": 2})
    assert signature((normal, x), {}) != signature((normal, x[:5]), {})
    assert (signature((again, x), {"n": 1}) == found[0]) == (jax.tree.structure(again) == jax.tree.structure(normal))
    assert signature(({"a": 1.0, "b": 2.0},), {}) == signature(({"b": 5.0, "a": 1.0},), {})


def test_programs_are_prepared_for_each_model_once(caplog):
    doubled = brief(lambda tree: jax.tree.map(lambda leaf: 2 * leaf, tree))
    doubled.prepare({"a": VECTOR})
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        doubled.prepare({"a": VECTOR})
        assert not caplog.records
        doubled.prepare({"b": VECTOR})
        assert any("ompil" in record.message for record in caplog.records)
