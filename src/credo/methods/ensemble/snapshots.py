"""Snapshots along one path of training (Huang et al. 2017): an ensemble for the price of one member.

The step size falls from ``step_size`` to zero by half a cosine in each cycle and then jumps back, which throws the
weights out of where they had settled; the end of each cycle is a member.
"""

import functools
from dataclasses import dataclass, field
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import optax

from credo.algorithm import Options, stream
from credo.methods.ensemble.deep_ensemble import as_posterior
from credo.methods.optimise.members import train
from credo.methods.optimise.objective import starting_position
from credo.methods.optimise.starts import fresh_positions
from credo.methods.optimise.training import batch_of, default_num_steps
from credo.posterior.posterior import Posterior
from credo.status import CredoError


@dataclass(frozen=True)
class StochasticWeightSnapshots:
    """``cycles`` members, each the end of a cycle of ``num_steps`` updates (None: 60 epochs over all cycles).

    ``step_size``: of Adam on the loss a datum at the beginning of a cycle. The path begins at ``start=`` of the
    fit, or where the model starts, else near the origin. ``batch_size`` None: all rows.
    """

    cycles: int = field(default=5, metadata={"at_least": 1})
    step_size: float = 0.01
    batch_size: int | None = 128
    num_steps: int | None = field(default=None, metadata={"at_least": 1})

    takes_source: ClassVar[bool] = True

    def fit(self, target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        if not self.step_size > 0:
            raise CredoError(f"step_size is {self.step_size}: give a positive number.")
        batch = batch_of(target, self.batch_size)
        length = self.num_steps or -(-default_num_steps(target, batch) // self.cycles)
        if start is None:
            position = fresh_positions(target, 1, None, key)
        else:
            position = np.asarray(starting_position(target, key, start))[None]
        times = tuple(length * (i + 1) for i in range(self.cycles))
        trained = train(
            target,
            cycling_adam(self.step_size, length, self.cycles),
            batch,
            position.astype(jnp.result_type(float), copy=False),
            stream(key, 1),
            options,
            num_steps=times[-1],
            snapshots=times,
        )
        return as_posterior(trained.snapshots, target, trained, key)


@functools.lru_cache(maxsize=32)  # a compiled program is keyed on the object
def cycling_adam(step_size: float, length: int, cycles: int) -> optax.GradientTransformation:
    """Adam with warm restarts of its step size."""
    one = optax.cosine_decay_schedule(step_size, length)
    return optax.adam(optax.join_schedules([one] * cycles, [length * (i + 1) for i in range(cycles - 1)]))
