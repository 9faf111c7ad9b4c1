"""Where a mixture begins: several starts with more components than asked for, merged, and the best of them.

Coordinate ascent never moves a component from one cluster to another: begun with K centres for K clusters it mostly
ends with two components in one cluster and two clusters in one component. From SURPLUS times as many centres every
cluster has one, and merging (merge.py) is a choice that can be made exactly. Where there are many rows this is done on
a random sample of them, each of which counts for several.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from credo.methods.vi.cavi.mixture.factors import Factor, NormalWishartFactor
from credo.methods.vi.cavi.mixture.merge import merge
from credo.methods.vi.cavi.mixture.responsibilities import Rows, respond
from credo.methods.vi.cavi.mixture.start import divide, one_hot
from credo.methods.vi.cavi.mixture.sweep import climb
from credo.methods.vi.cavi.sweeps import Ascent
from credo.status import CredoError

SURPLUS = 2  # 20 clusters in 10 dimensions, 24 starts: the best optimum known from 1 with 1, from 21 with 2, 20 with 3
ROUGH = 1e-6  # of |ELBO|: how far starts are climbed before the best is taken to all rows
ROWS_A_COMPONENT = 250
MOST_ROUNDS = 50  # of merging: a bound, never met


def starts(
    factor: Factor,
    rows: Rows,
    num_components: int,
    num_starts: int,
    num_rows: int,
    rng: np.random.Generator,
    *,
    max_sweeps: int,
    deadline: float,
) -> Iterator[Ascent]:
    """The ascent from each start, with the bounds of all rows. CredoError where EM finds none that holds."""
    num_rows = min(len(rows), max(num_rows, ROWS_A_COMPONENT * num_components))
    limits = {"tolerance": 0.0, "relative_tolerance": ROUGH, "max_sweeps": max_sweeps, "deadline": deadline}
    refusal, is_any = None, False
    for _ in range(num_starts):
        chosen = rows.x if num_rows == len(rows) else rows.x[rng.choice(len(rows), num_rows, replace=False)]
        with Rows(chosen, rows.features) as some:
            weight = len(rows) / num_rows
            try:
                if isinstance(factor, NormalWishartFactor):
                    yield _merged(factor, some, weight, num_components, rng, limits)
                else:
                    yield climb(factor, some, _divided(some, weight, num_components, rng), weight, **limits)
                is_any = True
            except CredoError as error:  # under EM a component has closed in on few rows from this start
                refusal = error
    if refusal is not None and not is_any:
        raise refusal


def _merged(factor: NormalWishartFactor, rows: Rows, weight: float, num_components: int, rng, limits) -> Ascent:
    ascent = climb(factor, rows, _divided(rows, weight, SURPLUS * num_components, rng), weight, **limits)
    for _ in range(MOST_ROUNDS):
        statistics = ascent.factors["responsibilities"].statistics
        r = respond(factor.coefficients(statistics)[0], rows.features.of(rows.x))[0]
        left, num_merges = merge(factor, r, statistics, num_components)
        if num_merges == 0 and len(left) == len(statistics):
            break
        ascent = climb(factor, rows, left, weight, **limits)
    return ascent


def _divided(rows: Rows, weight: float, num_components: int, rng) -> Float[np.ndarray, "K P"]:
    return weight * rows.collect(one_hot(divide(rows.x, num_components, rng), num_components))
