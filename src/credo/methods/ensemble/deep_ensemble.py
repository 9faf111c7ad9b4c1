"""Deep ensembles (Lakshminarayanan, Pritzel & Blundell 2017): maxima of the density from several initialisations."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import optax

from credo.algorithm import Options
from credo.methods.optimise.hyperparameters import without_mode
from credo.methods.optimise.members import Trained, train_members
from credo.methods.optimise.surprise import judged
from credo.posterior.kinds import Draws
from credo.posterior.posterior import Posterior
from credo.status import Verdict

NO_SAMPLE = (
    "An ensemble is a set of modes and no sample of the posterior: nothing here says how far it can be trusted. "
    "Judge it by held-out scores (credo.compare), or beside HMC on a smaller problem."
)


@dataclass(frozen=True)
class DeepEnsemble:
    """``members`` trained on all data from different initialisations, each one draw of equal weight.

    ``init(key)``: a member's parameters (of a network: its weights); without it the model's start is drawn anew, array
    by array. ``optimiser``: an optax one that minimises, of the loss a datum; None for Adam with a cosine decay from
    0.01. ``batch_size`` None: all rows. ``num_steps``: updates; None for 60 epochs, 2,000 at least.
    The prior regularises each member: the loss is that of MAP, with N from the data. At a time limit the answer is the
    members that have begun, as far as they came, and the verdict says so.
    """

    members: int = field(default=5, metadata={"at_least": 1})
    init: Callable | None = None
    optimiser: optax.GradientTransformation | None = None
    batch_size: int | None = 128
    num_steps: int | None = field(default=None, metadata={"at_least": 1})

    takes_source: ClassVar[bool] = True
    own_start: ClassVar[str] = "begins each member at a place of its own, for which init= is asked where it is given"

    def fit(self, target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        settings = self.members, self.init, self.optimiser, self.batch_size, self.num_steps
        trained = train_members(target, *settings, key, options, may_be_cut=True)
        return as_posterior(trained.positions[None], target, trained, key)


def as_posterior(positions: np.ndarray, target, trained: Trained, key) -> Posterior:
    """Draws (1, draw, dim) that make no claim to be a sample."""
    figures = {"num_members": float(positions.shape[1])}
    said = [*trained.sentences(), *without_mode(target, trained.positions[0]), NO_SAMPLE]
    info = {
        "num_gradients": trained.num_updates * len(trained.positions),
        "failed_at": trained.failed_at,
        "is_complete": trained.is_complete,
    }
    return judged(Posterior(Draws(positions), target, verdict=Verdict("doubtful"), info=info), figures, said, key)
