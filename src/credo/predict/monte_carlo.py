"""Prediction by draws: the mixture of the likelihood's distributions over draws of the posterior."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from credo.algorithm import as_key, stream, streams
from credo.arguments import check_at_least
from credo.batches import in_batches
from credo.compiling import sound
from credo.convolutions import canonical
from credo.linalg.operator import Stored
from credo.memory import LIMIT
from credo.model.captured import captured
from credo.model.distributions import rowwise
from credo.model.target import Target
from credo.model.user_head import AnyHead
from credo.posterior.kinds import Draws, Gaussian, Kind, Point
from credo.posterior.marginals import draw_weights
from credo.posterior.product import Product
from credo.predict.inputs import Table, widened
from credo.predict.levels import NewRows, indexed_parameters, lengthen
from credo.predict.outcome import cdf, log_prob_of_all, moments, over
from credo.predict.stratified import stratified_positions
from credo.predict.undefined import drawn, only_defined
from credo.status import CredoError
from credo.storage import gather
from credo.traced import Last

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

MAX_STORED = 2**25  # numbers: draws of a posterior that stores none are made anew for each chunk of rows above this
ALWAYS_STORED = 2**18  # numbers
ARRAYS = 4  # of as many numbers, while draws are made
FEW = 256  # draws where the caller does not say
MANY = 1_024  # that are stored or independent, of parameters that are not a network's
NUM_GROUPS = 32  # runs of neighbours whose spread tells the error of an average over chains: to 13 %
LARGE = 1_000  # parameters: as many as a network's
CHANGED = (
    "What the model's functions read from outside of them, a global, a closure's variable or an attribute, has changed "
    "since the fit: set it back, or fit again."
)
SMALL = 2**17  # numbers of a model that are kept in both precisions
_WITHOUT_DATA = Last()


@dataclass(frozen=True)
class MonteCarlo:
    """p(y | x, D) ≈ Σ_s w_s p(y | x, θ_s) over ``num_draws`` draws of the posterior, for any posterior and likelihood.

    ``num_draws``: None for 1,024 stored or independent draws (of chains, flows, mixtures) of up to 1,000 parameters,
    so that predictions add little to the error that the draws have themselves, and for 256 of anything else. Of more
    stored draws some are chosen at random; weighted ones are used with their weights, or, where there are more than
    ``num_draws``, resampled systematically (Kitagawa 1996). A Gaussian, or a product of Normal, Beta, Gamma and
    Dirichlet distributions, is drawn from evenly (Latin hypercubes), each draw by its law exactly. The error of a mean
    is its epistemic sd / √num_draws, and far less there where the mean is nearly linear in the parameters.
    Unseen group levels are drawn from their conditional prior.
    """

    num_draws: int | None = None

    def __post_init__(self):
        if self.num_draws is not None:
            check_at_least("MonteCarlo(num_draws=…)", self.num_draws, 1)

    def law(self, posterior: "Posterior", table: Table, key) -> tuple["MixtureLaw", Any]:
        positions, keys, log_weights = self._draws(posterior.kind, posterior.target.dim, key, bool(table.new_rows))
        kind = None if positions is not None else widened(posterior.kind)
        num_draws = len(log_weights)
        target = without_data(posterior.target)
        new_rows: NewRows = ()
        if table.new_rows:
            first = positions[0] if positions is not None else widened(posterior.kind).sample_u(as_key(keys[0]))
            new_rows = indexed_parameters(target, first, table.x, table.new_rows)
            keys = streams(key, num_draws, 1) if kind is None else keys
        is_chained = isinstance(posterior.kind, Draws)
        return MixtureLaw(target, kind, positions, keys, log_weights, new_rows, is_chained=is_chained), table.x

    def _draws(self, kind: Kind, dim: int, key, has_new_levels: bool):
        """(positions (S, dim) or None, key data (S, 2), log weights (S,)). Keys are made without compiling anything."""
        is_even = isinstance(kind, Gaussian | Product | Point)
        number = self.num_draws or (FEW if is_even or dim > LARGE else MANY)
        keys = streams(key, number, 0)
        if isinstance(kind, Point):
            repeats = number if has_new_levels else 1  # a point knows no new level: its effects are drawn
            positions, weights = np.repeat(np.asarray(kind.position)[None], repeats, axis=0), None
        elif isinstance(kind, Draws):
            generator = np.random.default_rng(stream(key, 3).tolist())
            stored = np.asarray(kind.positions).reshape(-1, dim)
            positions, weights = _thin(stored, draw_weights(kind), number, generator)
        else:
            positions, weights = None, None
            if _may_be_stored(number * dim):
                generator = np.random.default_rng(stream(key, 3).tolist())
                positions = stratified_positions(widened(kind), generator, number, dim)
                positions = np.asarray(_positions(kind, keys)) if positions is None else positions
        size = number if positions is None else len(positions)
        weights = np.full(size, 1.0 / size) if weights is None else weights
        with np.errstate(divide="ignore"):
            return widened(positions), keys[:size], np.log(weights)


@sound
def _positions(kind: Kind, keys):
    return jax.vmap(lambda data: kind.sample_u(as_key(data)))(keys)


def _may_be_stored(numbers: int) -> bool:
    """Within a fit that was given ``max_memory`` fewer may be; what happens to be free decides about no draws."""
    limit = LIMIT.get()
    return numbers <= MAX_STORED and (limit is None or numbers <= ALWAYS_STORED or ARRAYS * 8 * numbers <= limit)


def _thin(positions: np.ndarray, weights: np.ndarray | None, number: int, generator: np.random.Generator):
    if weights is not None and not np.all(weights > 0):  # where these are the likelihood may be undefined
        counts = np.flatnonzero(weights)
        positions, weights = gather(positions, counts), weights[counts]
    size = len(positions)
    if size <= number:
        return positions, weights
    if weights is None:  # at random: chains often step from side to side, and every second draw is on one of them
        return gather(positions, np.sort(generator.choice(size, number, replace=False))), None
    index = np.searchsorted(np.cumsum(weights), (np.arange(number) + 0.5) / number)
    return gather(positions, np.minimum(index, size - 1)), None


def without_data(target: Target) -> Target:
    """The target for prediction alone, in float64: compiled functions take it, and carry no data of the fit."""

    def found():
        return dataclasses.replace(target, x=None, y=None, weights=None, missing=None).cast(np.float64)

    is_small = sum(map(np.size, jax.tree.leaves(target.model))) <= SMALL  # it takes as long as a prediction of few rows
    return _WITHOUT_DATA.of(target, None, found) if is_small else found()


class MixtureLaw(eqx.Module):
    """Σ_s exp(log_weights_s) p(y | x, θ_s). The positions are stored, or drawn from ``kind`` by ``keys``.

    ``is_streamed``: rows are so wide that sums over draws are taken one draw after the other. With ``head`` and
    ``centre`` the outputs are linearised there. With ``views`` the rows are so many transforms of themselves: y of a
    row is a mixture over them, whose marginals ``average`` knows; log probabilities and draws are joint. Neighbours may
    be alike where ``is_chained``.
    """

    target: Target
    kind: Kind | None
    positions: Float[Stored, "draw dim"] | None
    keys: UInt32[Stored, "draw 2"]
    log_weights: Float[Stored, " draw"]
    new_rows: NewRows = eqx.field(static=True)
    batch: int = eqx.field(static=True, default=1)
    is_streamed: bool = eqx.field(static=True, default=False)
    head: AnyHead | None = eqx.field(static=True, default=None)
    centre: Float[Stored, " dim"] | None = None
    views: int = eqx.field(static=True, default=0)
    average: Callable | None = eqx.field(static=True, default=None)
    is_chained: bool = eqx.field(static=True, default=False)

    @property
    def width(self) -> int:
        """How many distributions stand behind each row."""
        return self.log_weights.shape[0]

    def likelihood(self, rows, index) -> Any:
        """p(y | x, θ) at one draw."""
        views = self._views(rows, index)
        return views[0] if self.average is None else self.average(views)

    def _views(self, rows, index) -> list[Any]:
        """p(y | x, θ) at one draw and each transform of the rows, which are alone where there is none."""
        key = as_key(self.keys[index])
        u = self.kind.sample_u(key) if self.kind is not None else self.positions[index]  # type: ignore[index]
        return [self._at(u, key, each) for each in (rows if self.views else (rows,))]

    def by_row(self, rows) -> Callable[[Any], Any]:
        """index -> p(y | x, θ) where each row is looked at alone: that may be cheaper than one θ for all rows."""
        return functools.partial(self.likelihood, rows)

    def _at(self, u, key, rows) -> Any:
        if self.head is not None:
            return self._linearised(self.head, u, rows)
        params = self.target.constrain(u)
        if self.new_rows:
            params = lengthen(self.target, params, self.new_rows, jax.random.fold_in(key, 1))
        return likelihood_at(self.target, params, rows)

    def _linearised(self, head: AnyHead, u, rows):
        """p(y | z(μ) + J (u − μ))."""
        centre = jnp.asarray(self.centre)

        def outputs(u):
            return outputs_at(self.target, head, u, rows)

        z, moved = jax.jvp(outputs, (centre,), (u - centre,))
        return head.join(z + moved, likelihood_at(self.target, self.target.constrain(centre), rows))

    def moments(self, rows):
        """(mean, aleatoric, epistemic) by the law of total variance."""
        weights = jnp.exp(self.log_weights)
        if self.is_streamed:
            return self._streamed_moments(rows, weights)
        components = self._each(lambda d: over(moments, d), rows, self.by_row(rows))

        def combine(pair):
            means, variances = pair
            mean = jnp.tensordot(weights, means, axes=1)
            return mean, jnp.tensordot(weights, variances, axes=1), jnp.tensordot(weights, (means - mean) ** 2, axes=1)

        return over(combine, components)

    def log_prob(self, rows, y) -> Float[Array, " M"]:
        return jax.nn.logsumexp(self._log_probs(rows, y, self.by_row(rows)) + self.log_weights[:, None], axis=0)

    def log_probs(self, rows, y) -> Float[Array, "draw M"]:
        """log p(y | x, θ_s) at each draw."""
        return self._log_probs(rows, y)

    def _log_probs(self, rows, y, at: Callable | None = None):
        if self.average is None:
            return self._each(lambda d: log_prob_of_all(d, y), rows, at)

        def joint(views):
            terms = jnp.stack([log_prob_of_all(d, y) for d in views])
            return jax.nn.logsumexp(terms, axis=0) - np.log(len(views))

        return self._each(joint, rows, functools.partial(self._views, rows))

    def cdf(self, rows, part: str | None) -> Callable[[Array], Array]:
        """The distribution function of the outcome ``part`` (None: of the only one), its likelihoods evaluated once."""
        if self.is_streamed:
            return lambda y: self.expected(lambda d: cdf(d if part is None else d[part], y), rows)
        components = self._each(lambda d: d if part is None else d[part], rows)
        weights = jnp.exp(self.log_weights)
        return lambda y: jnp.tensordot(weights, jax.vmap(lambda d: cdf(d, y))(components), axes=1)

    def shared(self, generator: np.random.Generator, n: int) -> np.ndarray:
        """Which draw of the parameters each of the n is, (n,): each by its weight, and all of them evenly."""
        cumulative = np.cumsum(np.exp(np.asarray(self.log_weights)))
        levels = (generator.permutation(n) + generator.uniform(size=n)) / n * cumulative[-1]
        return np.minimum(np.searchsorted(cumulative, levels, side="right"), self.width - 1).astype(np.int32)

    def sample(self, rows, shared, keys):
        """(n, M, …): each of the n is one draw of the parameters for all rows, so sums over rows are right too."""

        def one(pair):
            i, data = pair
            return _drawn_of_one(self._views(rows, i), as_key(data))

        return in_batches(one, (shared, keys), self.batch)

    def expected(self, function: Callable[[Any], Any], rows):
        """Σ_s w_s ``function`` (the likelihood at draw s), one draw after the other."""

        def add(total, index):
            weight = jnp.exp(self.log_weights[index])
            value = function(self.likelihood(rows, index))
            return jax.tree.map(lambda sum_, term: sum_ + weight * term, total, value), None

        zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: function(self.likelihood(rows, 0))))
        return jax.lax.scan(add, zero, jnp.arange(self.width))[0]

    def _streamed_moments(self, rows, weights):
        """(mean, aleatoric, epistemic), updated by each draw (West 1979)."""

        at = self.by_row(rows)

        def look(index):
            return over(moments, at(index))

        def update(state, pair):
            total, found = state
            index, weight = pair
            total = total + weight
            share = jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), 0.0)

            def combine(old, new):
                (mean, within, between), (value, variance) = old, new
                step = value - mean
                return mean + share * step, within + weight * variance, between + weight * (1 - share) * step**2

            new = look(index)
            found = {n: combine(found[n], new[n]) for n in new} if isinstance(new, dict) else combine(found, new)
            return (total, found), None

        def zeros(pair):
            return tuple(jnp.zeros(shape.shape, shape.dtype) for shape in (pair[0], pair[1], pair[0]))

        start = over(zeros, jax.eval_shape(look, 0))
        pairs = (jnp.arange(self.width), weights)
        return jax.lax.scan(update, (jnp.zeros((), weights.dtype), start), pairs)[0][1]

    def _each(self, function: Callable[[Any], Any], rows, at: Callable | None = None):
        """``function`` of the likelihood at each draw, or of what ``at`` has for it, stacked on a leading axis."""

        def one(index):
            return function(self.likelihood(rows, index) if at is None else at(index))

        def every(indices):
            return in_batches(one, indices, self.batch)

        # of a network: smaller models have no convolutions that earn a second look
        return (canonical(every) if self.target.dim > LARGE else every)(jnp.arange(self.width))


def _drawn(d: Any, key) -> Any:
    if isinstance(d, dict):
        return {name: drawn(d[name], jax.random.fold_in(key, j)) for j, name in enumerate(d)}
    return drawn(d, key)


def _drawn_of_one(views: list[Any], key) -> Any:
    """A draw of one of the views, chosen anew for each row; for all of them where they are one datum."""
    if len(views) == 1:
        return _drawn(views[0], key)
    for_choice, key = jax.random.split(key)
    draws = [_drawn(d, jax.random.fold_in(key, i)) for i, d in enumerate(views)]
    sizes = {d.batch_shape[:1] or (1,) for d in (views[0].values() if isinstance(views[0], dict) else views[:1])}
    (size,) = sizes.pop() if len(sizes) == 1 else (1,)
    chosen = jax.random.randint(for_choice, (size,), 0, len(views))

    def pick(*leaves):
        return jnp.stack(leaves)[chosen[0] if size == 1 else (chosen, jnp.arange(size))]

    return jax.tree.map(pick, *draws)


def likelihood_at(target: Target, params, x) -> Any:
    """p(y | x, params) with one batch element a row; a dict of such where there are several outcomes.

    While it is traced the likelihood reads what is outside of it. CredoError where that is no longer what the fit read:
    else the program would be kept, and serve where it is set back. What each call changes itself, as a count of calls,
    is no such change.
    """
    leaves, before = jax.tree.leaves(x), captured(target.model)
    size = leaves[0].shape[0] if leaves else 1
    found = over(lambda d: rowwise(only_defined(d), size), target.likelihood_distribution(params, x))
    if before != target.model.captured and captured(target.model) == before:
        raise CredoError(CHANGED)
    return found


def outputs_at(target: Target, head: AnyHead, u, x) -> Float[Array, "M K"]:
    """The natural outputs at position ``u``."""
    params = target.constrain(u)
    return head.natural(likelihood_at(target, params, x), params, x)
