"""What a report knows beyond the posteriors: the words of the table that they are about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from credo.posterior.posterior import Posterior
from credo.reporting.plots.panels import all_scalars, by_scalar, leading_scalars, named

NUM_EFFECTS = 8  # of the first screen
INTERVAL = (0.05, 0.95)


@dataclass(frozen=True)
class Story:
    """``labels``: a scalar -> its words. ``effects``: the scalars that answer the question, of which the leading ones
    are shown first; None for those farthest from zero. ``others``: what else deserves a picture. ``effects_note``:
    their unit. ``outcome``: what the effects are on. ``priors``: sentences. ``settings``: what was chosen.
    ``reproduce``: the command or program.
    """

    title: str
    subtitle: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    effects: Sequence[str] | None = None
    others: Sequence[str] = ()
    effects_note: str = ""
    outcome: str = ""
    priors: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    reproduce: str = ""

    def words(self, scalar: str) -> str:
        return self.labels.get(scalar, scalar)


@dataclass(frozen=True)
class Effect:
    """A scalar under the answering posterior: mean and 90 % interval."""

    scalar: str
    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """There is an interval, and it leaves zero out."""
        return self.high > self.low and (self.low > 0 or self.high < 0)


def effects_of(posterior: Posterior, story: Story) -> list[Effect]:
    """The effects, the surest sign first."""
    wanted = list(story.effects) if story.effects is not None else leading_scalars({"": posterior}, NUM_EFFECTS)
    known = set(all_scalars(posterior))
    wanted = [scalar for scalar in wanted if scalar in known]
    ends = by_scalar(named(posterior, posterior.quantile(INTERVAL)), wanted, 1)
    means, sds = (
        {s: float(v[0]) for s, v in by_scalar({n: np.asarray(m)[None] for n, m in moment.items()}, wanted, 1).items()}
        for moment in posterior._moments
    )
    found = [Effect(s, means[s], float(ends[s][0]), float(ends[s][1])) for s in wanted if s in ends]
    return sorted(found, key=lambda e: -abs(e.mean) / sds[e.scalar] if sds[e.scalar] > 0 else -abs(e.mean))
