"""The sections that are pictures: marginals, chains, calibration and paths."""

from collections.abc import Mapping, Sequence

import numpy as np

from credo.diagnose.novelty import is_of_classes
from credo.posterior.kinds import Point
from credo.posterior.posterior import Posterior
from credo.predict import Predictive
from credo.reporting.page.markup import Raw, Section, join, paragraph, tag
from credo.reporting.page.story import Story
from credo.reporting.plots import chains, scores
from credo.reporting.plots.panels import colors, scalar_draws, single
from credo.reporting.plots.parameters import draw_marginal

MAX_MARGINALS = 12
SMALL = {"width": 3.0, "height": 1.5, "has_scale": False}  # inches, of a marginal


def _picture(draw, alt: str, caption: str = "", *, width: float = 5.4, height: float = 2.0, has_scale=True) -> Raw:
    """One panel as a figure of the page. ``draw(panel)`` fills it."""
    from credo.reporting.plots.picture import to_svg

    figure, panel = single(width=width, height=height, has_scale=has_scale)
    draw(panel)
    svg = Raw(to_svg(figure, alt))
    return tag("figure", join([tag("figcaption", caption) if caption else "", svg]))


def legend(shown, all_names) -> Raw:
    """One legend for the pictures below it: of the methods that they show, in the colour that each has everywhere."""
    palette = colors(all_names)
    items = (
        tag("li", join([tag("span", "", {"class": "key", "style": f"background:{palette[name]}"}), name]))
        for name in shown
    )
    return tag("ul", join(items), {"class": "legend"})


def marginals(posteriors: Mapping[str, Posterior], shown: Sequence[str], story: Story) -> Section:
    """The densities of all methods over each other."""
    shown = list(shown)[:MAX_MARGINALS]
    draws = {name: scalar_draws(posterior, shown) for name, posterior in posteriors.items()}
    pictures = []
    for scalar in shown:
        here = {name: values[scalar] for name, values in draws.items()}
        facts = "; ".join(f"{name} {v.mean():.3g} ± {v.std():.2g}" for name, v in here.items())
        alt = f"Density of {story.words(scalar)}: {facts}."
        pictures.append(
            _picture(lambda panel, here=here: draw_marginal(panel, here), alt, story.words(scalar), **SMALL)
        )
    total = len(next(iter(posteriors.values())).target.structure.scalar_names())
    which = "All parameters." if total <= len(shown) else f"The {len(shown)} leading ones of {total} parameters."
    points = [name for name, posterior in posteriors.items() if isinstance(posterior.kind, Point)]
    note = " A dotted line is a point estimate." if points else ""
    intro = paragraph(f"{which} Where the curves lie on each other, the methods agree.{note}", "soft")
    body = join([intro, legend(posteriors, posteriors), tag("div", join(pictures), {"class": "panels"})])
    return Section("marginals", "Marginals of all methods", body)


def traces(posteriors: Mapping[str, Posterior], story: Story) -> Section | None:
    """Draws in order and their ranks, of each sampler."""
    samplers = {name: posterior for name, posterior in posteriors.items() if chains.has_chains(posterior)}
    parts = []
    for name, posterior in samplers.items():
        names = chains.least_agreed(posterior)
        if not names:
            continue
        draws = chains.chain_draws(posterior, names)
        pictures = []
        for scalar in names:
            here, label = draws[scalar], story.words(scalar)
            alt = f"{label} under {name}: {here.shape[0]} chains of {here.shape[1]} draws, in order."
            pictures.append(_picture(lambda panel, here=here: chains.draw_trace(panel, here), alt, label))
            alt = f"Ranks of {label} under {name}, by chain."
            pictures.append(_picture(lambda panel, here=here: chains.draw_ranks(panel, here), alt, f"{label}: ranks"))
        parts += [tag("h3", name), tag("div", join(pictures), {"class": "panels large"})]
    if not parts:
        return None
    intro = paragraph(
        "The parameters on which the chains agree least. Chains that agree look alike as traces, and their ranks are "
        "level within the grey band.",
        "soft",
    )
    return Section("chains", "Traces and ranks", join([intro, *parts]))


def calibration(posteriors: Mapping[str, Posterior], predictives: Mapping[str, Predictive], y) -> Section | None:
    """Reliability of classes, or quantiles of numbers, on held-out rows."""
    if np.ndim(y) != 1:
        return None
    curves, num_rows = scores.calibration_curves(predictives, y)
    if not curves:
        return None
    of_classes = is_of_classes(next(iter(predictives.values())))
    gaps = "; ".join(f"{name} at most {np.max(np.abs(a - b)):.2f} off" for name, (a, b) in curves.items())
    picture = _picture(
        lambda panel: scores.draw_calibration(panel, curves, of_classes, num_rows, colors(posteriors)),
        f"Calibration on {num_rows} held-out rows: {gaps}.",
        height=4.0,
    )
    what = (
        "how often it happened against how likely it was called"
        if of_classes
        else ("the share of outcomes below the predicted quantile of each level")
    )
    intro = paragraph(
        f"On {num_rows} held-out rows: {what}. On the diagonal a method means what it says; inside the grey band, the "
        "difference may be chance.",
        "soft",
    )
    body = join([intro, legend(curves, posteriors), tag("div", picture, {"class": "panels large"})])
    return Section("calibration", "Calibration", body)


def paths(posteriors: Mapping[str, Posterior]) -> Section | None:
    """The ELBO along each variational fit."""
    fits = {name: posterior for name, posterior in posteriors.items() if "elbo_path" in posterior.info}
    if not fits:
        return None
    ends = "; ".join(f"{name} ends at {p.verdict.figures.get('elbo', np.nan):.2f}" for name, p in fits.items())
    picture = _picture(
        lambda panel: chains.draw_paths(panel, posteriors), f"The ELBO along the fit: {ends}.", height=3.0
    )
    intro = paragraph(
        "Estimates of the evidence lower bound, step by step (thin) and averaged over 25 points (thick). A path that "
        "still rises at its end has stopped too early.",
        "soft",
    )
    return Section(
        "elbo",
        "The path of the ELBO",
        join([intro, legend(fits, posteriors), tag("div", picture, {"class": "panels large"})]),
    )
