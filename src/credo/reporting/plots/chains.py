"""How an answer was come by: the draws of each chain, their ranks, and the path of a variational fit."""

from collections.abc import Mapping, Sequence

import numpy as np

from credo.diagnose.convergence import r_hat
from credo.posterior.kinds import Draws
from credo.posterior.posterior import Posterior
from credo.reporting.plots.panels import (
    COLORS,
    SOFT,
    Labels,
    all_scalars,
    as_posteriors,
    chain_draws,
    colors,
    grid,
    scalars_of,
)
from credo.status import CredoError

NUM_SCALARS = 4  # shown by default: those on which the chains agree least
MAX_POINTS = 250  # of a trace: a screen shows no more
NUM_BINS = 20  # of ranks


def traces(posterior: Posterior, scalars: Sequence[str] | None = None, *, labels: Labels | None = None):
    """The draws of each chain in the order they were taken, one panel a scalar: a Figure.

    ``scalars``: by default the four with the largest R-hat. Raises CredoError for a posterior without chains.
    """
    return _each_scalar(draw_trace, posterior, scalars, labels)


def draw_trace(panel, draws: np.ndarray) -> None:
    """A line a chain, thinned evenly to ``MAX_POINTS``. ``draws``: (chain, draw)."""
    shown = np.unique(np.linspace(0, draws.shape[1] - 1, min(MAX_POINTS, draws.shape[1])).astype(int))
    for chain, values in enumerate(draws):
        panel.plot(shown, values[shown], color=COLORS[chain % len(COLORS)], linewidth=0.6, alpha=0.8)
    panel.set_xlabel("draw", fontsize=8)


def ranks(posterior: Posterior, scalars: Sequence[str] | None = None, *, labels: Labels | None = None):
    """The ranks of each chain's draws among all draws, one panel a scalar: a Figure.

    Chains that agree give level lines within the grey band, which holds 95 % of the counts of independent draws
    (Vehtari et al. 2021, section 3.3). ``scalars`` as for ``traces``.
    """
    return _each_scalar(draw_ranks, posterior, scalars, labels)


def draw_ranks(panel, draws: np.ndarray) -> None:
    """A stepped line a chain: its share of the draws in each bin of ranks. ``draws``: (chain, draw)."""
    counts, edges = rank_counts(draws)
    num_draws, expected = draws.shape[1], draws.shape[1] / counts.shape[1]
    half = 1.96 * count_sd(draws.shape[0], num_draws, counts.shape[1])
    panel.axhspan(expected - half, expected + half, color=SOFT, alpha=0.25, linewidth=0)
    for chain, count in enumerate(counts):
        panel.stairs(count, edges, baseline=None, color=COLORS[chain % len(COLORS)], linewidth=1.2)
    panel.set_ylim(0, max(2.0 * expected, 1.05 * counts.max()))
    panel.set_xlabel("rank among all draws", fontsize=8)


def count_sd(num_chains: int, num_draws: int, num_bins: int) -> float:
    """The sd of a chain's count in a bin under independent draws: hypergeometric, since each rank is dealt once."""
    share, total = 1.0 / num_bins, num_chains * num_draws
    return float(np.sqrt(num_draws * share * (1.0 - share) * (total - num_draws) / max(1, total - 1)))


def rank_counts(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(counts (chain, bin), edges (bin + 1,)) of the ranks 1 … chains × draws, ties at their mean."""
    from scipy.stats import rankdata

    ordered = rankdata(draws, axis=None).reshape(draws.shape)
    edges = np.linspace(0.5, draws.size + 0.5, min(NUM_BINS, draws.shape[1]) + 1)
    return np.stack([np.histogram(chain, edges)[0] for chain in ordered]), edges


def _each_scalar(draw, posterior: Posterior, scalars: Sequence[str] | None, labels: Labels | None):
    scalars = _scalars(posterior, scalars)
    draws = chain_draws(posterior, scalars)
    figure, panels = grid(len(scalars), width=4.0, columns=2)
    for panel, scalar in zip(panels, scalars, strict=True):
        draw(panel, draws[scalar])
        panel.set_title((labels or {}).get(scalar, scalar), fontsize=9)
    return figure


def elbo_path(posteriors):
    """The evidence lower bound along each variational fit, in nats below its end: a Figure.

    ``posteriors``: a dict of name -> posterior, of which those with a path are drawn, or one posterior.
    Raises CredoError where none has a path.
    """
    posteriors = as_posteriors(posteriors)
    if not any("elbo_path" in posterior.info for posterior in posteriors.values()):
        raise CredoError("None of these posteriors comes of a variational fit, so there is no path: fit ADVI().")
    figure, (panel,) = grid(1, width=5.2, height=2.9)
    draw_paths(panel, posteriors)
    panel.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def draw_paths(panel, posteriors: Mapping[str, Posterior]) -> None:
    """The estimates along each fit, thin, and their running mean, thick."""
    paths = {name: p.info["elbo_path"] for name, p in posteriors.items() if "elbo_path" in p.info}
    palette = colors(posteriors)
    for name, (steps, estimates) in paths.items():
        color = palette[name]
        panel.plot(steps, estimates, color=color, linewidth=0.7, alpha=0.45)
        panel.plot(*smoothed(steps, estimates), color=color, linewidth=1.6, label=name)
    finite = np.concatenate([estimates[np.isfinite(estimates)] for _, estimates in paths.values()])
    if finite.size:
        low, high = np.quantile(finite, [0.02, 1.0])  # the first steps would flatten all others
        panel.set_ylim(low - 0.1 * (high - low + 1e-9), high + 0.1 * (high - low + 1e-9))
    panel.set_xlabel("step", fontsize=9)
    panel.set_ylabel("ELBO estimate, nats", fontsize=9)


def smoothed(steps: np.ndarray, estimates: np.ndarray, width: int = 25) -> tuple[np.ndarray, np.ndarray]:
    """The running mean over ``width`` points that are finite."""
    known = np.isfinite(estimates)
    steps, estimates = steps[known], estimates[known]
    width = max(1, min(width, len(estimates) // 4))
    kernel = np.full(width, 1.0 / width)
    return np.convolve(steps, kernel, "valid"), np.convolve(estimates, kernel, "valid")


def least_agreed(posterior: Posterior, number: int = NUM_SCALARS) -> list[str]:
    """The scalars with the largest R-hat, of those that move."""
    names = all_scalars(posterior)
    draws = chain_draws(posterior, names)
    names = [name for name in names if np.ptp(draws[name]) > 0]
    if not names:
        return []
    figures = r_hat(np.stack([draws[name] for name in names], axis=-1))
    order = np.argsort(-np.nan_to_num(figures, nan=np.inf), kind="stable")[:number]
    return [names[i] for i in order]


def has_chains(posterior: Posterior) -> bool:
    return isinstance(posterior.kind, Draws) and posterior.kind.log_weights is None and posterior.draws != {}


def _scalars(posterior: Posterior, scalars: Sequence[str] | None) -> list[str]:
    if not isinstance(posterior, Posterior):
        raise CredoError(f"Give one posterior; got {type(posterior).__name__}.")
    if not has_chains(posterior):
        raise CredoError(
            f"A {type(posterior.kind).__name__} posterior has no chains to draw: give one by NUTS() or another "
            "sampler of chains."
        )
    chosen = least_agreed(posterior) if scalars is None else scalars_of(as_posteriors(posterior), scalars)
    if not chosen:
        raise CredoError("No scalar of this posterior moves, or none is finite: there is nothing to draw.")
    return chosen
