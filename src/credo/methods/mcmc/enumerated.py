"""The conditional of a discrete block with finitely many values, by the density at each of them.

p(z_i = k | z_−i, u, D) ∝ p(z_i = k, z_−i, u, D),   k = 1 … K

One element after the other, each given those before it (a Gibbs sweep within the block): N K densities. Where each
element has terms of its own in the log density, log p = Σ_i f_i(z_i, u) + f(u), all of them are drawn at once from K
evaluations of those terms: the assignments of a mixture, one a row of data. That is found out from the density, by
changing some elements and looking at the terms of the others. Each sweep looks again, at a configuration drawn anew
and at that of the chain, for the other parameters may have gone where elements meet.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from numpyro.distributions import constraints

from credo.batches import in_batches
from credo.compiling import TINY, brief
from credo.methods.mcmc.conditional import Block, Conditional
from credo.methods.mcmc.elsewhere import elsewhere
from credo.methods.mcmc.gibbs import Moved, Update
from credo.model.distributions import transform_to
from credo.model.target import Target
from credo.model.visit import at_index, terms_at
from credo.precision import double, to_numpy
from credo.status import CredoError

MAX_VALUES = 10_000
AT_ONCE = 16  # values whose densities are evaluated together
NUM_TRIALS = 3  # pairs of configurations between which elements change
TOLERANCE = 1e-12  # of terms that should not have changed: rounding alone


@dataclass(frozen=True)
class Enumerated:
    """The exact conditional of a discrete parameter with finitely many values, for a block of ``Gibbs``.

    Elements that are independent given the other parameters, such as the assignments of a mixture with one row of
    data each, are found out and drawn all at once, for the price of one density a value; others one after the other.
    ``at_once=False``: always one after the other.

    >>> import credo
    >>> method = credo.Gibbs({"labels": credo.Enumerated(), ("means", "sd"): credo.NUTS()})
    """

    at_once: bool = True


@dataclass(frozen=True)
class Enumerating:
    """A block's update. ``is_apart``: its elements have terms of their own."""

    block: Block
    is_apart: bool

    def initial(self, target, values, key, position):
        return None

    def update(self, target: Target, values) -> Update:
        sweep = _all_at_once if self.is_apart else _one_by_one
        return Update(lambda key, position: None, lambda key, u, _: sweep(key, target, u, self.block, values))


def enumerating(method: Enumerated, target: Target, block: Block, positions) -> tuple[Enumerating, np.ndarray]:
    """The update and the values (K,) that an element may take; CredoError where they cannot be listed.

    ``positions``: (n, dim), at which to look whether elements have terms of their own; and beside them, since elements
    may meet through a parameter that is zero where chains start.
    """
    values = values_of(target, block)
    is_asked = method.at_once and block.dim > 1
    places = [*positions, *elsewhere(target, np.asarray(positions))] if is_asked else []
    is_apart = is_asked and all(_is_apart(target, u, block, values, seed) for seed, u in enumerate(places))
    return Enumerating(block, is_apart), values


def values_of(target: Target, block: Block) -> np.ndarray:
    """The whole numbers that an element may be, from the support of its prior."""
    if len(block.names) > 1:
        raise CredoError(
            f"Enumerated() takes one parameter, and the block holds {block.label}: give each a block of its own."
        )
    supports, name = {}, block.label

    def see(name, distribution, value):
        with jax.ensure_compile_time_eval():  # bounds computed from constants are constants
            supports[name] = distribution.support

    target.prior.survey(see)
    support = supports[name]
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if not support.is_discrete:
        raise CredoError(
            f"Enumerated() lists the values of a discrete parameter, and {name!r} is continuous: give its block "
            "Conjugate(), NUTS() or a conditional of your own."
        )
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if isinstance(support, type(constraints.boolean)):
        low, high = 0, 1
    if low is None or high is None or support.event_dim or any(isinstance(end, Tracer) for end in (low, high)):
        raise CredoError(
            f"Enumerated() needs the finitely many values that {name!r} may take, and its support {support} does not "
            "list them: give the block a conditional of your own, or a prior such as DiscreteUniform or Categorical."
        )
    low, high = int(np.min(low)), int(np.max(high))
    if high - low >= MAX_VALUES:
        raise CredoError(
            f"{name!r} may take {high - low + 1:,} values, more than Enumerated() evaluates ({MAX_VALUES:,}): give the "
            "block a conditional of your own."
        )
    digits = np.finfo(jnp.result_type(float)).nmant + 1
    if max(abs(low), abs(high)) > 2**digits:
        raise CredoError(
            f"{name!r} takes values up to {max(abs(low), abs(high)):,}, and numbers of this precision are every whole "
            f"number up to {2**digits:,} only: count from the lowest value, or fit in precision='float64'."
        )
    return np.arange(low, high + 1)


