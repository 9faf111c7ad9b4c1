"""A posterior for ArviZ's own tools."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from credo.posterior.kinds import Draws
from credo.precision import double

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

NUM_DRAWS = 4_000  # of a posterior that stores none


def to_arviz(posterior: "Posterior"):
    """An ``xarray.DataTree`` with groups posterior, sample_stats and observed_data.

    Weighted draws are resampled to equal weights, since ArviZ knows none.
    """
    from arviz_base import from_dict

    equal = isinstance(posterior.kind, Draws) and posterior.kind.log_weights is None
    if equal:
        draws = posterior.draws
    else:
        with double():
            sampled = posterior._sampled(jax.random.key(0), NUM_DRAWS)
        draws = {name: np.asarray(values)[None] for name, values in sampled.items()}
    groups = {"posterior": draws}
    if equal and posterior.info.get("sample_stats"):
        groups["sample_stats"] = dict(posterior.info["sample_stats"])
    if posterior.target.y is not None:
        y = posterior.target.y
        groups["observed_data"] = y if isinstance(y, dict) else {"y": y}
    return from_dict(groups)
