"""Convolutions in XLA's form, or by products in double precision, are those of JAX: derivatives, groups, loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import credo
from credo.convolutions import canonical
from credo.equations import equations
from credo.precision import double

RNG = np.random.default_rng(0)
X, K = RNG.normal(size=(6, 5, 7, 4)), RNG.normal(size=(3, 2, 4, 8))
MANY = RNG.normal(size=(11, 3, 2, 4, 8))  # kernels

CASES = {
    "same": {"padding": "SAME"},
    "strides": {"window_strides": (2, 1), "padding": "VALID"},
    "dilated": {"rhs_dilation": (1, 2), "padding": [(1, 2), (0, 3)]},
    "transposed": {"lhs_dilation": (2, 2), "padding": [(1, 1), (2, 0)]},
}


def convolve(x, k, **settings):
    settings = {"window_strides": (1, 1), "dimension_numbers": ("NHWC", "HWIO", "NHWC")} | settings
    return lax.conv_general_dilated(x, k, **settings)


def same(function, *args):
    with double():
        found, expected = jax.jit(canonical(function))(*args), jax.jit(function)(*args)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), found, expected)
    single = [np.asarray(arg, np.float32) for arg in args]
    found, expected = jax.jit(canonical(function))(*single), jax.jit(function)(*single)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), found, expected)


def loss(x, k, **settings):
    return jnp.sum(jnp.sin(convolve(x, k, **settings)))


@pytest.mark.parametrize("name", list(CASES))
def test_values_and_derivatives(name):
    same(lambda x, k: convolve(x, k, **CASES[name]), X, K)
    same(jax.grad(lambda x, k: loss(x, k, **CASES[name]), (0, 1)), X, K)
    same(lambda x, k: jax.jvp(lambda k: loss(x, k, **CASES[name]), (k,), (k,)), X, K)


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("number", [3, 11])  # unrolled, and by a loop
def test_over_many_kernels(name, number):
    gradient = jax.grad(lambda k, x: loss(x, k, **CASES[name]))
    same(jax.vmap(gradient, (0, None)), MANY[:number], X)
    same(jax.vmap(gradient), MANY[:number], np.stack([X] * number) + np.arange(number)[:, None, None, None, None])


@pytest.mark.parametrize("limit", ["MOST", "PLACES"])
def test_double_precision_without_products(limit, monkeypatch):
    """Where they would hold too much, or windows and answers are large."""
    monkeypatch.setattr(f"credo.convolutions.{limit}", 0)
    same(jax.grad(lambda x, k: loss(x, k, padding="SAME"), (0, 1)), X, K)

    def program():  # a function of its own: JAX keeps what it has traced
        with double():
            return str(jax.make_jaxpr(canonical(lambda k: convolve(X, k, padding="SAME")))(K))

    assert "conv_general_dilated" in program()
    monkeypatch.undo()
    assert "conv_general_dilated" not in program()


def test_what_xla_does_well_itself_is_left_to_it():
    """At a program's outermost level, calls included; not in loops, and not of groups."""

    def once(k):
        return jax.jit(lambda k: jnp.sum(convolve(X * k[0, 0, 0, 0], k, padding="SAME")))(k)

    def program(function):
        with double():
            return str(jax.make_jaxpr(canonical(function, is_outermost=True))(K))

    assert "dot_general" not in program(once)
    assert "dot_general" in program(lambda k: lax.fori_loop(0, 2, lambda i, total: total + once(k), 0.0))
    assert "dot_general" in program(lambda k: jax.vmap(once)(jnp.stack([k, 2 * k])))
    with double():
        whole, own = (jax.jit(each)(K) for each in (canonical(jax.grad(once), is_outermost=True), jax.grad(once)))
    np.testing.assert_allclose(whole, own, rtol=1e-12)


def test_torchs_order_and_groups():
    x, k = X.transpose(0, 3, 1, 2), RNG.normal(size=(8, 2, 3, 3))
    settings = {"padding": "SAME", "dimension_numbers": ("NCHW", "OIHW", "NCHW"), "feature_group_count": 2}
    same(lambda x, k: convolve(x, k, **settings), x, k)
    same(jax.grad(lambda x, k: loss(x, k, **settings), (0, 1)), x, k)
    depthwise = settings | {"feature_group_count": 4}
    same(jax.grad(lambda x, k: loss(x, k, **depthwise), (0, 1)), x, RNG.normal(size=(4, 1, 3, 3)))


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(("num_in", "num_out"), [(1, 1), (2, 3)])
def test_many_narrow_groups(name, num_in, num_out):
    """Depthwise convolutions, their derivatives, and those of several kernels, beside one image or their own."""
    x, k = RNG.normal(size=(11, 5, 7, 12 * num_in)), RNG.normal(size=(3, 3, 2, num_in, 12 * num_out))
    settings = CASES[name] | {"feature_group_count": 12}
    same(lambda x, k: convolve(x, k, **settings), x, k[0])
    same(jax.grad(lambda x, k: loss(x, k, **settings), (0, 1)), x, k[0])
    gradient = jax.grad(lambda k, x: loss(x, k, **settings))
    same(jax.vmap(gradient, (0, None)), k, x)
    same(jax.vmap(gradient), k, np.stack([x, 2 * x, 3 * x]))
    same(jax.vmap(gradient, (None, 0)), k[0], x[:, None])

    def program():
        with double():
            return str(jax.make_jaxpr(canonical(jax.grad(lambda k: loss(x, k, **settings))))(k[0]))

    assert "conv_general_dilated" not in program()


