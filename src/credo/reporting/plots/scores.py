"""Is what was predicted what came? Calibration on held-out rows, the value of decisions, and predictive checks."""

import contextlib
from collections.abc import Mapping

import numpy as np

from credo.decisions.losses import CostMatrix
from credo.diagnose.novelty import is_of_classes
from credo.diagnose.reliability import equal_bins
from credo.posterior.check import Check
from credo.predict import Predictive
from credo.predict.undefined import UndefinedPredictionError
from credo.reporting.plots.panels import COLORS, SOFT, as_posteriors, colors, grid
from credo.reporting.scores import pair
from credo.status import CredoError

NUM_BINS = 10
NUM_DRAWS = 1_000  # of each outcome: shares are then known to 1.6 %
MAX_NUMBERS = 10_000_000  # drawn at once: 80 MB; with many rows fewer draws of each do
KOLMOGOROV = 1.358  # the 95 % point of √n sup|F_n − F|


def calibration(posteriors, held_out):
    """Whether predicted probabilities come true on rows that no fit has seen: a Figure with a line a method.

    ``held_out``: (x, y). For classes: the observed frequency against the predicted probability, in ten bins of equal
    size (of the likeliest class, where there are more than two). For numbers and counts: the share of outcomes below
    the predicted quantile of each level. On the diagonal a method is calibrated; within the grey band, chance alone
    explains the difference in 95 of 100 cases (for classes in each bin, for numbers along the whole line). What the
    likelihood masks is left out.
    """
    posteriors = as_posteriors(posteriors)
    x, y = pair(held_out)
    predictives = {name: p.predict(x) for name, p in posteriors.items()}
    curves, num_rows = calibration_curves(predictives, y)
    figure, (panel,) = grid(1, width=4.2, height=3.8)
    draw_calibration(panel, curves, is_of_classes(next(iter(predictives.values()))), num_rows, colors(posteriors))
    panel.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


Curve = tuple[np.ndarray, np.ndarray]  # predicted, observed


def calibration_curves(predictives: Mapping[str, Predictive], y) -> tuple[dict[str, Curve], int]:
    """((predicted, observed) a method, but for those that predict no numbers; how many of the outcomes are data)."""
    y, counts = next(iter(predictives.values()))._held_out(y)
    if np.ndim(y) != 1:
        raise CredoError(f"Calibration is of one outcome a row, y of shape (M,); y has shape {np.shape(y)}.")
    curves = {}
    for name, predictive in predictives.items():
        with contextlib.suppress(UndefinedPredictionError):
            curves[name] = _curve(predictive, y, counts)
    return curves, int(counts.sum())


def _curve(predictive: Predictive, y: np.ndarray, counts: np.ndarray) -> Curve:
    if not is_of_classes(predictive):
        return quantile_curve(pit(predictive, y)[counts])
    probs, happened = np.asarray(predictive.probs), y[counts]
    probs = np.broadcast_to(probs, (len(y), *probs.shape[1:]))[counts]
    if probs.ndim == 1:
        return reliability_curve(probs, happened)
    return reliability_curve(probs.max(axis=1), probs.argmax(axis=1) == happened)


def reliability_curve(p: np.ndarray, happened: np.ndarray) -> Curve:
    """Mean prediction and observed frequency in bins of equal size."""
    order, starts = equal_bins(np.asarray(p), NUM_BINS)
    bins = np.split(order, starts[1:])
    return np.array([p[b].mean() for b in bins]), np.array([np.mean(happened[b]) for b in bins])


