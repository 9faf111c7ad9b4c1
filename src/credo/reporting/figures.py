"""Pictures of posteriors, as matplotlib figures."""

from collections.abc import Mapping, Sequence

import numpy as np

from credo.model.structure import scalar_names
from credo.posterior.kinds import Point
from credo.posterior.posterior import Posterior

COLORS = ("#3b6fb6", "#d1662c", "#3a923a", "#8c5fb0", "#8a6d3b", "#c44e8a", "#5a5a5a", "#12a3a3")
NUM_DRAWS = 4_000


def marginals(posteriors: Mapping[str, Posterior], scalars: Sequence[str], labels: Mapping[str, str] | None = None):
    """A figure with one panel a scalar (``theta[0]``): the marginal densities of all posteriors over each other.

    A point posterior is drawn as a vertical line. ``labels``: what to call a scalar.
    """
    from matplotlib.figure import Figure

    labels = labels or {}
    columns = min(4, len(scalars))
    rows = -(-len(scalars) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.1 * rows + 0.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for panel in panels[len(scalars) :]:
        panel.set_visible(False)
    for color, (name, posterior) in zip(_cycle(len(posteriors)), posteriors.items(), strict=True):
        values = scalar_draws(posterior, scalars)
        for panel, scalar in zip(panels, scalars, strict=False):
            if isinstance(posterior.kind, Point):
                panel.axvline(values[scalar][0], color=color, label=name, linestyle=":")
            else:
                panel.plot(*density(values[scalar]), color=color, label=name, linewidth=1.4)
    for panel, scalar in zip(panels, scalars, strict=False):
        panel.set_title(labels.get(scalar, scalar), fontsize=9)
        panel.set_yticks([])
        panel.tick_params(labelsize=8)
        panel.spines[["left", "right", "top"]].set_visible(False)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=len(names), frameon=False, fontsize=9)
    return figure


def scalar_draws(posterior: Posterior, scalars: Sequence[str]) -> dict[str, np.ndarray]:
    """Draws of the named scalars: arrays (NUM_DRAWS,)."""
    sampled = posterior.sample(0, NUM_DRAWS)
    leaves = posterior.target.model.prior.leaves(sampled)
    return {
        scalar: column
        for name, values in leaves.items()
        for scalar, column in zip(scalar_names(name, values.shape[1:]), values.reshape(len(values), -1).T, strict=True)
        if scalar in set(scalars)
    }


def density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel density estimate between the 0.1 % quantiles."""
    from scipy.stats import gaussian_kde

    low, high = np.quantile(values, [0.001, 0.999])
    grid = np.linspace(low, high, 160)
    if high == low:
        return np.array([low, low]), np.array([0.0, 1.0])
    return grid, gaussian_kde(values)(grid)


def reliability(probs: Mapping[str, np.ndarray], y: np.ndarray):
    """A reliability curve a method: observed frequency against predicted probability in equal-mass bins."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    panel = figure.subplots()
    panel.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1)
    for color, (name, p) in zip(_cycle(len(probs)), probs.items(), strict=True):
        bins = np.array_split(np.argsort(p, kind="stable"), min(10, len(p)))
        panel.plot(
            [p[b].mean() for b in bins], [y[b].mean() for b in bins], "o-", color=color, label=name, markersize=3
        )
    panel.set_xlabel("predicted probability")
    panel.set_ylabel("observed frequency")
    panel.spines[["right", "top"]].set_visible(False)
    panel.legend(frameon=False, fontsize=9)
    return figure


def to_svg(figure) -> str:
    """The figure as an SVG element to put inside a page."""
    import io

    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "credo"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    page = buffer.getvalue()
    start, end = page.find("<metadata>"), page.find("</metadata>")  # names of vocabularies, which read as links
    return page[page.index("<svg") : start] + page[end + len("</metadata>") :]


def _cycle(n: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(n)]
