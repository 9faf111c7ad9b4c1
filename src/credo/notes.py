"""What a part of a fit found out, for the ``info`` of its posterior, without a word of all that lies between."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_notes: ContextVar[dict[str, Any] | None] = ContextVar("notes", default=None)


@contextmanager
def notes() -> Iterator[dict[str, Any]]:
    """A dict of what is noted until the block ends. A block within has a dict of its own."""
    found: dict[str, Any] = {}
    token = _notes.set(found)
    try:
        yield found
    finally:
        _notes.reset(token)


def note(name: str, value: Any) -> None:
    """The last word on ``name``; nobody's outside of a fit."""
    found = _notes.get()
    if found is not None:
        found[name] = value
