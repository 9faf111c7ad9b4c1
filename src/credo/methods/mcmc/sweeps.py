"""The sweeps of ``Gibbs``: the barriers of their warm-up, whether they were possible, and what they are worth.

``program`` below has ``updates``, one a block, and ``bound`` pairs each with what it is given, a recipe for a sampler.
"""

import functools
from typing import Any

import numpy as np

from credo.algorithm import Phase
from credo.diagnose.convergence import stuck_chains
from credo.methods.mcmc.blocks import Inner, Own
from credo.methods.mcmc.chains import figures
from credo.methods.mcmc.conjugate import Conjugating
from credo.methods.mcmc.enumerated import Enumerating
from credo.methods.mcmc.gibbs import State
from credo.methods.mcmc.settled import settled_share
from credo.methods.mcmc.warmup import warmup_phases, windows
from credo.status import CredoError

OF_PROPOSALS = "acceptance_rate", "num_divergences", "divergence_share", "undefined_proposals"

# warm-up --------------------------------------------------------------------------------------------------------------


def warmup(method, program, bound, state: State) -> list[Phase]:
    """Its phases: windows, at whose ends every block's step size and metric change as those of a sampler do."""
    if method.num_warmup == 0:
        return []
    lengths, ends = windows(method.num_warmup), {}
    for b, (update, recipe) in enumerate(bound):
        if isinstance(update, Inner):
            names = update.adaptive.record(state.carried[b])
            ends[b] = [phase.at_end for phase in warmup_phases(method.num_warmup, recipe.metric, names)]
    kept = tuple(program.record(state))

    def at_end(window: int, records, tuning, states):
        (positions, info), tuning, states = records, list(tuning), list(states)
        check_moves(program, info)
        for b, functions in ends.items():
            position = positions["position"][..., program.updates[b].block.index()] if "position" in positions else None
            gradient = {"gradient": positions[f"gradient {b}"]} if f"gradient {b}" in positions else {}
            carried = [state.carried[b] for state in states]
            tuning[b], carried = functions[window](({"position": position, **gradient}, info), tuning[b], carried)
            states = [
                state._replace(carried=(*state.carried[:b], own, *state.carried[b + 1 :]))
                for state, own in zip(states, carried, strict=True)
            ]
        return tuple(tuning), states

    last = len(lengths) - 1
    return [
        Phase("warmup", n, () if window == last else kept, functools.partial(at_end, window))
        for window, n in enumerate(lengths)
    ]


def check_moves(program, info) -> None:
    """CredoError where a conditional gave what cannot be."""
    is_valid = np.asarray(info.is_valid)
    for update, valid in zip(program.updates, np.moveaxis(is_valid, -1, 0), strict=True):
        if not valid.all() and isinstance(update, Conjugating):
            raise CredoError(
                f"Given the other parameters, {update.block.label} is {update.family.name} where the chains started, "
                f"but was not in {np.sum(~valid):,} of {valid.size:,} sweeps, so Conjugate() cannot draw it: give the "
                "block NUTS(), Slice() or a conditional of your own."
            )
        if not valid.all() and isinstance(update, Enumerating):
            raise CredoError(
                f"Given the other parameters, the elements of {update.block.label} were independent where the chains "
                f"started, but not in {np.sum(~valid):,} of {valid.size:,} sweeps, so they cannot be drawn all at "
                "once: Enumerated(at_once=False) draws one after the other."
            )
        if not valid.all():
            raise CredoError(
                f"The conditional of {update.block.label} returned values that are not finite or lie outside the "
                f"support of the prior, in {np.sum(~valid):,} of {valid.size:,} sweeps: return values that the prior "
                "allows."
            )
    bad = ~np.isfinite(info.log_density)
    if bad.any():
        own = [update.block.label for update in program.updates if isinstance(update, Own)]
        which = f"the conditional of {own[0]}" if len(own) == 1 else f"one of the conditionals ({'; '.join(own)})"
        raise CredoError(
            f"The log density is {np.asarray(info.log_density)[bad][0]} after {bad.sum():,} of {bad.size:,} sweeps: "
            f"{which if own else 'a conditional'} moves where the posterior is 0. Draw from the conditional of the "
            "model as it is written."
        )


# the verdict ----------------------------------------------------------------------------------------------------------


def figures_of_sweeps(done, target, program, method, bound=()) -> dict[str, float]:
    """What the verdict reads. A discrete coordinate that took one value in all draws has no R-hat and no ESS.

    It is left out where some chain has moved it, in warm-up, to where all chains are now, or where each sweep drew it
    from all its values by terms of its own; another that never moved in any chain, from one start, stays in, and is
    not known. Chains that disagree have an R-hat far above 1. Whether all fell to that value though others have mass
    is looked for (settled.py).
    """
    positions, info = done.records["position"], done.info["sampling"]
    is_discrete = np.concatenate([np.full(leaf.size, leaf.is_discrete) for leaf in target.structure.leaves])
    may_settle = np.any([state.has_moved for state in done.states], axis=0)
    for update in program.updates:
        if isinstance(update, Enumerating) and update.is_apart:
            may_settle[update.block.index()] = True
    is_settled = is_discrete & may_settle & np.all(positions == positions[0, 0], axis=(0, 1))
    judged = positions[..., ~is_settled] if not is_settled.all() else positions
    found = figures(judged, info, method, structure=None if is_settled.any() else target.structure)
    # a discrete position may rightly stay where it is for long: R-hat and ESS alone say whether it is stuck
    del found["num_stuck_chains"]
    if not is_discrete.all():
        found["num_stuck_chains"] = int(np.sum(stuck_chains(positions[..., ~is_discrete])))
    is_inner = [isinstance(update, Inner) for update in program.updates]
    if any(is_inner):
        found["acceptance_rate"] = float(np.mean(info.acceptance[..., is_inner]))
    else:  # nothing was proposed, so nothing diverged
        found = {name: value for name, value in found.items() if name not in OF_PROPOSALS}
    if is_discrete.any():
        found["num_settled"] = int(is_settled.sum())
    if is_settled.any() and bound and done.is_complete:
        share = settled_share(target, positions, is_settled, bound)
        found |= {} if share is None else {"settled_share": share}
    return found


def facts_of_blocks(program, done) -> dict[str, dict[str, Any]]:
    """What there is to say of each block, by its names."""
    found = {}
    for b, update in enumerate(program.updates):
        facts: dict[str, Any] = {}
        if isinstance(update, Inner):
            facts["acceptance_rate"] = float(np.mean(done.info["sampling"].acceptance[..., b]))
            if update.adaptive.has_step_size:
                facts["step_size"] = float(np.exp(done.states[0].carried[b].step.log_step))
        if isinstance(update, Enumerating):
            facts["elements_at_once"] = update.is_apart
        if isinstance(update, Conjugating):
            facts["family"] = update.family.name
        found[update.block.label] = facts
    return found
