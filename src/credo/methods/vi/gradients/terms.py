"""The log density as a sum of terms, and which coordinates each of them can move (Ranganath, Gerrish & Blei 2014).

A coordinate i of the position has *terms of its own*: its prior, where that is elementwise, and its row of the
likelihood, where each row has elements of its own (the assignments of a mixture). Beside them stand *shared* terms:
priors whose arguments are other parameters, the likelihood, log factors. The sum of those that coordinate i can move is
all that its gradient needs:

    relevant_i(u) = own_i(u) + row_{r(i)}(u) + Σ_t D_{t, leaf(i)} shared_t(u)

Dependence D is read off the program of a prior written as a dict (model/dependence.py), rows by changing some elements
and looking at the rows of the others. Other programs count as one term that everything moves.
"""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.compiling import sound
from credo.model.dependence import dependencies
from credo.model.distributions import transform_to
from credo.model.prior import Prior
from credo.model.target import Target
from credo.model.visit import at_index, terms_at
from credo.precision import double

NUM_TRIALS = 3  # pairs of positions between which elements of a parameter change
TOLERANCE = 1e-12  # of rows that should not have changed: rounding alone


class Terms(NamedTuple):
    """``own`` (dim,), ``rows`` (M,) of the likelihood, times N/M, and ``shared`` (T,): these hold all of log p."""

    own: Float[Array, " dim"]
    rows: Float[Array, " M"]
    shared: Float[Array, " T"]

    def total(self) -> Float[Array, ""]:
        """log p(u, D): terms of single coordinates are in the shared ones too."""
        return jnp.sum(self.shared)


class Dependence(NamedTuple):
    """``leaf_of`` (dim,): the parameter of a coordinate. ``row_of`` (dim,): the row that it has to itself, or −1.

    ``moves`` (T, leaves): 1 where the parameter moves the shared term.
    """

    leaf_of: np.ndarray
    row_of: np.ndarray
    moves: np.ndarray


def log_terms(target: Target, u: Float[Array, " dim"], batch=None) -> Terms:
    """The terms at a flat position; those of the likelihood are estimates where ``batch`` is a random subset."""
    own, rows, shared, _ = _pieces(target, target.structure.unravel(u), batch)
    return Terms(jnp.concatenate([jnp.ravel(each) for each in own]), rows, jnp.stack(shared))


def relevant(terms: Terms, known: Dependence) -> Float[Array, " dim"]:
    """For each coordinate, the sum of the terms that it can move."""
    shared = jnp.matmul(jnp.asarray(known.moves, terms.shared.dtype).T, terms.shared)[known.leaf_of]
    rows = jnp.concatenate([terms.rows, jnp.zeros(1, terms.rows.dtype)])[known.row_of] if terms.rows.size else 0.0
    return terms.own + rows + shared


def dependence(target: Target, examples: Float[np.ndarray, "n dim"], has_rows: bool) -> Dependence:
    """What moves what. ``examples``: pairs of positions inside the support; ``has_rows``: no minibatches are taken."""
    leaves = target.structure.leaves
    leaf_of = np.repeat(np.arange(len(leaves)), [leaf.size for leaf in leaves])
    row_of = np.full(target.dim, -1)
    if not isinstance(target.prior, Prior):
        return Dependence(leaf_of, row_of, np.ones((1, len(leaves))))
    apart: list[bool] = []

    def shared(*values):  # leaf by leaf: a vector of all of them would depend on each
        position = dict(zip((leaf.name for leaf in leaves), values, strict=True))
        _, _, terms, is_apart = _pieces(target, position, None)
        apart[:] = is_apart
        return tuple(terms)

    position = target.structure.unravel(jnp.asarray(examples[0]))
    found = dependencies(shared, *(position[leaf.name] for leaf in leaves))
    moves = np.array([[float(j in term) for j in range(len(leaves))] for term in found])
    for j, leaf in enumerate(leaves):
        if apart[j]:  # priors are the first terms, in the order of the leaves
            moves[j, j] = 0.0
        inside = leaf_of == j
        if has_rows and leaf.free_shape[:1] == (target.size,) and _rows_are_apart(target, examples, inside):
            row_of[inside] = np.repeat(np.arange(target.size), leaf.size // target.size)
            moves[-1, j] = 0.0
    return Dependence(leaf_of, row_of, moves)


def _pieces(target: Target, position, batch) -> tuple[list[Array], Array, list[Array], list[bool]]:
    """(own terms by leaf, rows, shared terms, whether each prior is a sum of terms of its own coordinates).

    ``position``: by name.
    """
    target = replace(target, is_flat=False)
    dtype = jnp.result_type(float)
    rows = jnp.zeros(0, dtype)
    if target.y is not None and target.model.likelihood is not None:
        rows = target.log_likelihood(position, batch)
        rows = (target.num_terms / rows.shape[0]) * rows
    if not isinstance(target.prior, Prior):
        nothing = [jnp.zeros(leaf.free_shape, dtype) for leaf in target.structure.leaves]
        return nothing, rows, [target.log_prior(position) + jnp.sum(rows)], []
    own, shared, is_apart = {}, [], []
    shapes = {leaf.name: leaf.free_shape for leaf in target.structure.leaves}

    def value(name, distribution, index):
        return transform_to(distribution)(at_index(position[name], index))

    def see(name, distribution, value):
        log_prob, log_jacobian = terms_at(position[name], distribution, value)
        is_apart.append(jnp.shape(log_prob) == shapes[name] == jnp.shape(log_jacobian))
        own[name] = log_prob + log_jacobian if is_apart[-1] else jnp.zeros(shapes[name], dtype)
        shared.append(jnp.sum(log_prob) + jnp.sum(log_jacobian))

    params, _, _ = target.prior.visit(value, see)
    if target.model.log_factor is not None:
        shared.append(target.model.log_factor(params, target.x))
    shared.append(jnp.sum(rows))
    return [own[leaf.name] for leaf in target.structure.leaves], rows, shared, is_apart


def _rows_are_apart(target: Target, examples: np.ndarray, inside: np.ndarray) -> bool:
    """Whether row i of the likelihood is moved only by its own elements of a parameter, at ``inside``."""
    if target.num_terms != target.size or target.y is None or target.model.likelihood is None:
        return False
    generator = np.random.default_rng(0)
    with double():
        for one, other in zip(examples[0::2], examples[1::2], strict=False):
            is_changed = generator.random(target.size) < 0.5
            mixed = one.copy()
            mixed[inside] = np.where(np.repeat(is_changed, inside.sum() // target.size), other[inside], one[inside])
            before, after = np.asarray(_rows(target, one)), np.asarray(_rows(target, mixed))
            same = np.isclose(before, after, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
            if not np.all(same | is_changed):
                return False
    return True


@sound
def _rows(target: Target, u):
    return target.log_likelihood(u)
