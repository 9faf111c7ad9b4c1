"""The checkpoint of a run: a folder from which it continues bit for bit after a kill at any moment.

``run.safetensors``: phase, tuning and states as the phase began, replaced at every barrier. ``chain-0.safetensors``:
where chain 0 stands now, and the chains of its team if they share a program, replaced after every chunk.
``draws-1-0-000016.safetensors``: what they recorded in phase 1 from step 16 on; such files are only ever added, and
one that no chain file vouches for is written again.

Before the first phase ``run.safetensors`` holds the identity alone: what was asked for, and nothing done yet.
"""

import json
import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

import jax
import numpy as np

from credo._version import __version__
from credo.algorithm import Options
from credo.checkpoint import as_tree, named_leaves, read_arrays, read_tree, write_tree
from credo.precision import to_numpy
from credo.status import CredoError


class Journal:
    """``identity``: JSON-able facts that the run which continues must share with the one that began.

    ``is_resumed``: the folder holds a run that had begun, to be continued.
    """

    def __init__(self, folder: str | Path, identity: Mapping[str, Any], *, resume: bool):
        self.folder, self.identity = Path(folder), json.loads(json.dumps(identity))
        self.is_announced = self.is_begun = self.is_resumed = False
        if resume:
            _check_identity(self.folder, self.identity)
            self.is_announced = True
            self.is_begun = self.is_resumed = _is_begun(self.folder)
        elif (self.folder / "run.safetensors").exists() and _is_begun(self.folder):
            raise occupied(self.folder)
        else:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CredoError(
                    f"The folder {self.folder} cannot be made ({error.strerror}): choose another."
                ) from error

    def announce(self) -> None:
        """The run is about to begin: from here on it can be resumed, if only by doing all of it."""
        self._write_run(None, {})
        self.is_announced = True

    def announce_if_missing(self) -> None:
        """``announce``, where whoever did the work has not."""
        if (self.folder / "run.safetensors").exists():
            found = read_identity(self.folder)
            if all(found.get(name) == value for name, value in self.identity.items()):
                self.is_announced = True
                return
        self.announce()

    def enter(self, phase: int, tuning, states: list, left_out: Sequence[int] = ()) -> None:
        """All chains stand at the beginning of ``phase``; those before it that are ``left_out`` were not due."""
        self._write_run(phase, to_numpy({"tuning": tuning, "states": states}), left_out)
        self.is_announced = self.is_begun = True

    def _write_run(self, phase: int | None, tree, left_out: Sequence[int] = ()) -> None:
        header = {"phase": phase, "left_out": list(left_out), "identity": self.identity, "versions": versions()}
        write_tree(self.folder / "run.safetensors", tree, header, kind="run")

    def kept(self) -> str:
        """What a stop leaves behind, in a sentence."""
        if self.is_begun:
            return f"The run so far is kept in {self.folder}: credo.resume continues it."
        if self.is_announced:
            return f"The run had not begun; what was asked for is kept in {self.folder}: credo.resume begins it."
        return f"The run had not begun, and nothing is kept in {self.folder}: fit again."

    def add(self, phase: int, chains: Sequence[int], first: int, last: int, states: list, rows) -> None:
        """``chains`` went from step ``first`` to ``last`` of ``phase``, recorded ``rows`` and are in ``states``.

        One file for a team that shares a program, so that its chains never stand apart.
        """
        self.write_draws(phase, chains, first, last, rows)
        path = self._chain(chains[0])
        write_tree(path, to_numpy(states), {"name": path.name, "phase": phase, "done": last}, kind="chain")

    def write_draws(self, phase: int, chains: Sequence[int], first: int, last: int, rows) -> None:
        """Rows (chain, step, …) that count once the chains' own file says so."""
        path = self._draws(phase, chains[0], first)
        write_tree(path, rows, {"name": path.name, "last": last}, kind="draws")

    def restore(self, like: tuple[Any, Any], num_chains: int) -> tuple[int, list[int], Any, list]:
        """(phase, those left out before it, tuning, states) as the phase began.

        ``like``: a tuning and a state of the same shapes.
        """
        tree = {"tuning": like[0], "states": [like[1]] * num_chains}
        tree, header = read_tree(self.folder / "run.safetensors", tree, kind="run")
        if header["versions"] != versions():
            warnings.warn(
                f"The checkpoint was written with {header['versions']} and continues with {versions()}: the draws "
                "are as valid, but no longer bit for bit those of an uninterrupted run.",
                stacklevel=2,
            )
        return header["phase"], header["left_out"], tree["tuning"], tree["states"]

    def num_steps(self, phase: int, teams: Sequence[Sequence[int]]) -> int:
        """How many steps of ``phase`` the chain that got furthest has in the folder; 0 where it stands elsewhere."""
        found = 0
        for chains in teams:
            if self._chain(chains[0]).exists():
                header = self._read_part(self._chain(chains[0]), "chain", chains)[1]
                found = max(found, header["done"] if header["phase"] == phase else 0)
        return found

    def read(self, phase: int, teams: Sequence[Sequence[int]], records: Any, states: list) -> tuple[list, list[int]]:
        """Fill ``records`` with what the folder holds of ``phase`` -> (states, steps done) of its chains."""
        states, done = list(states), [0] * len(states)
        for chains in teams:
            path = self._chain(chains[0])
            if not path.exists():
                continue
            first = self._read_team(path, phase, chains, records, states)
            for chain in chains:
                done[chain] = first
        return states, done

    def _read_team(self, path: Path, phase: int, chains: Sequence[int], records: Any, states: list) -> int:
        """Steps that ``chains`` have done of ``phase``; their states and records are filled in."""
        arrays, header = self._read_part(path, "chain", chains)
        if header["phase"] == phase:
            here, end = as_tree(arrays, [states[chain] for chain in chains], path), header["done"]
            for chain, state in zip(chains, here, strict=True):
                states[chain] = state
        else:
            end = jax.tree.leaves(records)[0].shape[1] if header["phase"] > phase else 0
        first = 0
        while first < end:
            first = self._read_draws(phase, chains, first, records)
        return first

    def _read_draws(self, phase: int, chains: Sequence[int], first: int, records) -> int:
        path = self._draws(phase, chains[0], first)
        arrays, header = self._read_part(path, "draws", chains)
        for name, kept in named_leaves(records).items():
            expected = (len(chains), header["last"] - first, *kept.shape[2:])
            if name not in arrays or arrays[name].shape != expected:
                raise CredoError(f"{path} was written by another method or version: {name} is not in it as expected.")
            kept[chains[0] : chains[-1] + 1, first : header["last"]] = arrays[name]
        return header["last"]

    def _read_part(self, path: Path, kind: str, chains: Sequence[int]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, header) of a part of the run; CredoError where it is damaged, or another one that was renamed."""
        try:
            arrays, header = read_arrays(path, kind=kind)
            if header.get("name", path.name) != path.name:
                raise CredoError(f"{path} is {header['name']} under another name: restore the file itself from a copy.")
        except CredoError as error:
            whose = f"chain {chains[0]}" if len(chains) == 1 else "all chains"
            raise CredoError(
                f"{error} Or delete {self._chain(chains[0]).name} there: credo.resume then draws {whose} again from "
                "where the present phase began, the same numbers."
            ) from error
        return arrays, header

    def _chain(self, chain: int) -> Path:
        return self.folder / f"chain-{chain}.safetensors"

    def _draws(self, phase: int, chain: int, first: int) -> Path:
        return self.folder / f"draws-{phase}-{chain}-{first:06d}.safetensors"


@contextmanager
def request_kept(options: Options) -> Iterator[None]:
    """Around a fit: from its first moment to its end, whatever ends it, what was asked for is in the folder of its
    checkpoint.

    A method that runs for long adds what its run knows of itself. CredoError where the work of another run lies there,
    or another fit is at work.
    """
    if options.checkpoint is None:
        yield
        return
    if options.resume:
        with _alone_in(Path(options.checkpoint)):
            yield
        return
    journal = Journal(options.checkpoint, options.identity or {}, resume=False)
    with _alone_in(journal.folder):
        if _holds_work(journal.folder):
            raise occupied(journal.folder)
        try:
            try:
                if options.is_repeatable:
                    journal.announce()
                yield
            finally:
                if options.is_repeatable:
                    journal.announce_if_missing()
        except KeyboardInterrupt as error:
            if not getattr(error, "__notes__", ()):
                journal.is_begun = _holds_work(journal.folder)  # by a journal of the method's own
                error.add_note(journal.kept())
            raise


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two fits that write into one folder would leave a run that neither has made. A kill gives the lock back.

    CredoError where another fit, of this process or another, has it. Without effect where the system or its file
    system knows no such locks.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CredoError(
                f"Another fit, of this process or another one, is at work on the run in {folder}: wait for its end or "
                "stop it, then credo.resume goes on from there."
            ) from error
        except OSError:  # a network's file system, perhaps
            pass
        yield
    finally:
        os.close(descriptor)


def occupied(folder: Path) -> CredoError:
    """The refusal to begin where a run lies."""
    return CredoError(
        f"The folder {folder} holds a run already: continue it with credo.resume, or name another folder."
    )


def read_identity(folder: str | Path) -> dict[str, Any]:
    """The identity of the run in ``folder``; CredoError where there is none."""
    path = Path(folder) / "run.safetensors"
    if not path.exists():
        raise CredoError(f"The folder {folder} holds no run to continue: begin one with fit(..., checkpoint=...).")
    return read_arrays(path, kind="run")[1]["identity"]


def _holds_work(folder: Path) -> bool:
    """Whether there is more in ``folder`` than what was asked for."""
    return any(path != folder / "run.safetensors" for path in folder.rglob("*.safetensors"))


def _is_begun(folder: Path) -> bool:
    """Whether the run in ``folder`` has more than an identity."""
    return read_arrays(folder / "run.safetensors", kind="run")[1]["phase"] is not None


def versions() -> dict[str, str]:
    """What must be the same for a run to continue bit for bit."""
    return {"credo": __version__, "jax": jax.__version__, "numpy": np.__version__, "machine": platform.machine()}


def _check_identity(folder: Path, identity: Mapping[str, Any]) -> None:
    begun = read_identity(folder)
    # before the run has begun a search may be under way in its folder, which knows what was asked for, but not what the
    # run adds, its layout and the like: either may have written the file, and either may read it
    names = set(begun) | set(identity) if _is_begun(folder) else set(begun) & set(identity)
    for name in sorted(names):
        if begun.get(name) != identity.get(name):
            there = begun.get(name)
            remedy = f"Ask for layout={there!r}" if name == "layout" else "Give it the same model, data, method and key"
            raise CredoError(
                f"The run in {folder} cannot be continued here, for its {name} differs: {_short(there)} there, "
                f"{_short(identity.get(name))} here. {remedy}."
            )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:200] + " …"
