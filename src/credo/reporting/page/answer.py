"""The first screen: which method can be trusted, and what it says."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from credo.posterior.kinds import Point
from credo.posterior.posterior import Posterior
from credo.reporting.console import evidence_cell
from credo.reporting.page.markup import Raw, badge, join, paragraph, table, tag, words
from credo.reporting.page.story import NUM_EFFECTS, Effect, Story, effects_of
from credo.reporting.plots.panels import colors

MAX_NAMED = 3  # effects in the sentence
MAX_RATIO = 40.0  # of the longest to the shortest interval that still share an axis


def first_screen(posteriors: Mapping[str, Posterior], answering: str | None, comparison, story: Story) -> Raw:
    """The answer in a sentence, the leading effects, and every method with its badge."""
    effects = effects_of(posteriors[answering], story) if answering is not None else []
    left = _effects(effects[:NUM_EFFECTS], len(effects), answering, story) if effects else _nothing(posteriors)
    return join(
        [
            paragraph(_headline(posteriors, answering), "headline"),
            paragraph(_say(posteriors, answering, comparison, effects, story), "say"),
            tag("div", join([left, _methods(posteriors, answering, comparison)]), {"class": "first"}),
        ]
    )


def _headline(posteriors: Mapping[str, Posterior], answering: str | None) -> Raw:
    if answering is None:
        return Raw("No method here can be trusted.")
    name, status = tag("b", answering), posteriors[answering].verdict.status
    if isinstance(posteriors[answering].kind, Point):
        return join([name, " gives one best value, and no uncertainty to trust or to doubt: add laplace or nuts."])
    if status == "pass":
        return join(["Trust ", name, "."])
    return join(["No method passes. ", name, " is the nearest: good for a first look, not for a decision."])


def _say(posteriors, answering: str | None, comparison, effects: Sequence[Effect], story: Story) -> str:
    if answering is None:
        return "Every method failed one of its checks; the verdicts on the right say why, and what to try next."
    sentences = [effects_in_words(effects, story)] if effects else []
    passing = [
        name
        for name, posterior in posteriors.items()
        if name != answering and posterior.verdict.status == "pass" and not isinstance(posterior.kind, Point)
    ]
    if passing and posteriors[answering].verdict.status == "pass":
        sentences.append(f"{words(passing)} {'agrees' if len(passing) == 1 else 'agree'} well enough to pass too.")
    if posteriors[answering].verdict.status != "pass":
        remedy = cause_and_remedy(posteriors[answering].verdict.sentences)[1]
        sentences += [f"To trust it: {remedy[0].lower()}{remedy[1:]}"] if remedy else []
    evidence = evidence_cell(comparison.loc[answering])
    if evidence != "–":
        sentences.append(f"Log evidence {evidence}.")
    return " ".join(sentences)


def effects_in_words(effects: Sequence[Effect], story: Story) -> str:
    """``malignant rises most surely with worst texture, …; the sign of 21 of 30 effects is open.``"""
    rising = [story.words(e.scalar) for e in effects if e.is_clear and e.mean > 0][:MAX_NAMED]
    falling = [story.words(e.scalar) for e in effects if e.is_clear and e.mean < 0][:MAX_NAMED]
    open_signs = sum(not e.is_clear for e in effects)
    if story.effects is None:
        parts = [f"{story.words(e.scalar)} is {e.mean:.3g} (90 % in {e.low:.3g} to {e.high:.3g})" for e in effects[:2]]
        return f"It says: {'; '.join(parts)}."
    total = "the one effect" if len(effects) == 1 else f"all {len(effects)} effects"
    if not rising and not falling:
        return f"It says: the sign of {total} is open at 90 %; the data do not settle any of them."
    parts = _of_outcome(story.outcome, rising, falling) if story.outcome else _of_signs(rising, falling)
    tail = f"; the sign of {open_signs} of {len(effects)} effects is open" if open_signs else ""
    return f"It says: {(' and ' if story.outcome else '; ').join(parts)}{tail}."


def _of_outcome(outcome: str, rising: Sequence[str], falling: Sequence[str]) -> list[str]:
    parts = [f"{outcome} rises most surely with {words(rising)}"] if rising else []
    lead = "falls" if rising else f"{outcome} falls most surely"
    return parts + ([f"{lead} with {words(falling)}"] if falling else [])


def _of_signs(rising: Sequence[str], falling: Sequence[str]) -> list[str]:
    parts = [f"surely positive: {words(rising)}"] if rising else []
    return parts + ([f"surely negative: {words(falling)}"] if falling else [])


def _effects(effects: Sequence[Effect], total: int, answering: str | None, story: Story) -> Raw:
    shown = "The effects" if total <= len(effects) else f"The {len(effects)} clearest of {total} effects"
    heading = shown if story.effects is not None else "The leading parameters"
    caption = f"Means and 90 % intervals by {answering}. {story.effects_note}".strip()
    low, high = min(0.0, *(e.low for e in effects)), max(0.0, *(e.high for e in effects))
    widths = [e.high - e.low for e in effects if e.high > e.low]
    has_axis = bool(widths) and high - low < MAX_RATIO * min(widths)
    rows = [
        [
            story.words(e.scalar),
            *([_range(e, low, high, is_clear=e.is_clear and story.effects is not None)] if has_axis else []),
            _signed(e.mean),
            f"{_signed(e.low)} to {_signed(e.high)}",
        ]
        for e in effects
    ]
    made = table(caption, [], rows, "effects")
    if has_axis:
        made = Raw(made.replace('<td><div class="range', '<td class="bar"><div class="range'))
    return tag("div", join([tag("h2", heading), made]))


def _range(effect: Effect, low: float, high: float, *, is_clear: bool) -> Raw:
    def at(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.1f}%"

    width = f"{100 * (effect.high - effect.low) / (high - low):.1f}%"
    marks = [
        tag("i", "", {"class": "zero", "style": f"left:{at(0.0)}"}),
        tag("i", "", {"class": "span", "style": f"left:{at(effect.low)};width:{width}"}),
        tag("i", "", {"class": "dot", "style": f"left:{at(effect.mean)}"}),
    ]
    kind = "range clear" if is_clear else "range"
    return tag("div", join(marks), {"class": kind, "aria-hidden": "true"})


def _signed(value: float) -> str:
    """``+1.23``, with a true minus."""
    size = abs(value)
    digits = f"{size:.2f}" if 0.01 <= size < 100 or size == 0 else f"{size:.3g}"
    return ("−" if value < 0 else "+") + digits


def _nothing(posteriors: Mapping[str, Posterior]) -> Raw:
    """In place of effects: what to do next."""
    said = dict.fromkeys(s for p in posteriors.values() for s in p.verdict.sentences)
    items = join(tag("li", sentence) for sentence in list(said)[:5])
    return tag("div", join([tag("h2", "What to try next"), tag("ul", items, {"class": "plain"})]))


def _methods(posteriors: Mapping[str, Posterior], answering: str | None, comparison) -> Raw:
    items = []
    for name, color in colors(posteriors).items():
        key = tag("span", "", {"class": "key", "style": f"background:{color}", "aria-hidden": "true"})
        lead = tag("div", join([tag("b", join([key, name])), badge(posteriors[name].verdict.status)]))
        items.append(tag("li", join([lead, paragraph(_reason(name, posteriors[name], answering, comparison))])))
    return tag("div", join([tag("h2", "The methods"), tag("ul", join(items), {"class": "methods"})]))


def cause_and_remedy(sentences: Sequence[str]) -> tuple[str, str]:
    """Of the first, and worst, sentence of a verdict: what was found, and what to do; "" where it does not say."""
    if not sentences:
        return "", ""
    found, *rest = re.split(r"(?<=[a-z)\d]):\s|(?<=[a-z)])\.\s", sentences[0])
    return found.rstrip(".") + ".", rest[-1].rstrip(".") + "." if rest else ""


def _reason(name: str, posterior: Posterior, answering: str | None, comparison) -> str:
    """Why this verdict, in one line: what failed, or how far from the answering method; and what it cost."""
    row = comparison.loc[name]
    sentences = posterior.verdict.sentences
    if posterior.verdict.status != "pass" and sentences:
        reason = cause_and_remedy(sentences)[0]
    elif isinstance(posterior.kind, Point):
        reason = "One best value: it says nothing of uncertainty."
    elif name == answering:
        reason = "Every check is within its bound."
    else:
        reason = "Every check is within its bound"
        if "mean_distance" in row and np.isfinite(row["mean_distance"]):
            reason += f"; worst mean {row['mean_distance']:.2f} sd from {comparison.attrs.get('reference')}"
        reason += "."
    seconds = row["compile_s"] + row["run_s"]
    return reason + (f" {seconds:.1f} s." if np.isfinite(seconds) else "")
