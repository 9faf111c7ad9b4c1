"""The one loop: what changes a draw and what does not, barriers, limits, and checkpoints that survive."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo import chunk, crew
from credo.algorithm import Algorithm, Options, Phase, stream, streams
from credo.journal import Journal, read_identity, request_kept
from credo.precision import double
from credo.progress import Progress
from credo.run import run
from credo.status import CredoError
from credo.stopping import Stopping
from credo.storage import is_stored
from interrupted import at_chunk


class State(NamedTuple):
    position: jax.Array
    count: jax.Array


class Info(NamedTuple):
    size: jax.Array


TRACES = []


@dataclass(frozen=True)
class Walk:
    """A random walk towards ``target``, whose tuning is the length of a step; ``work`` slows it down."""

    work: int = 0

    def algorithm(self, target, tuning):
        def step(key, state: State):
            TRACES.append(self)
            move = tuning * jax.random.normal(key, state.position.shape, state.position.dtype)
            rest = jax.lax.fori_loop(0, self.work, lambda _, x: jnp.cos(x), move[0])
            position = target + 0.9 * (state.position - target) + move
            return State(position, state.count + 1), Info(jnp.abs(move[0]) + 0 * rest)

        return Algorithm(lambda key, position: State(position, jnp.int32(0)), step)

    def record(self, state: State):
        return {"position": state.position, "count": state.count}


TARGET = np.array([1.0, -2.0])
NUM_CHAINS = 3


def start(_target):
    return np.float64(0.5), [State(np.full(2, float(c)), np.int32(0)) for c in range(NUM_CHAINS)]


def widen(records, tuning, states):
    """A barrier that pools: the next phase depends on the draws of all chains, and begins elsewhere."""
    return tuning + records[0]["position"].var(), [s._replace(position=s.position + 1) for s in states]


PHASES = (
    Phase("warmup", 40, ("position",), widen),
    Phase("warmup", 25, ("position",), widen),
    Phase("sampling", 300, ("position", "count")),
)


def walk(options=Options(), phases=PHASES, program=Walk(), key=1, **identity):  # noqa: B008 (both are constants)
    with double():
        return run(
            program,
            TARGET,
            begin=start,
            like=(np.float64(0), State(np.zeros(2), np.int32(0))),
            phases=phases,
            key=np.array([0, key], np.uint32),
            num_chains=NUM_CHAINS,
            options=options,
            identity={"what": "a walk", **identity},
        )


def same(a, b):
    """Two runs, bit for bit."""
    assert jax.tree.structure(a.records) == jax.tree.structure(b.records)
    jax.tree.map(
        np.testing.assert_array_equal, (a.records, a.info, a.states, a.tuning), (b.records, b.info, b.states, b.tuning)
    )


@pytest.fixture(scope="module")
def reference():
    return walk()


def test_records_infos_and_barriers(reference):
    assert reference.records["position"].shape == (NUM_CHAINS, 300, 2)
    assert reference.records["position"].dtype == np.float64
    np.testing.assert_array_equal(reference.records["count"], np.tile(np.arange(66, 366), (NUM_CHAINS, 1)))
    assert reference.info["warmup"].size.shape == (NUM_CHAINS, 65)
    assert reference.info["sampling"].size.shape == (NUM_CHAINS, 300)
    assert reference.tuning > 0.5
    assert reference.layout == "threads"
    assert reference.is_complete
    assert set(reference.seconds) == {"warmup", "sampling"}
    # the last state is the last record, and chains differ
    for chain in range(NUM_CHAINS):
        np.testing.assert_array_equal(reference.states[chain].position, reference.records["position"][chain, -1])
    assert len(np.unique(reference.records["position"][:, -1, 0])) == NUM_CHAINS


def repeated(most):
    """The first window again as long as a tuning is below ``most``."""
    again = PHASES[0]._replace(is_due=lambda tuning: tuning < most)
    return PHASES[0], *[again] * 4, *PHASES[1:]


def test_what_is_not_due_is_left_out(reference):
    same(reference, walk(phases=repeated(0.0)))
    longer = walk(phases=repeated(10.0))
    assert longer.info["warmup"].size.shape[1] in (105, 145, 185)
    written_out = (PHASES[0],) * (longer.info["warmup"].size.shape[1] // 40) + PHASES[1:]
    same(longer, walk(phases=written_out))


def test_what_may_be_left_out_is_so_after_half_of_the_time(monkeypatch):
    """By a clock that leaps as the third phase ends, so that the test asks nothing of the machine."""
    leaps = iter([0.0, 0.0, 600.0])
    late = 0.0

    def is_due(tuning):
        nonlocal late
        late += next(leaps)
        return True

    monkeypatch.setattr("credo.run.time", SimpleNamespace(monotonic=lambda: time.monotonic() + late))
    always = Phase("warmup", 40, is_due=is_due, is_extra=True)
    found = walk(Options(time_limit=1_000.0), phases=(PHASES[0], *[always] * 10, *PHASES[1:]))
    assert found.is_complete
    assert found.info["warmup"].size.shape[1] == 4 * 40 + PHASES[1].num_steps


def test_a_run_that_can_be_resumed_leaves_nothing_out_for_time(tmp_path):
    again = Phase("warmup", 40, is_due=lambda tuning: True)
    phases, work = (PHASES[0], *[again] * 30, *PHASES[1:]), Walk(work=10_000)
    whole = walk(phases=phases, program=work)
    begun = time.monotonic()
    walk(phases=phases, program=work)
    limit = 0.7 * (time.monotonic() - begun)
    with contextlib.suppress(CredoError):  # the limit lies within warm-up, mostly
        walk(Options(checkpoint=tmp_path, time_limit=limit), phases=phases, program=work)
    same(whole, walk(Options(checkpoint=tmp_path, resume=True), phases=phases, program=work))


@pytest.mark.parametrize("number", [2, 4, 6, 8])
@pytest.mark.parametrize("most", [0.0, 10.0])
def test_what_was_left_out_is_so_after_a_kill(tmp_path, monkeypatch, number, most):
    whole = walk(phases=repeated(most))
    monkeypatch.setattr(crew, "FIRST_CHUNK", 64)
    with at_chunk(number):
        walk(Options(checkpoint=tmp_path), phases=repeated(most))
    same(whole, walk(Options(checkpoint=tmp_path, resume=True), phases=repeated(most)))


@pytest.mark.parametrize(("length", "cores"), [(1, 1), (7, 1), (64, 3), (1024, 8)])
def test_chunks_and_threads_change_nothing(reference, monkeypatch, length, cores):
    monkeypatch.setattr(crew, "FIRST_CHUNK", length)
    monkeypatch.setattr(crew, "num_cores", lambda: cores)
    same(reference, walk())


def test_the_key_changes_everything(reference):
    assert not np.any(walk(key=2).records["position"] == reference.records["position"])


def test_streams_differ_and_are_fixed():
    key = np.array([0, 1], np.uint32)
    streams = {tuple(stream(key, *path)) for path in ((), (0,), (1,), (0, 0), (0, 1))}
    assert len(streams) == 5
    np.testing.assert_array_equal(stream(key, 3), stream(jax.random.key(1), 3))


def test_phases_share_no_random_numbers():
    """Without barriers that change anything, two phases are one."""
    two = walk(phases=(Phase("warmup", 40, ("position",)), Phase("sampling", 60, ("position",))))
    one = walk(phases=(Phase("sampling", 100, ("position",)),))
    np.testing.assert_array_equal(two.records["position"], one.records["position"][:, 40:])


def stopping_after(number, asked):
    """A phase that may end at each of its pauses, and does at ``number``."""

    def is_enough(records):
        num_steps = records[0]["position"].shape[1]
        asked.append(num_steps)
        return num_steps >= number

    return (PHASES[0], Phase("sampling", 500, ("position",), pauses=(30, 60, 90, 200), is_enough=is_enough))


@pytest.mark.parametrize("number", [30, 90, 1_000])
@pytest.mark.parametrize("max_memory", [None, 1_000])
def test_a_phase_ends_where_it_is_enough(number, max_memory):
    asked = []
    result = walk(Options(max_memory=max_memory), phases=stopping_after(number, asked))
    assert asked == [n for n in (30, 60, 90, 200) if n <= number]
    num_steps = 500 if number == 1_000 else number
    assert result.is_complete
    assert result.info["sampling"].size.shape == (NUM_CHAINS, num_steps)
    whole = walk(phases=(PHASES[0], Phase("sampling", num_steps, ("position",))))
    same(whole, result)


@pytest.mark.parametrize("num_chunks", [5, 9, 11, 14, 17])
def test_resumed_within_a_pause(tmp_path, num_chunks):
    with at_chunk(num_chunks):
        walk(Options(checkpoint=tmp_path), phases=stopping_after(200, []))
    resumed = walk(Options(checkpoint=tmp_path, resume=True), phases=stopping_after(200, []))
    same(walk(phases=stopping_after(200, [])), resumed)


def test_a_second_run_traces_and_compiles_nothing(reference):
    traces, programs = len(TRACES), chunk.one_chain.native._cache_size()
    walk(phases=(Phase("sampling", 17, ("position",)),), key=5)
    assert (len(TRACES), chunk.one_chain.native._cache_size()) == (traces, programs)


def test_one_compilation_traces_once():
    before = len(TRACES)
    walk(program=Walk(work=1))
    assert len(TRACES) == before + 1


def test_a_short_memory_draws_on_disk(reference):
    result = walk(Options(max_memory=1_000))
    assert is_stored(result.records["position"])
    assert not is_stored(reference.records["position"])
    same(reference, result)


def test_time_limit_keeps_what_was_drawn(reference):
    slow = Walk(work=50_000)
    long = (Phase("sampling", 100_000, ("position",)),)
    begun = time.monotonic()
    result = walk(Options(time_limit=0.5), phases=long, program=slow)
    assert time.monotonic() - begun < 10
    assert not result.is_complete
    num_draws = result.records["position"].shape[1]
    assert 1 <= num_draws < 100_000
    assert result.info["sampling"].size.shape == (NUM_CHAINS, num_draws)
    # a limit changes the number of draws, not the draws
    full = walk(phases=(Phase("sampling", 5, ("position",)),), program=slow)
    n = min(5, num_draws)
    np.testing.assert_array_equal(full.records["position"][:, :n], result.records["position"][:, :n])


@pytest.mark.parametrize(("phases", "num_steps"), [(PHASES, 40), (PHASES[2:], 300)], ids=["warmup", "no warmup"])
def test_a_time_limit_does_not_wait_for_chains_that_have_not_begun(monkeypatch, phases, num_steps):
    monkeypatch.setattr(sys.modules[__name__], "NUM_CHAINS", 500)
    chunk_of, at_work = crew.Crew.chunk, []
    monkeypatch.setattr(crew.Crew, "chunk", lambda self, *args: at_work.append(args) or chunk_of(self, *args))
    with pytest.raises(CredoError, match=rf"time limit of 1e-09 s came after 0 of {num_steps} steps"):
        walk(Options(time_limit=1e-9), phases)
    assert 1 < len(at_work) < 100  # compiling runs one of no step


def test_time_limit_within_warmup_is_a_sentence():
    phases = (Phase("warmup", 100_000, (), widen), PHASES[-1])
    with pytest.raises(CredoError, match=r"time limit of 0.2 s came after .* of 100000 steps .* raise time_limit"):
        walk(Options(time_limit=0.2), phases=phases, program=Walk(work=50_000))


def test_progress_is_shown_on_a_terminal(reference, monkeypatch, capsys):
    monkeypatch.setattr("credo.progress.DELAY", 0.0)
    walk(Options(progress=True))
    assert not capsys.readouterr().err, "nobody watches"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    same(reference, walk(Options(progress=True)))
    assert "sampling" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["threads", "vectorized"])
def test_progress_moves_within_a_long_phase(monkeypatch, layout):
    seen = []
    monkeypatch.setattr(Progress, "update", lambda self, name, before, done, info: seen.append(sum(done)))
    walk(Options(layout=layout), phases=(Phase("warmup", 4_000, ("position",)),), program=Walk(work=500))
    assert len(set(seen)) > 4


# checkpoints ----------------------------------------------------------------------------------------------------------


def test_checkpoint_changes_nothing(reference, tmp_path):
    same(reference, walk(Options(checkpoint=tmp_path)))
    # and a run that is finished gives its draws again
    same(reference, walk(Options(checkpoint=tmp_path, resume=True)))


@pytest.mark.parametrize("before_state", [False, True])
@pytest.mark.parametrize("num_chunks", [1, 3, 6, 8, 10])
def test_resumed_run_is_the_uninterrupted_one(reference, tmp_path, monkeypatch, num_chunks, before_state):
    with at_chunk(num_chunks, before_state=before_state) as caught:
        walk(Options(checkpoint=tmp_path))
    assert "credo.resume continues it" in caught.value.__notes__[0]
    monkeypatch.setattr(crew, "FIRST_CHUNK", 5)
    same(reference, walk(Options(checkpoint=tmp_path, resume=True)))


def test_interrupted_twice(reference, tmp_path):
    for num_chunks in (5, 6):
        with at_chunk(num_chunks):
            walk(Options(checkpoint=tmp_path, resume=num_chunks == 6))
    same(reference, walk(Options(checkpoint=tmp_path, resume=True)))


def test_time_limit_and_then_resumed(tmp_path):
    slow, phases = Walk(work=50_000), (Phase("sampling", 60, ("position",)),)
    short = walk(Options(checkpoint=tmp_path, time_limit=1e-9), phases=phases, program=slow)
    assert not short.is_complete
    full = walk(Options(checkpoint=tmp_path, resume=True), phases=phases, program=slow)
    same(full, walk(phases=phases, program=slow))


def test_a_folder_is_not_written_over(tmp_path):
    walk(Options(checkpoint=tmp_path))
    with pytest.raises(CredoError, match=r"holds a run already: continue it with credo.resume"):
        walk(Options(checkpoint=tmp_path))


def test_nothing_to_resume(tmp_path):
    with pytest.raises(CredoError, match="holds no run to continue"):
        walk(Options(checkpoint=tmp_path, resume=True))


def test_another_model_is_refused(tmp_path):
    walk(Options(checkpoint=tmp_path), data=[1, 2])
    assert read_identity(tmp_path)["data"] == [1, 2]
    with pytest.raises(CredoError, match=r"its data differs: \[1, 2\] there, \[1, 3\] here"):
        walk(Options(checkpoint=tmp_path, resume=True), data=[1, 3])
    with pytest.raises(CredoError, match=r"its data differs: \[1, 2\] there, None here"):
        walk(Options(checkpoint=tmp_path, resume=True))


@pytest.mark.parametrize("name", ["run", "chain-1", "draws-2-0-000000"])
@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"", lambda b: b"not safetensors at all"])
def test_damage_is_a_sentence(tmp_path, name, damage):
    walk(Options(checkpoint=tmp_path))
    path = tmp_path / f"{name}.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CredoError, match=rf"{name}.safetensors is damaged or no file of Credo's"):
        walk(Options(checkpoint=tmp_path, resume=True))


@pytest.mark.parametrize(("name", "other"), [("chain-1", "chain-0"), ("draws-2-0-000000", "draws-2-1-000000")])
def test_a_file_of_another_chain_is_a_sentence(tmp_path, name, other):
    """Else its draws would be there twice, and pass."""
    walk(Options(checkpoint=tmp_path))
    shutil.copy(tmp_path / f"{other}.safetensors", tmp_path / f"{name}.safetensors")
    with pytest.raises(CredoError, match=rf"{name}.safetensors is {other}.safetensors under another name"):
        walk(Options(checkpoint=tmp_path, resume=True))


def test_a_missing_file_is_a_sentence(tmp_path):
    walk(Options(checkpoint=tmp_path))
    (tmp_path / "draws-2-1-000000.safetensors").unlink()
    with pytest.raises(CredoError, match="There is no file"):
        walk(Options(checkpoint=tmp_path, resume=True))


def test_other_versions_are_said(tmp_path, monkeypatch):
    walk(Options(checkpoint=tmp_path))
    monkeypatch.setattr("credo.journal.__version__", "0.0")
    with pytest.warns(UserWarning, match="no longer bit for bit"):
        walk(Options(checkpoint=tmp_path, resume=True))


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CredoError, match="cannot be made"):
        walk(Options(checkpoint=tmp_path / "file" / "run"))


def test_a_full_disk_is_a_sentence_and_what_was_written_stays(reference, tmp_path):
    with at_chunk(6, CredoError("disk full")) as caught:
        walk(Options(checkpoint=tmp_path))
    assert "disk full" in str(caught.value)
    same(reference, walk(Options(checkpoint=tmp_path, resume=True)))


# signals --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signalled(Walk):
    """A walk during whose tracing a signal comes."""

    def algorithm(self, target, tuning):
        send()
        return super().algorithm(target, tuning)


SIGNALS: list[int] = []  # to be sent by ``send``, each once


def send():
    if SIGNALS:
        os.kill(os.getpid(), SIGNALS.pop())
        time.sleep(0.05)  # until the main thread has heard it


def swallow(*arguments):
    """JAX's callback of the garbage collector: what is raised in it is printed and lost."""
    try:
        send()
        for _ in range(1_000):  # bytecodes, between which Python's own handler would raise
            pass
    except KeyboardInterrupt:
        pass
    return arguments[1:]