def _one_by_one(key, target: Target, position, block: Block, values) -> Moved:
    conditional = Conditional(target, position, block)
    values = jnp.asarray(values, position.dtype)

    def move(i, carry):
        v, _ = carry
        log_densities = in_batches(lambda k: conditional.log_density(v.at[i].set(k)), values, AT_ONCE)
        k = jax.random.categorical(jax.random.fold_in(key, i), log_densities)
        return v.at[i].set(values[k]), log_densities[k]

    start = block.take(position), jnp.zeros((), position.dtype)
    v, log_density = lax.fori_loop(0, block.dim, move, start)
    num_densities = block.dim * values.size
    return Moved(conditional.whole(v), log_density=log_density, num_densities=num_densities)


def _all_at_once(key, target: Target, position, block: Block, values) -> Moved:
    k_choice, k_mixed = jax.random.split(key)
    values, now = jnp.asarray(values, position.dtype), block.take(position)
    mixed = jax.random.randint(k_mixed, now.shape, 0, values.size)  # of each two elements unlike ones, sooner or later

    def terms_at(v):
        return terms_of(target, block.put(position, v), block.dim)

    terms, rests = in_batches(lambda k: terms_at(jnp.full(block.dim, k)), values, AT_ONCE)  # (K, N), (K,)
    # where the chain is, too: what elements share is possible there, and may be nowhere else
    looked_at = jnp.stack([mixed, (now - values[0]).astype(mixed.dtype)])
    found, rest = lax.map(lambda chosen: terms_at(values[chosen]), looked_at)
    tolerance = jnp.finfo(position.dtype).eps ** 0.5  # sums may cancel, and their order may change
    same = functools.partial(jnp.allclose, rtol=tolerance, atol=tolerance)
    is_apart = same(found, terms[looked_at, jnp.arange(block.dim)]) & same(rests, rest[1]) & same(rest[0], rest[1])
    chosen = jax.random.categorical(k_choice, terms, axis=0)
    return Moved(block.put(position, values[chosen]), num_densities=values.size + 2, is_valid=is_apart)


def terms_of(target: Target, position, size: int):
    """The log density at ``position`` by terms: those along an axis of ``size`` (size,), and the sum of all others."""
    u, rows, rest = target.structure.unravel(position), jnp.zeros(size, position.dtype), jnp.zeros((), position.dtype)

    def add(terms):
        nonlocal rows, rest
        if jnp.ndim(terms) and terms.shape[0] == size:
            rows = rows + terms.reshape(size, -1).sum(axis=1)
        else:
            rest = rest + jnp.sum(terms)

    def see(name, distribution, value):
        for terms in terms_at(u[name], distribution, value):
            add(terms)

    def value(name, distribution, index):
        return transform_to(distribution)(at_index(u[name], index))

    params, log_factor, _ = target.prior.visit(value, see)
    rest = rest + log_factor()
    if target.model.log_factor is not None:
        rest = rest + target.model.log_factor(params, target.x)
    if target.model.likelihood is not None and target.y is not None:
        add(target.log_likelihood(position))
    return rows, rest


def _is_apart(target: Target, position, block: Block, values, seed: int) -> bool:
    """Whether the terms of elements stay as they are while others change.

    The elements that change are those whose number has, or has not, a one at some place in binary: of each two
    elements there is then a change of the one without the other. Configurations are drawn at random, and once with all
    elements alike: some meet only where they are equal, which of thousands of values two hardly ever are by chance.
    """
    random, size = np.random.default_rng(seed), block.dim
    target, position = target.cast(np.float64), np.asarray(position, np.float64)
    places = np.arange(max(1, int(np.ceil(np.log2(size)))))
    ones = (np.arange(size) >> places[:, None]) & 1 == 1
    changes = np.concatenate([np.zeros((1, size)), np.ones((1, size)), ones, ~ones]).astype(bool)
    alike = np.broadcast_to(random.choice(values, (2, 1)), (2, size))
    for first, second in [*random.choice(values, (NUM_TRIALS, 2, size)), alike]:
        v = np.where(changes, second, first).astype(np.float64)
        with double():
            rows, rest = to_numpy(_terms_of_all(target, position, v, block=block))
        expected = np.where(changes, rows[1], rows[0])
        if not (np.all(np.isfinite(rest)) and _is_same(rest, rest[0]) and _is_same(rows, expected)):
            return False  # also where what elements share is impossible, and would not tell that they meet
    return True


def _is_same(found: Any, expected: Any) -> bool:
    return np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def _every(target, position, vs, block: Block):
    return lax.map(lambda v: terms_of(target, block.put(position, v), block.dim), vs)


_terms_of_all = brief(_every, static_argnames=("block",), options=TINY)
