"""What will be seen: bands of prediction along one input, and the boundary of a decision in the plane of two."""

from collections.abc import Callable, Sequence

import numpy as np

from credo.posterior.posterior import Posterior
from credo.predict import Predictive
from credo.reporting.plots.panels import COLORS, SOFT, grid
from credo.status import CredoError

RESOLUTION = 60
MARGIN = 0.15  # of the data's range, shown around it


def predictive_bands(predictive: Predictive, x, y=None, *, masses: Sequence[float] = (0.5, 0.9), data=None):
    """Central intervals of prediction along one input: a Figure.

    ``predictive``: made at the rows of ``x``, (M,) or (M, 1). ``y``: outcomes there, (M,). ``data``: (x, y) seen
    elsewhere. ``masses``: of the bands, which hold aleatoric and epistemic uncertainty together; the dashed lines
    are the mean ± 2 epistemic sds, which more data would bring together.
    Raises CredoError for more than one input or for outcomes without order.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["a"] * x, 0.5))
    >>> x, y = np.array([0.0, 1.0, 2.0]), np.array([0.1, 1.2, 1.8])
    >>> posterior = credo.fit(model.given(x, y), credo.Exact())
    >>> credo.plots.predictive_bands(posterior.predict(x), x, y).axes[0].get_legend() is not None
    True
    """
    x = _one_input(x)
    mean = np.asarray(predictive.mean)
    if mean.shape != x.shape:
        raise CredoError(
            f"The predictive has means of shape {mean.shape} and x has shape {x.shape}: give the one input at which "
            "the prediction was made, and an outcome of one column."
        )
    order = np.argsort(x, kind="stable")
    figure, (panel,) = grid(1, width=6.0, height=3.6)
    for mass in sorted(masses, reverse=True):
        low, high = (np.asarray(end)[order] for end in predictive.interval(mass))
        panel.fill_between(x[order], low, high, color=COLORS[0], alpha=0.22, linewidth=0, label=f"{mass:.0%}")
    panel.plot(x[order], mean[order], color=COLORS[0], linewidth=1.6, label="mean")
    spread = 2.0 * np.sqrt(np.asarray(predictive.epistemic))
    for sign, label in ((-1.0, "mean ± 2 epistemic sds"), (1.0, None)):
        edge = (mean + sign * spread)[order]
        panel.plot(x[order], edge, color=COLORS[0], linewidth=0.9, linestyle="--", label=label)
    for seen in ((x, y) if y is not None else None, data):
        if seen is not None:
            panel.plot(_one_input(seen[0]), np.asarray(seen[1]), "o", color=SOFT, markersize=3, zorder=0)
    panel.legend(frameon=False, fontsize=9)
    return figure


def _one_input(x) -> np.ndarray:
    x = np.asarray(x, np.float64)
    if x.ndim == 2 and x.shape[1] == 1:
        x = x[:, 0]
    if x.ndim != 1:
        raise CredoError(f"Bands are drawn along one input, of shape (M,) or (M, 1); x has shape {x.shape}.")
    return x


def decision_boundary(
    posterior: Posterior, x, y=None, *, threshold: float = 0.5, inputs: Callable[[np.ndarray], object] | None = None
):
    """The probability of class 1 over the plane of two inputs, and how uncertain it is: a Figure of two panels.

    ``x``: (N, 2), the points whose range is shown; ``y``: their classes 0 and 1. ``threshold``: the probability at
    which the decision changes, c₁₀ / (c₁₀ + c₀₁) for the costs of a false positive and a false negative.
    ``inputs``: from points (M, 2) to the model's x, where that has other columns (an intercept, standardised features).
    The right panel is the epistemic sd of the probability: what more data would remove.
    """
    x = np.asarray(x, np.float64)
    if x.ndim != 2 or x.shape[1] != 2:
        raise CredoError(f"A boundary is drawn in the plane of two inputs, x of shape (N, 2); x has shape {x.shape}.")
    if not 0.0 < threshold < 1.0:
        raise CredoError(f"threshold is a probability strictly between 0 and 1; got {threshold}.")
    head = posterior.target.head
    if head is None or head.name != "bernoulli":
        raise CredoError("A boundary needs a binary outcome: a likelihood that returns a Bernoulli distribution.")
    low, high = x.min(axis=0), x.max(axis=0)
    xs, ys = (
        np.linspace(a - MARGIN * (b - a), b + MARGIN * (b - a), RESOLUTION) for a, b in zip(low, high, strict=True)
    )
    across, up = np.meshgrid(xs, ys)
    points = np.column_stack([across.ravel(), up.ravel()])
    predictive = posterior.predict(points if inputs is None else inputs(points))
    figure, panels = grid(2, width=4.4, height=3.6)
    maps = (
        ("probability of class 1", np.asarray(predictive.mean), "RdBu_r", (0.0, 1.0)),
        ("epistemic sd of it", np.sqrt(np.asarray(predictive.epistemic)), "viridis", (0.0, None)),
    )
    for panel, (title, values, palette, (least, most)) in zip(panels, maps, strict=True):
        shown = panel.pcolormesh(
            xs,
            ys,
            values.reshape(across.shape),
            cmap=palette,
            vmin=least,
            vmax=most,
            shading="nearest",
            rasterized=True,
        )
        figure.colorbar(shown, ax=panel)
        probability = maps[0][1].reshape(across.shape)
        if probability.min() < threshold < probability.max():
            panel.contour(xs, ys, probability, levels=[threshold], colors="black", linewidths=1.4)
        if y is not None:
            for value, marker in ((0, "o"), (1, "^")):
                chosen = x[np.asarray(y) == value]
                panel.plot(chosen[:, 0], chosen[:, 1], marker, markersize=4, markeredgecolor="white", color="black")
        panel.set_title(title, fontsize=9)
    return figure
