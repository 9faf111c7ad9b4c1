"""Operators of ATen with weights, and the normalisations and poolings beside them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SPATIAL = "DHW"


def addmm(bias, a, b, *, beta=1, alpha=1):
    product = a @ b if alpha == 1 else alpha * (a @ b)
    return product + (bias if beta == 1 else beta * bias)


def convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """Cross-correlation of x (N, C, …) with weight (out, C / groups, …).

    Transposed, its adjoint, with weight (C, out / groups, …).
    """
    n = x.ndim - 2
    space = SPATIAL[-n:]
    stride, padding, dilation = (
        each * n if len(each) == 1 else each for each in map(tuple, (stride, padding, dilation))
    )
    if not transposed:
        z = lax.conv_general_dilated(
            x,
            weight,
            stride,
            [(p, p) for p in padding],
            rhs_dilation=dilation,
            dimension_numbers=("NC" + space, "OI" + space, "NC" + space),
            feature_group_count=groups,
        )
    else:
        extra = tuple(output_padding) * (n if len(output_padding) == 1 else 1)
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        kernel = jnp.flip(weight, tuple(range(2, n + 2)))
        if groups > 1:  # the adjoint of each group on its own: (C, out / groups, …) -> (C / groups, out, …)
            parts = kernel.reshape(groups, -1, *kernel.shape[1:])
            kernel = jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1, *kernel.shape[2:])
        z = lax.conv_general_dilated(
            x,
            kernel,
            (1,) * n,
            [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)],
            lhs_dilation=stride,
            rhs_dilation=dilation,
            dimension_numbers=("NC" + space, "IO" + space, "NC" + space),
            feature_group_count=groups,
        )
    return z if bias is None else z + _channels(bias, z.ndim)


def embedding(weight, index, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """Torch refuses numbers of rows below zero, which JAX counts from the end: so do the checks of data."""
    return jnp.asarray(weight)[index]


def embedding_bag(
    weight, index, offsets, scale_grad_by_freq=False, mode=0, sparse=False, each=None, has_end=False, padding_idx=-1
):
    """Sums (``mode`` 0), means (1) or maxima (2) of the rows of each bag, without those of padding."""
    offsets = offsets[:-1] if has_end else offsets
    bag = jnp.searchsorted(offsets, jnp.arange(len(index)), side="right") - 1
    is_own, num = (index != padding_idx) | (padding_idx < 0), len(offsets)
    rows = embedding(weight, index) * (1 if each is None else each[:, None])
    if mode == 2:
        found = jax.ops.segment_max(jnp.where(is_own[:, None], rows, -jnp.inf), bag, num)
        return jnp.where(found == -jnp.inf, 0.0, found), None, None, None
    found = jax.ops.segment_sum(jnp.where(is_own[:, None], rows, 0.0), bag, num)
    if mode == 1:
        found = found / jnp.maximum(jax.ops.segment_sum(is_own.astype(found.dtype), bag, num), 1)[:, None]
    return found, None, None, None


# normalisations -----------------------------------------------------------------------------------------------------


def batch_norm(x, weight, bias, mean, var, momentum, eps):
    """With the statistics of training. The two others are what torch keeps for its gradient."""
    z = (x - _channels(mean, x.ndim)) * _channels(lax.rsqrt(var + eps), x.ndim)
    return _affine(z, weight, bias, 1), None, None


def instance_norm(x, weight, bias, training, momentum, eps):
    """By the statistics of ``x`` itself: torch hands (1, N · C, …), so that rows stay apart."""
    return _affine(_standard(x, (0, *range(2, x.ndim)), eps), weight, bias, 1), None, None


def layer_norm(x, shape, weight, bias, eps):
    z = _standard(x, tuple(range(x.ndim - len(shape), x.ndim)), eps)
    z = z if weight is None else z * weight
    return z if bias is None else z + bias, None, None


def group_norm(x, weight, bias, num_rows, num_channels, size, groups, eps):
    z = _standard(x.reshape(num_rows, groups, -1), (2,), eps).reshape(x.shape)
    return _affine(z, weight, bias, 1), None, None


def _standard(x, axes, eps):
    mean = x.mean(axis=axes, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.square(x - mean).mean(axis=axes, keepdims=True) + eps)


def _affine(z, weight, bias, axis):
    z = z if weight is None else z * _channels(weight, z.ndim)
    return z if bias is None else z + _channels(bias, z.ndim)


def _channels(values, ndim: int):
    return values.reshape(1, -1, *(1,) * (ndim - 2))


# pooling ------------------------------------------------------------------------------------------------------------


def max_pool(x, kernel, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    """Over the last axes. The second value stands for torch's indices, which nothing here computes."""
    n = len(kernel)
    stride, padding, dilation = stride or kernel, _each(padding, n), _each(dilation, n)
    sizes = x.shape[x.ndim - n :]
    is_apart = tuple(stride) == tuple(kernel) and not any(padding) and set(dilation) == {1}
    if is_apart and all(size % k == 0 for size, k in zip(sizes, kernel, strict=True)):
        return _blocks(x, kernel).max(axis=tuple(range(-n, 0))), None
    lead = (1,) * (x.ndim - n)
    pads = [(0, 0)] * len(lead)
    pads += [_pads(*each, ceil_mode) for each in zip(sizes, kernel, stride, padding, dilation, strict=True)]
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    if set(dilation) != {1}:
        return _dilated_max(jnp.pad(x, pads, constant_values=lowest), kernel, stride, dilation), None
    return lax.reduce_window(x, lowest, lax.max, (*lead, *kernel), (*lead, *stride), pads), None


