"""Every method at 100,000 rows and at 1,000 parameters: it ends, in bounded memory, with the right answer."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import numpyro.distributions as dist
import pytest

import credo

pytestmark = pytest.mark.scale

GIB = 2**20  # in the kilobytes of ru_maxrss
SHORT = {"num_warmup": 150, "num_draws": 100}

METHODS: dict[str, Callable[[credo.Target], credo.Posterior]] = {
    "map": lambda target: credo.fit(target, credo.MAP(), progress=False),
    "laplace": lambda target: credo.fit(target, credo.Laplace(), progress=False),
    "advi": lambda target: credo.fit(target, credo.ADVI(family=credo.MeanField(), batch_size=256), progress=False),
    "advi_full_rank": lambda target: credo.fit(
        target, credo.ADVI(family=credo.FullRank(), max_steps=400 if target.dim > 100 else 12_700), progress=False
    ),
    "importance": lambda target: credo.fit(
        target, credo.Importance(proposal=credo.fit(target, credo.Laplace())), progress=False
    ),
    "hmc": lambda target: credo.fit(target, credo.HMC(**SHORT), progress=False),
    "nuts": lambda target: credo.fit(target, credo.NUTS(**SHORT), progress=False),
}


def likelihood(params, x):
    return dist.BernoulliLogits(x @ params["w"])


def table(num_rows: int, num_features: int):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(num_rows, num_features))
    w = rng.normal(size=num_features) / np.sqrt(num_features)
    y = (rng.uniform(size=num_rows) < 1 / (1 + np.exp(-x @ w))).astype(int)
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([num_features])}, likelihood)
    return model.given(x, y), w


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("num_rows", "num_features"), [(100_000, 20), (4_000, 1_000)])
def test_large_tables(method, num_rows, num_features):
    target, w = table(num_rows, num_features)
    posterior = METHODS[method](target)
    if method == "importance" and num_features == 1_000:
        assert posterior.verdict.status == "failed", "weights say nothing in a thousand dimensions, and it must be said"
        return
    mode = credo.fit(target, credo.MAP(), progress=False).mean()["w"]
    # means of short chains are noisy, and the mean of a skewed posterior is not its mode: the direction is the same
    assert np.corrcoef(posterior.mean()["w"], mode)[0, 1] > 0.95
    accuracy = np.mean((posterior.predict(target.x[:2_000]).mean > 0.5) == target.y[:2_000])
    assert accuracy > np.mean((target.x[:2_000] @ w > 0) == target.y[:2_000]) - 0.05
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 6 * GIB


def linear_likelihood(params, x):
    return dist.Normal(x @ params["w"], 1.0)


@pytest.mark.parametrize(("num_rows", "num_features"), [(100_000, 20), (500, 1_000)])
def test_exact(num_rows, num_features):
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(num_rows, num_features)), rng.normal(size=num_rows)
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([num_features])}, linear_likelihood)
    posterior = credo.fit(model.given(x, y), credo.Exact())
    expected = np.linalg.solve(x.T @ x + np.eye(num_features), x.T @ y)
    np.testing.assert_allclose(posterior.mean()["w"], expected, rtol=1e-8, atol=1e-10)


def test_grid():
    target, _ = table(100_000, 2)
    posterior = credo.fit(target, credo.Grid())
    laplace = credo.fit(target, credo.Laplace())
    np.testing.assert_allclose(posterior.sd()["w"], laplace.sd()["w"], rtol=0.01)


# 64 chains x 10,000 draws of 1,000 parameters: 5.1 GB. The peak is the process's own: that of ``resource`` holds what
# its parent had when it began.
STREAMED = """
import json, re, sys
import numpy as np
import numpyro.distributions as dist
import credo
from credo.methods.mcmc import DiagonalMetric

def likelihood(params, x):
    return dist.Normal(params["w"], 1.0)

prior = {"w": dist.Normal(0.0, 1.0).expand([999]), "tau": dist.HalfNormal(1.0)}
target = credo.Model(prior, likelihood).given(x=np.zeros((999, 1)), y=np.ones(999))
method = credo.HMC(chains=64, num_draws=10_000, num_steps=4, metric=DiagonalMetric())
posterior = credo.fit(target, method, max_memory=2_000_000_000, layout=sys.argv[1], progress=False)
mean, sd, quantile = posterior.mean(), posterior.sd(), posterior.quantile([0.05, 0.95])
table, draws = posterior.summary(["tau"]), posterior.draws["w"][:, :, 17].copy()
posterior.predict(target.x).mean
posterior.save(sys.argv[2])
print(json.dumps({
    "peak": int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]),
    "status": posterior.verdict.status, "num_draws": posterior.verdict.figures["num_draws"],
    "mean": float(mean["w"].mean()), "sd": float(sd["w"].mean()), "tau": float(mean["tau"]),
    "mean of draws": float(abs(draws.mean() - mean["w"][17])), "quantile": float(quantile["w"][0].mean()),
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of the process from /proc")
def test_draws_larger_than_the_memory_they_may_take(tmp_path):
    """The verdict, means, quantiles, a summary, a prediction and the file of 5.1 GB of draws in less than 2 GB."""
    done = subprocess.run(
        [sys.executable, "-c", STREAMED, "threads", str(tmp_path / "posterior")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["peak"] < 2_000_000, "kilobytes"
    assert (tmp_path / "posterior").stat().st_size > 640_000 * 1_000 * 8
    assert found["status"] == "pass"
    assert found["num_draws"] == 640_000
    assert abs(found["mean"] - 0.5) < 1e-3
    assert abs(found["sd"] - np.sqrt(0.5)) < 1e-3
    assert abs(found["quantile"] - (0.5 - 1.6449 * np.sqrt(0.5))) < 2e-3
    assert abs(found["tau"] - np.sqrt(2 / np.pi)) < 0.02
    assert found["mean of draws"] < 1e-12
