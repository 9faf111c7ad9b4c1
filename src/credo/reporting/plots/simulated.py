"""Ranks of simulation-based calibration against those that are uniform."""

from collections.abc import Sequence

import numpy as np

from credo.diagnose.simulation.result import Calibration
from credo.diagnose.simulation.uniformity import band
from credo.model.structure import scalar_names
from credo.reporting.plots.panels import COLORS, SOFT, grid
from credo.status import CredoError

NUM_SCALARS = 8  # shown by default: the least uniform


def rank_ecdf(calibration: Calibration, scalars: Sequence[str] | None = None, *, probability: float = 0.95):
    """The distribution function of the ranks less that of uniform ones, one panel a scalar: a Figure.

    The band holds the whole line of a right method with ``probability``, in each panel (Säilynoja, Bürkner & Vehtari
    2022). Above it on the left and below on the right, true values lie in the tails: draws are too narrow; above it
    throughout, true values have low ranks: draws are too high. ``scalars``: by default the eight least uniform.

    >>> import numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> calibration = credo.diagnose.sbc(model, credo.Exact(), 50, size=10)
    >>> len(credo.plots.rank_ecdf(calibration).axes)
    2
    """
    if not isinstance(calibration, Calibration):
        raise CredoError(f"Give what credo.diagnose.sbc() returned; got {type(calibration).__name__}.")
    if not 0.0 < probability < 1.0:
        raise CredoError(f"probability lies strictly between 0 and 1; got {probability}.")
    columns = {
        scalar: column
        for name, ranks in calibration.ranks.items()
        for scalar, column in zip(scalar_names(name, ranks.shape[1:]), ranks.reshape(len(ranks), -1).T, strict=True)
    }
    table = calibration.summary()
    chosen = [scalars] if isinstance(scalars, str) else list(table.index[:NUM_SCALARS] if scalars is None else scalars)
    unknown = next((scalar for scalar in chosen if scalar not in columns), None)
    if unknown is not None or not chosen:
        raise CredoError(f"There is no scalar {unknown!r}; there are {', '.join(list(columns)[:12])}.")
    low, high = (ends / calibration.num_simulations for ends in band(*_sizes(calibration), probability))
    share = np.arange(calibration.num_ranks + 1) / calibration.num_ranks
    figure, panels = grid(len(chosen), columns=4)
    for panel, scalar in zip(panels, chosen, strict=True):
        below = np.cumsum(np.bincount(columns[scalar], minlength=calibration.num_ranks)) / calibration.num_simulations
        panel.fill_between(share, low - share, high - share, color=SOFT, alpha=0.25, linewidth=0, step=None)
        panel.axhline(0.0, color=SOFT, linewidth=0.8)
        panel.plot(share, np.concatenate([[0.0], below]) - share, color=COLORS[0], linewidth=1.2, label=scalar)
        panel.set_title(f"{scalar} (p = {table['p_value'][scalar]:.2g})", fontsize=9)
        panel.set_xlabel("rank / number of ranks", fontsize=8)
    return figure


def _sizes(calibration: Calibration) -> tuple[int, int]:
    return calibration.num_simulations, calibration.num_ranks