def _dilated_max(x, kernel, stride, dilation):
    """JAX has no derivative of its own: entries of a window side by side, of which the first largest counts."""
    n, sides = len(kernel), []
    axes = list(zip(x.shape[x.ndim - n :], kernel, stride, dilation, strict=True))
    for place in itertools.product(*map(range, kernel)):
        spans = [
            slice(i * d, i * d + (size - (k - 1) * d - 1) // s * s + 1, s)
            for i, (size, k, s, d) in zip(place, axes, strict=True)
        ]
        sides.append(x[(..., *spans)])
    z = jnp.stack(sides, axis=-1)
    return jnp.take_along_axis(z, jnp.argmax(z, axis=-1, keepdims=True), axis=-1)[..., 0]


def avg_pool(x, kernel, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None):
    n = len(kernel)
    stride, padding = stride or kernel, _each(padding, n)
    lead, sizes = (1,) * (x.ndim - n), x.shape[x.ndim - n :]
    pads = [_pads(*each, 1, ceil_mode) for each in zip(sizes, kernel, stride, padding, strict=True)]
    total = lax.reduce_window(x, 0.0, lax.add, (*lead, *kernel), (*lead, *stride), [(0, 0)] * len(lead) + pads)
    if divisor_override:
        return total / divisor_override
    counts = np.ones(())
    for size, k, s, p, num in zip(sizes, kernel, stride, padding, total.shape[len(lead) :], strict=True):
        start = np.arange(num) * s - p
        end = np.minimum(start + k, size + p)
        own = end - start if count_include_pad else np.minimum(end, size) - np.maximum(start, 0)
        counts = np.multiply.outer(counts, own)
    return total / counts.astype(x.dtype)


def adaptive_avg_pool(x, output_size):
    n = len(output_size)
    for axis, num in zip(range(x.ndim - n, x.ndim), output_size, strict=True):
        size = x.shape[axis]
        means = np.zeros((num, size))
        for i, (a, b) in enumerate(_bins(size, num)):
            means[i, a:b] = 1 / (b - a)
        x = jnp.moveaxis(jnp.tensordot(x, means.astype(x.dtype), ((axis,), (1,))), -1, axis)
    return x


def adaptive_max_pool(x, output_size):
    n = len(output_size)
    sizes = x.shape[x.ndim - n :]
    bins = [_bins(size, num) for size, num in zip(sizes, output_size, strict=True)]
    cells = [
        x[(..., *(slice(a, b) for a, b in cell))].max(axis=tuple(range(-n, 0))) for cell in itertools.product(*bins)
    ]
    return jnp.stack(cells, axis=-1).reshape(*x.shape[: x.ndim - n], *output_size), None


def _bins(size: int, num: int) -> list[tuple[int, int]]:
    return [(i * size // num, -(-(i + 1) * size // num)) for i in range(num)]


def _blocks(x, kernel):
    """(…, A · a, B · b) -> (…, A, B, a, b)."""
    n, lead = len(kernel), x.shape[: x.ndim - len(kernel)]
    pairs = [(size // k, k) for size, k in zip(x.shape[x.ndim - n :], kernel, strict=True)]
    apart = x.reshape(*lead, *itertools.chain(*pairs))
    order = [len(lead) + 2 * i for i in range(n)] + [len(lead) + 2 * i + 1 for i in range(n)]
    return apart.transpose(*range(len(lead)), *order)


def _each(value, n: int):
    return tuple(value) * n if len(value) == 1 else tuple(value)


def _pads(size: int, k: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> tuple[int, int]:
    """Before and after: with ``ceil_mode`` the last window may reach beyond, if it starts inside."""
    reach = dilation * (k - 1) + 1
    steps = size + 2 * padding - reach
    num = (-(-steps // stride) if ceil_mode else steps // stride) + 1
    if ceil_mode and (num - 1) * stride >= size + padding:
        num -= 1
    return padding, max((num - 1) * stride + reach - size - padding, padding if not ceil_mode else 0)


# products -----------------------------------------------------------------------------------------------------------


def trilinear(a, b, c, expand_a, expand_b, expand_c, summed, unroll_dim=1):
    """Σ over the axes ``summed`` of a ∘ b ∘ c, each with axes of length one put in where it lacks them."""
    a, b, c = (jnp.expand_dims(x, tuple(axes)) for x, axes in ((a, expand_a), (b, expand_b), (c, expand_c)))
    num_axes = a.ndim
    kept = [axis for axis in range(num_axes) if axis not in summed]
    shape = np.broadcast_shapes(a.shape, b.shape, c.shape)
    a, b, c = ((x, [axis for axis in range(num_axes) if x.shape[axis] == shape[axis]]) for x in (a, b, c))
    args = [part for x, axes in (a, b, c) for part in (x.reshape([shape[axis] for axis in axes]), axes)]
    return jnp.einsum(*args, kept)


LAYERS = {
    "mm": jnp.matmul,
    "bmm": jnp.matmul,
    "matmul": jnp.matmul,
    "mv": jnp.matmul,
    "dot": jnp.dot,
    "addmm": addmm,
    "baddbmm": addmm,
    "linear": lambda x, weight, bias=None: x @ weight.T if bias is None else x @ weight.T + bias,
    "_trilinear": trilinear,
    "convolution": convolution,
    "embedding": embedding,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), embedding_bag),
    "_native_batch_norm_legit_no_training": batch_norm,
    "_native_batch_norm_legit.no_stats": instance_norm,
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    **{f"max_pool{n}d_with_indices": max_pool for n in (1, 2, 3)},
    **{f"avg_pool{n}d": avg_pool for n in (1, 2, 3)},
    **{f"_adaptive_avg_pool{n}d": adaptive_avg_pool for n in (2, 3)},
    **{f"adaptive_avg_pool{n}d": adaptive_avg_pool for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": adaptive_max_pool for n in (1, 2, 3)},
}
