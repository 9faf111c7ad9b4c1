"""Where chains start: at given positions, at draws of a posterior, or scattered wide; always where all is finite."""

import jax
import jax.numpy as jnp
import numpy as np

from credo.diagnose.startup import explain
from credo.methods.mcmc.nuts import State
from credo.native import jit, value_and_gradient
from credo.run import as_key, stream
from credo.status import CredoError

WIDTH = 2.0  # u ~ Uniform(−2, 2), as in Stan: wide for parameters of unit scale, so that R-hat means something
MAX_TRIES = 100
STREAM = 1 << 20  # keys of starts lie apart from those of chains


def start_chains(target, start, key, num_chains: int) -> list[State]:
    """A kernel state for each chain. ``start``: None, a posterior, or positions (dim,) or (chains, dim).

    CredoError, with the cause, where the log density or its gradient is not finite: at a given position, or at each
    of 100 random ones.
    """
    dim = target.dim
    given = _given(start, key, num_chains, dim)
    dtype = jnp.result_type(float)
    states = []
    for chain in range(num_chains):
        random = np.random.default_rng(stream(key, STREAM + chain))
        for _ in range(MAX_TRIES if given is None else 1):
            u = random.uniform(-WIDTH, WIDTH, dim) if given is None else given[chain]
            state = jax.tree.map(np.asarray, _evaluate(target, np.asarray(u, dtype)))
            if np.isfinite(state.log_density) and np.all(np.isfinite(state.gradient)):
                break
        else:
            where = f"{MAX_TRIES} random positions" if given is None else f"the start of chain {chain}"
            raise CredoError(f"Chain {chain} cannot start: tried {where}. {explain(target, np.asarray(u, float))}")
        states.append(state)
    return states


def _given(start, key, num_chains: int, dim: int) -> np.ndarray | None:
    """Positions (chain, dim), or None where they are to be drawn."""
    if start is None:
        return None
    if hasattr(start, "kind"):
        return np.stack([_draw(start.kind, stream(key, STREAM + chain)) for chain in range(num_chains)])
    positions = np.asarray(start)
    if positions.shape not in ((dim,), (num_chains, dim)):
        raise CredoError(
            f"start has shape {positions.shape}: give one position, ({dim},), or one a chain, ({num_chains}, {dim})."
        )
    return np.broadcast_to(positions, (num_chains, dim))


@jax.jit
def _draw(kind, data):
    return kind.sample_u(as_key(data))


@jit
def _evaluate(target, u) -> State:
    return State(u, *value_and_gradient(target.log_density)(u))
