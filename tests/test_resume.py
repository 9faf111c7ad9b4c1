"""``credo.resume`` where something went wrong since: each has its sentence, and what was drawn is kept."""

import contextlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.methods.mcmc.warmup import MOST_REPEATS
from interrupted import at_chunk, on_a_full_disk, on_chunks_of

METHOD = credo.NUTS(num_warmup=60, num_draws=120)
SAMPLING = 3 + MOST_REPEATS  # the number of its phase


def likelihood(params, x):
    return dist.Normal(params["slope"] * x, params["noise"])


def other_likelihood(params, x):
    return dist.Normal(params["slope"] * x + 1.0, params["noise"])


PRIOR = {"slope": dist.Normal(0.0, 1.0), "noise": dist.HalfNormal(1.0)}
X = np.linspace(-1.0, 1.0, 20)
Y = 0.5 * X + 0.1 * np.cos(9 * X)


@pytest.fixture(scope="module")
def target():
    return credo.Model(PRIOR, likelihood).given(X, Y)


@pytest.fixture(params=["threads", "vectorized"])
def begun(request, target, tmp_path):
    """A folder whose run a full disk stopped in the middle of sampling."""
    folder, layout = tmp_path / "run", request.param
    with on_a_full_disk(folder, 5, phase=SAMPLING):
        credo.fit(target, METHOD, key=1, checkpoint=folder, layout=layout, progress=False)
    assert not list(folder.glob(".*")), "nothing half written is left"
    return folder, layout, whole(target, layout)


WHOLE = {}


def whole(target, layout):
    if layout not in WHOLE:
        WHOLE[layout] = credo.fit(target, METHOD, key=1, layout=layout, progress=False).kind.positions
    return WHOLE[layout]


def test_a_full_disk_keeps_what_was_drawn(target, begun):
    folder, _, expected = begun
    before = sorted(path.name for path in folder.glob("draws-*"))
    resumed = credo.resume(folder, target, progress=False)
    np.testing.assert_array_equal(resumed.kind.positions, expected)
    assert set(before) <= {path.name for path in folder.glob("draws-*")}


def flipped(content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]


@pytest.mark.parametrize("name", ["run", "chain-0", f"draws-{SAMPLING}-0-000000"])
@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"", flipped], ids=["cut", "empty", "one bit"])
def test_damage_is_a_sentence_and_the_rest_is_kept(target, begun, name, damage):
    folder, layout, expected = begun
    path = folder / f"{name}.safetensors"
    content = path.read_bytes()
    path.write_bytes(damage(content))
    with pytest.raises(credo.CredoError, match=rf"{name}.safetensors is damaged") as caught:
        credo.resume(folder, target, layout=layout, progress=False)
    if name == "run":  # of which nothing else tells
        path.write_bytes(content)
    else:
        assert "Or delete chain-0.safetensors there" in str(caught.value)
        (folder / "chain-0.safetensors").unlink()
    np.testing.assert_array_equal(credo.resume(folder, target, layout=layout, progress=False).kind.positions, expected)


def test_another_model_is_a_sentence_and_the_run_is_kept(target, begun):
    folder, layout, expected = begun
    changed = {
        "data": credo.Model(PRIOR, likelihood).given(X, Y + 0.1),
        "likelihood": credo.Model(PRIOR, other_likelihood).given(X, Y),
        "slope": credo.Model(PRIOR, lambda params, x: likelihood({**params, "slope": -params["slope"]}, x)).given(X, Y),
        "prior": credo.Model({**PRIOR, "slope": dist.Normal(0.0, 2.0)}, likelihood).given(X, Y),
        "parameters": credo.Model({**PRIOR, "more": dist.Normal(0.0, 1.0)}, likelihood).given(X, Y),
    }
    for other in changed.values():
        with pytest.raises(credo.CredoError) as caught:
            credo.resume(folder, other, layout=layout, progress=False)
        assert len(str(caught.value)) > 40
    np.testing.assert_array_equal(credo.resume(folder, target, layout=layout, progress=False).kind.positions, expected)


OFFSET = 0.0


def offset(params, x):
    return dist.Normal(params["slope"] * x + OFFSET, params["noise"])


def test_a_global_that_changed_is_a_sentence(monkeypatch, tmp_path):
    """Of the very target that was fitted, whose programs were traced with another value."""
    target = credo.Model(PRIOR, offset).given(X, Y)
    folder = tmp_path / "run"
    with on_a_full_disk(folder, 5, phase=SAMPLING):
        credo.fit(target, METHOD, key=1, checkpoint=folder, progress=False)
    expected = credo.fit(target, METHOD, key=1, progress=False).kind.positions
    with monkeypatch.context() as changed:
        changed.setattr(sys.modules[__name__], "OFFSET", 0.01)
        with pytest.raises(credo.CredoError, match="log density at the recorded position"):
            credo.resume(folder, target, progress=False)
    np.testing.assert_array_equal(credo.resume(folder, target, progress=False).kind.positions, expected)


