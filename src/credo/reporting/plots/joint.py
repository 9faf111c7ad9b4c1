"""Two parameters at a time: the regions of highest density of each approximation."""

from collections.abc import Sequence

import numpy as np

from credo.reporting.plots.panels import Labels, as_posteriors, colors, grid, hide_heights, scalar_draws, scalars_of
from credo.reporting.plots.parameters import density
from credo.status import CredoError

MASSES = (0.9, 0.5)
MAX_SCALARS = 8
NUM_DRAWS = 2_000  # the density is worked out at each of them
RESOLUTION = 48


def pairs(posteriors, scalars: Sequence[str], *, labels: Labels | None = None):
    """The densities of two scalars at a time, all posteriors over each other: a Figure with K × K panels.

    Below the diagonal the lines enclose 50 % and 90 % of the mass (regions of highest density, Hyndman 1996); on it
    stand the marginals. ``scalars``: two to eight, such as ``["a", "theta[0]"]``. A point posterior is a cross.
    """
    posteriors = as_posteriors(posteriors)
    scalars = scalars_of(posteriors, scalars)
    if not 2 <= len(scalars) <= MAX_SCALARS:
        raise CredoError(f"pairs() shows 2 to {MAX_SCALARS} scalars; got {len(scalars)}: name the ones to see.")
    size = len(scalars)
    figure, panels = grid(size * size, width=2.2, height=2.0, columns=size)
    panels = np.reshape(np.asarray(panels, object), (size, size))
    for name, color in colors(posteriors).items():
        draws = scalar_draws(posteriors[name], scalars, NUM_DRAWS)
        for i, below in enumerate(scalars):
            for j, across in enumerate(scalars[: i + 1]):
                _draw(panels[i, j], draws[across], draws[below], color, name, is_diagonal=i == j)
    for i, below in enumerate(scalars):
        for j, across in enumerate(scalars):
            panels[i, j].set_visible(j <= i)
            if i == size - 1:
                panels[i, j].set_xlabel((labels or {}).get(across, across), fontsize=9)
        if i:
            panels[i, 0].set_ylabel((labels or {}).get(below, below), fontsize=9)
        hide_heights(panels[i, i])
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="upper right", frameon=False, fontsize=9)
    return figure


def _draw(panel, x: np.ndarray, y: np.ndarray, color: str, name: str, *, is_diagonal: bool) -> None:
    x, y = np.stack([x, y])[:, np.isfinite(x) & np.isfinite(y)]
    if not x.size:
        return
    is_point = np.ptp(x) == 0.0
    if is_diagonal and is_point:
        panel.axvline(x[0], color=color, linestyle=":", label=name)
    elif is_diagonal:
        panel.plot(*density(x), color=color, linewidth=1.4, label=name)
    elif is_point or np.ptp(y) == 0.0:
        panel.plot(x[0], y[0], "+", color=color)
    else:
        xs, ys, heights, levels = regions(x, y)
        panel.contour(xs, ys, heights, levels=levels, colors=color, linewidths=(0.9, 1.4))


def _range(values: np.ndarray) -> np.ndarray:
    low, high = np.quantile(values, [0.005, 0.995])
    return np.linspace(low - 0.3 * (high - low), high + 0.3 * (high - low), RESOLUTION)


def regions(x: np.ndarray, y: np.ndarray):
    """(xs, ys, heights (ys, xs), levels): above ``levels`` lie 90 % and 50 % of the draws."""
    from scipy.stats import gaussian_kde

    kernel = gaussian_kde(np.stack([x, y]))
    xs, ys = (_range(v) for v in (x, y))
    across, up = np.meshgrid(xs, ys)
    heights = kernel(np.stack([across.ravel(), up.ravel()])).reshape(across.shape)
    return xs, ys, heights, np.quantile(kernel(np.stack([x, y])), [1.0 - mass for mass in MASSES])
