"""Data sets of known parameters, drawn from prior and likelihood.

Every data set becomes a target of the same structure, so that all fits share their compiled programs.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.algorithm import as_key, stream
from credo.compiling import sound
from credo.model.check import explained
from credo.model.data import inputs, num_rows
from credo.model.distributions import broadcast, is_distribution
from credo.model.draws import check_replicable
from credo.model.model import Model
from credo.model.target import Target
from credo.precision import in_double
from credo.status import CredoError

TRUTH, DATA, FIT, DRAWS = range(4)  # streams of keys: of parameters, data, fits, and what is ranked
ONE = (), (1,)  # batch shapes of a likelihood of one row
AT_ONCE = 50  # simulations drawn together
NOT_FINITE = "the simulated data or parameters are not finite: give the model a prior that keeps away from them."


class Truths(NamedTuple):
    """``draw(index)``: positions (k, dim) and data (k, N, …) of simulations by number; no data without a likelihood.

    ``make(y)``: the target of one data set.
    """

    num_simulations: int
    draw: Callable[[np.ndarray], tuple[Any, Any]]
    make: Callable[[Any], Target]

    def each(self) -> Iterator[tuple[np.ndarray, Target | None]]:
        """The true position and the target of each simulation in turn; no target where one of both is not finite."""
        template = None
        for i in range(self.num_simulations):
            if i % AT_ONCE == 0:  # always as many: one program, however many simulations there are
                positions, data = self.draw(i + np.arange(AT_ONCE))
            y = jax.tree.map(lambda leaf, i=i: leaf[i % AT_ONCE], data)
            position = positions[i % AT_ONCE]
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((position, y))):
                yield position, None
                continue
            template = template or self.make(y)
            like = jax.tree.map(lambda t, v: np.asarray(v, t.dtype), template.y, y)
            yield position, dataclasses.replace(template, y=like)


def from_prior(model: Model, x, size: int | None, num_simulations: int, key) -> Truths:
    """Parameters from the prior, data from the likelihood at ``x``."""

    def positions_of(index):
        return _prior(model, keys_of(key, TRUTH, index))

    if model.unlike_its_prior is not None:
        raise CredoError(
            f"This model cannot simulate data, so it cannot be calibrated: {model.unlike_its_prior}. Write it as "
            "prior and likelihood alone."
        )
    if model.likelihood is None:
        if size is not None or x is not None:
            raise CredoError("The model has no likelihood, hence no data: leave x and size out.")
        return Truths(num_simulations, lambda index: (positions_of(index), None), lambda _: model.given())
    encoded, _ = inputs(x, model.groups, rows=model.group_rows)
    like = _outline(model, encoded, size)
    check_replicable(model, encoded)

    def draw(index):
        positions = positions_of(index)
        return positions, draw_data(model, encoded, positions, keys_of(key, DATA, index), like)

    return Truths(num_simulations, draw, lambda y: model.given(x, y))


@in_double
def _prior(model: Model, keys):
    return _prior_positions(model, keys)


@sound
def _prior_positions(model: Model, keys):
    return jax.vmap(lambda data: model.structure.ravel(model.prior.sample(as_key(data))[1]))(keys)


@in_double
def draw_data(model: Model, x, positions, keys, like):
    """A data set at each position, in the shape of ``like``."""
    return _data(model, x, positions, keys, like)


@sound
def _data(model: Model, x, positions, keys, like):
    def one(u, data):
        params = model.prior.constrain(model.structure.unravel(u))
        return model.draw_outcome(as_key(data), params, x, like)

    return jax.vmap(one)(positions, keys)


def keys_of(key, number: int, index: np.ndarray) -> np.ndarray:
    """Those of simulation i do not depend on how many there are."""
    return np.stack([stream(key, number, int(i)) for i in index])


@in_double
def _outline(model: Model, x, size: int | None):
    """Zeros in the shape of a data set of ``size`` rows, of those of x, or of as many as the likelihood gives."""

    def look():
        likelihood: Any = model.likelihood
        params = model.prior.constrain({leaf.name: jnp.zeros(leaf.free_shape) for leaf in model.structure.leaves})
        found = likelihood(params, x)
        own = [d.batch_shape for d in jax.tree.leaves(found, is_leaf=is_distribution) if d.batch_shape[:1] not in ONE]
        if size is not None and own:
            raise CredoError(
                f"size={size}, and the likelihood draws data with batch_shape {own[0]} by itself: leave size out."
            )
        number = size if size is not None or x is None else num_rows(x, None, None)
        return jax.tree.map(lambda d: jnp.zeros(_shape(d, number, size)), found, is_leaf=is_distribution)

    with explained("The likelihood", model.structure, x):
        shapes = jax.eval_shape(look)
    if not all(leaf.shape for leaf in jax.tree.leaves(shapes)):
        raise CredoError("The likelihood draws a single number: say how many rows a data set has, by size= or x=.")
    return jax.tree.map(lambda leaf: np.broadcast_to(0.0, leaf.shape), shapes)


def _shape(d, number: int | None, size: int | None) -> tuple[int, ...]:
    if size is not None:  # said in so many words, even of a draw with as many entries
        return (size, *d.batch_shape[1:], *d.event_shape)
    return broadcast(d, number).shape()
