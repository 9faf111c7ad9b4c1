"""The few pytree helpers that methods on whole networks need. Leaves keep their dtypes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree


def axpy(a: float | Float[Array, ""], x: PyTree, y: PyTree) -> PyTree:
    """a x + y, leaf by leaf; ``a`` takes each leaf's dtype."""
    return jax.tree.map(lambda x, y: jnp.asarray(a, x.dtype) * x + y, x, y)


def dot(x: PyTree, y: PyTree) -> Float[Array, ""]:
    """Σ x y over all leaves, in the widest dtype among them."""
    terms = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), x, y))
    widest = max((term.dtype for term in terms), key=lambda dtype: dtype.itemsize, default=jnp.dtype(float))
    return sum((term.astype(widest) for term in terms), start=jnp.zeros((), widest))


def normal_like(key, tree: PyTree) -> PyTree:
    """Independent standard normal numbers in the shape and dtype of each leaf."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves)) if leaves else ()
    return structure.unflatten(
        [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    )


def where(condition: Bool[Array, ""], x: PyTree, y: PyTree) -> PyTree:
    """x where ``condition`` holds and y elsewhere, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), x, y)
