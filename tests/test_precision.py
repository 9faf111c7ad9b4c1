"""Products of single precision are whole ones on accelerators too, unless the user has said otherwise."""

import jax
import jax.numpy as jnp
import pytest
from jax.lax import DotAlgorithmPreset, Precision

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
