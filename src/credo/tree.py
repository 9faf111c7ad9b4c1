"""The few pytree helpers that methods on whole networks need. Leaves keep their dtypes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree


def dot(x: PyTree, y: PyTree) -> Float[Array, ""]:
    """Σ x y over all leaves, in the widest dtype among them."""
    terms = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), x, y))
    widest = max((term.dtype for term in terms), key=lambda dtype: dtype.itemsize, default=jnp.dtype(float))
    return sum((term.astype(widest) for term in terms), start=jnp.zeros((), widest))


def where(condition: Bool[Array, ""], x: PyTree, y: PyTree) -> PyTree:
    """x where ``condition`` holds and y elsewhere, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), x, y)
