"""torch's core operators (ATen) as functions of JAX arrays.

A table by name, or by name and overload where overloads differ in their arguments. Each function takes the arguments
of torch's schema in their order; those that say where an array lies in memory are dropped before.
"""

from collections.abc import Callable
from typing import Any

from credo.adapters.aten.fourier import FOURIER
from credo.adapters.aten.layers import LAYERS
from credo.adapters.aten.matrices import MATRICES
from credo.adapters.aten.pointwise import POINTWISE
from credo.adapters.aten.recurrent import RECURRENT
from credo.adapters.aten.reductions import REDUCTIONS
from credo.adapters.aten.resampling import RESAMPLING
from credo.adapters.aten.shapes import SHAPES

TABLE: dict[str, Callable[..., Any]] = {
    **POINTWISE, **SHAPES, **REDUCTIONS, **LAYERS, **RESAMPLING, **MATRICES, **FOURIER, **RECURRENT,
}  # fmt: skip
# Their decompositions overflow where the function does not, hide a layer's weights from model/layers.py, raise where a
# matrix is singular, or write out each step of a recurrence.
WHOLE = (
    "softplus", "log_sigmoid_forward", "silu", "mish", "hardswish", "hardsigmoid", "celu", "sinc", "logsumexp",
    "std", "_safe_softmax", "linear", "matmul",
    "special_log_ndtr", "linalg_solve", "linalg_inv", "linalg_cholesky",
    "gru", "lstm", "rnn_tanh", "rnn_relu",
)  # fmt: skip
BY_BATCH = ("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm", "batch_norm")


def find(name: str, overload: str) -> Callable[..., Any] | None:
    """The function of operator ``aten.name.overload``, or None."""
    return TABLE.get(f"{name}.{overload}", TABLE.get(name))