def test_a_folder_without_a_run_is_a_sentence(target, tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(credo.CredoError, match="holds no run to continue: begin one with fit"):
            credo.resume(path, target, progress=False)


def test_another_kind_of_key(target, tmp_path):
    key = jax.random.key(0, impl="rbg")
    whole = credo.fit(target, METHOD, key=key, checkpoint=tmp_path / "run", progress=False)
    resumed = credo.resume(tmp_path / "run", target, progress=False)
    np.testing.assert_array_equal(resumed.kind.positions, whole.kind.positions)


STARTED = {
    "advi": credo.ADVI(max_steps=60),
    "minibatches": credo.NaturalGradient(batch_size=8, max_steps=60),
    "matching": credo.BatchAndMatch(),
    "sgld": credo.SGLD(num_draws=60),
    "constant rate": credo.ConstantSGD(batch_size=8, num_draws=60),
}


@pytest.mark.parametrize(
    "name",  # searches, and what draws after them, differ most among the others
    [pytest.param(name, marks=pytest.mark.slow if name in ("advi", "constant rate") else ()) for name in STARTED],
)
def test_a_limit_that_falls_into_the_search_of_a_start_changes_no_number(target, tmp_path, name):
    with contextlib.suppress(credo.CredoError):  # nothing to answer with
        credo.fit(target, STARTED[name], key=1, checkpoint=tmp_path / "run", time_limit=1e-3, progress=False)
    resumed = credo.resume(tmp_path / "run", target, progress=False)
    straight = credo.fit(target, STARTED[name], key=1, progress=False)
    for found, expected in zip(jax.tree.leaves(resumed.kind), jax.tree.leaves(straight.kind), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "method", [credo.MAP(batch_size=8, num_steps=40), credo.SMC(num_particles=64, islands=8)], ids=repr
)
def test_another_request_does_not_write_over_a_run(target, tmp_path, method):
    whole = credo.fit(target, method, key=1, checkpoint=tmp_path / "run", progress=False)
    with pytest.raises(credo.CredoError, match="holds a run already"):
        credo.fit(target, method, key=2, checkpoint=tmp_path / "run", progress=False)
    with pytest.raises(credo.CredoError, match="holds a run already"):
        credo.fit(target, credo.Laplace(), key=1, checkpoint=tmp_path / "run", progress=False)
    resumed = credo.resume(tmp_path / "run", target, progress=False)
    for found, expected in zip(jax.tree.leaves(resumed.kind), jax.tree.leaves(whole.kind), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("method", [credo.MAP(), credo.Laplace(), credo.DADVI(), credo.Pathfinder()], ids=repr)
def test_what_keeps_nothing_on_its_way_is_done_again(target, tmp_path, method):
    """Among them a fit that a limit cut: what was asked for is enough to begin it."""
    with contextlib.suppress(credo.CredoError):
        credo.fit(target, method, key=1, checkpoint=tmp_path / "run", time_limit=1e-3, progress=False)
    resumed = credo.resume(tmp_path / "run", target, progress=False)
    straight = credo.fit(target, method, key=1, progress=False)
    assert resumed.info["is_complete"]
    for found, expected in zip(jax.tree.leaves(resumed.kind), jax.tree.leaves(straight.kind), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_resume_does_the_last_request_of_those_that_kept_nothing(target, tmp_path):
    for method in (credo.Laplace(), credo.MAP()):
        last = credo.fit(target, method, checkpoint=tmp_path / "run", progress=False)
    resumed = credo.resume(tmp_path / "run", target, progress=False)
    jax.tree.map(np.testing.assert_array_equal, resumed.kind, last.kind)


FROM_WIDTHS = {
    "nuts": credo.NUTS(num_warmup=120, num_draws=60),
    "hmc": credo.HMC(num_warmup=120, num_draws=60),
    "slice": credo.Slice(num_warmup=120, num_draws=60),
    "random walk": credo.RandomWalkMetropolis(num_warmup=120, num_draws=60),
}


@pytest.mark.parametrize("number", [2, 30, None], ids=["in warm-up", "later", "complete"])
@pytest.mark.parametrize("name", ["nuts", pytest.param("hmc", marks=pytest.mark.slow), "slice", "random walk"])
def test_a_run_from_a_posterior_goes_on_in_the_windows_it_began_with(target, tmp_path, name, number):
    """Which phases there are is chosen by the start, which a checkpoint does not hold."""
    laplace = credo.fit(target, credo.Laplace(), progress=False)
    request = {"key": 1, "start": laplace, "progress": False}
    straight = credo.fit(target, FROM_WIDTHS[name], **request)
    with on_chunks_of(4), at_chunk(number) if number else contextlib.nullcontext():
        credo.fit(target, FROM_WIDTHS[name], checkpoint=tmp_path / "run", **request)
    resumed = credo.resume(tmp_path / "run", target, progress=False)
    np.testing.assert_array_equal(resumed.kind.positions, straight.kind.positions)


def test_a_proposal_is_in_no_checkpoint(target, tmp_path):
    laplace = credo.fit(target, credo.Laplace(), progress=False)
    with pytest.raises(credo.CredoError, match=r"not the posterior that IndependenceMH\(\) proposes from"):
        credo.fit(target, credo.IndependenceMH(), start=laplace, checkpoint=tmp_path / "run", progress=False)


@pytest.mark.slow
def test_a_run_that_goes_on_is_left_alone(target, tmp_path):
    """A second one would write shorter files over those of the first, and leave a hole that nothing gets past."""
    method = credo.NUTS(num_warmup=60, num_draws=200_000)
    with ThreadPoolExecutor(1) as pool:
        options = {"key": 3, "checkpoint": tmp_path / "run", "progress": False}
        first = pool.submit(credo.fit, target, method, time_limit=6.0, **options)
        while not (tmp_path / "run" / "chain-0.safetensors").exists():
            assert not first.done()
            time.sleep(0.01)
        with pytest.raises(credo.CredoError, match="Another fit.* is at work on the run in .*/run: wait for its end"):
            credo.resume(tmp_path / "run", target, progress=False)
        with pytest.raises(credo.CredoError, match="holds a run already"):
            credo.fit(target, method, **options)
        cut = first.result().draws["slope"]
    longer = credo.resume(tmp_path / "run", target, time_limit=2.0, progress=False).draws["slope"]
    assert longer.shape[1] >= cut.shape[1]
    np.testing.assert_array_equal(longer[:, : cut.shape[1]], cut)
