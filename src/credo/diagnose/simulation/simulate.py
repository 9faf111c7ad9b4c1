"""Data sets of known parameters, drawn from prior and likelihood.

Every data set becomes a target of the same structure, so that all fits share their compiled programs.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.algorithm import as_key, stream
from credo.model.check import explained
from credo.model.data import inputs, num_rows
from credo.model.distributions import is_distribution
from credo.model.model import Model
from credo.model.target import Target
from credo.precision import in_double
from credo.status import CredoError

TRUTH, DATA, FIT, DRAWS = range(4)  # streams of keys: of parameters, data, fits, and what is ranked
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
    if model.log_factor is not None:
        raise CredoError(
            "A bare log density cannot simulate data, so it cannot be calibrated: write the model as prior and "
            "likelihood."
        )

    def positions_of(index):
        return _prior(model, keys_of(key, TRUTH, index))

    if model.likelihood is None:
        if size is not None or x is not None:
            raise CredoError("The model has no likelihood, hence no data: leave x and size out.")
        return Truths(num_simulations, lambda index: (positions_of(index), None), lambda _: model.given())
    encoded, _ = inputs(x, model.groups)
    size = _rows_to_draw(model, encoded, size)

    def draw(index):
        positions = positions_of(index)
        return positions, draw_data(model, encoded, positions, keys_of(key, DATA, index), size)

    return Truths(num_simulations, draw, lambda y: model.given(x, y))


@in_double
def _prior(model: Model, keys):
    return _prior_positions(model, keys)


@jax.jit
def _prior_positions(model: Model, keys):
    return jax.vmap(lambda data: model.structure.ravel(model.prior.sample(as_key(data))[1]))(keys)


@in_double
def draw_data(model: Model, x, positions, keys, size: int | None):
    """A data set at each position; ``size``: of rows, where the likelihood draws one row at a time."""
    return _data(model, x, positions, keys, size)


@functools.partial(jax.jit, static_argnames="size")
def _data(model: Model, x, positions, keys, size: int | None):
    def one(u, data):
        params = model.prior.constrain(model.structure.unravel(u))[0]
        if size is None:
            return model.draw_outcome(as_key(data), params, x)
        return jax.vmap(lambda key: model.draw_outcome(key, params, x))(jax.random.split(as_key(data), size))

    return jax.vmap(one)(positions, keys)


def keys_of(key, number: int, index: np.ndarray) -> np.ndarray:
    """Those of simulation i do not depend on how many there are."""
    return np.stack([stream(key, number, int(i)) for i in index])


@in_double
def _rows_to_draw(model: Model, x, size: int | None) -> int | None:
    """How many rows are to be drawn one at a time; None where the likelihood gives a whole data set at once."""
    shapes: list[tuple] = []

    def look():
        likelihood: Any = model.likelihood
        params = model.prior.constrain({leaf.name: jnp.zeros(leaf.free_shape) for leaf in model.structure.leaves})[0]
        found = jax.tree.leaves(likelihood(params, x), is_leaf=is_distribution)
        shapes.extend((d.batch_shape, d.event_shape) for d in found)

    with explained("The likelihood", model.structure, x):
        jax.eval_shape(look)
    if any(batch for batch, _ in shapes):
        if size is not None:
            raise CredoError(
                f"size={size}, and the likelihood draws data with batch_shape {shapes[0][0]} by itself: leave size out."
            )
        return None
    if size is not None:
        return size
    if all(event for _, event in shapes):
        return None  # one joint draw is the data set
    if x is None:
        raise CredoError("The likelihood draws a single number: say how many rows a data set has, by size= or x=.")
    return num_rows(x, None, None)
