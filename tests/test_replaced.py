"""What tests replace is still there: those that run seldom would else learn long after that a name has moved."""

import ast
import importlib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_every_name_of_credo_that_a_test_replaces_exists():
    found = [
        (f"{path.relative_to(TESTS)}, line {line}", owner, name)
        for path in sorted(TESTS.rglob("test_*.py"))
        for line, owner, name in replaced(path.read_text())
    ]
    missing = [f"{where}: {owner}.{name}" for where, owner, name in found if not hasattr(named(owner), name)]
    assert len(found) > 100
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    "text",
    [
        "from credo.diagnose import geometry\nmonkeypatch.setattr(geometry, 'NONE', 1)",
        "import credo.diagnose.geometry as page\nmonkeypatch.setattr(page, 'NONE', 1)",
        "monkeypatch.setattr('credo.diagnose.geometry.NONE', 1)",
    ],
)
def test_a_name_that_has_moved_is_seen(text):
    ((_, owner, name),) = replaced(text)
    assert (owner, name) == ("credo.diagnose.geometry", "NONE")
    assert not hasattr(named(owner), name)


def replaced(text: str) -> list[tuple[int, str, str]]:
    """Line, owner and name of each ``monkeypatch.setattr`` of something of credo's, by either way to write it."""
    tree = ast.parse(text)
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(str(path)), *_], keywords=[]):
                owner, _, name = path.rpartition(".")
            case ast.Call(
                func=ast.Attribute(attr="setattr"),
                args=[ast.Name(known), ast.Constant(str(name)), *_],
                keywords=[],  # not ``raising=False``
            ):
                owner = imported.get(known, "")
            case _:
                continue
        if owner.split(".")[0] == "credo":
            found.append((node.lineno, owner, name))
    return found


def named(owner: str):
    """A module, or a class within one."""
    try:
        return importlib.import_module(owner)
    except ModuleNotFoundError:
        module, _, name = owner.rpartition(".")
        return getattr(importlib.import_module(module), name)
