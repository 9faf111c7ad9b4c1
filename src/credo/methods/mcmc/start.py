"""Where chains start: at given positions, at draws of a posterior, or scattered wide; always where all is finite."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from credo.algorithm import Options, as_key, stream
from credo.batches import in_batches
from credo.compiling import brief
from credo.diagnose.startup import explain
from credo.methods.optimise.objective import members, positions_given
from credo.model.distributions import is_improper, transform_to
from credo.model.visit import at_index
from credo.native import jit
from credo.ordered import Ordered, plain
from credo.posterior.kinds import Draws, Point
from credo.status import CredoError

WIDTH = 2.0  # u ~ Uniform(−2, 2), as in Stan: wide for parameters of unit scale, so that R-hat means something
MAX_TRIES = 100
# A recursion that explodes over part of the starts (an ARMA model outside its unit circle) has log densities of
# −10⁵⁰ there, and no step leads out. Starts so far below another one are drawn again; others never are.
NUM_CANDIDATES = 5
HOPELESS = 1e4  # nats a datum and a parameter
NUM_WIDTHS = 2_000  # draws that tell widths to 2 %
FEW_DRAWS = 100  # of a set: fewer tell no widths
NUM_BESIDE = 8  # places beside given starts: of fewer all may lie where correlations hide a narrow direction
STREAM = 1 << 20  # keys of starts lie apart from those of chains


@runtime_checkable
class Starter(Protocol):
    """What gives the state of a kernel, with a ``log_density``, at a position; hashable."""

    def initial(self, target, given: dict[str, Any], key, position) -> Any: ...


def start_chains(target, start, key, num_chains: int, kernel: Starter, given: dict[str, Any]) -> list:
    """A kernel state for each chain. ``start``: None, a posterior, or positions (dim,) or (chains, dim).

    CredoError, with the cause, where the log density or its gradient, for a kernel that uses it, is not finite: at a
    given position, or at each of 100 random ones.
    """

    def states_at(chains, positions) -> list:
        """Those at ``positions``, of which chain ``chains[i]`` would start at the i-th."""
        data = {chain: stream(key, STREAM + chain, 1) for chain in set(chains)}
        return _states(target, [data[chain] for chain in chains], positions, kernel, given)

    positions = _given(start, key, num_chains, target.dim)
    if positions is None:
        return _scattered(target, key, num_chains, states_at)
    states = states_at(range(num_chains), positions)
    for chain, found in enumerate(states):
        if not _is_finite(found):
            raise CredoError(
                f"Chain {chain} cannot start: tried the start of chain {chain}. "
                f"{explain(target, np.asarray(found.position, float))}"
            )
    return states


def _scattered(target, key, num_chains: int, states_at: Callable) -> list:
    """The first of each chain's candidates that is not hopeless beside the best of the first few of all chains."""
    offsets = np.random.default_rng(stream(key, STREAM, 3)).integers(num_chains, size=target.dim)
    candidates = [_candidates(target, key, chain, num_chains, offsets, states_at) for chain in range(num_chains)]
    first = [list(itertools.islice(each, NUM_CANDIDATES)) for each in candidates]
    for chain, states in enumerate(first):
        if not states:
            u = _somewhere(target, key, chain, num_chains, offsets, 0, _generator(key, chain))
            raise CredoError(f"Chain {chain} cannot start: tried {MAX_TRIES} random positions. {explain(target, u)}")
    best = max(state.log_density for states in first for state in states)
    bound = best - HOPELESS * (target.size + target.dim)
    found = []
    for states, more in zip(first, candidates, strict=True):
        good = (state for state in itertools.chain(states, more) if state.log_density >= bound)
        found.append(next(good, None) or max(states, key=lambda state: float(state.log_density)))
    return found


def _candidates(target, key, chain: int, num_chains: int, offsets, states_at: Callable) -> Iterator:
    """Random positions at which everything is finite, of 100."""
    random = _generator(key, chain)
    for first in range(0, MAX_TRIES, NUM_CANDIDATES):
        attempts = range(first, first + NUM_CANDIDATES)
        places = [_somewhere(target, key, chain, num_chains, offsets, attempt, random) for attempt in attempts]
        yield from filter(_is_finite, states_at([chain] * NUM_CANDIDATES, places))


def _somewhere(target, key, chain: int, num_chains: int, offsets, attempt: int, random: np.random.Generator):
    """A random position, its discrete coordinates drawn from their prior.

    Two chains are a pair, of which the second starts where the first does, mirrored; and the pairs of a coordinate lie
    at different distances from zero. Two modes on either side of the origin, and two orders of exchangeable components,
    are then seen by chains that disagree; of four independent starts one set in eight would lie on one side.
    """
    num_pairs = (num_chains + 1) // 2 if attempt < NUM_CANDIDATES else 1  # what is hard to meet is sought everywhere
    distance = WIDTH * ((chain // 2 + offsets) % num_pairs + random.uniform(size=target.dim)) / num_pairs
    u = distance * random.choice([-1.0, 1.0], target.dim) * (1 if chain % 2 == 0 else -1)
    if not target.structure.discrete_names:
        return u
    return np.asarray(_with_discrete(target, u, stream(key, STREAM + chain, 2, attempt)))


def _generator(key, chain: int) -> np.random.Generator:
    """The same for the two chains of a pair."""
    return np.random.default_rng(stream(key, STREAM + chain - chain % 2))


def _is_finite(state) -> bool:
    return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state))


