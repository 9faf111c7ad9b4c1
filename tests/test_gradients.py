"""Gradients written as a CPU likes them are the gradients of autodiff."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from credo.equations import equations
from credo.gradients import TURNS, value_and_gradient
from credo.precision import double
from credo.sharing import WORTH_IT

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere XLA's own are taken")

RNG = np.random.default_rng(0)
VECTOR, OTHER = RNG.normal(size=40), RNG.normal(size=40)
GROUP = RNG.integers(0, 40, 100).astype(np.int32)


# gradients of indexing ------------------------------------------------------------------------------------------------


def indexed(u):
    return jnp.sum(jnp.sin(u)[GROUP] * jnp.arange(100.0))


def rows(u):
    return jnp.sum(jnp.exp(u.reshape(10, 4))[GROUP % 10] * jnp.arange(4.0))


def matrix_of_indices(u):
    return jnp.sum(u[GROUP.reshape(20, 5)] ** 2)


def outside(u):  # what is filled in there has a gradient, which is nobody's
    return jnp.nansum(u.at[GROUP + 20].get(mode="fill", fill_value=1.0) ** 2)


def before(u):  # −1 is the last, and −41 none
    return jnp.nansum(u.at[GROUP - 60].get(mode="fill", fill_value=1.0) ** 2)


def clipped(u):
    return jnp.sum(u.at[GROUP + 20].get(mode="clip") ** 2)


def within_a_jitted_function(u):
    return jax.jit(indexed)(u) ** 2


def within_a_loop(u):
    return lax.fori_loop(0, 2, lambda i, total: total + jnp.sum(u[GROUP] ** 2), 0.0)


@pytest.mark.parametrize(
    "function", [indexed, rows, matrix_of_indices, outside, before, clipped, within_a_jitted_function]
)
def test_scatter_becomes_a_loop(function):
    with double():
        evaluate = value_and_gradient(function)
        value, gradient = jax.jit(evaluate)(VECTOR)
        expected = jax.jit(jax.value_and_grad(function))(VECTOR)
        np.testing.assert_allclose(value, expected[0], rtol=1e-12)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-11, atol=1e-12)
        names = {equation.primitive.name for equation in equations(jax.make_jaxpr(evaluate)(VECTOR).jaxpr)}
    assert not {"scatter-add", "scatter_add"} & names


def recursion(u, size=1):
    """An autoregression whose state has ``size`` numbers: 39 turns, which four do not divide."""
    phi = u[0]
    path = lax.scan(lambda before, z: (jnp.tanh(phi * before + z),) * 2, jnp.zeros(size) + phi, u[1:])[1]
    return jnp.sum(path**2 * jnp.arange(39.0)[:, None])


@pytest.mark.parametrize(("size", "turns"), [(1, TURNS), (100, 1)])
def test_short_loops_take_several_turns_at_once(size, turns):
    with double():
        evaluate = value_and_gradient(lambda u: recursion(u, size))
        found, expected = jax.jit(evaluate)(VECTOR), jax.jit(jax.value_and_grad(lambda u: recursion(u, size)))(VECTOR)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)
        program = jax.make_jaxpr(evaluate)(VECTOR).jaxpr
    scans = [equation for equation in equations(program) if equation.primitive.name == "scan"]
    assert [equation.params["unroll"] for equation in scans] == [turns, turns]  # forwards and backwards


def test_gradient_under_transformations():
    """The rewritten gradient can be vmapped and differentiated again."""
    with double():
        batch = np.stack([VECTOR, OTHER])
        _, gradients = jax.jit(jax.vmap(value_and_gradient(indexed)))(batch)
        np.testing.assert_allclose(gradients, jax.jit(jax.vmap(jax.grad(indexed)))(batch), rtol=1e-11)
        hessian = jax.jit(jax.jacfwd(lambda u: value_and_gradient(indexed)(u)[1]))(VECTOR)
        np.testing.assert_allclose(hessian, jax.jit(jax.hessian(indexed))(VECTOR), rtol=1e-11, atol=1e-11)


def test_no_rewriting_where_none_is_needed():
    with double():
        value, gradient = value_and_gradient(lambda u: jnp.sum(u**2))(jnp.asarray(VECTOR))
        np.testing.assert_allclose(gradient, 2 * VECTOR)
        value, gradient = jax.jit(value_and_gradient(within_a_loop))(VECTOR)
        np.testing.assert_allclose(value, within_a_loop(VECTOR), rtol=1e-12)


# logarithms of exponentials, and functions that are used twice --------------------------------------------------------


def names_of(function, *args) -> list[str]:
    return [equation.primitive.name for equation in equations(jax.make_jaxpr(function)(*args).jaxpr)]


SCALES = {  # (scale of u, logarithms that are left in the gradient's program)
    "exp": (lambda u: jnp.exp(u), 0),
    "times a number": (lambda u: 3.0 * jnp.exp(u / 2), 0),
    "by a number, twice": (lambda u: jnp.exp(u) / 2.0 * 5.0, 0),
    "a number by it": (lambda u: 2.0 / jnp.exp(u), 0),
    "two negative numbers": (lambda u: -(2.0 * (-3.0 * jnp.exp(u))), 1),  # neg ends what is known
    "negative twice": (lambda u: (-2.0) * ((-3.0) * jnp.exp(u)), 0),
    "times a parameter": (lambda u: u[0] ** 2 * jnp.exp(u), 0),
    "times a vector": (lambda u: jnp.arange(1.0, 41.0) * jnp.exp(u), 1),
    "a product of two": (lambda u: jnp.exp(u) * jnp.exp(u[::-1]), 1),
    "a sum": (lambda u: 1.0 + jnp.exp(u), 1),
    "within a jitted function": (jax.jit(lambda u: jnp.exp(u)), 1),
    "all within one": (lambda u: jnp.exp(jax.jit(lambda u: jnp.log(2.0 * jnp.exp(u)))(u)), 0),
    "none": (lambda u: u**2 + 1.0, 1),
}


@pytest.mark.parametrize("name", list(SCALES))
def test_log_of_a_scale_that_is_an_exponential(name):
    scale, num_logs = SCALES[name]

    def log_density(u):
        sigma = scale(u)
        return jnp.sum(-jnp.log(jnp.sqrt(2 * jnp.pi) * sigma) - 0.5 * (OTHER / sigma) ** 2)

    with double():
        found, expected = value_and_gradient(log_density)(VECTOR), jax.value_and_grad(log_density)(VECTOR)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)
        program = jax.make_jaxpr(value_and_gradient(log_density))(VECTOR).jaxpr
    sizes = [each.outvars[0].aval.size for each in equations(program) if each.primitive.name == "log"]
    assert sum(size > 1 for size in sizes) == num_logs


def sum_of_logs(c, u):
    return jnp.sum(jnp.log(c * jnp.exp(u)))


def test_logs_of_numbers_that_have_none_are_nan_as_before():
    with double():
        for c in (-1.0, 0.0):
            function = partial(sum_of_logs, c)
            value, expected = value_and_gradient(function)(VECTOR)[0], function(jnp.asarray(VECTOR))
            np.testing.assert_array_equal(value, expected)


def test_log_of_what_exp_cannot_hold():
    """exp(−800) is 0 and exp(800) infinite; their logarithms are known all the same."""
    with double():
        value, gradient = value_and_gradient(lambda u: jnp.sum(jnp.log(2 * jnp.exp(u))))(np.array([-800.0, 800.0]))
    np.testing.assert_allclose(value, 2 * np.log(2))
    np.testing.assert_array_equal(gradient, [1.0, 1.0])


def test_the_phase_of_a_complex_number_comes_round():
    """log(exp(5i)) is (5 − 2π)i. NUTS passed with angles that were not wrapped."""

    def phase(u):
        return jnp.sum(jnp.imag(jnp.log(2.0 * jnp.exp(1j * u))))

    with double():
        value, gradient = value_and_gradient(phase)(np.array([5.0, 1.0]))
    np.testing.assert_allclose(value, 6.0 - 2 * np.pi, rtol=1e-14)
    np.testing.assert_allclose(gradient, [1.0, 1.0])


def with_a_callback(u):
    jax.debug.callback(lambda _: None, u)
    return jnp.sum(u**2)


def with_a_determinant(u):
    """Its gradient holds a call that gives nothing."""
    return jnp.linalg.slogdet(jnp.eye(40) + jnp.exp(u[0]) * jnp.outer(OTHER, OTHER))[1]


@pytest.mark.parametrize("function", [with_a_callback, with_a_determinant])
def test_equations_without_values(function):
    with double():
        found, expected = (jax.jit(f(function))(VECTOR) for f in (value_and_gradient, jax.value_and_grad))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, expected)


@pytest.mark.parametrize(("size", "num_kept"), [(WORTH_IT, 1), (WORTH_IT - 1, 0)])
def test_a_dear_function_used_twice_is_computed_once(size, num_kept):
    def used_twice(u):
        return jnp.sum(jnp.exp(u) * OTHER[:size])  # its own derivative

    def used_once(u):
        return jnp.sum(jnp.sin(u))  # whose derivative is another

    with double():
        assert names_of(value_and_gradient(used_twice), VECTOR[:size]).count("optimization_barrier") == num_kept
        assert names_of(value_and_gradient(used_once), VECTOR[:size]).count("optimization_barrier") == 0
        found, expected = (jax.jit(f(used_twice))(VECTOR[:size]) for f in (value_and_gradient, jax.value_and_grad))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), found, expected)


def test_rules_of_differentiation_that_are_the_user_s():
    """They survive that the program is traced before it is differentiated."""

    @jax.custom_vjp
    def clipped(u):
        return u

    clipped.defvjp(lambda u: (u, None), lambda _, g: (jnp.clip(g, -0.5, 0.5),))

    @jax.custom_jvp
    def doubled(u):
        return u

    doubled.defjvp(lambda primals, tangents: (primals[0], 2 * tangents[0]))

    def log_density(u):
        return jnp.sum(clipped(u) ** 2 + doubled(jnp.exp(u)) + lax.stop_gradient(u) * u + jax.checkpoint(jnp.sin)(u))

    with double():
        found, expected = value_and_gradient(log_density)(VECTOR), jax.value_and_grad(log_density)(VECTOR)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), found, expected)
        batch = np.stack([VECTOR, OTHER])
        found = jax.vmap(value_and_gradient(log_density))(batch)
        jax.tree.map(np.testing.assert_allclose, found, jax.vmap(jax.value_and_grad(log_density))(batch))


@jax.custom_vjp
def along(x, weights):
    return jnp.dot(weights, x)


along.defvjp(
    lambda x, weights: (along(x, weights), weights),
    lambda weights, g: (lax.map(lambda i: g * weights[i], jnp.arange(len(weights))), jnp.zeros_like(weights)),
)


def test_a_rule_of_the_users_may_index_what_it_kept():
    """As that of jax.experimental.ode does the times: NumPy's arrays, which constants are, take no traced index."""
    with double():
        value, gradient = value_and_gradient(lambda u: along(u, jnp.asarray(OTHER)))(VECTOR)
        np.testing.assert_allclose(value, OTHER @ VECTOR)
        np.testing.assert_allclose(gradient, OTHER)
