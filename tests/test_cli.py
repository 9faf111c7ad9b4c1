"""The command as a person runs it: what it prints, what it leaves, how it refuses."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

import credo
from credo import cli
from credo.reporting import main_job
from credo.reporting.recipe import load_prepared


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


def test_predicts_new_rows_by_the_trusted_method(table, tmp_path, monkeypatch, capsys):
    """What the file says equals what the posterior says, for a folder and for one posterior in it."""
    out, new, predictions = tmp_path / "an answer", tmp_path / "new rows.csv", tmp_path / "pre dicted.csv"
    arguments = ["--target", "yield", "--methods", "map,laplace", "--out", str(out)]
    assert run(monkeypatch, tmp_path, "compare", str(table), *arguments) == 0
    new.write_text("id,colour,second,first\n7,red,0.5,1.5\n8,blue,1.0,-1.0\n")
    assert run(monkeypatch, tmp_path, "predict", str(out), str(new), "--out", str(predictions)) == 0
    assert "2 rows by laplace" in capsys.readouterr().out
    found = pd.read_csv(predictions)
    assert found["id"].tolist() == [7, 8]
    prepared = load_prepared(out / "table.credo")
    predictive = credo.load(out / "laplace.credo", prepared.model).predict(prepared.inputs(pd.read_csv(new)))
    np.testing.assert_allclose(found["predicted yield"], predictive.mean, rtol=1e-12)
    np.testing.assert_allclose(found["95 %"], predictive.interval(0.9)[1], rtol=1e-12)
    np.testing.assert_allclose(found["predicted yield"], 1.0 + 2.0 * np.array([1.5, -1.0]), atol=0.5)
    point = ["predict", str(out / "map.credo"), str(new), "--out", str(predictions)]
    assert run(monkeypatch, tmp_path, *point) == 0
    np.testing.assert_allclose(pd.read_csv(predictions)["epistemic sd"], 0.0, atol=1e-9)

    twice = tmp_path / "twice.csv"
    pd.read_csv(new).assign(sd=7.0).to_csv(twice, index=False)
    assert run(monkeypatch, tmp_path, "predict", str(out), str(twice), "--out", str(predictions)) == 0
    again = pd.read_csv(predictions)
    assert again["sd (given)"].tolist() == [7.0] * len(again)
    np.testing.assert_allclose(again["sd"], np.sqrt(predictive.variance), rtol=1e-12)
    assert "written as sd (given)" in " ".join(capsys.readouterr().out.split())

    good = predictions.read_bytes()
    for text, sentence in (
        ("first,second\n1,2\n", "no column 'colour'"),
        ("first,colour\n1,red\n", "no column 'second': the table has first, colour."),
        ("first,second,colour\n1,2,red\n1,2,green\n", "'green' (first in row 1), a level that the fit did not know"),
        ("first,second,colour\n1,,red\n", "has 1 missing value (1 in 'second'): impute them, or give missing='drop'"),
        ("first,second,colour\n1,x,red\n", "text now"),
        ("first,second,colour\n", "no rows"),
    ):
        new.write_text(text)
        refused(run(monkeypatch, tmp_path, *point), capsys.readouterr(), sentence)
    assert predictions.read_bytes() == good
    new.write_text("first,second,colour\n,1,red\n1.5,0.5,red\n1,,\n-1,1,blue\n")
    assert run(monkeypatch, tmp_path, *point, "--missing", "drop") == 0
    assert "2 of 4 rows are left out" in capsys.readouterr().out
    dropped = pd.read_csv(predictions)
    assert dropped["row"].tolist() == [1, 3]
    np.testing.assert_allclose(dropped["predicted yield"], found["predicted yield"], atol=0.2)
    new.write_text("first,second,colour\n,1,red\n1,2,green\n")
    refused(run(monkeypatch, tmp_path, *point, "--missing", "drop"), capsys.readouterr(), "without the 1 left out")
    (out / "table.credo").unlink()
    refused(run(monkeypatch, tmp_path, *point), capsys.readouterr(), "There is no table.credo")
    (out / "verdicts.json").write_text("{")
    refused(run(monkeypatch, tmp_path, "predict", str(out), str(new)), capsys.readouterr(), "no comparison that was")


def test_classes_with_missing_values(tmp_path, monkeypatch, capsys):
    """Rows are dropped when asked; the probability is of the class that the report names."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=150)
    y = np.where(rng.uniform(size=150) < 1 / (1 + np.exp(-2 * x)), "sick", "healthy")
    path, out = tmp_path / "t.csv", tmp_path / "out"
    path.write_text("dose,state\n" + "\n".join(f"{a:.4f},{b}" for a, b in zip(x, y, strict=True)) + "\n,sick\n")
    arguments = ["compare", str(path), "--target", "state", "--methods", "laplace", "--out", str(out)]
    refused(run(monkeypatch, tmp_path, *arguments), capsys.readouterr(), "--missing drop")
    assert not out.exists()
    assert run(monkeypatch, tmp_path, *arguments, "--missing", "drop") == 0
    assert "1 of 151 rows is left out" in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert "state = sick rises most surely with dose" in page
    assert "--missing drop" in page
    (tmp_path / "new.csv").write_text("dose\n3\n-3\n")
    predictions = tmp_path / "p.csv"
    assert run(monkeypatch, tmp_path, "predict", str(out), str(tmp_path / "new.csv"), "--out", str(predictions)) == 0
    found = pd.read_csv(predictions)
    assert found["predicted state"].tolist() == ["sick", "healthy"]
    assert found["probability of sick"][0] > 0.9
    np.testing.assert_allclose(found["probability of sick"] + found["probability of healthy"], 1.0)


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("a,b\n1,2\n3,nan\n", ["--target", "b"], "1 missing value (1 in 'b')"),
        ("a,b\n1,2\n3,inf\n", ["--target", "a"], "infinite"),
        ("a,b\n1,2\n3,-inf\n2,3\n", ["--target", "b"], "infinite"),
        ("a,b\n1,2\n3\n4,5,6,7\n", ["--target", "b"], "cannot be read as CSV"),
        ("", ["--target", "b"], "cannot be read as CSV"),
        ("a,b\n", ["--target", "b"], "no rows"),
        ("a,b\n1,2\n2,2\n", ["--target", "c"], "no column 'c'"),
        ("a,b\n1,2\n2,2\n", [], "--target"),
        ("a,b\n1,x\n2,x\n3,x\n", ["--target", "b", "--family", "bernoulli"], "one class only ('x')"),
        ("a,b\n1,-1\n2,2\n3,2\n", ["--target", "b", "--family", "poisson"], "no count"),
        ("a,b\n1,u\n2,v\n3,w\n", ["--target", "b", "--family", "gaussian"], "text where numbers belong"),
        ("a,b\n1,2\n2,5\nx,3\n", ["--target", "b"], "text where numbers belong"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--methods", "guess"], "'guess' is no method"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--methods", ","], "No method is named"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--methods", "importance"], "name laplace before it"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--family", "cauchy"], "'cauchy' is unknown"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--missing", "guess"], "missing='guess' is unknown"),
        ("a,b\n1,2\n2,3\n", ["--formula", "b ~ a + z"], "no column 'z'"),
        ("a,b\n1,2\n2,3\n", ["--formula", "b ~ a + (1 | g"], "brackets"),
        ("a,b\n1,2\n2,3\n", ["--formula", "b ~ (a).f(b)"], "cannot be read, for '(a).f(b)'"),
        ("a,b\n1,2\n2,3\n", ["--formula", "b ~ a + __import__('os').system('touch x')"], "cannot be read, for"),
        ("a,b,c\n1,2,1\n2,3,0\n", ["--target", "b", "--exposure", "c"], "positive amount"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--exposure", "c"], "no column 'c'"),
        ("b\n1\n2\n3\n", ["--target", "b"], "no column besides 'b'"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--seed", "-1"], "seed=-1 is negative"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--held-out", "0.99"], "leaves none to fit"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--held-out", "1.5"], "no share of the rows"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--held-out", "half"], "--held-out"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--colour", "red"], "No such option: --colour"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "more"], "unexpected extra argument"),
    ],
)
def test_refuses_with_one_sentence(text, arguments, sentence, tmp_path, monkeypatch, capsys):
    path = tmp_path / "t.csv"
    path.write_text(text)
    out = tmp_path / "out" / "deep"
    refused(
        run(monkeypatch, tmp_path, "compare", str(path), *arguments, "--out", str(out)), capsys.readouterr(), sentence
    )
    assert not (tmp_path / "out").exists()