def _given(start, key, num_chains: int, dim: int) -> np.ndarray | None:
    """Positions (chain, dim), or None where they are to be drawn."""
    if start is None:
        return None
    if hasattr(start, "kind"):
        known = members(start, num_chains)
        if known is not None:
            return known
        return np.stack([_draw(start.kind, stream(key, STREAM + chain)) for chain in range(num_chains)])
    return np.broadcast_to(positions_given(start, num_chains, dim), (num_chains, dim))


def gradients_away(target, states: list, key, kernel: Starter, given: dict[str, Any]) -> np.ndarray:
    """Gradients (place, dim) one unit away from given starts u, were the density Gaussian: g + (g(u + h z) − g) / h.

    z = ±1 in each coordinate. At a mode g itself is nothing, or rounding, and tells no width.
    """
    random = np.random.default_rng(stream(key, STREAM, 4))
    states = [states[place % len(states)] for place in range(NUM_BESIDE)]
    h = np.finfo(states[0].position.dtype).eps ** (1 / 3)
    beside = [state.position + h * random.choice([-1, 1], target.dim) for state in states]
    there, found = _states(target, [stream(key, STREAM, 1)] * NUM_BESIDE, beside, kernel, given), []
    for state, near in zip(states, there, strict=True):
        change = (near.gradient - state.gradient) / h
        found.append(state.gradient + np.where(np.isfinite(change), change, 0))
    return np.stack(found)


def knows_widths(start) -> bool:
    """Whether ``start`` is a posterior, and no point."""
    return hasattr(start, "kind") and not isinstance(start.kind, Point)


def begins_with_widths(start, options: Options) -> bool:
    """``knows_widths`` of where the run begins; where it is continued, of where it began."""
    return _remembered("knows_widths", knows_widths(start), options)


def begins_as_told(start, options: Options) -> bool:
    """Whether the caller says where the run begins, or began: at one place, maybe, for all chains."""
    return _remembered("is_told", start is not None, options)


def _remembered(name: str, found: bool, options: Options) -> bool:
    return bool(options.identity.get(name, False)) if options.resume and options.identity is not None else found


def draws_of(start, key) -> np.ndarray | None:
    """Draws (1, draw, dim) that tell the widths of a starting posterior; None where there is none."""
    if not knows_widths(start):
        return None
    if isinstance(start.kind, Draws) and start.kind.positions[..., 0].size < FEW_DRAWS:
        return None  # an ensemble: how far its members lie apart is no width of any mode
    return np.asarray(_draws(start.kind, stream(key, STREAM, 2)))[None]


@brief
def _draws(kind, data):
    return in_batches(kind.sample_u, jax.random.split(as_key(data), NUM_WIDTHS), 256)


@brief
def _draw(kind, data):
    return kind.sample_u(as_key(data))


@brief
def _with_discrete(target, u, data):
    """``u`` with its discrete coordinates drawn from their prior, given the parameters before them."""
    position, key = target.structure.unravel(u), as_key(data)
    names = [leaf.name for leaf in target.structure.leaves]

    def value(name, distribution, index):
        if not distribution.support.is_discrete:
            return transform_to(distribution)(at_index(position[name], index))
        own = jax.random.fold_in(key, names.index(name))
        return _drawn(distribution, own if index is None else jax.random.fold_in(own, index))

    found = target.prior.leaves(target.prior.visit(value, lambda *_: None).params)
    drawn = {name: jnp.asarray(found[name]).astype(u.dtype) for name in target.structure.discrete_names}
    return target.structure.ravel(position | drawn)


def _drawn(distribution: Distribution, key):
    """A draw; where the prior is flat, evenly from a finite support, and some value of an infinite one."""
    if not is_improper(distribution):
        return distribution.sample(key)
    shape, support = distribution.shape(), distribution.support
    support: Any = getattr(support, "base_constraint", support)
    if hasattr(support, "upper_bound") and hasattr(support, "lower_bound"):
        return jax.random.randint(key, shape, support.lower_bound, support.upper_bound + 1)
    return support.feasible_like(jnp.zeros(shape, int))


def _states(target, keys: list, positions, kernel: Starter, given: dict[str, Any]) -> list:
    """That of ``kernel`` at each of the ``positions``, with a key's data each; NUM_CANDIDATES a call."""
    positions, found = np.asarray(positions, jnp.result_type(float)), []
    ordered = Ordered.of(target), Ordered.of(given)
    for first in range(0, len(keys), NUM_CANDIDATES):
        taken = np.minimum(np.arange(first, first + NUM_CANDIDATES), len(keys) - 1)  # the last one fills up
        states = _evaluate(*ordered, np.stack(keys)[taken], positions[taken], kernel=kernel)
        states = jax.tree.map(np.asarray, states)
        found += [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(NUM_CANDIDATES)]
    return found[: len(keys)]


def _initial(target, given, data, positions, *, kernel: Starter):
    def state(at):
        return kernel.initial(plain(target), plain(given), as_key(at[0]), at[1])

    return jax.lax.map(state, (data, positions))


_evaluate = jit(_initial, static_argnames=("kernel",))
