"""The programs of README, docs and docstrings run as they stand there and print what is printed there."""

import contextlib
import doctest
import functools
import importlib
import io
import re
import types
from pathlib import Path

import pytest

import credo
from printed import difference

PROJECT = Path(__file__).parents[1]
SOURCE = Path(credo.__file__).parent
# A block marked `python` runs; one marked `text` right after it is what it prints. A signature or a sketch is `py`.
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\s*^```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL)


PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
PAGES_WITH_PROGRAMS = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]


OF_OTHERS = "credo.adapters.flax", "credo.adapters.torch"  # they need libraries that come with the oracles


def modules_with_examples() -> list:
    files = [file for file in sorted(SOURCE.rglob("*.py")) if ">>> " in file.read_text(encoding="utf-8")]
    names = [".".join(("credo", *file.relative_to(SOURCE).with_suffix("").parts)) for file in files]
    names = [name.removesuffix(".__init__") for name in names]
    return [pytest.param(name, marks=pytest.mark.oracle if name in OF_OTHERS else ()) for name in names]


@pytest.mark.parametrize("page", PAGES_WITH_PROGRAMS, ids=lambda page: page.stem)
def test_page_prints_what_it_says(page, tmp_path, monkeypatch):
    """Blocks of a page share their names, as a reader who types them one after another would have them."""
    monkeypatch.chdir(tmp_path)  # what a program writes is not left in the repository
    text, names = page.read_text(encoding="utf-8"), {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            exec(compile(block["code"], f"{page.name}, block at line {line}", "exec"), names)
        if block["output"] is not None:
            problem = difference(block["output"], stdout.getvalue())
            assert problem is None, f"{page.name}, line {line}: {problem}. All of it:\n{stdout.getvalue()}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"{page.name} links to what is not there: {missing}"


def test_api_page_holds_every_public_name():
    page = (PROJECT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE))
    modules = {name for name in credo.__all__ if isinstance(getattr(credo, name), types.ModuleType)}
    names = {f"credo.{name}" for name in set(credo.__all__) - modules - {"__version__"}}
    names |= {f"credo.{m}.{n}" for m in modules for n in getattr(getattr(credo, m), "__all__", ())}
    there = {name.removeprefix("credo.").rpartition(".")[2] for name in shown}
    assert not {name for name in names if name.rpartition(".")[2] not in there}
    for name in shown:  # the page names nothing that is not there
        functools.reduce(getattr, name.split(".")[1:], credo)


class Checker(doctest.OutputChecker):
    """Doctest's, but numbers agree as far as ``printed`` promises."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(want, got, optionflags) or difference(want, got) is None


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        with contextlib.redirect_stdout(io.StringIO()) as report:
            runner.run(example, out=report.write, clear_globs=True)
        assert runner.failures == 0, report.getvalue()


@pytest.mark.parametrize(
    ("page", "program", "agrees"),
    [
        ("mean 1.23", "mean   1.24", True),
        ("mean 1.23", "mean 1.43", False),
        ("mean -1.23", "mean 1.23", False),
        ("pass", "failed", False),
        ("400 draws", "800 draws", False),
        ("1e-8", "3e-8", True),
        ("one ... three", "one two three", True),
        ("one two", "one two three", False),
    ],
)
def test_difference_forgives_rounding_only(page, program, agrees):
    assert (difference(page, program) is None) is agrees
