"""Warm-up of stochastic-gradient chains: windows, at whose ends all of them get another scale and step size.

What is measured at a mode may be wrong by orders of magnitude where the chains live. After two of the five windows it
is measured again at their positions. Where steps are so long that chains run away, these begin anew, nearer to the
start by half at least and with half the step; steps that are found later are halved too. From the first draw on forces
are bounded (dynamics.py). A step size that the caller gave is not touched, nor the scale that it is in.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from credo.algorithm import Phase, stream
from credo.methods.sgmcmc.tune import Tuning, measure_among, ran_away

if TYPE_CHECKING:
    from credo.methods.sgmcmc.stochastic import StochasticGradient

WINDOWS = 5
TUNED = (1, 3)  # after these
STREAM = 2 << 20


def warm_up(method: "StochasticGradient", data: Any, key, first: Tuning, begin: Callable) -> list[Phase]:
    """``begin(data, tuning, share)``: the tuning and states round the start, at a share of their usual distance."""

    def kept(tuning: Tuning, states: list) -> tuple[Tuning, list, bool]:
        """And whether all chains are where they ran to."""
        is_lost = [not np.all(np.isfinite(state.position)) for state in states]
        if not any(is_lost):
            return tuning, states, True
        if method.step_size is not None:
            raise ran_away(tuning)
        tuning = tuning._replace(step_size=0.5 * tuning.step_size, caution=0.5 * tuning.caution)
        share = min(0.5, float(tuning.step_size / first.step_size))  # steps found since may be longer than the first
        _, fresh = begin(data, tuning, share)
        fresh = [new._replace(count=old.count) for new, old in zip(fresh, states, strict=True)]
        return tuning, [new if lost else old for lost, new, old in zip(is_lost, fresh, states, strict=True)], False

    def at_end(_, tuning: Tuning, states: list, *, is_tuned: bool, is_last: bool) -> tuple[Tuning, list]:
        tuning, states, is_whole = kept(tuning, states)
        if is_last:
            tuning = tuning._replace(most=np.asarray(method.most_of_draws(), tuning.most.dtype))
        if not (is_tuned and is_whole and method.step_size is None):
            return tuning, states
        batch, positions = method.batch_of(data), [state.position for state in states]
        found = measure_among(data, batch, method.preconditioner, stream(key, STREAM), positions, tuning.center)
        noise = found.noise_of(tuning.anchor)
        if not all(np.all(np.isfinite(each)) for each in (found.scale, found.curvature, noise.largest)):
            return tuning, states
        size = np.asarray(method.best_step(float(found.curvature), noise) * tuning.caution, tuning.step_size.dtype)
        directions = found.directions(tuning.anchor).astype(tuning.directions.dtype)
        return tuning._replace(scale=found.scale, step_size=size, directions=directions), states

    lengths = np.diff(np.unique(np.linspace(0, method.num_warmup, WINDOWS + 1).astype(int)))
    return [
        Phase("warmup", int(length), at_end=partial(at_end, is_tuned=i in TUNED, is_last=i == len(lengths) - 1))
        for i, length in enumerate(lengths)
    ]
