"""The narrow waist: an unconstrained position, its log density, and the parts of it that methods need.

Samplers, optimisers and variational fits see a target and never a model. A target is a pytree whose leaves are the
data and the prior's hyperparameters and whose static part is the user's code, so a function compiled for one target
serves every other with the same code and shapes.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import Distribution

from credo.compiling import TINY, brief
from credo.memory import bytes_of
from credo.model.data import Inputs, Levels, Rows
from credo.model.distributions import contains, is_moved, unscaled
from credo.model.mended import log_prob
from credo.model.source import Source
from credo.model.structure import Structure, somewhere
from credo.model.visit import AbstractPrior
from credo.precision import double
from credo.status import CredoError

if TYPE_CHECKING:
    from credo.model.missing import Missing
    from credo.model.model import Model
    from credo.model.user_head import AnyHead

FEW = 64  # rows that are looked at
Position = Any  # dict name -> unconstrained array, or a vector of length dim for a flat target


class Target(eqx.Module):
    """The posterior of ``model`` given data, up to its normalising constant.

    ``size`` is N, the number of rows; ``num_terms`` the number of independent factors in the likelihood: N, or 1 for
    a joint likelihood. ``missing``: the rows that have no outcome, which are not among these. Made by ``Model.given``;
    ``flat()`` gives the same density over vectors. ``rows_at_once``: where the density of all rows at once would not
    fit into memory, it is summed over blocks of so many, whose work is done again for a gradient. ``source``: rows
    outside of memory, of which x, y and weights then hold the first few alone.
    """

    model: "Model"
    x: Inputs
    y: Any
    weights: Float[np.ndarray, " N"] | Float[Array, " N"] | None
    structure: Structure = eqx.field(static=True)
    size: int = eqx.field(static=True)
    num_terms: int = eqx.field(static=True)
    head: "AnyHead | None" = eqx.field(static=True)
    levels: Levels = eqx.field(static=True)
    missing: "Missing | None" = None
    is_flat: bool = eqx.field(static=True, default=False)
    rows_at_once: int | None = eqx.field(static=True, default=None)
    source: Source | None = None

    # the density ------------------------------------------------------------------------------------------------

    def log_density(self, u: Position, batch=None) -> Float[Array, ""]:
        """log p(u) + log p(D | u), Jacobian included; an unbiased estimate of it if ``batch`` is a random subset.

        ``batch``: row indices (M,), or ``Rows(x, y, weights)`` handed over as data.
        """
        params, log_prior, outcome = self._prior(u)
        total = self._total(params, outcome, batch)
        return log_prior if total is None else log_prior + total

    def log_prior(self, u: Position) -> Float[Array, ""]:
        """Everything that is not a factor of one datum: log prior of ``u``, Jacobian included."""
        return self._prior(u)[1]

    def log_likelihood(self, u: Position, batch=None) -> Float[Array, " M"]:
        """log p(y_i | x_i, u), times the weight of the datum, one a row; (1,) for a joint likelihood."""
        params, _, outcome = self._prior(u)
        terms = self._terms(params, outcome, batch)
        if terms is None:
            raise CredoError(
                "This target has no likelihood apart from its prior (a bare log density, or no data): use a method "
                "that needs only the log density, or write the model as prior and likelihood."
            )
        return terms

    def total_log_likelihood(self, u: Position) -> Float[Array, ""]:
        """log p(y | x, u) of all data, no more than a block of them in memory; 0 where there are none."""
        params, _, outcome = self._prior(u)
        total = self._total(params, outcome, None)
        return jnp.zeros(()) if total is None else total

    def _prior(self, u: Position):
        """(parameters, log prior, what the prior's program already knows of the likelihood at all rows, or None)."""
        params, log_prior, outcome = self.model.prior.joint(self._tree(u))
        if self.model.log_factor is not None:
            log_prior = log_prior + self.model.log_factor(params, self.x)
        return params, log_prior, outcome

    def _terms(self, params, outcome, batch) -> Float[Array, " M"] | None:
        if self.model.likelihood is None or self.y is None:
            return None
        if self._goes_by_blocks(outcome, batch):
            block, starts = self._blocks()
            return jax.lax.map(lambda start: block(params, start), starts).reshape(-1)[: self.size]
        x, y, weights = self.rows(batch)
        if outcome is None or batch is not None:
            outcome = self.model.likelihood(params, x)
        return weighed(log_prob_rows(outcome, y), weights)

    @property
    def _is_in_blocks(self) -> bool:
        if self.source is not None:
            return True
        return self.rows_at_once is not None and self.rows_at_once < self.size == self.num_terms

    @property
    def data_bytes(self) -> int:
        """What one density reads, of memory or of a file."""
        return bytes_of((self.x, self.y) if self.source is None else self.source.files.rows)

    @property
    def rows_held(self) -> int:
        """How many rows' terms a density holds at one time."""
        return min(self.rows_at_once or self.size, self.size) if self._is_in_blocks else self.size

    def _total(self, params, outcome, batch) -> Float[Array, ""] | None:
        """The sum of all factors, or an unbiased estimate of it by a batch."""
        if not self._goes_by_blocks(outcome, batch):
            terms = self._terms(params, outcome, batch)
            return None if terms is None else (self.num_terms / terms.shape[0]) * jnp.sum(terms)
        block, starts = self._blocks()

        def add(total, start):
            terms = block(params, start)
            return total + jnp.sum(jnp.where(start + jnp.arange(len(terms)) < self.size, terms, 0.0)), None

        like = jax.eval_shape(block, params, starts[0])
        return jax.lax.scan(add, jnp.zeros((), like.dtype), starts)[0]

    def _goes_by_blocks(self, outcome, batch) -> bool:
        has_likelihood = self.model.likelihood is not None and self.y is not None
        return has_likelihood and outcome is None and batch is None and self._is_in_blocks

    def _blocks(self):
        """The terms of the block from a row on, and where blocks start.

        A derivative holds the intermediates of one block, and computes them anew.
        """
        assert self.rows_at_once is not None
        width = self.rows_at_once

        @jax.checkpoint
        def block(params, start):
            rows = jnp.minimum(start + jnp.arange(width), self.size - 1)  # the last row again, of a block that ends
            if self.source is not None:
                return self._terms(params, None, self.source.read(rows))
            everything = Rows(self.x, self.y, self.weights)
            return self._terms(params, None, jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], everything))

        return block, width * jnp.arange(-(-self.size // width))

    def rows(self, batch=None) -> Rows:
        """The data of a batch."""
        if self.source is not None and not isinstance(batch, Rows):
            if batch is None:
                raise CredoError(
                    "These data lie outside of memory, in a Loader, and were asked for all at once: fit by minibatches "
                    "(batch_size=), or give arrays."
                )
            return self.source.read(jnp.asarray(batch))
        if batch is None:
            return Rows(self.x, self.y, self.weights)
        if self.num_terms != self.size:
            raise CredoError(
                "The likelihood is joint (one factor for all rows), so no minibatch of it exists: use full data, or "
                "return a distribution with one batch element a row."
            )
        if isinstance(batch, Rows):
            return batch
        return jax.tree.map(lambda leaf: leaf[batch], Rows(self.x, self.y, self.weights))

    @property
    def row_weights(self) -> np.ndarray | Array | None:
        """(N,) of all rows, in memory or in a file; None where each counts once."""
        return self.weights if self.source is None else self.source.files.rows.weights

    @property
    def num_counted(self) -> int:
        """How many rows have a weight that is not zero."""
        return self.size if self.row_weights is None else int(np.count_nonzero(self.row_weights))

    def numbers_given(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of ``rows`` among all that were given: those without an outcome are not among these."""
        if self.missing is None:
            return rows
        total = self.size + len(self.missing.rows)
        return np.delete(np.arange(total), self.missing.rows)[rows]

    def read(self, index) -> Rows:
        """The rows ``index`` on the host, from memory or from a file."""
        if self.source is not None:
            return self.source.files.read(index if self.source.order is None else np.asarray(self.source.order)[index])
        return jax.tree.map(lambda leaf: np.asarray(leaf)[index], Rows(self.x, self.y, self.weights))

    def check_minibatch(self, num_rows: int) -> None:
        """Refuse minibatches that the density cannot be estimated from, without bias, row by row."""
        if self.y is None or self.model.likelihood is None:
            raise CredoError("This target has no data to take minibatches of: leave batch_size out.")
        if not 1 <= num_rows <= self.size:
            raise CredoError(f"A minibatch of {num_rows} rows was asked of {self.size}: give 1 to {self.size}.")
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(self.x)}
        if self.source is None and self.num_terms == self.size and lengths - {(self.size,)}:
            raise CredoError(
                f"The inputs have arrays of other lengths than the {self.size} rows of y, so no minibatch of them "
                "exists: bind those that do not vary by row to the model itself."
            )
        try:
            with double():
                u, batch = np.zeros(self.dim), np.arange(num_rows)
                target = self.cast(np.float64).flat()
                (num_terms,) = jax.eval_shape(lambda target: target.log_likelihood(u, batch), target).shape
            is_apart = self.rows_stand_apart(min(num_rows, FEW))
        except CredoError:
            raise
        except (ValueError, TypeError) as error:
            raise CredoError(
                f"The likelihood cannot be evaluated on {num_rows} of the {self.size} rows ({str(error)[:80]}): what "
                "varies by row must come in through given(x, y), and a parameter with one entry a row must be indexed "
                "by a column of x."
            ) from error
        if num_terms != num_rows:
            raise CredoError(f"The likelihood of {num_rows} rows has {num_terms} factors: it must have one a row.")
        if not is_apart:
            raise CredoError(
                "The likelihood of a row changes with the rows beside it (a mean over x or a lag inside the model?), "
                "so minibatches would be biased: compute that beforehand and give it as a column of x."
            )

    def rows_stand_apart(self, num_rows: int = FEW) -> bool:
        """Whether the likelihood of a row is the same without the rows beside it, by the values of so many rows."""
        rows = np.arange(min(max(2, num_rows), self.size))
        u = somewhere(self.dim)
        try:
            with double():
                together, apart = _row_terms(self.cast(np.float64).flat(), u, rows)
        except (TypeError, ValueError, IndexError):  # a parameter with one entry a row, which no column of x indexes
            return False
        if len(apart) != len(together[::2]):
            return False
        return np.allclose(np.asarray(together)[::2], apart, rtol=1e-3, atol=1e-6, equal_nan=True)

    @property
    def prior(self) -> AbstractPrior:
        return self.model.prior

    # positions --------------------------------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """The number of unconstrained coordinates."""
        return self.structure.dim

    def constrain(self, u: Position):
        """The parameters at ``u``, in the structure of the prior."""
        return self.model.prior.constrain(self._tree(u))

    def unconstrain(self, params) -> Position:
        """The position at which the parameters are ``params``."""
        u = self.model.prior.unconstrain(params)
        return self.structure.ravel(u) if self.is_flat else u

    def log_jacobian(self, u: Position) -> Float[Array, ""]:
        """log |∂ params / ∂ u|: subtract it from a density over positions to get one in the user's space."""
        return self.model.prior.log_jacobian(self._tree(u))

    def sample_prior(self, key) -> Position:
        """A position drawn from the prior."""
        _, u = self.model.prior.sample(key)
        return self.structure.ravel(u) if self.is_flat else u

    @property
    def derived_names(self) -> tuple[str, ...]:
        """What is reported beside the parameters: derived quantities, then imputed outcomes."""
        imputed = () if self.missing is None else self.missing.names
        return (*(name for name, _ in self.model.derived_functions), *imputed)

    def flat(self) -> "Target":
        """The same density over vectors in R^dim."""
        return dataclasses.replace(self, is_flat=True)

    def _tree(self, u: Position):
        if self.is_flat:
            if np.shape(u) != (self.dim,):  # JAX would leave out what is too much
                raise CredoError(
                    f"A position of this target is a vector of shape {(self.dim,)}, one number a scalar parameter, "
                    f"unconstrained, and got one of shape {np.shape(u)}: map over positions with jax.vmap."
                )
            return self.structure.unravel(u if hasattr(u, "reshape") else jnp.asarray(u))
        names = [leaf.name for leaf in self.structure.leaves]
        if not (isinstance(u, dict) and set(names) <= set(u)):
            got = f"the names {', '.join(map(str, list(u)[:5]))}" if isinstance(u, dict) else type(u).__name__
            raise CredoError(
                f"A position of this target is a dict by parameter ({', '.join(names[:5])}) of unconstrained arrays, "
                f"and got {got}: give that, or a vector to target.flat()."
            )
        return u

    # what some methods need -------------------------------------------------------------------------------------

    def likelihood_distribution(self, params, x) -> Distribution:
        """p(y | x, params) as a numpyro distribution with one batch element a row."""
        if self.model.likelihood is None:
            raise CredoError(
                f"This model has no likelihood to predict with ({self.model.without_likelihood}): write it as prior "
                "and likelihood, or predict from its draws."
            )
        return unscaled(self.model.likelihood(params, x))

    @property
    def outputs(self):
        """(params, x) -> z of shape (M, K), the unconstrained natural outputs; None where the head is unknown."""
        head = self.head
        if head is None:
            return None
        return lambda params, x: head.natural(self.likelihood_distribution(params, x), params, x)

    def cast(self, dtype) -> "Target":
        """The same target with its floating-point data and hyperparameters in ``dtype``.

        No array is the same object: JAX 0.10 keeps what it made of one in a user's loop, whole numbers in 32 bits.
        """

        def convert(leaf):
            if np.issubdtype(np.asarray(leaf).dtype, np.floating):
                return leaf.astype(dtype)
            return leaf.view() if isinstance(leaf, np.ndarray) else leaf

        converted = jax.tree.map(convert, self)
        if self.source is None:
            return converted
        return dataclasses.replace(
            converted, source=dataclasses.replace(converted.source, files=self.source.files.cast(dtype))
        )

    @property
    def is_released(self) -> bool:
        """Whether it had data outside of memory, and a few inputs are left."""
        return self.size == 0 and self.model.likelihood is not None and bool(jax.tree.leaves(self.x))

    def released(self) -> "Target":
        """The target without data outside of memory: what a posterior keeps for predictions."""
        if self.source is None:
            return self
        return dataclasses.replace(self, y=None, weights=None, source=None, size=0, num_terms=0, rows_at_once=None)


def weighed(terms: Float[Array, " M"], weights) -> Float[Array, " M"]:
    """Each term as often as its weight says; of weight 0 not at all, even where it is −inf."""
    return terms if weights is None else jnp.where(weights > 0, weights * terms, 0.0)


def log_prob_rows(distribution, y) -> Float[Array, " M"]:
    """One log probability a datum: trailing batch dimensions fold into it; a joint distribution is one datum.

    Several outcomes (dicts) of equal length add up row by row; of different lengths they are one joint datum.
    """
    if isinstance(distribution, dict):
        parts = [log_prob_rows(distribution[name], y[name]) for name in y]
        is_aligned = len({part.shape for part in parts}) == 1
        return sum(parts if is_aligned else [jnp.sum(part, keepdims=True) for part in parts], start=jnp.zeros(()))
    terms = log_prob(distribution, y)
    if is_moved(distribution):  # numpyro's answer outside of such a support is that of some other value
        terms = jnp.where(contains(distribution, y), terms, -jnp.inf)
    return jnp.reshape(terms, (terms.shape[0] if terms.ndim else 1, -1)).sum(axis=-1)


# run once, on a few rows: a program that compiles in half the time is worth more than a fast one
@functools.partial(brief, options=TINY)
def _row_terms(target: Target, u, rows):
    """Of ``rows``, and of every other one of them alone."""
    return target.log_likelihood(u, rows), target.log_likelihood(u, rows[::2])