def sending(function):
    def wrapped(*args):
        send()
        return function(*args)

    return wrapped


@pytest.fixture
def usual_handlers():
    """Those of a Python program, whatever runs the tests."""
    numbers = signal.SIGINT, signal.SIGTERM
    before = [
        signal.signal(number, usual)
        for number, usual in zip(numbers, (signal.default_int_handler, signal.SIG_DFL), strict=True)
    ]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


MOMENTS = {
    "tracing": "had not begun; what was asked for is kept",
    "starting": "had not begun; what was asked for is kept",
    "a chunk": "The run so far is kept",
    "a barrier": "The run so far is kept",
    "the end": "The run so far is kept",
}


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", MOMENTS)
def test_signals_stop_between_chunks(reference, tmp_path, monkeypatch, capsys, moment, number):
    """Whatever stands in the way; and what resumes is the uninterrupted run."""
    program, phases, handlers = Walk(), PHASES, [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    if moment == "tracing":
        program = Signalled(work=2 + number)  # settings that no other test has compiled
    elif moment == "starting":
        monkeypatch.setattr(sys.modules[__name__], "start", sending(start))
    elif moment == "a chunk":
        monkeypatch.setattr(Journal, "add", sending(Journal.add))
    else:
        index = 1 if moment == "a barrier" else 2
        phases = tuple(p._replace(at_end=swallow) if i == index else p for i, p in enumerate(PHASES))
    SIGNALS[:] = [number]
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as caught:
        walk(Options(checkpoint=tmp_path), phases, program)
    assert not SIGNALS
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    said = caught.value.__notes__[0] if number == signal.SIGINT else capsys.readouterr().err
    assert MOMENTS[moment] in said
    if number == signal.SIGTERM:
        assert caught.value.code == 128 + signal.SIGTERM
        assert "Stopped by SIGTERM" in said
    monkeypatch.undo()
    expected = reference if phases is PHASES and moment != "tracing" else walk(phases=phases, program=program)
    same(expected, walk(Options(checkpoint=tmp_path, resume=True), phases, program))


@pytest.mark.usefixtures("usual_handlers")
def test_an_error_does_not_swallow_ctrl_c():
    def fail(_target):
        send()
        raise CredoError("no start")

    SIGNALS[:] = [signal.SIGINT]
    with double(), pytest.raises(KeyboardInterrupt):
        run(
            Walk(),
            TARGET,
            begin=fail,
            like=(np.float64(0), State(np.zeros(2), np.int32(0))),
            phases=PHASES,
            key=np.array([0, 1], np.uint32),
            num_chains=NUM_CHAINS,
            options=Options(),
        )


@pytest.mark.usefixtures("usual_handlers")
def test_a_second_ctrl_c_has_its_usual_effect():
    stop = Stopping()

    def press_twice():
        with stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.heard == signal.SIGINT
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it was only noted")

    with pytest.raises(KeyboardInterrupt):
        press_twice()


@pytest.mark.usefixtures("usual_handlers")
def test_handlers_of_the_program_stay(reference):
    """And other threads have none."""
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        with Stopping() as stop:
            signal.raise_signal(signal.SIGINT)
        assert heard
        assert stop.heard is None
    finally:
        signal.signal(signal.SIGINT, before)
    results = []
    thread = threading.Thread(target=lambda: results.append(walk()))
    thread.start()
    thread.join()
    same(reference, results[0])


def test_a_request_alone_may_be_written_over(reference, tmp_path):
    """A run that never began holds nothing that could be lost."""
    Journal(tmp_path, {"what": "another walk"}, resume=False).announce()
    assert read_identity(tmp_path) == {"what": "another walk"}
    same(reference, walk(Options(checkpoint=tmp_path)))


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_while_the_request_is_written(tmp_path, monkeypatch, moment):
    """It is kept all the same, and the note says so."""
    announce = Journal.announce

    def interrupted(journal):
        monkeypatch.setattr(Journal, "announce", announce)
        if moment == "after":
            announce(journal)
            journal.is_announced = False  # as between the file and what is said of it
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "announce", interrupted)
    asked = Options(checkpoint=tmp_path, identity={"what": "a walk"}, is_repeatable=True)
    with pytest.raises(KeyboardInterrupt) as caught, request_kept(asked):
        raise AssertionError("nothing begins")
    assert "had not begun; what was asked for is kept" in caught.value.__notes__[0]
    assert read_identity(tmp_path) == {"what": "a walk"}


