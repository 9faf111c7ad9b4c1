"""The comparison in a terminal: no cell is ever cut."""

import re

import pandas as pd
from rich.console import Console

from approximations import approximations
from credo.reporting import console
from credo.reporting.comparison import tabulate


def test_ten_methods_stand_in_blocks(monkeypatch, capsys):
    posterior = approximations()["advi"]
    many = {f"method number {i}": posterior for i in range(10)}
    monkeypatch.setenv("COLUMNS", "80")
    console.show_comparison(tabulate(many, {}, None), many)
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert printed.count("≥ -130.00 ± 0.03") == 10
    rows = [line for line in printed.splitlines() if "≥" in line]
    assert len(rows) > 1
    assert max(map(len, rows)) <= 80
    names = re.findall(r"method number \d", "\n".join(line for line in printed.splitlines() if ":" not in line))
    assert names == list(many)


def test_one_block_where_there_is_room():
    rows = {name: ["pass", "–"] for name in "abc"}
    assert console.blocks(rows, ["", "verdict"], 80) == [["a", "b", "c"]]
    assert console.blocks(rows, ["", "verdict"], 20) == [["a", "b"], ["c"]]
    assert console.blocks(rows, ["", "verdict"], 5) == [["a"], ["b"], ["c"]]


def test_brackets_are_text(capsys):
    Console().print(console.escape("NUTS(…), summary(names=['x']) [bold]"))
    assert capsys.readouterr().out == "NUTS(…), summary(names=['x']) [bold]\n"


def test_figures_that_do_not_apply_are_dashes():
    row = pd.Series({"log_evidence": float("nan"), "log_evidence_error": float("nan"), "log_evidence_kind": ""})
    assert console.evidence_cell(row) == "–"


def test_figures_of_any_size_leave_room():
    assert console.cell(-66295782191168994120547491402270.0, ".3f") == "-6.63e+31"
    assert console.cell(-1234.5678, ".3f") == "-1234.568"