def refused(code: int, printed, sentence: str) -> None:
    """Exit code 2, one line, no traceback."""
    assert code == 2
    assert sentence in printed.err
    assert "Traceback" not in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare"], "see credo compare --help."),
        (["compare", "no such.csv", "--target", "y"], "neither a file nor a bundled table"),
        (["compare", "iris", "--target", "y"], "an outcome of its own"),
        (["predict", "nowhere", "new.csv"], "'nowhere' is neither a file nor a folder"),
        (["predict", ".", "new.csv"], "no comparison that was ended"),
        (["guess"], "No such command 'guess'"),
        (["--guess"], "No such option: --guess"),
    ],
)
def test_refuses_what_it_does_not_know(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    refused(run(monkeypatch, tmp_path, *arguments), capsys.readouterr(), sentence)
    assert not list(tmp_path.iterdir())


def test_a_stop_keeps_what_is_fitted(table, tmp_path, monkeypatch, capsys):
    """Ctrl-C in the second method: a sentence, the first posterior whole, and no part of a file."""
    out, fit = tmp_path / "out", main_job.fit

    def stopped(target, method, *, key):
        if isinstance(method, credo.NUTS):
            raise KeyboardInterrupt
        return fit(target, method, key=key)

    monkeypatch.setattr(main_job, "fit", stopped)
    monkeypatch.setattr(cli.os, "_exit", sys.exit)
    arguments = ["compare", str(table), "--target", "yield", "--methods", "laplace,nuts", "--out", str(out)]
    assert run(monkeypatch, tmp_path, *arguments) == 130
    printed = capsys.readouterr()
    assert printed.err == f"credo: Stopped: laplace.credo in {out} is whole; there is no report yet.\n"
    assert {path.name for path in out.iterdir()} == {"table.credo", "laplace.credo"}
    assert np.isfinite(credo.load(out / "laplace.credo").mean()["coefficients"]).all()


def test_help_and_version(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, tmp_path, "--version") == 0
    assert capsys.readouterr().out == f"credo {credo.__version__}\n"
    assert run(monkeypatch, tmp_path, "compare", "--help") == 0
    assert "--exposure" in capsys.readouterr().out


def test_refuses_an_unwritable_folder_before_computing(table, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    arguments = ["compare", str(table), "--target", "yield", "--out", str(tmp_path / "file")]
    refused(run(monkeypatch, tmp_path, *arguments), capsys.readouterr(), "a file has that name")
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
