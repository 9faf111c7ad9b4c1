"""Copies of a posterior that an approximation leaves out: components exchanged, or signs turned.

A mixture is as likely with its components in another order, a factor model with a sign turned. An approximation of one
of these modes passes every test on its own draws. So a few draws u are mapped to Tu, by maps T that keep volumes in the
user's space, and log densities are compared there (of coordinates: the Jacobians of a simplex differ, but little):
    log p(Tu) ≥ log p(u) − LOWER          a copy of as much mass, if the density is as high all round
    log p(Tu)/q(Tu) − log p(u)/q(u)       how little of it q has; medians over draws
T exchanges entries i and j along an axis of one length in all parameters that have it (and with them shares of two
components, numbers of an interval, and labels, values of discrete parameters), or turns the sign of a parameter,
of two, of an entry in all parameters of one length, or of a single number.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpyro.distributions import biject_to, constraints

from credo.batches import in_batches
from credo.compiling import brief
from credo.model.structure import Leaf, Structure
from credo.model.target import Target
from credo.posterior.kinds import Kind

LOWER = float(np.log(100.0))
NUM_DRAWS = 4
MOST_MAPS = 200
MOST_ENTRIES = 10  # of an axis along which entries are exchanged
MOST_NUMBERS = 32  # whose signs are turned one at a time
AT_ONCE = 16  # densities
MOST = 1e4  # nats: where q vanishes
INTERVALS = "unit_interval", "interval"  # whose coordinate is turned about the midst: w and 1 − w
SAME, ROUNDING = 1e-6, 1e-10  # nats; of a log density


class Map(NamedTuple):
    """Entries of the parameters in the user's space: ``whose`` value, with which ``sign``; and two ``labels``, values
    of discrete parameters that are exchanged as the entries of the others are."""

    whose: np.ndarray
    sign: np.ndarray
    labels: tuple[int, int] = (0, 0)


def symmetry_sentence(target: Target, u: Float[np.ndarray, "S dim"]) -> str | None:
    """What to say where a map leaves the density at draws ``u`` as it is, so that chains settle in different copies."""
    maps = list(itertools.islice(_maps(target.structure), MOST_MAPS))
    if not maps:
        return None
    log_p = np.asarray(_densities(None, target.flat(), u[:NUM_DRAWS], *_stacked(maps))[0], float)
    with np.errstate(invalid="ignore"):
        off = np.max(np.abs(log_p[1:] - log_p[0]) / (SAME + ROUNDING * np.abs(log_p[0])), axis=1)
    if not np.any(off < 1):
        return None
    whose, sign, labels = maps[int(np.argmax(off < 1))]
    ends = np.cumsum([int(np.prod(_user_shape(leaf))) for leaf in target.structure.leaves])
    is_elsewhere = whose != np.arange(len(whose))
    moved = np.flatnonzero(is_elsewhere | (sign < 0))
    leaves = [target.structure.leaves[i] for i in np.unique(np.searchsorted(ends, moved, side="right"))]
    leaves += [leaf for leaf in target.structure.leaves if leaf.is_discrete and labels != (0, 0)]
    names = ", ".join(leaf.name for leaf in leaves)
    if is_elsewhere.any():
        return (
            f"The density is the same with components in another order (entries of {names} exchanged together): chains "
            "settle in different orders, whose parameters have no common mean. Order one of them, as by the prior "
            "dist.TransformedDistribution(…, dist.transforms.OrderedTransform()), or read what the order leaves as it "
            "is, such as predictions."
        )
    return (
        f"The density is the same with the sign of {names} turned: chains settle on different sides. Give one number "
        "of them a positive prior, or read what the sign leaves as it is, such as predictions."
    )


def copy_weight(kind: Kind, target: Target, u: Float[np.ndarray, "S dim"]) -> float:
    """The largest log weight of a copy against that of the draws ``u`` of ``kind``; 0 where none is left out."""
    maps = list(itertools.islice(_maps(target.structure), MOST_MAPS))
    if not maps:
        return 0.0
    target, u = target.flat(), u[:NUM_DRAWS]
    log_p, log_q = (np.asarray(found, float) for found in _densities(kind, target, u, *_stacked(maps)))
    with np.errstate(invalid="ignore"):
        height = np.median(log_p[1:] - log_p[0], axis=1)
        weight = np.median((log_p - log_q)[1:] - (log_p - log_q)[0], axis=1)
    is_copy = (height >= -LOWER) & ~np.isnan(weight)
    return float(min(np.max(weight, where=is_copy, initial=0.0), MOST))


def _stacked(maps: list[Map]) -> tuple[np.ndarray, ...]:
    return tuple(map(np.stack, zip(*maps, strict=True)))


@brief
def _densities(kind: Kind | None, target: Target, u, whose, sign, labels):
    """log p and log q of the draws and of their images (1 + map, draw)."""
    leaves = target.structure.leaves

    def image(u, whose, sign, labels):
        position = target.structure.unravel(u)
        flat = jnp.concatenate([_to_user(leaf, position[leaf.name]).ravel() for leaf in leaves])[whose]
        values, start = {}, 0
        for leaf in leaves:
            shape = _user_shape(leaf)
            own = slice(start, start := start + int(np.prod(shape)))
            value = (sign[own] * flat[own]).reshape(shape)
            if leaf.is_discrete:
                value = jnp.where(value == labels[0], labels[1], jnp.where(value == labels[1], labels[0], value))
            values[leaf.name] = _to_coordinates(leaf, value)
        return target.structure.ravel(values)

    images = jax.vmap(jax.vmap(image, (0, None, None, None)), (None, 0, 0, 0))(u, whose, sign, labels)
    every = jnp.concatenate([u[None], images]).reshape(-1, u.shape[1])

    def both(v):
        return target.log_density(v), jnp.zeros(()) if kind is None else kind.log_prob_u(v)

    found = in_batches(both, every, AT_ONCE)
    return jax.tree.map(lambda a: a.reshape(-1, len(u)), found)


def _to_user(leaf: Leaf, value):
    """Coordinates as they are, for elementwise maps of one kind exchange as the values do; but a simplex by itself."""
    return biject_to(constraints.simplex)(value) if leaf.support == "simplex" else value


def _to_coordinates(leaf: Leaf, value):
    return biject_to(constraints.simplex).inv(value) if leaf.support == "simplex" else value


def _user_shape(leaf: Leaf) -> tuple[int, ...]:
    return leaf.shape if leaf.support == "simplex" else leaf.free_shape


def _maps(structure: Structure) -> Iterator[Map]:
    """Exchanges first, then signs."""
    indices, start = {}, 0
    for leaf in structure.leaves:
        shape = _user_shape(leaf)
        size = int(np.prod(shape))
        indices[leaf.name] = np.arange(start, start + size).reshape(shape)
        start += size
    same = np.arange(start)

    def turned(*entries: np.ndarray) -> np.ndarray:
        sign = np.ones(start)
        for each in entries:
            sign[each.ravel()] = -1
        return sign

    movable = [
        leaf for leaf in structure.leaves if (leaf.is_elementwise or leaf.support == "simplex") and not leaf.is_discrete
    ]
    has_labels = bool(structure.discrete_names)
    real = [indices[leaf.name] for leaf in movable if leaf.support == "real"]
    shares = [indices[leaf.name] for leaf in movable if leaf.support in INTERVALS and not leaf.shape]
    lengths = sorted({length for leaf in movable for length in leaf.shape if 2 <= length <= MOST_ENTRIES})
    for length in lengths:
        axes = {leaf.name: leaf.shape.index(length) for leaf in movable if length in leaf.shape}
        moved = {name: np.moveaxis(indices[name], axis, 0) for name, axis in axes.items()}
        has_shares, is_alone = length == 2 and bool(shares), len(moved) + has_labels < 2
        if is_alone and not has_shares:
            continue
        for i, j in itertools.combinations(range(length), 2):
            whose = same.copy()
            for entries in moved.values():
                whose[entries[i]], whose[entries[j]] = entries[j], entries[i]
            labels = (i, j) if has_labels else (0, 0)
            if not is_alone:
                yield Map(whose, np.ones(start), labels)
            if has_shares:
                yield Map(whose, turned(*shares), labels)
        signed = [moved[leaf.name] for leaf in movable if leaf.name in moved and leaf.support == "real"]
        if len(signed) > 1:
            yield from (Map(same, turned(*(entries[i] for entries in signed))) for i in range(length))
    yield from (Map(same, turned(each)) for each in real)
    if len(real) <= MOST_ENTRIES:
        yield from (Map(same, turned(*pair)) for pair in itertools.combinations(real, 2))
    if sum(map(np.size, real)) <= MOST_NUMBERS:
        yield from (Map(same, turned(number)) for each in real if each.size > 1 for number in each.reshape(-1, 1))
