"""Where a mixture begins: several starts with more components than asked for, merged, and the best of them.

Coordinate ascent never moves a component from one cluster to another: begun with K centres for K clusters it mostly
ends with two components in one cluster and two clusters in one component. From SURPLUS times as many centres every
cluster has one, and merging (merge.py) is a choice that can be made exactly. EM is shown the way by a Normal-Wishart
prior under which no component empties itself, since likelihood alone asks for none to be merged. Where there are many
rows this is done on a random sample of them, each of which counts for several.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from credo.methods.vi.cavi.mixture.factors import Factor, NormalWishartFactor
from credo.methods.vi.cavi.mixture.merge import EMPTY, merge
from credo.methods.vi.cavi.mixture.priors import NormalWishart, Units
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
    limits = {"max_sweeps": max_sweeps, "deadline": deadline}
    refusal, is_any = None, False
    with Rows(chosen, rows.features) as some:
        search = _Search(some, weight, num_components, rng, limits)
        for _ in range(num_starts):
            try:
                if isinstance(factor, NormalWishartFactor):
                    statistics = search.merged(factor, is_exact=False)
                else:
                    statistics = search.for_em()
                yield search.climbed(factor, statistics, NEAR)
                is_any = True
            except CredoError as error:  # under EM a component has closed in on few rows from this start
                refusal = error
    if refusal is not None and not is_any:
        raise refusal


class _Search(NamedTuple):
    """Rows, each of which counts ``weight`` times, and what every start from them shares."""

    rows: Rows
    weight: float
    num_components: int
    rng: np.random.Generator
    limits: dict[str, Any]

    def climbed(self, factor: Factor, statistics, relative_tolerance: float) -> Ascent:
        limits = {"tolerance": 0.0, "relative_tolerance": relative_tolerance, **self.limits}
        return climb(factor, self.rows, statistics, self.weight, **limits)

    def divided(self, num_components: int) -> Float[np.ndarray, "K P"]:
        labels = divide(self.rows.x, num_components, self.rng)
        return self.weight * self.rows.collect(one_hot(labels, num_components))

    def merged(self, factor: NormalWishartFactor, *, is_exact: bool) -> Float[np.ndarray, "K P"]:
        statistics = self.divided(SURPLUS * self.num_components)
        for _ in range(MOST_ROUNDS):
            statistics = self.climbed(factor, statistics, ROUGH).factors["responsibilities"].statistics
            r = respond(factor.coefficients(statistics)[0], self.rows.features.of(self.rows.x))[0]
            left, num_merges = merge(factor, r, statistics, self.num_components, is_exact=is_exact)
            is_settled = num_merges == 0 and len(left) == len(statistics)
            statistics = left
            if is_settled:
                break
        return statistics

    def for_em(self) -> Float[np.ndarray, "K P"]:
        """Merged under a prior, where that is possible and leaves K components; else divided."""
        features, plain = self.rows.features, Units(*np.array([[0.0], [1.0]]).repeat(self.rows.x.shape[1], axis=1))
        try:
            guide = NormalWishart(concentration=1.0).factor(features, self.num_components, self.rows.x, plain)
            statistics = self.merged(guide, is_exact=True)
        except CredoError:  # columns that repeat one another, say, which EM may yet take with a ridge
            return self.divided(self.num_components)
        is_full = len(statistics) == self.num_components and np.all(statistics[:, 0] > max(EMPTY, features.block_size))
        return statistics if is_full else self.divided(self.num_components)
