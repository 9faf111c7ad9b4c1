"""A formula's parts: outcome, fixed terms, group effects and offsets.

    y ~ x1 + C(g) + x1:x2 + (1 + x1 | county) + offset(log(e))

The fixed part is formulaic's. Group terms are read here, in the notation of lme4 (Bates et al., 2015): ``(1 | g)``,
``(x | g)`` with an intercept of its own, ``(0 + x | g)`` without, ``(x || g)`` without correlation, ``g1:g2`` for the
combinations of two columns, ``g1/g2`` for ``g1`` and ``g1:g2``.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from credo.status import CredoError

OPENING, CLOSING = "([{", ")]}"
OFFSET = re.compile(r"offset\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Group:
    """``inner``: the terms that vary, as in formulaic; ``by``: the columns whose combinations are the groups."""

    inner: str
    by: tuple[str, ...]
    is_correlated: bool = True

    @property
    def name(self) -> str:
        return ":".join(self.by)


@dataclass(frozen=True)
class Formula:
    """``outcome``: the text before the tilde, or None. ``fixed``: formulaic's part, with its intercept written out."""

    text: str
    outcome: str | None
    fixed: str
    groups: tuple[Group, ...] = ()
    offsets: tuple[str, ...] = ()

    def with_columns(self, names: Collection[str]) -> "Formula":
        """``.`` replaced by ``names``, those that group left aside."""
        grouping = {column for group in self.groups for column in group.by}
        every = " + ".join(_quoted(name) for name in names if name not in grouping) or "1"
        fixed = " ".join(f"{sign} {every if term == '.' else term}" for sign, term in split(self.fixed, "+-"))
        return Formula(self.text, self.outcome, fixed.removeprefix("+ "), self.groups, self.offsets)


def parse(text: str) -> Formula:
    """The parts of ``text``; CredoError where it is no formula."""
    if not isinstance(text, str):
        raise CredoError(f"A formula is a text such as 'y ~ x1 + (1 | county)'; got {text!r:.60}.")
    sides = [part.strip() for _, part in split(text, "~")]
    if len(sides) > 2:
        raise CredoError(f"The formula {text!r} has {len(sides) - 1} tildes: write outcome ~ terms, with one.")
    outcome, right = (sides[0] or None, sides[1]) if len(sides) == 2 else (None, sides[0])
    if not right:
        raise CredoError(f"The formula {text!r} has no terms: write outcome ~ terms, such as y ~ x1 + (1 | county).")
    fixed, groups, offsets = [], [], []
    for sign, term in split(right, "+-"):
        if _is_group(term):
            _check_sign(sign, term)
            groups += _groups(term)
        elif found := OFFSET.fullmatch(term):
            _check_sign(sign, term)
            offsets.append(found.group(1).strip())
        elif len(split(term, "|")) > 1 or "|" in _inside_parentheses(term):
            raise CredoError(f"The term {term!r} has a bar outside a group term: write it as (1 + x | group).")
        elif (sign, term) == ("-", "."):
            raise CredoError(f"The formula {text!r} takes all other columns away: name those that it should not have.")
        else:
            fixed.append(f"{sign} {term}")
    return Formula(text, _unquoted(outcome), " ".join(["1", *fixed]), tuple(groups), tuple(offsets))


def split(text: str, marks: str) -> list[tuple[str, str]]:
    """(mark before it, part) for the parts of ``text`` at the top level: outside of brackets, quotes and backticks.

    A sign that follows an operator belongs to the part. CredoError where brackets or quotes are left open.
    """
    parts, start, mark, depth, quote = [], 0, "+", 0, ""
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "`'\"":
            quote = letter
        elif letter in OPENING:
            depth += 1
        elif letter in CLOSING:
            depth -= 1
        elif letter in marks and depth == 0 and (part := text[start:i].strip() or (letter if letter == "~" else "")):
            parts.append((mark, "" if part == "~" else part))
            start, mark = i + 1, letter
        elif letter in marks and depth == 0 and letter in "+-":  # a leading sign
            start, mark = i + 1, letter
        if depth < 0:
            break
    if quote or depth:
        what = f"a {quote} that is not closed" if quote else "brackets that do not match"
        raise CredoError(f"The formula {text!r} has {what}: close what is open.")
    rest = text[start:].strip()
    if not rest and "+" in marks:
        raise CredoError(f"The formula ends in {text[-8:]!r}, where a term is missing: add it, or drop the sign.")
    return [*parts, (mark, rest)]


def _is_group(term: str) -> bool:
    return term.startswith("(") and term.endswith(")") and len(split(_inside_parentheses(term), "|")) > 1


def _inside_parentheses(term: str) -> str:
    return term[1:-1] if term.startswith("(") and term.endswith(")") and _closes_at_end(term) else ""


def _closes_at_end(term: str) -> bool:
    depth = 0
    for i, letter in enumerate(term):
        depth += (letter in OPENING) - (letter in CLOSING)
        if depth == 0:
            return i == len(term) - 1
    return False


def _check_sign(sign: str, term: str) -> None:
    if sign == "-":
        raise CredoError(f"The formula takes {term!r} away, which only a fixed term can be: drop it instead.")


def _groups(term: str) -> list[Group]:
    inside = _inside_parentheses(term)
    is_correlated = "||" not in inside
    parts = [part for _, part in split(inside.replace("||", "|"), "|")]
    if len(parts) != 2 or not all(parts):
        raise CredoError(f"The group term {term!r} is not of the form (1 + x | group): give terms, one bar, a group.")
    inner, by = parts
    nested = [name for _, name in split(by, "/")]
    names = tuple(tuple(_name(column, term) for _, column in split(level, ":")) for level in nested)
    levels = [tuple(column for level in names[: depth + 1] for column in level) for depth in range(len(names))]
    signed = " ".join(f"{sign} {each}" for sign, each in split(inner, "+-"))
    return [Group(f"1 {signed}", level, is_correlated) for level in levels]


def _name(text: str, term: str) -> str:
    name = _unquoted(text)
    if not name or (text[:1] != "`" and not re.fullmatch(r"[\w.]+", text)):
        raise CredoError(
            f"The group term {term!r} groups by {text!r}, which is no column's name: name columns, with `backticks` "
            "around a name that has spaces."
        )
    return name


def _unquoted(text: str | None) -> str | None:
    return text[1:-1] if text and len(text) > 2 and text[0] == text[-1] == "`" and "`" not in text[1:-1] else text


def _quoted(name: str) -> str:
    if "`" in name:
        raise CredoError(f"Column {name!r} has a backtick in its name, by which a formula quotes names: rename it.")
    return name if name.isidentifier() else f"`{name}`"