def test_a_run_that_has_not_begun_is_resumed_by_what_was_asked_for(tmp_path):
    """What only one of a run and the search before it knows is no difference."""
    Journal(tmp_path, {"what": "a walk", "layout": "threads"}, resume=False).announce()
    Journal(tmp_path, {"what": "a walk"}, resume=True)
    Journal(tmp_path, {"what": "a walk", "dtype": "float64"}, resume=True)
    with pytest.raises(CredoError, match="its what differs: a walk there, another walk here"):
        Journal(tmp_path, {"what": "another walk"}, resume=True)


@pytest.mark.usefixtures("usual_handlers")
def test_what_cannot_be_repeated_is_not_promised(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "start", sending(start))
    SIGNALS[:] = [signal.SIGINT]
    with pytest.raises(KeyboardInterrupt) as caught:
        walk(Options(checkpoint=tmp_path, is_repeatable=False))
    assert "nothing is kept" in caught.value.__notes__[0]
    with pytest.raises(CredoError, match="holds no run to continue"):
        walk(Options(checkpoint=tmp_path, resume=True))


@pytest.mark.slow
def test_a_program_stops_at_any_moment(tmp_path):
    """The whole process: its exit code, its last words, and no crash in the compiler's threads as it ends."""
    program = (
        "import signal, sys, numpy as np, numpyro.distributions as dist, credo\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where a shell began us in the background
        "x = np.linspace(-1, 1, 60)[:, None] ** np.arange(1, 7)\n"
        "model = credo.Model({'w': dist.Normal(0.0, 1.0).expand([6]), 'sd': dist.HalfNormal(1.0)},\n"
        "    lambda params, x: dist.Normal(x @ params['w'], params['sd']))\n"
        "target = model.given(x, np.sin(9 * x[:, 0]))\n"
        "method = credo.NUTS(num_draws=100_000)\n"
        "if sys.argv[1] == 'fit': found = credo.fit(target, method, checkpoint=sys.argv[2])\n"
        "elif sys.argv[1] == 'resume': found = credo.resume(sys.argv[2], target)\n"
        "else: found = credo.fit(target, method)\n"
        "np.save(sys.argv[2] + '.npy', found.kind.positions)\n"
    )
    command = [sys.executable, "-c", program]
    subprocess.run([*command, "whole", str(tmp_path / "whole")], check=True)
    twice = (signal.SIGINT, signal.SIGINT)
    moments = ((1, 0.1, (signal.SIGTERM,)), (1, 0.8, twice), (2, 0.0, (signal.SIGTERM,)), (2, 0.8, (signal.SIGINT,)))
    for num_files, delay, signals in moments:  # tracing, compiling, warm-up, sampling, on a machine that is not busy
        folder = tmp_path / f"{num_files} files, {delay} s"
        with subprocess.Popen([*command, "fit", str(folder)], stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None and len(list(folder.glob("*.safetensors"))) < num_files:  # whole ones
                time.sleep(0.01)
            time.sleep(delay)
            for number in signals:
                process.send_signal(number)
                time.sleep(0.4)
            _, said = process.communicate()
        assert process.returncode == (128 + signal.SIGTERM if signal.SIGTERM in signals else -signal.SIGINT), said
        if (num_files, delay) != (1, 0.8):  # then a fast machine has begun and a slow one has not
            had_begun = "The run so far is kept" if num_files == 2 else "The run had not begun"
            assert had_begun in said.strip().splitlines()[-1]
        subprocess.run([*command, "resume", str(folder)], check=True)
        np.testing.assert_array_equal(np.load(f"{folder}.npy"), np.load(tmp_path / "whole.npy"))


@pytest.mark.slow
def test_killed_at_random_moments(reference, tmp_path):
    """kill -9, again and again: warm-up and sampling go on where they were, bit for bit."""
    program = (
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import time; import test_run as t; from pathlib import Path; import credo.crew as crew\n"
        "crew.FIRST_CHUNK = crew.MAX_CHUNK = 8\n"
        "add = t.Journal.add\n"
        "t.Journal.add = lambda self, *a: (add(self, *a), time.sleep(0.01))\n"
        "folder = Path(sys.argv[1])\n"
        "t.walk(t.Options(checkpoint=folder, resume=(folder / 'run.safetensors').exists()))\n"
        "(folder / 'done').write_text('')\n"
    )
    rng, kills = np.random.default_rng(int.from_bytes(b"kill")), 0
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
        while process.poll() is None and not (tmp_path / "run.safetensors").exists():
            time.sleep(0.01)
        num_files = len(os.listdir(tmp_path))
        while process.poll() is None and len(os.listdir(tmp_path)) <= num_files:
            time.sleep(0.001)  # it has begun to write; now any moment will do
        try:
            process.wait(rng.uniform(0, 0.15))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        if (tmp_path / "done").exists():
            break
    assert kills > 3
    assert json.dumps(read_identity(tmp_path))
    same(reference, walk(Options(checkpoint=tmp_path, resume=True)))


def test_what_is_left_of_a_time_limit():
    assert Options().until(Options().deadline()).time_limit is None
    limited = Options(time_limit=5.0, progress=True)
    rest = limited.until(limited.deadline())
    assert 0 < rest.time_limit <= 5.0
    assert rest.progress
    assert limited.until(time.monotonic() - 1.0).time_limit == 0.0


def test_streams_are_as_many_keys_and_all_different():
    with double():
        keys = streams(jax.random.key(1), 1_000, 2)
        assert keys.shape == (1_000, 2)
        assert len({tuple(key) for key in keys.tolist()}) == 1_000
        np.testing.assert_array_equal(keys[:10], streams(jax.random.key(1), 10, 2))
        assert not np.array_equal(keys, streams(jax.random.key(1), 1_000, 3))
