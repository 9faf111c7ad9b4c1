"""The precision of Credo's programs, and JAX's settings that do not reach them.

Products of single precision are whole ones on accelerators too, unless the user has said otherwise.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.lax import DotAlgorithmPreset, Precision

import credo
from credo.precision import double


def precision_of_products():
    x = jnp.ones((2, 2), jnp.float32)
    (equation,) = jax.make_jaxpr(jnp.matmul)(x, x).eqns[-1:]
    return equation.params["precision"]


@pytest.mark.parametrize("enabled", [True, False])
def test_products_on_an_accelerator(monkeypatch, enabled):
    with double(enabled):
        assert precision_of_products() is None  # a CPU has no other
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with double(enabled):
        assert precision_of_products() == (Precision.HIGHEST, Precision.HIGHEST)
    with jax.default_matmul_precision("TF32_TF32_F32"), double(enabled):
        assert precision_of_products() == DotAlgorithmPreset.TF32_TF32_F32
    assert precision_of_products() is None


STRICT = {
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "dtype_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "transfer_guard": lambda: jax.transfer_guard("disallow"),
    "disable_jit": jax.disable_jit,
}


@pytest.mark.parametrize("strict", STRICT.values(), ids=list(STRICT))
@pytest.mark.parametrize("method", [credo.NUTS(num_warmup=20, num_draws=20), credo.ADVI()], ids=["NUTS", "ADVI"])
def test_settings_that_are_strict_with_the_users_programs(strict, method):
    """They stop neither a NaN that marks what is missing nor a library's own promotion of types; transfers that the
    user forbids, and programs run one operation at a time, are those of programs of his own."""
    x = np.linspace(-1.0, 1.0, 12)[:, None]
    model = credo.Model({"w": dist.Normal()}, lambda params, x: dist.Bernoulli(logits=params["w"] * x[:, 0]))
    target = model.given(x, np.arange(12) % 2)
    expected = credo.fit(target, method, key=jax.random.key(0))
    with strict():
        posterior = credo.fit(target, method, key=0)
        mean = posterior.predict(x).mean
    np.testing.assert_array_equal(posterior.mean()["w"], expected.mean()["w"])
    np.testing.assert_array_equal(mean, expected.predict(x).mean)


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_whole_numbers_that_single_precision_would_cut_are_refused(kind):
    milliseconds = np.array([0, 1, 2], kind) * 86_400_000 + 1_700_000_000_000
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * (x / 1e12), 1.0))
    target = model.given(milliseconds, np.zeros(3))
    with pytest.raises(credo.CredoError, match=r"whole numbers up to 1,700,172,800,000.*32 bits"):
        credo.fit(target, credo.MAP(), precision="float32", progress=False)
    assert credo.fit(target, credo.MAP(), progress=False).verdict.status == "pass"
    with pytest.raises(credo.CredoError, match=r"whole numbers up to 2,147,483,649.*32 bits"):
        credo.fit(model.given(np.array([-(2**31) - 1, 0, 0]), np.zeros(3)), credo.MAP(), precision="float32")
    days = model.given((milliseconds - milliseconds[0]).astype(kind), np.zeros(3))
    assert credo.fit(days, credo.MAP(), precision="float32", progress=False).verdict.status == "pass"
