"""Draws on disk: the answers are those of draws in memory, in less memory; a full disk is a sentence."""

import io
import os
import tracemalloc
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo import crew, storage
from credo.diagnose import convergence, sd_error
from credo.methods.mcmc import DiagonalMetric
from credo.posterior import marginals
from credo.storage import by_columns, chosen, contiguous_parts, cut, gather, is_finite, is_stored, stored
from interrupted import out_of_time
from targets import TARGETS

LEAST = 1_000_000  # bytes: the smallest max_memory


@pytest.fixture
def array(monkeypatch):
    """Four chains of 50 draws of a 3 × 2 matrix, worked on a few columns or rows at a time."""
    monkeypatch.setattr(storage, "AT_ONCE", 300)
    array = stored((4, 50, 3, 2), np.float64)
    array[...] = np.random.default_rng(0).normal(size=array.shape)
    return array


def test_columns_lie_together(array):
    assert is_stored(array)
    assert array[:, :, 1, 1].flags.c_contiguous
    assert np.shares_memory(array.reshape(-1, 3, 2), array), "draws of all chains are one axis without a copy"
    assert not is_stored(np.array(array))


def test_what_is_read_is_what_is_there(array):
    whole = np.array(array)
    np.testing.assert_array_equal(cut(array, 20), whole[:, :20])
    assert is_stored(cut(array, 20))
    rows = np.array([3, 1, 199, 3])
    flat = array.reshape(-1, 6)
    np.testing.assert_array_equal(gather(flat, rows), whole.reshape(-1, 6)[rows])
    every = slice(None), slice(None, None, 7)
    np.testing.assert_array_equal(gather(array.reshape(4, 50, 6), every), whole.reshape(4, 50, 6)[every])
    is_kept = np.arange(50) % 3 > 0
    assert chosen(array, is_kept | True) is array
    np.testing.assert_array_equal(chosen(array, is_kept), whole[:, is_kept])
    np.testing.assert_array_equal(chosen(whole, is_kept), whole[:, is_kept])
    assert is_stored(chosen(array, is_kept))
    assert is_finite(array.reshape(4, 50, 6))
    array[3, 49, 2, 1] = np.inf
    assert not is_finite(array.reshape(4, 50, 6))
    array[...] = whole
    assert b"".join(contiguous_parts(array)) == whole.tobytes()
    mean = by_columns(lambda v: np.stack([v.mean(axis=0), v.max(axis=0)]), array.reshape(-1, 3, 2))
    np.testing.assert_allclose(mean[0], whole.mean(axis=(0, 1)), rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(mean[1], whole.max(axis=(0, 1)))


@pytest.mark.parametrize("shape", [(700,), (4, 170), (350, 2), (4, 60, 3), (70, 2, 5)])
def test_arrays_of_any_shape_in_parts(monkeypatch, shape):
    """Draws of a scalar, all chains in a row, are one axis."""
    monkeypatch.setattr(storage, "AT_ONCE", 100)
    array = stored(shape if len(shape) > 1 else (7, 100), np.float64).reshape(shape)
    assert is_stored(array)
    array[...] = np.random.default_rng(0).normal(size=shape)
    parts = list(contiguous_parts(array))
    assert b"".join(parts) == array.tobytes()
    assert max(len(part) for part in parts) <= 8 * 100
    assert len(parts) < 0.02 * array.size + 6


def test_released_pages_keep_what_they_hold(array):
    whole = np.array(array)
    storage.release(array)
    np.testing.assert_array_equal(array, whole)


def test_a_full_disk_is_a_sentence_before_any_work(monkeypatch):
    monkeypatch.setattr("credo.crew.Crew.lower", lambda self: pytest.fail("the work has begun"))
    target = TARGETS["gaussian"]().target
    method = credo.NUTS(num_warmup=20, num_draws=10**11, chains=2)
    with pytest.raises(credo.CredoError, match=r"draws need .* GB on the disk of .*refuses.*TMPDIR, or ask for fewer"):
        credo.fit(target, method, max_memory=LEAST, progress=False)


def test_memory_that_the_system_refuses_is_a_sentence():
    with pytest.raises(credo.CredoError, match="of memory, which the system refuses: lower max_memory"):
        crew._zeros((1 << 20, 1 << 30), np.float64)


def test_files_have_no_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    array = stored((2, 1_000, 10), np.float64)
    array[...] = 1.0
    assert os.listdir(tmp_path) == []
    assert storage.temporary_folder() == tmp_path


def test_memory_that_is_known():
    assert 10**8 < storage.available_memory() < 10**14
    if Path("/proc/meminfo").exists():
        assert storage.available_memory() % 1024 == 0


def density(params, scale):
    return -0.5 * jnp.sum((params["w"] / scale) ** 2) - 0.5 * params["tau"] ** 2


NUM_DRAWS, DIM = 2_500, 100


@pytest.fixture(scope="module")
def target():
    model = credo.Model.from_log_density(
        density, {"w": constraints.real_vector, "tau": constraints.positive}, {"w": (DIM - 1,)}
    )
    return model.given(np.linspace(0.5, 1.5, DIM - 1))


def fit(target, **options):
    method = credo.HMC(num_warmup=60, num_draws=NUM_DRAWS, num_steps=2, metric=DiagonalMetric())
    return credo.fit(target, method, key=1, progress=False, **options)


@pytest.mark.parametrize("layout", ["threads", "vectorized"])
def test_draws_on_disk_are_those_in_memory(target, monkeypatch, tmp_path, layout):
    """And the memory that a fit, its verdict and the usual questions take is less than half of the draws'."""
    monkeypatch.setattr("credo.diagnose.curve.MAX_DRAWS", 200)
    inside = fit(target, layout=layout)
    assert not is_stored(inside.kind.positions)
    for module, name, value in (
        (storage, "AT_ONCE", 50_000), (marginals, "AT_ONCE", 50_000), (convergence, "BLOCK", 20_000),
        (sd_error, "AT_ONCE", 20_000),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    tracemalloc.start()
    outside = fit(target, layout=layout, max_memory=LEAST)
    mean, sd, quantile = outside.mean(), outside.sd(), outside.quantile([0.1, 0.5])
    table, draws = outside.summary(["tau"]), outside.draws["tau"]
    sample = outside.sample(3, 20)
    outside.save(tmp_path / "posterior")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert is_stored(outside.kind.positions)
    assert is_stored(outside.draws["w"])
    assert peak < 0.5 * outside.kind.positions.nbytes
    np.testing.assert_array_equal(outside.kind.positions, inside.kind.positions)
    assert outside.verdict == inside.verdict
    np.testing.assert_array_equal(draws, inside.draws["tau"])
    for name in ("w", "tau"):
        np.testing.assert_allclose(mean[name], inside.mean()[name], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(sd[name], inside.sd()[name], rtol=1e-9)
        np.testing.assert_array_equal(quantile[name], inside.quantile([0.1, 0.5])[name])
        np.testing.assert_array_equal(sample[name], inside.sample(3, 20)[name])
    np.testing.assert_allclose(table, inside.summary(["tau"]), rtol=1e-9)
    loaded = credo.load(tmp_path / "posterior", target)
    np.testing.assert_array_equal(loaded.kind.positions, inside.kind.positions)


def test_what_memory_there_is_decides(target, monkeypatch, tmp_path):
    monkeypatch.setattr(storage, "available_memory", lambda: 4 * LEAST)
    short = fit(target, time_limit=None)
    assert is_stored(short.kind.positions)
    assert not is_stored(short.info["sample_stats"]["energy"])
    short.save(tmp_path / "posterior")
    monkeypatch.setattr(storage, "AT_ONCE", 70_000)
    loaded = credo.load(tmp_path / "posterior", target)
    assert is_stored(loaded.kind.positions)
    np.testing.assert_array_equal(loaded.kind.positions, short.kind.positions)


def test_a_time_limit_cuts_what_lies_on_disk(target):
    method = credo.HMC(num_warmup=20, num_draws=1_000_000, num_steps=2, metric=DiagonalMetric())
    with out_of_time():
        posterior = credo.fit(target, method, key=1, time_limit=1_000.0, max_memory=LEAST, progress=False)
    positions = posterior.kind.positions
    assert not posterior.info["is_complete"]
    assert is_stored(positions)
    assert np.shares_memory(positions.reshape(-1, DIM), positions)
    assert np.all(np.any(positions != 0, axis=(0, 2))), "every draw was drawn"


def gappy(params, x):
    return dist.Normal(params["level"], 1.0)


def test_missing_outcomes_are_imputed_from_disk(monkeypatch):
    y = np.array([0.1, np.nan, 0.4])
    target = credo.Model({"level": dist.Normal(0.0, 1.0)}, gappy).given(y=y, missing="impute")
    method = credo.NUTS(num_warmup=50, num_draws=300)
    inside = credo.fit(target, method, key=1, progress=False)
    monkeypatch.setattr(storage, "available_memory", lambda: 0)
    monkeypatch.setattr(storage, "AT_ONCE", 70)
    outside = credo.fit(target, method, key=1, progress=False)
    assert is_stored(outside.kind.positions)
    np.testing.assert_array_equal(outside.draws["y_missing"], inside.draws["y_missing"])


def test_the_free_memory_is_what_the_system_says_is_available(monkeypatch):
    said = "MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 500 kB\nBuffers: 1 kB\n"
    monkeypatch.setattr(storage, "open", lambda *_, **__: io.StringIO(said), raising=False)
    assert storage.available_memory() == 500 * 1024


def test_the_free_memory_of_a_container_is_what_is_left_of_its_limit(monkeypatch, tmp_path):
    """What it used already was offered a second time."""
    for name, text in (("max", "3000"), ("current", "2500"), ("stat", "file 9\ninactive_file 40")):
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(storage, "CONTAINERS", [(str(tmp_path / "memory.max"), "memory.current")])
    assert storage.available_memory() == 540
