"""Approximations of one posterior over each other, in the plane of any two parameters."""

import numpy as np

from credo.methods.optimise.diagnosis import coordinate_names
from credo.posterior.kinds import Draws, Gaussian, Point
from credo.posterior.marginals import report_positions
from credo.posterior.posterior import Posterior
from credo.precision import double, to_numpy
from credo.reporting.plots.joint import MASSES, regions
from credo.reporting.plots.panels import Labels, as_posteriors, by_scalar, colors, grid, scalar_draws, scalars_of
from credo.status import CredoError

NUM_POINTS = 1_000  # of draws that are shown one by one
NUM_DRAWS = 4_000  # for a density that has no formula
NUM_ANGLES = 181


def approximations(posteriors, x: str, y: str, *, labels: Labels | None = None):
    """Several approximations of one posterior in the plane of the scalars ``x`` and ``y`` (``theta[0]``): a Figure.

    ``posteriors``: a dict of name -> posterior. Draws are points; densities are lines that enclose 50 % and 90 % of
    their mass: exact ellipses for a Gaussian, bent as its parameters are where they are constrained, else regions of
    highest density by draws (Hyndman 1996). A point posterior is a cross. ``labels``: what to call a scalar.
    Raises CredoError for a scalar that the posteriors lack, or one named twice.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"a": dist.Normal(0.0, 1.0), "s": dist.Gamma(2.0, 1.0)},
    ...                     lambda params, x: dist.Normal(params["a"], params["s"]))
    >>> target = model.given(y=np.array([0.3, 1.1, 0.2]))
    >>> figure = credo.plots.approximations({"laplace": credo.fit(target, credo.Laplace())}, x="a", y="s")
    >>> figure.axes[0].get_ylabel()
    's'
    """
    posteriors = as_posteriors(posteriors)
    if x == y:
        raise CredoError(f"x and y are both {x!r}: name two scalars, or use marginals() for one.")
    scalars_of(posteriors, [x, y])
    figure, (panel,) = grid(1, width=4.6, height=3.8)
    drawn = sorted(colors(posteriors).items(), key=lambda pair: not isinstance(posteriors[pair[0]].kind, Draws))
    for name, color in drawn:  # points lie below lines
        _draw(panel, posteriors[name], x, y, color)
    for name, color in colors(posteriors).items():
        marker = {"marker": "o", "linestyle": "none", "markersize": 3} if _has_points(posteriors[name]) else {}
        panel.plot([], [], color=color, label=name, **marker)
    panel.set_xlabel((labels or {}).get(x, x), fontsize=9)
    panel.set_ylabel((labels or {}).get(y, y), fontsize=9)
    panel.legend(frameon=False, fontsize=9)
    return figure


def _has_points(posterior: Posterior) -> bool:
    return isinstance(posterior.kind, Draws | Point)


def _draw(panel, posterior: Posterior, x: str, y: str, color: str) -> None:
    curves = ellipses(posterior, x, y)
    if curves is not None:
        for (across, up), width in zip(curves, (0.9, 1.4), strict=True):
            panel.plot(across, up, color=color, linewidth=width)
        return
    draws = scalar_draws(posterior, [x, y], NUM_POINTS if _has_points(posterior) else NUM_DRAWS)
    values = np.stack([draws[x], draws[y]])
    values = values[:, np.isfinite(values).all(axis=0)]
    if isinstance(posterior.kind, Point):
        panel.plot(*values[:, :1], "+", color=color, markersize=9)
    elif isinstance(posterior.kind, Draws):
        panel.plot(*values, ".", color=color, markersize=2.5, alpha=0.35, markeredgewidth=0, zorder=1)
    elif values.shape[1] and np.all(np.ptp(values, axis=1) > 0):
        xs, ys, heights, levels = regions(*values)
        panel.contour(xs, ys, heights, levels=levels, colors=color, linewidths=(0.9, 1.4))


def ellipses(posterior: Posterior, x: str, y: str) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Lines (across, up) round 90 % and 50 % of the mass of a Gaussian, in the user's space.

    None where it is no Gaussian, or a scalar is no function of one coordinate alone.
    """
    names = coordinate_names(posterior.target)
    if not isinstance(posterior.kind, Gaussian) or not {x, y} <= set(names):
        return None
    own = [names.index(x), names.index(y)]
    angles = np.linspace(0.0, 2 * np.pi, NUM_ANGLES)
    with double():
        mean = np.asarray(posterior.kind.mean)
        unit = np.zeros((mean.size, 2))
        unit[own, [0, 1]] = 1.0
        rows = [np.asarray(posterior.kind.scale.transpose_matvec(column)) for column in unit.T]
        root = np.linalg.cholesky(np.array([[a @ b for a in rows] for b in rows]))
        circle = root @ np.stack([np.cos(angles), np.sin(angles)])
        curves = []
        for mass in MASSES:
            positions = np.tile(mean, (NUM_ANGLES, 1))
            positions[:, own] += np.sqrt(-2 * np.log(1 - mass)) * circle.T
            found = by_scalar(to_numpy(report_positions(posterior.target, positions)), [x, y], 1)
            curves.append((found[x], found[y]))
    return curves
