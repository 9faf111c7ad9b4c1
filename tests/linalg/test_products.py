"""Matrix-free curvature against autodiff's dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.linalg import products
from credo.precision import double

pytestmark = pytest.mark.usefixtures("strict")

rng = np.random.default_rng(3)
X = rng.normal(size=(20, 7))


def f(x):
    return jnp.sum(jnp.log1p(jnp.exp(X @ x))) + jnp.prod(x)


def outputs(x):  # (20, 3), not linear in x
    return jnp.stack([X @ x, jnp.sin(X @ x), jnp.square(X) @ x], axis=-1)


def loss_hessian(z):  # of the softmax loss
    p = jax.nn.softmax(z)
    return jax.vmap(lambda p: jnp.diag(p) - jnp.outer(p, p))(p)


@pytest.mark.parametrize("chunk", [3, 32])
def test_hessian_is_the_dense_one_whatever_the_chunk(chunk):
    x = rng.normal(size=7)
    with double():
        ours = jax.jit(lambda x: products.hessian(f, x, chunk=chunk))(x)
        np.testing.assert_allclose(ours, jax.jit(jax.hessian(f))(x), rtol=1e-12, atol=1e-12)
        assert np.array_equal(ours, ours.T)


def test_hvp_takes_pytrees():
    with double():
        x = {"a": jnp.asarray(0.3), "b": jnp.arange(2.0)}
        product = products.hvp(lambda x: x["a"] ** 2 * jnp.sum(x["b"] ** 3), x, {"a": jnp.ones(()), "b": jnp.ones(2)})
    np.testing.assert_allclose(product["a"], 2 * 1 + 6 * 0.3)  # 2 Σb³ + 2a Σ3b²
    np.testing.assert_allclose(product["b"], [0, 6 * 0.3 + 6 * 0.09])  # 6ab² + 6a²b


@pytest.mark.parametrize("is_jitted", [False, True])
def test_functions_with_a_rule_for_reverse_mode_alone(is_jitted):
    """As a solver of differential equations has one: forward mode does not exist there."""

    @jax.custom_vjp
    def square(x):
        return x**2

    @jax.custom_vjp
    def cube(x):
        return x**3

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * square(x) * g,))  # its gradient has no forward mode

    inner = jax.jit(cube) if is_jitted else cube

    def energy(x):
        return jnp.sum(inner(x) * jnp.flip(x))

    x, v = rng.normal(size=7), rng.normal(size=7)
    with double():
        value, gradient, product = products.second_order(energy, x)
        expected = jax.hessian(lambda x: jnp.sum(x**3 * jnp.flip(x)))(x)
        np.testing.assert_allclose(product(v), expected @ v, rtol=1e-12)
        np.testing.assert_allclose(gradient, jax.grad(energy)(x), rtol=1e-12)
        np.testing.assert_allclose(value, energy(x), rtol=1e-12)
        with pytest.raises(TypeError, match="unsupported operand"):  # any other mistake stays what it is
            products.second_order(lambda x: jnp.sum(x) + "a", x)


def test_hessian_holds_no_tensor_beyond_the_result():
    """400 rows and 300 parameters: a vmap over all columns holds several (300, 400) arrays, a chunk of 8 none."""
    data = rng.normal(size=(400, 300))

    def temporary_bytes(chunk):
        def logistic(x):
            return jnp.sum(jnp.log1p(jnp.exp(data @ x)))

        compiled = jax.jit(lambda x: products.hessian(logistic, x, chunk=chunk)).lower(np.zeros(300)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    with double():
        small, whole = temporary_bytes(8), temporary_bytes(300)
    assert small < 0.7 * whole
    assert small < 2.5 * 300 * 300 * 8
