"""The sections that are tables and sentences: comparison, parameters, verdicts, priors, settings."""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import numpy as np

from credo._version import __version__
from credo.diagnose.verdict import RULES
from credo.posterior.posterior import Posterior
from credo.reporting.console import COLUMNS, cell, evidence_cell, shown_columns
from credo.reporting.page.markup import Raw, Section, badge, details, join, paragraph, table, tag
from credo.reporting.page.story import Story

MAX_ROWS = 200  # of the table of parameters
SIGNS = {"at most": "≤", "at least": "≥", "above": ">"}


def comparison(compared) -> Section:
    """A column a method and a row a figure, as in the terminal: the verdict first."""
    rows = [row for _, row in compared.iterrows()]
    lines: list[list[object]] = [["verdict", *(badge(row["verdict"]) for row in rows)]]
    lines.append(["log evidence", *(evidence_cell(row) for row in rows)])
    for column in shown_columns(compared):
        heading, form = COLUMNS[column]
        lines.append([heading, *(cell(row[column], form) for row in rows)])
    note = "Higher log score is better; lower Brier, ECE and CRPS are. All scores are on held-out rows."
    reference = compared.attrs.get("reference")
    if reference:
        note += f" “Mean off” and “sd ratio” are of the worst parameter, against {reference}."
    made = table("Every figure side by side.", ["", *map(str, compared.index)], lines)
    return Section("comparison", "Comparison", join([made, paragraph(note, "soft")]))


def parameters(posterior: Posterior, name: str, story: Story) -> Section:
    """Every parameter under the answering method."""
    leaves = posterior.target.structure.leaves
    chosen, count = [], 0
    for leaf in leaves:
        count += int(np.prod(leaf.shape))
        if count > MAX_ROWS and chosen:
            break
        chosen.append(leaf.name)
    frame = posterior.summary(chosen).head(MAX_ROWS)
    heads = {"mean": "mean", "sd": "sd", "q5": "5 %", "q50": "median", "q95": "95 %", "r_hat": "R̂"}
    shown = [column for column in heads if column in frame.columns]
    rows = [
        [story.words(str(scalar)), *(_number(row[c], 3 if c != "r_hat" else 4) for c in shown)]
        for scalar, row in frame.iterrows()
    ]
    total = len(posterior.target.structure.scalar_names())
    caption = f"Posterior summary by {name}" + (f", the first {len(rows)} of {total}." if total > len(rows) else ".")
    made = table(caption, ["", *(heads[c] for c in shown)], rows)
    body = details(f"{total} parameters under {name}", made, is_open=total <= 12)
    return Section("parameters", "All parameters", body)


def verdicts(posteriors: Mapping[str, Posterior]) -> Section:
    """What each verdict rests on: figures, bounds, sentences."""
    parts = []
    for name, posterior in posteriors.items():
        verdict = posterior.verdict
        said = join(tag("li", sentence) for sentence in verdict.sentences)
        sentences = tag("ul", said, {"class": "plain"}) if verdict.sentences else paragraph("Every figure passes.")
        figures = details(f"The {len(verdict.figures)} figures behind it", _figures(name, verdict.figures))
        parts += [tag("h3", join([name, " ", badge(verdict.status)])), sentences, figures]
    intro = paragraph("The worst figure decides; a figure that could not be computed never passes.", "soft")
    return Section("verdicts", "Verdicts and what they rest on", join([intro, *parts]))


def _figures(name: str, figures: Mapping[str, float]) -> Raw:
    rows = []
    for figure, value in figures.items():
        rule = RULES[figure]
        judged = rule.direction != "information"
        bound = f"{SIGNS[rule.direction]} {rule.passes:g}" if judged else "information"
        mark = badge(rule.status(value)) if judged else "–"
        rows.append([figure, _number(value, 4), bound, mark, rule.meaning, rule.source if judged else ""])
    head = ["figure", "value", "passes", "", "meaning", "source"]
    return table(f"Figures of {name} and the bounds they are held to.", head, rows, "text")


def priors(sentences: Sequence[str]) -> Section | None:
    if not sentences:
        return None
    items = tag("ul", join(tag("li", sentence) for sentence in sentences), {"class": "plain"})
    return Section("priors", "What was believed before the data", items)


def settings(story: Story) -> Section:
    """What was chosen, by which versions, and how to get this again."""
    packages = {name: version(name) for name in ("jax", "numpyro", "numpy")}
    rows = {**story.settings, "credo": __version__, **packages, "python": platform.python_version()}
    made = table("Settings and versions.", [], list(rows.items()), "text")
    parts = [made]
    if story.reproduce:
        parts = [paragraph("To get this answer again:"), tag("pre", tag("code", story.reproduce)), made]
    return Section("settings", "Settings", join(parts))


def _number(value, digits: int) -> str:
    if not np.isfinite(value):
        return "–" if np.isnan(value) else ("∞" if value > 0 else "−∞")
    return f"{value:.{digits}g}".replace("-", "−")
