"""Conjugate conditionals, derived from the model's own log density: nobody writes down a posterior's formula.

Given all other parameters, the log density of a conjugate block is, up to a constant, that of a family with few
parameters (families.py), which a few gradients give. That the family is the right one is not assumed but checked where
the chains start and in every sweep: the difference of the two log densities must be the same number everywhere.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credo.compiling import TINY, brief
from credo.methods.mcmc.conditional import Block, Conditional
from credo.methods.mcmc.elsewhere import elsewhere
from credo.methods.mcmc.families import Family, LogGamma, LogisticBeta, Normal
from credo.methods.mcmc.gibbs import Moved, Update
from credo.model.structure import Leaf
from credo.model.target import Target
from credo.precision import double, to_numpy
from credo.status import CredoError

NUM_PLACES = 8  # at which the difference of log densities is looked at
TOLERANCE = 1e-9  # of that difference beside the log densities: rounding


@dataclass(frozen=True)
class Conjugate:
    """The exact conditional where it is normal, gamma, inverse gamma, beta or Dirichlet, for a block of ``Gibbs``.

    It is found from the model's log density, and checked there, so that there is nothing to derive: a few gradients and
    densities a sweep give its parameters. Elements of a block are independent given the rest; those of a normal one may
    have any covariance. ``fit`` raises CredoError where the block is none of these.

    >>> import credo
    >>> method = credo.Gibbs({"mean": credo.Conjugate(), "precision": credo.Conjugate()})
    """


@dataclass(frozen=True)
class Conjugating:
    """A block's update."""

    block: Block
    family: Family

    def initial(self, target, given, key, position):
        return None

    def update(self, target: Target, given) -> Update:
        def step(key, position, _) -> Moved:
            conditional = Conditional(target, position, self.block)
            found = self.family.fit(conditional, self.block.take(position))
            v = self.family.sample(key, found)
            # at the old place and the new: a density with a kink may be of the family near the start alone
            places = jnp.stack([self.block.take(position), v])
            joint = lax.map(conditional.log_density, places)
            own = jax.vmap(lambda v: self.family.log_prob(found, v))(places)
            error = jnp.abs((joint[1] - own[1]) - (joint[0] - own[0]))
            is_same = error <= jnp.sqrt(jnp.finfo(v.dtype).eps) * (1 + jnp.max(jnp.abs(joint)))
            is_possible = jnp.isfinite(joint[0])  # else another block went where nothing can be told of this one
            return Moved(
                conditional.whole(jnp.where(is_possible, v, places[0])),
                log_density=jnp.where(is_possible, joint[1], joint[0]),
                num_steps=self.family.num_gradients(v.size),
                num_densities=2,
                is_valid=is_same | ~is_possible | ~jnp.all(jax.vmap(self.family.has_digits)(places)),
            )

        return Update(lambda key, position: None, step)


def conjugating(target: Target, block: Block, positions) -> Conjugating:
    """The update of the first family that fits at all ``positions`` (n, dim); CredoError where none does."""
    discrete = [name for name in block.names if name in target.structure.discrete_names]
    if discrete:
        raise CredoError(
            f"Conjugate() draws continuous parameters, and {discrete[0]!r} is discrete: give its block Enumerated(), "
            "or a conditional of your own."
        )
    target = target.cast(np.float64)
    for family in _families(target, block):
        with double():
            if all(_fits(target, np.asarray(u, np.float64), block, family) for u in positions):
                if family == Normal(True) and block.dim > 1 and not _is_apart(target, positions, block):
                    family = Normal(False)
                return Conjugating(block, family)
    raise CredoError(
        f"Given the other parameters, {block.label} is not normal, gamma, inverse gamma, beta or Dirichlet (or its "
        "elements depend on one another, and are not normal), so Conjugate() cannot draw it: give the block NUTS(), "
        "Slice() or a conditional of your own."
    )


