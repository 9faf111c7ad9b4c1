"""``Gibbs`` as a method of ``credo.fit``: its blocks, and the program of their updates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from credo.algorithm import Algorithm, Options, Phase
from credo.methods.mcmc.blocks import inner, own
from credo.methods.mcmc.chains import Recipe, as_posterior, check, first_tuning
from credo.methods.mcmc.conditional import Block
from credo.methods.mcmc.conjugate import Conjugate, conjugating
from credo.methods.mcmc.enumerated import Enumerated, enumerating
from credo.methods.mcmc.gibbs import State, gibbs
from credo.methods.mcmc.start import begins_as_told, start_chains
from credo.methods.mcmc.summed import SummedOut
from credo.methods.mcmc.sweeps import check_moves, facts_of_blocks, figures_of_sweeps, warmup
from credo.methods.particles.elsewhere import PLACE
from credo.methods.particles.modes import missed
from credo.notes import note, notes
from credo.posterior.posterior import Posterior
from credo.run import run
from credo.status import CredoError

BLOCK_KINDS = "Conjugate(), Enumerated(), a sampler such as NUTS(), or a function conditional(key, params, data)"


@dataclass(frozen=True)
class Gibbs:
    """Gibbs sampling: blocks of parameters, discrete ones included, move in turn, each given all the others.

    ``blocks``: parameter, or tuple of parameters -> how it moves, in the order of the sweep. ``Conjugate()``: the exact
    conditional, where it has a closed form. ``Enumerated()``: that of a discrete parameter with finitely many values.
    A sampler, such as ``NUTS()``: one step of it. A function of yours, ``conditional(key, params, data)``, in
    jax.numpy: a draw from the block's conditional (or any move that leaves that invariant), in the shape of the
    parameter, or as a dict of several; ``data.x``, ``data.y`` and ``data.weights`` are the rows. A fit sees whether
    its values are possible, not whether they are drawn from the right distribution: ``credo.diagnose.sbc`` does.
    ``chains`` × ``num_draws`` sweeps after ``num_warmup`` sweeps of warm-up each, in which samplers adapt.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> prior = {"mean": dist.Normal(0.0, 9.0), "precision": dist.Gamma(1.0, 1.0)}
    >>> model = credo.Model(prior, lambda params, x: dist.Normal(params["mean"], params["precision"] ** -0.5))
    >>> method = credo.Gibbs({"mean": credo.Conjugate(), "precision": credo.Conjugate()})
    >>> posterior = credo.fit(model.given(y=np.array([1.0, 2.5, 1.7])), method, progress=False)
    """

    blocks: Mapping[Any, Any]
    chains: int = 4
    num_warmup: int = 300
    num_draws: int = 1_000
    takes_discrete: ClassVar[bool] = True

    def __post_init__(self):
        check(self)
        if not isinstance(self.blocks, Mapping):
            raise CredoError(
                f"Gibbs() takes a dict, parameter -> how it moves, which is {BLOCK_KINDS}; got {self.blocks!r}."
            )
        if not self.blocks:
            raise CredoError(f"Gibbs() has no blocks: name them, each with how it moves, which is {BLOCK_KINDS}.")
        for block, kind in self.blocks.items():
            if not _is_kind(kind):
                what = f"{kind.__name__}, without its brackets" if isinstance(kind, type) else repr(kind)
                raise CredoError(f"Gibbs() moves the block {_shown(block)} by {what}: give it {BLOCK_KINDS}.")

    def fit(self, target, *, key, start: Any, options: Options) -> Posterior:
        target = target.flat()
        blocks = _blocks(self.blocks, target.structure)
        positions = []
        if any(isinstance(kind, Conjugate | Enumerated) for kind in self.blocks.values()):
            states = start_chains(target, start, key, self.chains, _Place(), {})
            positions = [np.asarray(state.position) for state in states]
        bound = [
            _bind(target, block, kind, positions) for block, kind in zip(blocks, self.blocks.values(), strict=True)
        ]
        program = Sweep(tuple(update for update, _ in bound))
        given: Any = tuple(dict(g.given) if isinstance(g, Recipe) else g for _, g in bound)

        def tuned(states: list[State]):
            """The first tuning and states, of kernels that are not tuned yet."""
            tuning, carried = [], []
            for b, (_, each) in enumerate(bound):
                own = [state.carried[b] for state in states]
                first = first_tuning(each, self.num_warmup, own) if isinstance(each, Recipe) else (each, own)
                tuning.append(first[0])
                carried.append(first[1])
            pairs = zip(states, zip(*carried, strict=True), strict=True)
            return tuple(tuning), [state._replace(carried=each) for state, each in pairs]

        def begin(target):
            return tuned(start_chains(target, start, key, self.chains, program, given))

        dtype = jnp.result_type(float)
        tuning, (state,) = tuned([_like(target.dim, bound, dtype)])
        done = run(
            program,
            target,
            begin=begin,
            like=(tuning, state),
            phases=[*warmup(self, program, bound, state), Phase("sampling", self.num_draws, ("position",))],
            key=key,
            num_chains=self.chains,
            options=options,
            identity={"dtype": str(dtype)},
        )
        check_moves(program, done.info["sampling"])
        found = figures_of_sweeps(done, target, program, self, bound)
        if done.is_complete:
            found |= _missed(target, done.records["position"], found, bound, begins_as_told(start, options))
        posterior = as_posterior(done, target, self, found)
        posterior.info["blocks"] = facts_of_blocks(program, done)
        return posterior


@dataclass(frozen=True)
class Sweep:
    """The program of the one loop: an update a block. Each has ``block``, ``initial`` and ``update``."""

    updates: tuple[Any, ...]

    def initial(self, target, given, key, position) -> State:
        """The state at ``position``, before anything is tuned."""
        pairs = enumerate(zip(self.updates, given, strict=True))
        carried = tuple(u.initial(target, g, jax.random.fold_in(key, b), position) for b, (u, g) in pairs)
        return State(position, target.log_density(position), carried, jnp.zeros(position.shape, bool))

    def algorithm(self, target, tuning) -> Algorithm:
        updates = [each.update(target, own) for each, own in zip(self.updates, tuning, strict=True)]
        return gibbs(target, updates=updates)

    def record(self, state: State) -> dict[str, Any]:
        gradients = {
            f"gradient {b}": carried.kernel.gradient
            for b, carried in enumerate(state.carried)
            if carried is not None and hasattr(carried.kernel, "gradient")
        }
        return {"position": state.position, **gradients}


@dataclass(frozen=True)
class _Place:
    """Where chains would start, for looking at the model there."""

    def initial(self, target, given, key, position) -> State:
        return State(position, target.log_density(position), (), jnp.zeros(position.shape, bool))


def _missed(target, positions, found: dict[str, float], bound, begin_together: bool) -> dict[str, float]:
    """As of other chains; where there are labels, on the density without them."""
    summed = SummedOut.of(target, bound) if target.structure.discrete_names else None
    if summed is None:
        return missed(target, positions, found, begin_together=begin_together)
    with notes() as noted:
        figures = missed(summed, positions[..., summed.free.index()], found, begin_together=begin_together)
    if PLACE in noted:
        note(PLACE, summed.likeliest(noted[PLACE]))
    return figures


# blocks ---------------------------------------------------------------------------------------------------------------


def _is_kind(kind) -> bool:
    if isinstance(kind, type):
        return False
    return isinstance(kind, Conjugate | Enumerated) or hasattr(kind, "recipe") or callable(kind)


def _shown(block) -> str:
    return ", ".join(map(repr, block)) if isinstance(block, tuple) else repr(block)


def _blocks(blocks: Mapping[Any, Any], structure) -> list[Block]:
    """The blocks, each parameter in one of them; CredoError elsewhere."""
    known, seen, found = [leaf.name for leaf in structure.leaves], set(), []
    for block in blocks:
        names = block if isinstance(block, tuple) else (block,)
        for name in names:
            if name not in known:
                raise CredoError(
                    f"Gibbs() has a block with {name!r}, which is no parameter of the model: it has {', '.join(known)}."
                )
            if name in seen:
                raise CredoError(f"Gibbs() moves {name!r} in two places: leave it in one of its blocks.")
            seen.add(name)
        found.append(Block.of(structure, names))
    left = [name for name in known if name not in seen]
    if left:
        discrete = [leaf.name for leaf in structure.leaves if leaf.is_discrete and leaf.name in left]
        smooth = [name for name in left if name not in discrete]
        moves = [f"{name!r}: Enumerated()" for name in discrete]
        moves += [f"{tuple(smooth) if len(smooth) > 1 else smooth[0]!r}: NUTS()"] if smooth else []
        raise CredoError(
            f"No block of Gibbs() moves {', '.join(map(repr, left))}: add {'it' if len(left) == 1 else 'them'}, as in "
            f"{{…, {', '.join(moves)}}}."
        )
    return found


def _bind(target, block: Block, kind, positions) -> tuple[Any, Any]:
    """(the update, what it is given as an argument of the compiled program: a recipe stands for a tuning)."""
    if isinstance(kind, Enumerated):
        return enumerating(kind, target, block, positions)
    if isinstance(kind, Conjugate):
        return conjugating(target, block, positions), None
    return inner(target, block, kind) if hasattr(kind, "recipe") else own(target, block, kind)


def _like(dim: int, bound, dtype) -> State:
    """Right in shapes and types alone."""
    carried = tuple(g.like(np.ones(u.block.dim, dtype)) if isinstance(g, Recipe) else None for u, g in bound)
    return State(np.ones(dim, dtype), np.ones((), dtype), carried, np.zeros(dim, bool))  # type: ignore[arg-type]
