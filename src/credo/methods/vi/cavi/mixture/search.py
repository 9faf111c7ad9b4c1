"""Where a mixture begins: several starts with more components than asked for, merged, and the best of them.

Coordinate ascent never moves a component from one cluster to another: begun with K centres for K clusters it mostly
ends with two components in one cluster and two clusters in one component. From SURPLUS times as many centres every
cluster has one, and merging (merge.py) is a choice that can be made exactly. Where there are many rows this is done on
a random sample of them, each of which counts for several.
"""

from collections.abc import Callable, Iterator

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
ROUGH = 1e-5  # of |ELBO|: how far a start is climbed between merges
NEAR = 1e-6  # of |ELBO|: and after them, before the best is taken to all rows
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
    """The ascent from each start on the same rows, bounds as of all. CredoError where EM finds none that holds."""
    num_rows = min(len(rows), max(num_rows, ROWS_A_COMPONENT * num_components))
    chosen = rows.x if num_rows == len(rows) else rows.x[np.sort(rng.choice(len(rows), num_rows, replace=False))]
    weight = len(rows) / num_rows
    refusal, is_any = None, False
    with Rows(chosen, rows.features) as some:

        def climbed(statistics, relative_tolerance: float) -> Ascent:
            limits = {"tolerance": 0.0, "max_sweeps": max_sweeps, "deadline": deadline}
            return climb(factor, some, statistics, weight, relative_tolerance=relative_tolerance, **limits)

        for _ in range(num_starts):
            try:
                if isinstance(factor, NormalWishartFactor):
                    statistics = _merged(factor, some, weight, num_components, rng, climbed)
                else:
                    statistics = _divided(some, weight, num_components, rng)
                yield climbed(statistics, NEAR)
                is_any = True
            except CredoError as error:  # under EM a component has closed in on few rows from this start
                refusal = error
    if refusal is not None and not is_any:
        raise refusal


def _merged(factor: NormalWishartFactor, rows: Rows, weight: float, num_components: int, rng, climbed: Callable):
    statistics = _divided(rows, weight, SURPLUS * num_components, rng)
    for _ in range(MOST_ROUNDS):
        statistics = climbed(statistics, ROUGH).factors["responsibilities"].statistics
        r = respond(factor.coefficients(statistics)[0], rows.features.of(rows.x))[0]
        left, num_merges = merge(factor, r, statistics, num_components)
        is_settled = num_merges == 0 and len(left) == len(statistics)
        statistics = left
        if is_settled:
            break
    return statistics


def _divided(rows: Rows, weight: float, num_components: int, rng) -> Float[np.ndarray, "K P"]:
    return weight * rows.collect(one_hot(divide(rows.x, num_components, rng), num_components))