def _families(target: Target, block: Block) -> list[Family]:
    """All there are, the likeliest first: each costs a program to compile."""
    leaves = [leaf for leaf in target.structure.leaves if leaf.name in block.names]
    normal: list[Family] = [Normal(True), Normal(False)] if block.dim > 1 else [Normal(True)]
    gamma: list[Family] = [LogGamma(1), LogGamma(-1)]
    beta: list[Family] = [LogisticBeta(tuple(c for leaf in leaves for c in _offsets(leaf)))]
    there = np.asarray(_values_far_out(target, block))
    if np.all(there > 0):
        return [*beta, *gamma, *normal] if np.all(there <= 1) else [*gamma, *normal, *beta]
    return [*normal, *gamma, *beta]


def _values_far_out(target: Target, block: Block) -> np.ndarray:
    """Parameters of the block where all coordinates are −9 or 9: a positive or bounded support shows there."""
    with double():
        ends = [target.prior.leaves(_constrained(target, np.full(target.dim, end))) for end in (-9.0, 9.0)]
    return np.concatenate([np.ravel(np.asarray(values[name])) for values in ends for name in block.names])


def _offsets(leaf: Leaf) -> list[float]:
    """c: of the sticks of a simplex, which has one coordinate less than entries, and 0 for all else."""
    if leaf.shape and leaf.free_shape == (*leaf.shape[:-1], leaf.shape[-1] - 1):
        sticks = leaf.free_shape[-1]
        return [math.log(sticks - j) for _ in range(math.prod(leaf.shape[:-1])) for j in range(sticks)]
    return [0.0] * leaf.size


def _fits(target: Target, position, block: Block, family: Family) -> bool:
    """Whether the conditional is one of ``family``, where it has its mass and at a distance from its mode.

    The parameters are found twice: numbers are smaller near the mode, and cost fewer digits.
    """
    random = np.random.default_rng(0)
    z, noise = random.normal(size=(2, NUM_PLACES // 2, block.dim))
    _, _, mode = to_numpy(_compared(target, position, z, noise, block=block, family=family))
    if not np.all(np.isfinite(mode)):
        return False
    position = position.copy()
    position[block.index()] = mode
    joint, own, _ = to_numpy(_compared(target, position, z, noise, block=block, family=family))
    error = np.abs((joint - own) - (joint - own)[0])
    return bool(np.all(error <= TOLERANCE * (1 + np.maximum(np.abs(joint), np.abs(own)))))  # False for NaN


def _is_apart(target: Target, positions, block: Block) -> bool:
    """Whether the elements of a normal block are independent away from the chains' starts too.

    Where P is diagonal s ⊙ P s is the same for all signs s.
    """
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (NUM_PLACES, block.dim))
    places = np.asarray([*positions, *elsewhere(target, np.asarray(positions))], np.float64)
    products = to_numpy(_signed_products(target, places, signs, block=block))
    return np.allclose(products, products[:, :1], rtol=1e-6, atol=1e-6 * np.abs(products).max(initial=0.0))


def _products(target: Target, positions, signs, block: Block):
    def of(position):
        gradient_at = jax.grad(Conditional(target, position, block).log_density)
        return lax.map(lambda s: s * jax.jvp(gradient_at, (block.take(position),), (s,))[1], signs)

    return lax.map(of, positions)


def _compare(target: Target, position, z, noise, block: Block, family: Family):
    """(log densities of the conditional and of the family at places near the mode and near ``position``, the mode)."""
    conditional, v = Conditional(target, position, block), block.take(position)
    found = family.fit(conditional, v)
    places = jnp.concatenate([jax.vmap(lambda z: family.spread(found, z))(z), v + noise])
    joint = lax.map(conditional.log_density, places)
    return joint, jax.vmap(lambda v: family.log_prob(found, v))(places), family.spread(found, jnp.zeros_like(v))


_signed_products = brief(_products, static_argnames=("block",), options=TINY)
_compared = brief(_compare, static_argnames=("block", "family"), options=TINY)
_constrained = brief(lambda target, u: target.constrain(u), options=TINY)
