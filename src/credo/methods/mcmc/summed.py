"""The posterior of what is continuous in a Gibbs run, its labels summed out: where modes are looked for.

Labels that are independent given the other parameters v, each of K values, have log p(v, z) = f(v) + Σ_i f_i(z_i, v):

    log p(v) = f(v) + Σ_i log Σ_k exp f_i(k, v)      by the K evaluations that a sweep draws them with (enumerated.py)

Chains whose labels all settled one way hold each other up there, and agree: that another way has mass shows on log p(v)
alone.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from credo.batches import in_batches
from credo.methods.mcmc.conditional import Block
from credo.methods.mcmc.enumerated import AT_ONCE, Enumerating, terms_of
from credo.model.target import Target


class SummedOut(Target):
    """The density of the other coordinates of ``whole``, ``free``, with those of ``block`` summed over ``values``.

    It has what a search for modes asks of a target, and no likelihood by rows.
    """

    whole: Any = None
    values: Any = None
    block: Block = eqx.field(static=True, default=Block((), ()))
    free: Block = eqx.field(static=True, default=Block((), ()))

    @classmethod
    def of(cls, target: Target, bound: Sequence[tuple[Any, Any]]) -> "SummedOut | None":
        """None unless the discrete parameters are one block of labels, each drawn from all its values by itself.

        ``bound``: pairs of a block's update and, of an ``Enumerating`` one, the values.
        """
        names = target.structure.discrete_names
        apart = [(update.block, v) for update, v in bound if isinstance(update, Enumerating) and update.is_apart]
        labels = [(block, values) for block, values in apart if block.names == names]
        leaves = tuple(leaf for leaf in target.structure.leaves if not leaf.is_discrete)
        if len(labels) != 1 or not leaves:
            return None
        (block, values), target = labels[0], target.flat()
        given = {field.name: getattr(target, field.name) for field in dataclasses.fields(Target)}
        given["structure"] = target.structure._replace(leaves=leaves)
        free = Block.of(target.structure, [leaf.name for leaf in leaves])
        return cls(**given, whole=target, values=values, block=block, free=free)

    def log_density(self, u, batch=None) -> jax.Array:
        terms, rest = self._terms_of_values(u)
        return rest[0] + jnp.sum(jax.nn.logsumexp(terms, axis=0))

    def constrain(self, u):
        """With every label at its first value, so that nothing varies by them."""
        return self.whole.constrain(self._with(u, jnp.full(self.block.dim, self.values[0])))

    def sample_prior(self, key):
        return self.free.take(self.whole.sample_prior(key))

    def likeliest(self, u) -> np.ndarray:
        """The position of ``whole`` at ``u``, each label the most probable there."""
        terms, _ = self._terms_of_values(u)
        return np.asarray(self._with(u, jnp.asarray(self.values)[jnp.argmax(terms, axis=0)]))

    def _with(self, u, labels) -> jax.Array:
        blank = jnp.zeros(self.whole.dim, u.dtype)
        return self.block.put(self.free.put(blank, u), jnp.asarray(labels, u.dtype))

    def _terms_of_values(self, u):
        """By value and label (K, N), and what no label has a part in (K,), K times the same.

        Where a value is impossible the derivative of its term may be no number, though it counts for nothing: it is
        taken where the label has its likeliest value.
        """
        values, size = jnp.asarray(self.values, u.dtype), self.block.dim

        def at(labels, u=u):
            return terms_of(self.whole, self._with(u, labels), size)

        known, _ = in_batches(lambda k: at(jnp.full(size, k), jax.lax.stop_gradient(u)), values, AT_ONCE)
        is_possible, likeliest = known != -jnp.inf, values[jnp.argmax(known, axis=0)]

        def of_value(given):
            value, is_possible = given
            terms, rest = at(jnp.where(is_possible, value, likeliest))
            return jnp.where(is_possible, terms, -jnp.inf), rest

        return in_batches(of_value, (values, is_possible), AT_ONCE)