def test_long_windows_of_narrow_groups():
    x, k = RNG.normal(size=(3, 200, 9)), RNG.normal(size=(150, 1, 9))
    line = {"window_strides": (1,), "padding": "SAME", "dimension_numbers": ("NHC", "HIO", "NHC")}
    same(jax.grad(lambda x, k: loss(x, k, **line, feature_group_count=9), (0, 1)), x, k)


def test_sequences_and_volumes():
    line = {"window_strides": (1,), "padding": "SAME", "dimension_numbers": ("NCH", "OIH", "NCH")}
    same(jax.grad(lambda x, k: loss(x, k, **line), (0, 1)), RNG.normal(size=(5, 3, 9)), RNG.normal(size=(4, 3, 3)))
    volume = {"window_strides": (1, 1, 1), "padding": "SAME", "dimension_numbers": ("NDHWC", "DHWIO", "NDHWC")}
    x, k = RNG.normal(size=(2, 3, 4, 3, 2)), RNG.normal(size=(2, 2, 2, 2, 5))
    same(jax.grad(lambda x, k: loss(x, k, **volume), (0, 1)), x, k)


def test_loops_branches_and_calls():
    gradient = jax.grad(lambda k: loss(jnp.asarray(X, k.dtype), k, padding="SAME"))

    def train(k):
        k = lax.fori_loop(0, 3, lambda i, k: k - 1e-3 * gradient(k), k)
        k = lax.scan(
            lambda k, step: (k - step * jax.jit(gradient)(k), jnp.sum(k)), k, jnp.asarray([1e-3, 2e-3], k.dtype)
        )[0]
        k = lax.cond(jnp.sum(k) > 0, lambda k: k - 1e-3 * gradient(k), lambda k: k + 1e-3 * gradient(k), k)
        return lax.map(lambda s: jnp.sum(gradient(s * k)), jnp.asarray([0.5, 2.0], k.dtype)), jax.checkpoint(gradient)(
            k
        )

    same(train, K)
    program = jax.make_jaxpr(canonical(train))(K.astype(np.float32))
    forms = {
        equation.params["dimension_numbers"]
        for equation in equations(program.jaxpr)
        if equation.primitive.name == "conv_general_dilated"
    }
    assert len(forms) == 1


def test_what_has_none_is_untouched():
    program = jax.make_jaxpr(canonical(lambda v: jnp.sum(v**2)))(np.ones(3))
    assert str(program) == str(jax.make_jaxpr(lambda v: jnp.sum(v**2))(np.ones(3)))


def test_functions_that_close_over_what_is_traced():
    def outer(k, x):
        return lax.fori_loop(
            0, 2, canonical(lambda i, k: k - 0.1 * jax.grad(lambda k: loss(x, k, padding="SAME"))(k)), k
        )

    with double():
        found = jax.jit(outer)(K, X)
        expected = K
        for _ in range(2):
            expected = expected - 0.1 * jax.grad(lambda k: loss(X, k, padding="SAME"))(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_networks_of_convolutions_in_single_precision():
    """Checks of minibatches look in double precision, in which the rows must be too."""
    X, y = RNG.normal(size=(60, 4, 4, 1)).astype(np.float32), RNG.integers(0, 2, 60)
    weights = {"k": 0.3 * RNG.normal(size=(3, 3, 1, 2)), "w": 0.3 * RNG.normal(size=(32, 2))}

    def network(w, x):
        return jax.nn.relu(convolve(x, w["k"], padding="SAME")).reshape(len(x), -1) @ w["w"]

    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    model = credo.nn.BayesianNetwork(network, weights, head=credo.nn.Categorical(), prior=credo.nn.Isotropic(1.0))
    target = model.given(X, y)
    short = credo.SGLD(chains=1, num_warmup=2, num_draws=5, num_steps=2, batch_size=20)
    for method in (short, credo.DeepEnsemble(members=2, num_steps=5), credo.ADVI(batch_size=20, max_steps=20)):
        posterior = credo.fit(target, method, key=0, precision="float32", progress=False)
        assert np.all(np.isfinite(posterior.predict(X).probs))
    laplace = credo.Laplace(subset=credo.laplace.LastLayer(), num_steps=5)
    posterior = credo.fit(target, laplace, key=0, precision="float32", max_memory=2**20, progress=False)
    assert np.all(np.isfinite(posterior.predict(X).probs))
