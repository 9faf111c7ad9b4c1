"""What simulation-based calibration found: ranks, whether they are uniform, and a verdict in sentences."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from credo.diagnose.simulation.ranks import LOG_LIKELIHOOD
from credo.diagnose.simulation.uniformity import Manner, manner, p_values
from credo.diagnose.verdict import RULES, judge
from credo.model.structure import scalar_names
from credo.status import Verdict

NUM_SHOWN = 5
ABOUT = (
    "The posterior that was asked about is in question as much as the method: where it is an approximation and the "
    "method is exact, it is the one that is wrong, and the other way round (too narrow where draws are said to be too "
    "wide)."
)
CLEAR = 3.0  # standard errors of a moment of the ranks, above which it names what is wrong


@dataclass(frozen=True, repr=False)
class Calibration:
    """The ranks of true values among draws of the fits to their data: uniform for a right model and a right method.

    ``ranks``: name -> (simulation, *shape), in 0 … ``num_ranks`` − 1, one entry a fit that answered; the parameters
    and derived quantities, "log_likelihood" (log p(y | parameters) of all data) and the user's statistics.
    ``failures``: simulation -> why its fit gave no answer. ``statuses``: how many of the fits' own verdicts were
    "pass", "doubtful" and "failed". ``num_effective``: independent draws that each fit was worth, (simulation,),
    infinite where all are. ``is_complete``: False where a time limit ended it. ``seconds``: in all.
    ``is_about_posterior``: true values come from a posterior, and not from the prior.
    """

    ranks: Mapping[str, Int[np.ndarray, "simulation ..."]]
    num_ranks: int
    failures: Mapping[int, str]
    statuses: Mapping[str, int]
    num_effective: Float[np.ndarray, " simulation"]
    is_complete: bool
    seconds: float
    is_about_posterior: bool = False

    @property
    def num_simulations(self) -> int:
        """Fits that answered."""
        return len(self.num_effective)

    @cached_property
    def p_values(self) -> dict[str, np.ndarray]:
        """The p-value of uniform ranks of each scalar by itself, by name: arrays (*shape) (uniformity.py)."""
        return {name: p_values(ranks, self.num_ranks) for name, ranks in self.ranks.items()}

    @cached_property
    def manner(self) -> dict[str, Manner]:
        """``shift`` and ``spread`` of the ranks by name, in standard errors (uniformity.py)."""
        return {name: manner(ranks, self.num_ranks) for name, ranks in self.ranks.items()}

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the ranks are uniform, corrected for the number of quantities; which are not, and in what manner."""
        rows = self._rows()
        num_asked = self.num_simulations + len(self.failures)
        figures = {
            "sbc_p_value": min(1.0, len(rows) * min(p for _, p, *_ in rows)),
            "sbc_failure_share": len(self.failures) / num_asked,
            "sbc_excess_spread": self._excess_spread(),
            "num_simulations": self.num_simulations,
        }
        worst = sorted(rows, key=lambda row: row[1])
        off = [row for row in worst if row[1] * len(rows) < RULES["sbc_p_value"].passes]
        sentences = [_sentence(*row) for row in off[:NUM_SHOWN]]
        if len(off) > NUM_SHOWN:
            sentences.append(f"So are {len(off) - NUM_SHOWN} more of {len(rows)} quantities: see summary().")
        if off and self.is_about_posterior:
            sentences.append(ABOUT)
        if self.failures:
            first, why = next(iter(self.failures.items()))
            sentences.append(f"The first fit that gave no answer is that of simulation {first}: {why}")
        if not self.is_complete:
            sentences.append(f"The time limit came after {num_asked} simulations.")
        return judge(figures, sentences)

    def summary(self):
        """A DataFrame with a row a scalar, the least uniform first.

        ``p_value`` by itself, ``p_adjusted`` for the number of rows; ``mean_rank`` as a share, 0.5 where right;
        ``shift`` and ``spread`` in standard errors; ``finding`` in words.
        """
        import pandas as pd

        rows = sorted(self._rows(), key=lambda row: row[1])
        p = np.array([row[1] for row in rows])
        table = {
            "p_value": p,
            "p_adjusted": np.minimum(1.0, len(rows) * p),
            "mean_rank": [row[2] for row in rows],
            "shift": [row[3] for row in rows],
            "spread": [row[4] for row in rows],
        }
        is_off = table["p_adjusted"] < RULES["sbc_p_value"].passes
        finding = [_finding(*row[3:]) if off else "uniform" for off, row in zip(is_off, rows, strict=True)]
        return pd.DataFrame(table | {"finding": finding}, index=[row[0] for row in rows])

    def _excess_spread(self) -> float:
        """What dependence among the L ranked draws adds to the variance of ranks, relative to that of uniform ones.

        A rank's variance given p = F(truth) is p (1 − p) / L times L / ESS: on average (1/6) (L / ESS − 1) / L is
        added to 1/12. A fit whose ESS is not known adds infinitely much.
        """
        num_draws = self.num_ranks - 1
        num_effective = np.minimum(np.nan_to_num(self.num_effective, nan=0.0, posinf=np.inf), num_draws)
        with np.errstate(divide="ignore"):
            return float(np.mean(2 * (num_draws / num_effective - 1) / num_draws))

    def _rows(self) -> list[tuple[str, float, float, float, float]]:
        """(scalar, p-value, mean rank, shift, spread) of each."""
        rows = []
        for name, ranks in self.ranks.items():
            columns = self.p_values[name], ((ranks + 0.5) / self.num_ranks).mean(axis=0), *self.manner[name]
            values = zip(*(np.ravel(column).tolist() for column in columns), strict=True)
            rows += [(scalar, *row) for scalar, row in zip(scalar_names(name, ranks.shape[1:]), values, strict=True)]
        return rows

    def __repr__(self) -> str:
        return f"<Calibration: {self.num_simulations} simulations, {len(self._rows())} quantities, {self.verdict}>"


def _finding(shift: float, spread: float) -> str:
    found = []
    if abs(shift) >= CLEAR:
        found.append("too high" if shift < 0 else "too low")
    if abs(spread) >= CLEAR:
        found.append("too narrow" if spread > 0 else "too wide")
    return " and ".join(found) or "of another shape"


def _sentence(scalar: str, p: float, mean_rank: float, shift: float, spread: float) -> str:
    finding = _finding(shift, spread)
    if scalar == LOG_LIKELIHOOD and abs(shift) >= CLEAR:
        better, cause = (
            ("better", "the data count for too much (twice?), or the prior for too little")
            if shift < 0
            else ("worse", "the data count for too little (rows lost or out of order?), or the prior counts twice")
        )
        return f"Draws fit the data {better} than the true parameters do (p = {p:.1e}): {cause}."
    if finding == "of another shape":
        return f"The draws of {scalar} have another shape (p = {p:.1e}): see credo.plots.rank_ecdf()."
    where = f"true values have a mean rank of {mean_rank:.3f}, which is 0.5 where all is right"
    if abs(shift) < CLEAR:
        where = f"true values lie in {'the tails' if spread > 0 else 'the middle'} of them too often"
    return f"The draws of {scalar} are {finding} (p = {p:.1e}): {where}."
