"""Peak memory of large networks, measured: each in a process of its own, whose largest resident size is read."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

STATUS = Path("/proc/self/status")  # of Linux
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="reads the largest resident size that Linux keeps")

COMMON = """
import jax.numpy as jnp, numpy as np, credo
rng = np.random.default_rng(0)

def dense(*sizes):
    def layer(a, b):
        return {"w": rng.normal(size=(a, b)) / np.sqrt(a), "b": np.zeros(b)}
    return {f"layer{i}": layer(*pair) for i, pair in enumerate(zip(sizes, sizes[1:]))}

def apply(params, x):
    for name in sorted(params)[:-1]:
        x = jnp.tanh(x @ params[name]["w"] + params[name]["b"])
    last = params[max(params)]
    return x @ last["w"] + last["b"]
"""
# of this program alone: getrusage begins with the peak of the process that started it
PEAK = f"print(next(line for line in open('{STATUS}') if line.startswith('VmHWM')).split()[1])"


def peak(program: str) -> int:
    """Bytes, of a fresh process that runs ``program``."""
    text = COMMON + textwrap.dedent(program) + PEAK
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return int(done.stdout.split()[-1]) * 1024


@pytest.mark.slow
def test_a_thousand_outputs_of_a_million_weights_are_predicted_within_two_gigabytes():
    assert (
        peak("""
        from credo.posterior.kinds import Gaussian
        from credo.linalg.diagonal import Diagonal
        network = credo.nn.BayesianNetwork(apply, dense(64, 900, 1_000), head=credo.nn.Categorical())
        target = network.given(rng.normal(size=(50, 64)), rng.integers(1_000, size=50))
        assert target.dim > 950_000
        fitted = credo.fit(target, credo.MAP(batch_size=25, num_steps=1))
        mean = np.asarray(fitted.kind.position)
        fitted.kind = Gaussian(mean, Diagonal(np.full(mean.size, 0.01)))
        x = rng.normal(size=(100, 64))
        for rule in (credo.Linearised(), credo.MonteCarlo()):
            found = fitted.predict(x, rule)
            assert found.probs.shape == (100, 1_000)
            assert np.allclose(found.probs.sum(axis=1), 1.0)
    """)
        < 2e9
    )


@pytest.mark.slow
def test_a_million_outputs_are_predicted_draw_by_draw():
    assert (
        peak("""
        params = {"layer0": {"w": rng.normal(size=(2, 1_000_000)), "b": np.zeros(1_000_000)}}
        network = credo.nn.BayesianNetwork(apply, params, head=credo.nn.Gaussian(0.1))
        target = network.given(rng.normal(size=(4, 2)), rng.normal(size=(4, 1_000_000)))
        fitted = credo.fit(target, credo.DeepEnsemble(members=3, num_steps=3, batch_size=2))
        found = fitted.predict(rng.normal(size=(6, 2)))
        assert found.mean.shape == found.epistemic.shape == (6, 1_000_000)
    """)
        < 4e9
    )


@pytest.mark.slow
def test_kronecker_factors_of_a_thousand_classes_and_a_million_weights_take_less_than_two_gigabytes():
    """Found by default, polished and judged: with a backward pass for each class of each row it was hours."""
    assert (
        peak("""
        network = credo.nn.BayesianNetwork(apply, dense(64, 900, 1_000), head=credo.nn.Categorical())
        target = network.given(rng.normal(size=(200, 64)), rng.integers(1_000, size=200))
        fitted = credo.fit(target, credo.Laplace(num_steps=2), progress=False)
        assert fitted.info["structure"] == "Kronecker"
        assert fitted.info["curvature"] == "SampledFisher"
        assert np.isfinite(fitted.verdict.figures["surprise"])
        assert all(np.all(leaf > 0) for layer in fitted.sd()["weights"].values() for leaf in layer.values())
    """)
        < 2e9
    )


@pytest.mark.slow
def test_ten_snapshots_of_ten_million_weights_are_held_twice():
    """By SWAG, as snapshots and as the factor of its covariance: 31 times the 80 MB of the weights at the peak."""
    assert (
        peak("""
        network = credo.nn.BayesianNetwork(apply, dense(1_000, 2_500, 2_500, 500), head=credo.nn.Categorical())
        target = network.given(rng.normal(size=(64, 1_000)), rng.integers(500, size=64))
        assert target.dim > 10_000_000
        method = credo.SWAG(num_snapshots=10, rank=10, every=1, num_steps=1, batch_size=32, step_size=1e-4)
        fitted = credo.fit(target, method, progress=False)
        assert np.all(fitted.sd()["weights"]["layer1"]["w"] > 0)
    """)
        < 3.4e9
    )
