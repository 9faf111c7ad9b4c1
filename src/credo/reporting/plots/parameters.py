"""What is believed about the parameters: marginals of several approximations, and prior against posterior."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from credo.compiling import sound
from credo.posterior.kinds import Point
from credo.posterior.marginals import report_positions
from credo.posterior.posterior import Posterior
from credo.precision import double, to_numpy
from credo.reporting.plots.panels import (
    COLORS,
    NUM_DRAWS,
    SOFT,
    Labels,
    as_posteriors,
    by_scalar,
    colors,
    grid,
    hide_heights,
    legend,
    scalar_draws,
    scalars_of,
)
from credo.status import CredoError

NUM_POINTS = 120
MAX_RANGE = 10.0  # sds of a normal with the same quartiles, shown on each side of the median


def marginals(posteriors, scalars: Sequence[str] | None = None, *, labels: Labels | None = None):
    """The marginal densities of all posteriors over each other, one panel a scalar (``theta[0]``): a Figure.

    ``posteriors``: a dict of name -> posterior, or one posterior. ``scalars``: by default the 24 that lie farthest
    from zero in their own sds. ``labels``: what to call a scalar. A point posterior is a vertical line.
    Raises CredoError for a scalar that the posteriors lack.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"mu": dist.Normal(0.0, 5.0)}, lambda params, x: dist.Normal(params["mu"], 1.0))
    >>> posterior = credo.fit(model.given(y=np.array([0.3, 1.1, 0.7])), credo.Laplace())
    >>> len(credo.plots.marginals({"laplace": posterior}, ["mu"]).axes)
    1
    """
    posteriors = as_posteriors(posteriors)
    scalars = scalars_of(posteriors, scalars)
    figure, panels = grid(len(scalars))
    draws = {name: scalar_draws(posterior, scalars) for name, posterior in posteriors.items()}
    for panel, scalar in zip(panels, scalars, strict=True):
        draw_marginal(panel, {name: values[scalar] for name, values in draws.items()})
        panel.set_title((labels or {}).get(scalar, scalar), fontsize=9)
    legend(figure, panels[0])
    return figure


def draw_marginal(panel, draws: Mapping[str, np.ndarray]) -> None:
    """A density a method; a vertical line where all draws are one point, nothing where none is finite."""
    for name, color in colors(draws).items():
        values = draws[name][np.isfinite(draws[name])]
        if not values.size:
            panel.plot([], [], color=color, label=name)
        elif np.ptp(values) == 0.0:
            panel.axvline(values[0], color=color, label=name, linestyle=":")
        else:
            panel.plot(*density(values), color=color, label=name, linewidth=1.4)
    hide_heights(panel)


def density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel density estimate between the 0.1 % quantiles: points and heights.

    Its width is Silverman's (1986, eq. 3.31 with 1.06), from the quartiles where tails are heavy; so is its range.
    """
    from scipy.stats import gaussian_kde

    low, lower, middle, upper, high = np.quantile(values, [0.001, 0.25, 0.5, 0.75, 0.999])
    sd = np.std(values)
    spread = min(sd, (upper - lower) / 1.349) or sd
    low, high = max(low, middle - MAX_RANGE * spread), min(high, middle + MAX_RANGE * spread)
    points = np.linspace(low, high, NUM_POINTS)
    return points, gaussian_kde(values, 1.06 * spread / sd * len(values) ** -0.2)(points)


def prior_posterior(posterior: Posterior, scalars: Sequence[str] | None = None, *, labels: Labels | None = None):
    """What the data taught: the prior's density (grey) and the posterior's, one panel a scalar: a Figure.

    Each panel says how far the sd shrank. Raises CredoError where the prior cannot be sampled (improper, or a
    posterior read from a file without its model).
    """
    scalars = scalars_of(as_posteriors(posterior), scalars)
    before, after = prior_draws(posterior, scalars), scalar_draws(posterior, scalars)
    figure, panels = grid(len(scalars))
    for panel, scalar in zip(panels, scalars, strict=True):
        points, heights = density(before[scalar])
        panel.fill_between(points, heights, color=SOFT, alpha=0.35, linewidth=0)
        panel.plot(points, heights, color=SOFT, linewidth=1.0, label="prior")
        if isinstance(posterior.kind, Point):
            panel.axvline(after[scalar][0], color=COLORS[0], linestyle=":", label="posterior")
        else:
            panel.plot(*density(after[scalar]), color=COLORS[0], linewidth=1.4, label="posterior")
        ratio = np.std(after[scalar]) / np.std(before[scalar])
        panel.set_title(f"{(labels or {}).get(scalar, scalar)} (sd × {ratio:.2g})", fontsize=9)
        hide_heights(panel)
    legend(figure, panels[0])
    return figure


def prior_draws(posterior: Posterior, scalars: Sequence[str], num_draws: int = NUM_DRAWS) -> dict[str, np.ndarray]:
    """Draws of the named scalars from the prior: arrays (num_draws,)."""
    target = posterior.target
    improper = target.prior.improper_names()
    if improper:
        raise CredoError(
            f"The prior of {improper[0]!r} is improper or not known (a posterior from a file has none unless its "
            "model is given to load), so it cannot be drawn: give a proper prior."
        )
    with double():
        positions = _sample_prior(target, jax.random.split(jax.random.key(0), num_draws))
        draws = to_numpy(report_positions(target, positions))
    return by_scalar(draws, scalars, 1)


@sound
def _sample_prior(target, keys):
    return jax.vmap(target.sample_prior)(keys)
