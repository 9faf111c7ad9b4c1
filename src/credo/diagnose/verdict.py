"""Can the answer be trusted? The judge that reads figures against the table of ``rules``."""

import math
import re
from collections.abc import Iterable, Mapping

from credo.diagnose.rules import RULES as RULES  # other modules take the table from here
from credo.status import Verdict, VerdictStatus

ORDER: tuple[VerdictStatus, ...] = ("pass", "doubtful", "failed")


def judge(
    figures: Mapping[str, float | int | None], sentences: Iterable[str] = (), *, at_best: VerdictStatus = "pass"
) -> Verdict:
    """The verdict on ``figures``: that of the worst one, and never better than ``at_best``.

    A figure that is NaN or None could not be computed and is doubtful. ``sentences`` are the method's own and follow
    those of the table, which come worst first. KeyError for a figure that the table lacks: a fault of the program.
    """
    values = {name: math.nan if value is None else float(value) for name, value in figures.items()}
    found = []
    for name, value in values.items():
        if name not in RULES:
            raise KeyError(
                f"The figure {name!r} is not in the table of verdicts: add a rule to a page of credo.diagnose.rules "
                f"and a row to docs/verdict.md. The table has {', '.join(RULES)}."
            )
        found.append((RULES[name].status(value), _sentence(name, value)))
    worst = max((at_best, *(status for status, _ in found)), key=ORDER.index)
    said = [sentence for status in ("failed", "doubtful") for s, sentence in found if s == status]
    return Verdict(worst, values, (*said, *sentences))


def all_pass(figures: Mapping[str, float]) -> bool:
    """Whether each of ``figures`` passes by itself."""
    return all(RULES[name].status(value) == "pass" for name, value in figures.items())


def as_table() -> str:
    """The rules as the Markdown table of ``docs/verdict.md``."""
    rows = ["| figure | meaning | pass | doubtful | source | sentence |", "|---|---|---|---|---|---|"]
    for name, rule in RULES.items():
        sign = {"at most": "≤", "at least": "≥", "above": ">", "information": ""}[rule.direction]
        doubtful = "–" if rule.doubtful == rule.passes else f"{sign} {rule.doubtful:g}"
        bounds = ("–", "–") if not sign else (f"{sign} {rule.passes:g}", re.sub(".* -?inf", "any", doubtful))
        source = rule.source if sign else "information only"
        shown = re.sub(r"\{value[^}]*\}", "*x*", rule.sentence) or "–"
        rows.append(f"| `{name}` | {rule.meaning} | {bounds[0]} | {bounds[1]} | {source} | {shown} |")
    return "\n".join(rows)


def _sentence(name: str, value: float) -> str:
    rule = RULES[name]
    if not rule.is_known(value):
        meaning = re.split(r";| \(", rule.meaning)[0]
        return f"The figure {name} ({meaning}) could not be computed, so it does not pass: {rule.unknown}."
    sentence = rule.sentence
    for _ in range(3):  # digits more, where a value beyond the bound reads like the bound
        if sentence.format(value=value) != sentence.format(value=rule.passes):
            break
        sentence = re.sub(r"(?<=\{value:\.)\d", lambda digits: str(int(digits.group()) + 1), sentence)
    return sentence.format(value=value)