def pit(predictive: Predictive, y: np.ndarray) -> np.ndarray:
    """F(y) of each row by draws; for counts a uniform value between F(y − 1) and F(y) (Czado, Gneiting & Held 2009)."""
    draws = np.asarray(predictive.sample(0, int(np.clip(MAX_NUMBERS // len(y), 100, NUM_DRAWS))))
    below, at = (draws < y).mean(axis=0), (draws == y).mean(axis=0)
    return below + np.random.default_rng(0).uniform(size=len(y)) * at


def quantile_curve(values: np.ndarray) -> Curve:
    """Levels from 0 to 1, and the share of outcomes below the predicted quantile of each."""
    levels = np.linspace(0.0, 1.0, 101)
    return levels, np.searchsorted(np.sort(values), levels, side="right") / len(values)


def draw_calibration(
    panel, curves: Mapping[str, Curve], is_of_classes: bool, num_rows: int, palette: Mapping[str, str]
) -> None:
    """The diagonal, the band of chance about it and a line a method in the colour of ``palette``."""
    line = np.linspace(0.0, 1.0, 101)
    if is_of_classes:
        half = 1.96 * np.sqrt(line * (1.0 - line) / max(1.0, num_rows / NUM_BINS))
    else:
        half = np.full_like(line, KOLMOGOROV / np.sqrt(num_rows))
    panel.fill_between(
        line, np.clip(line - half, 0, 1), np.clip(line + half, 0, 1), color=SOFT, alpha=0.25, linewidth=0
    )
    panel.plot(line, line, color=SOFT, linewidth=1.0)
    style = {"marker": "o", "markersize": 3} if is_of_classes else {}
    for name, curve in curves.items():
        panel.plot(*curve, color=palette[name], linewidth=1.3, label=name, **style)
    panel.set_xlim(-0.02, 1.02)
    panel.set_ylim(-0.02, 1.02)
    panel.set_xlabel("predicted probability" if is_of_classes else "level of the predicted quantile", fontsize=9)
    panel.set_ylabel("observed frequency" if is_of_classes else "share of outcomes below it", fontsize=9)


def decision_curve(predictive: Predictive, y, costs=None):
    """The net benefit of acting where the probability of class 1 is high (Vickers & Elkin 2006): a Figure.

        net benefit(t) = TP/n − FP/n · t / (1 − t)      acting where p ≥ t

    against acting always and never. ``y``: the classes 0 and 1 that came, (M,). ``costs``: a ``CostMatrix``, or its
    entries ``costs[action][class]`` with actions 0 (leave) and 1 (act); its threshold t* is drawn as a vertical line.
    What the likelihood masks is left out.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.BernoulliLogits(params["w"] * x))
    >>> x, y = np.array([-1.0, 0.5, 1.0, 2.0]), np.array([0, 0, 1, 1])
    >>> predictive = credo.fit(model.given(x, y), credo.Laplace()).predict(x)
    >>> figure = credo.plots.decision_curve(predictive, y, [[0.0, 5.0], [1.0, 0.0]])
    >>> figure.axes[0].get_legend().get_texts()[-1].get_text()
    'these costs: t* = 0.17'
    """
    if not isinstance(predictive, Predictive):
        raise CredoError(f"decision_curve takes a predictive, posterior.predict(x), not a {type(predictive).__name__}.")
    p = np.asarray(predictive.probs)
    if p.ndim != 1 or p.shape != np.shape(y):
        raise CredoError(
            f"A decision curve is of a binary outcome: probabilities have shape {p.shape}, y has {np.shape(y)} and "
            "must hold 0 and 1."
        )
    y, counts = predictive._held_out(y)
    p, y = p[counts], y[counts]
    threshold = None if costs is None else cost_threshold(costs)
    levels = np.linspace(0.01, 0.99, 99)
    figure, (panel,) = grid(1, width=5.2, height=3.4)
    panel.axhline(0.0, color=SOFT, linewidth=1.0, label="act never")
    panel.plot(levels, net_benefit(np.ones_like(p), y, levels), color=SOFT, linestyle="--", label="act always")
    benefit = net_benefit(p, y, levels)
    panel.plot(levels, benefit, color=COLORS[0], linewidth=1.6, label="act by the prediction")
    if threshold is not None:
        panel.axvline(threshold, color=COLORS[1], linewidth=1.0, label=f"these costs: t* = {threshold:.2g}")
    panel.set_ylim(-0.3 * max(y.mean(), 0.05), 1.1 * max(y.mean(), benefit.max(), 0.05))
    panel.set_xlabel("threshold t", fontsize=9)
    panel.set_ylabel("net benefit, true positives a row", fontsize=9)
    panel.legend(frameon=False, fontsize=9)
    return figure


def net_benefit(p: np.ndarray, y: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Net benefit of acting where p ≥ t, at each threshold t of ``levels``."""
    acted = p[None] >= levels[:, None]
    return (acted & (y == 1)).mean(axis=1) - (acted & (y == 0)).mean(axis=1) * levels / (1.0 - levels)


def cost_threshold(costs) -> float:
    """The probability of class 1 from which acting is cheaper: (c₁₀ − c₀₀) / (c₁₀ − c₀₀ + c₀₁ − c₁₁)."""
    costs = np.asarray(costs.costs if isinstance(costs, CostMatrix) else costs, np.float64)
    if costs.shape != (2, 2) or not np.isfinite(costs).all():
        raise CredoError(f"costs is a matrix (2, 2) of finite numbers, [action, class]; got shape {costs.shape}.")
    harm, gain = costs[1, 0] - costs[0, 0], costs[0, 1] - costs[1, 1]
    if harm <= 0 or gain <= 0:
        raise CredoError(
            f"Under these costs one action is never the dearer one (a false positive costs {harm:g} more, a false "
            f"negative {gain:g} more): there is nothing to decide."
        )
    return float(harm / (harm + gain))


def predictive_check(check: Check):
    """A posterior predictive check: the statistic of replicated data as bars, that of the data as a line: a Figure.

    ``check``: from ``posterior.check(statistic)``.
    """
    if not isinstance(check, Check):
        raise CredoError(f"Give what posterior.check(statistic) returned; got {type(check).__name__}.")
    figure, (panel,) = grid(1, width=4.2, height=2.9)
    panel.hist(check.replicated, bins=30, density=True, color=COLORS[0], alpha=0.5, label="replicated")
    panel.axvline(check.observed, color=COLORS[1], linewidth=1.8, label=f"observed, p = {check.p_value:.2g}")
    panel.legend(frameon=False, fontsize=9)
    panel.set_yticks([])
    return figure
