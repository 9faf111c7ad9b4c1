"""The command as a person runs it: what it prints, what it leaves, how it refuses."""

import json
import sys

import numpy as np
import pytest

import credo
from credo import cli


def run(monkeypatch, tmp_path, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["credo", *arguments])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cli, "_use_compilation_cache", lambda: None)  # it would change JAX's settings for other tests
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 2))
    y = np.round(1.0 + 2.0 * x[:, 0] + rng.normal(size=120), 4)
    path = tmp_path / "a table.csv"
    rows = [f"{a},{b},{'red' if a > b else 'blue'},{c}" for (a, b), c in zip(x, y, strict=True)]
    path.write_text("\n".join(["first,second,colour,yield", *rows]))
    return path


def test_compares_a_table(table, tmp_path, monkeypatch, capsys):
    out = tmp_path / "an answer"
    code = run(
        monkeypatch,
        tmp_path,
        "compare",
        str(table),
        "--target",
        "yield",
        "--methods",
        "laplace,nuts",
        "--out",
        str(out),
    )
    assert code == 0
    printed = capsys.readouterr().out
    assert "gaussian regression on 3 features" in printed
    assert "nuts" in printed
    assert "verdict" in printed
    assert {p.name for p in out.iterdir()} == {
        "report.html", "comparison.csv", "verdicts.json", "table.credo", "laplace.credo", "nuts.credo"
    }  # fmt: skip
    page = (out / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page
    assert page.count("<svg") >= 1
    verdicts = json.loads((out / "verdicts.json").read_text())
    assert verdicts["nuts"]["status"] == "pass"
    loaded = credo.load(out / "nuts.credo")
    laplace = credo.load(out / "laplace.credo")
    np.testing.assert_allclose(loaded.mean()["coefficients"], laplace.mean()["coefficients"], atol=0.05)


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("a,b\n1,2\n3,nan\n", ["--target", "b"], "missing values"),
        ("a,b\n1,2\n3,inf\n", ["--target", "a"], "infinite"),
        ("a,b\n1,2\n3\n4,5,6,7\n", ["--target", "b"], "cannot be read as CSV"),
        ("", ["--target", "b"], "cannot be read as CSV"),
        ("a,b\n", ["--target", "b"], "no rows"),
        ("a,b\n1,2\n2,2\n", ["--target", "c"], "no column 'c'"),
        ("a,b\n1,2\n2,2\n", [], "--target"),
        ("a,b\n1,x\n2,x\n3,x\n", ["--target", "b", "--family", "bernoulli"], "one class only ('x')"),
        ("a,b\n1,-1\n2,2\n3,2\n", ["--target", "b", "--family", "poisson"], "no count"),
        ("a,b\n1,u\n2,v\n3,w\n", ["--target", "b", "--family", "gaussian"], "text where numbers belong"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--methods", "guess"], "'guess' is no method"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--family", "cauchy"], "'cauchy' is unknown"),
        ("b\n1\n2\n3\n", ["--target", "b"], "no column besides 'b'"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--seed", "-1"], "seed=-1 is negative"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--held-out", "0.99"], "leaves none to fit"),
    ],
)
def test_refuses_with_one_sentence(text, arguments, sentence, tmp_path, monkeypatch, capsys):
    path = tmp_path / "t.csv"
    path.write_text(text)
    out = tmp_path / "out"
    assert run(monkeypatch, tmp_path, "compare", str(path), *arguments, "--out", str(out)) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "Traceback" not in printed.err
    assert printed.err.count("\n") == 1
    assert not out.exists() or not list(out.iterdir())


def test_refuses_an_unwritable_folder_before_computing(table, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "out"
    assert run(monkeypatch, tmp_path, "compare", str(table), "--target", "yield", "--out", str(out)) == 2
    printed = capsys.readouterr()
    assert "cannot be written" in printed.err
    assert "laplace" not in printed.out


def test_keeps_what_the_other_methods_found(table, tmp_path, monkeypatch, capsys):
    """A gaussian regression with unknown noise has no closed form: that is said, and the rest goes on."""
    out = tmp_path / "out"
    arguments = ["compare", str(table), "--target", "yield", "--methods", "laplace,exact", "--out", str(out)]
    assert run(monkeypatch, tmp_path, *arguments) == 0
    assert "left out: No closed form is known" in capsys.readouterr().out
    assert (out / "laplace.credo").exists()
    assert not (out / "exact.credo").exists()
