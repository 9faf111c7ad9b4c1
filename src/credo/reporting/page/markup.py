"""The few shapes of HTML that the report is made of. Text is escaped here and nowhere else."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MARKS = {"pass": "✓", "doubtful": "?", "failed": "✕"}


class Raw(str):
    """Text that is HTML already."""


def text(value: object) -> str:
    """Escaped, unless it is HTML already."""
    return value if isinstance(value, Raw) else html.escape(str(value))


def tag(name: str, content: object = "", attributes: Mapping[str, str] | None = None) -> Raw:
    """``<name …>content</name>``."""
    shown = "".join(f' {key}="{html.escape(value, quote=True)}"' for key, value in (attributes or {}).items())
    return Raw(f"<{name}{shown}>{text(content)}</{name}>")


def join(parts: Iterable[object]) -> Raw:
    return Raw("".join(map(text, parts)))


def badge(status: str) -> Raw:
    """A verdict, told by word, mark and colour: no one of them alone."""
    mark = tag("span", MARKS[status], {"aria-hidden": "true"})
    return tag("span", join([mark, " ", status]), {"class": f"badge {status}"})


class Section(NamedTuple):
    """A part of the page with a heading of its own. ``name``: its address, without #."""

    name: str
    heading: str
    body: Raw

    def as_html(self) -> Raw:
        heading = tag("h2", self.heading, {"id": f"{self.name}-heading"})
        return tag("section", join([heading, self.body]), {"id": self.name, "aria-labelledby": f"{self.name}-heading"})


def table(caption: str, head: Sequence[object], rows: Iterable[Sequence[object]], kind: str = "") -> Raw:
    """A table that scrolls by itself where the screen is narrow. The first cell of a row is its heading."""
    top = tag("tr", join(tag("th", cell, {"scope": "col"}) for cell in head)) if head else Raw("")
    body = join(
        tag("tr", join([tag("th", row[0], {"scope": "row"}), *(tag("td", cell) for cell in row[1:])])) for row in rows
    )
    whole = tag(
        "table", join([tag("caption", caption), tag("thead", top) if head else "", tag("tbody", body)]), {"class": kind}
    )
    return tag("div", whole, {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": caption})


def paragraph(content: object, kind: str = "") -> Raw:
    return tag("p", content, {"class": kind} if kind else None)


def details(summary: object, body: object, *, is_open: bool = False) -> Raw:
    return tag("details", join([tag("summary", summary), body]), {"open": ""} if is_open else None)


def words(items: Sequence[str]) -> str:
    """``a, b and c``."""
    return ", ".join(items[:-1]) + (" and " if len(items) > 1 else "") + items[-1] if items else ""
