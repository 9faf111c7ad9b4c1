"""Operators of ATen that factor matrices or solve with them, over the last two axes.

What torch gives beside an answer, such as pivots, is None here: nothing reads it.
"""

import jax
import jax.numpy as jnp
import jax.scipy.linalg as sl
from jax.core import Tracer

from credo.status import CredoError


def solve(a, b, *, left=True):
    """x of a x = b, or of x a = b; of one vector where b lacks the axis of columns."""
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    b = b[..., None] if is_vector else b
    x = jnp.linalg.solve(a, b) if left else _turned(jnp.linalg.solve(_turned(a), _turned(b)))
    return x[..., 0] if is_vector else x


def solve_triangular(a, b, *, upper, left=True, unitriangular=False):
    lead = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    if not left:
        found = sl.solve_triangular(_turned(a), _turned(b), lower=upper, unit_diagonal=unitriangular)
        return _turned(found)
    return sl.solve_triangular(a, b, lower=not upper, unit_diagonal=unitriangular)


def cholesky(a, *, upper=False):
    """Of the lower triangle, or of the upper one: the other may hold anything."""
    a = _turned(a) if upper else a
    low = jnp.tril(a, -1)
    own = jnp.where(jnp.eye(a.shape[-1], dtype=bool), a, 0)
    factor = jnp.linalg.cholesky(low + _turned(low) + own, symmetrize_input=False)
    return _turned(factor) if upper else factor


def eigenvectors(a, triangle="L", compute_v=True):
    """Of one triangle: the other may hold anything. JAX's derivative would take both."""
    one = jnp.tril(a, -1) if triangle == "L" else jnp.triu(a, 1)
    own = jnp.where(jnp.eye(a.shape[-1], dtype=bool), a, 0)
    return tuple(jnp.linalg.eigh(one + _turned(one) + own, symmetrize_input=False))


def singular(a, full_matrices=False, compute_uv=True, *, driver=None):
    if not compute_uv:
        return None, jnp.linalg.svd(a, compute_uv=False), None
    return tuple(jnp.linalg.svd(a, full_matrices=full_matrices))


def exponential(a):
    lead = a.shape[:-2]
    return jax.vmap(sl.expm)(a.reshape(-1, *a.shape[-2:])).reshape(*lead, *a.shape[-2:])


def of_cholesky(b, factor, upper=False):
    """x of a x = b, by the factor of a."""
    lower = _turned(factor) if upper else factor
    return solve_triangular(_turned(lower), solve_triangular(lower, b, upper=False), upper=True)


def inverse_by_cholesky(factor, upper=False):
    return of_cholesky(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor, upper)


def pseudoinverse(a, *, atol=None, rtol=None, hermitian=False):
    """Singular values below ``atol``, or ``rtol`` of the largest, count as zero."""
    if not (atol is None or _is_zero(atol)):
        raise CredoError("torch.linalg.pinv with atol= depends on the scale of its matrix: give rtol=, or neither.")
    rtol = max(a.shape[-2:]) * jnp.finfo(a.dtype).eps if rtol is None else rtol
    return jnp.linalg.pinv(a, rtol=rtol, hermitian=hermitian)


def _is_zero(number) -> bool:
    """Whether it is known to be."""
    return not isinstance(number, Tracer) and not jnp.any(number)


def orthogonal(a, mode="reduced"):
    return (None, jnp.linalg.qr(a, mode=mode)) if mode == "r" else tuple(jnp.linalg.qr(a, mode=mode))


def _turned(a):
    return jnp.swapaxes(a, -1, -2)


MATRICES = {
    "linalg_solve": solve,
    "linalg_inv": jnp.linalg.inv,
    "linalg_cholesky": cholesky,
    "linalg_solve_triangular": solve_triangular,
    "linalg_pinv.atol_rtol_tensor": pseudoinverse,
    "cholesky_solve": of_cholesky,
    "cholesky_inverse": inverse_by_cholesky,
    "_linalg_det": lambda a: (jnp.linalg.det(a), None, None),
    "_linalg_slogdet": lambda a: (*jnp.linalg.slogdet(a), None, None),
    "_linalg_eigh": eigenvectors,
    "_linalg_svd": singular,
    "linalg_qr": orthogonal,
    "linalg_matrix_exp": exponential,
}
