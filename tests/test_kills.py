"""kill -9 at random moments of warm-up and sampling, 50 times: what resumes is the uninterrupted run, bit for bit."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from credo.checkpoint import read_arrays

# Compiled programs are kept between the processes, and a chunk is written every 16 steps: many moments, soon reached.
PROGRAM = """
import sys
import time
from pathlib import Path

import jax

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

import numpy as np
import numpyro.distributions as dist

import credo
from credo import crew

crew.FIRST_CHUNK = crew.MAX_CHUNK = 16
chunk = crew.Crew.chunk


def slowly(*args):  # or all of sampling might be over before a process on a busy machine has looked at it
    time.sleep(0.005)
    return chunk(*args)


crew.Crew.chunk = slowly
errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
prior = {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(5.0), "z": dist.Normal(0.0, 1.0).expand([8])}
model = credo.Model(prior, lambda params, x: dist.Normal(params["mu"] + params["tau"] * params["z"], x["error"]))
target = model.given({"error": errors}, effects)
folder, layout = Path(sys.argv[2]), sys.argv[3]
if (folder / "run.safetensors").exists():
    posterior = credo.resume(folder, target, layout=layout, progress=False)
else:
    method = credo.NUTS(num_warmup=2_000, num_draws=4_000)
    posterior = credo.fit(target, method, key=11, checkpoint=folder, layout=layout, progress=False)
np.save(f"{folder}.npy", posterior.kind.positions)
"""
NUM_KILLS = 25  # at least, in each layout
NUM_EACH = NUM_KILLS // 5  # of them in warm-up, at least, and in sampling


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["threads", "vectorized"])
def test_killed_at_random_moments(tmp_path, layout):
    def begin(folder: Path) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "cache"), str(folder), layout])

    whole, begun = tmp_path / "whole", []
    assert begin(whole).wait() == 0
    num_files, num_phases = len(list(whole.iterdir())), phase_of(whole) + 1
    random, phases = np.random.default_rng(50), []

    def kills() -> tuple[int, int]:
        in_warmup = sum(phase < num_phases - 1 for phase in phases)
        return in_warmup, len(phases) - in_warmup

    while len(phases) < NUM_KILLS or min(kills()) < NUM_EACH:
        if not begun or answer(begun[-1]).exists():  # on a busy machine a run may end before it is killed often enough
            begun.append(tmp_path / f"killed-{len(begun)}")
            assert len(begun) <= NUM_KILLS, "no run lasts long enough to be killed"
        killed = begun[-1]
        process, before = begin(killed), count(killed)
        until = before + random.uniform(0, num_files / NUM_KILLS)
        while process.poll() is None and not (count(killed) > before and count(killed) >= until):
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.02))  # anywhere between two files, or within one
        if process.poll() is None:
            process.kill()
            process.wait()
            phases.append(phase_of(killed))
    print(json.dumps({"layout": layout, **dict(zip(("kills in warm-up", "kills in sampling"), kills(), strict=True))}))
    for killed in begun:
        assert begin(killed).wait() == 0  # of a run that has ended too: its answer may be half written
        np.testing.assert_array_equal(np.load(answer(killed)), np.load(answer(whole)))


def answer(folder: Path) -> Path:
    """Where the draws are saved once a run has ended."""
    return Path(f"{folder}.npy")


def count(folder: Path) -> int:
    return len(list(folder.iterdir())) if folder.exists() else 0


def phase_of(folder: Path) -> int:
    """The phase of the run in ``folder``; 0 before the first."""
    return read_arrays(folder / "run.safetensors", kind="run")[1]["phase"] or 0
