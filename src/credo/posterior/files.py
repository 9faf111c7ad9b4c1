"""A posterior as a file: arrays and text, no code, and the fingerprint of its model.

The format is safetensors with a JSON header; its arrays keep every bit. The file knows its model by names, shapes,
supports, the data's hash, and at a recorded position the log density and what the likelihood says of made-up inputs,
never by source text.
"""

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credo.arguments import as_path
from credo.checkpoint import read_arrays, write_arrays
from credo.model.data import Levels, Unkept
from credo.model.fingerprint import bare_model, check, fingerprint
from credo.model.made_up import saying
from credo.model.model import Model
from credo.model.target import Target
from credo.posterior.encoding import Reader, Writer
from credo.posterior.kinds import Draws, Gaussian, Kind, Mixture, Point
from credo.posterior.marginals import sample_positions
from credo.precision import double, to_numpy
from credo.status import CredoError, Estimate, Verdict
from credo.storage import contiguous_parts

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

KIND = "posterior"
VERSION = 1
UNKEPT = {"form": "unknown"}
DAYS = datetime.date, datetime.datetime


def save(posterior: "Posterior", path: str | Path) -> None:
    """Write ``posterior`` to the file ``path``, in one step: at any moment the old file or the new one stands there.

    CredoError where it cannot be written, or where the posterior holds what no file can hold.
    """
    path, writer, target = as_path(path, "the file of a posterior"), Writer(), posterior.target
    header = {
        "version": VERSION,
        "approximation": writer.encode(posterior.kind),
        "verdict": writer.encode(dataclasses.asdict(posterior.verdict)),
        "info": _encode_info(writer, posterior.info),
        "log_evidence": None if posterior.log_evidence is None else writer.encode(vars(posterior.log_evidence)),
        "derived": writer.encode(_derived(posterior)),
    }
    header |= posterior._recorded or _record(writer, posterior, target)
    header["sha256"] = _digest(header, writer.arrays)
    write_arrays(path, writer.arrays, header, kind=KIND)


def load(path: str | Path, model: Model | Target | None = None) -> "Posterior":
    """The posterior in the file ``path``.

    ``model``: the target that was fitted, checked in full; or its model, whose data are then not checked; or None, and
    everything but ``predict`` and ``check`` works, with parameters in a dict by name, and with derived quantities
    where draws were stored (of another kind, the file has no means to derive them). Draws of ``Laplace`` with
    ``MatrixFree()`` are solves with the data, and need the target. CredoError where the file is missing, damaged, no
    posterior of Credo's, of a newer version, or of another model.
    """
    from credo.posterior.posterior import Posterior

    header, arrays = _read(as_path(path, "the file of a posterior"))
    try:
        recorded = {"fingerprint": header["fingerprint"], "precision": header["precision"], "inputs": header["inputs"]}
        derived = Reader(arrays).decode(header["derived"]) or {}
        target = _target(recorded, model, derived)
        reader = Reader(arrays, target.structure, None if model is None else target.flat())
        with double(header["precision"] != "float32"):
            kind = to_numpy(reader.decode(header["approximation"]))
        verdict = reader.decode(header["verdict"])
        evidence = None if header["log_evidence"] is None else Estimate(**reader.decode(header["log_evidence"]))
        posterior = Posterior(
            kind,
            target,
            verdict=Verdict(**verdict),
            info=reader.decode(header["info"]),
            log_evidence=evidence,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CredoError):
            raise
        raise CredoError(f"{path} is damaged ({type(error).__name__}: {error}): restore it from a copy.") from error
    if model is None:
        posterior._recorded, posterior._kept = recorded, derived
    return posterior


def _record(writer: Writer, posterior: "Posterior", target: Target) -> dict[str, Any]:
    """What identifies the model, and what its inputs looked like."""
    shapes = _shapes(target.x)
    with double():
        position = _some_position(posterior.kind)
        precision = str(position.dtype)
        known = fingerprint(target, position)
        if jax.tree.structure(_from_shapes(shapes)) == jax.tree.structure(target.x):  # else a file cannot hold its form
            known["saying"] = saying(target.model, position, target.x)
    levels = {column: _as_text(values) for column, values in target.levels.levels.items()}
    return {"fingerprint": known, "precision": precision, "inputs": {"x": shapes, "levels": levels}}


def _some_position(kind: Kind) -> np.ndarray:
    """Where the log density is recorded: a place that the posterior believes in."""
    if isinstance(kind, Gaussian):
        return np.asarray(kind.mean)
    if isinstance(kind, Draws):
        return np.asarray(kind.positions)[-1, -1]
    if isinstance(kind, Mixture):
        return _some_position(kind.components[0])
    return np.asarray(kind.position if isinstance(kind, Point) else sample_positions(kind, jax.random.key(0), 1)[0])


def _derived(posterior: "Posterior") -> dict[str, np.ndarray] | None:
    """Derived quantities of stored draws, since the functions that give them are code."""
    names = posterior.target.derived_names if isinstance(posterior.kind, Draws) else ()
    return {name: posterior._drawn[name] for name in names} or None


def _target(recorded: Mapping[str, Any], model, derived: Iterable[str]) -> Target:
    known = recorded["fingerprint"]
    if model is None:
        return bare_model(known, derived).given()
    if not isinstance(model, Model | Target):
        raise CredoError(f"load() takes the model or the target that was fitted; got {type(model).__name__}.")
    if not model.structure.leaves:
        raise CredoError(
            "This model waits for its data, so it has no parameters yet: give the target, model.given(x, y)."
        )
    if isinstance(model, Target) and recorded["precision"] == "float32":
        model = model.cast(np.float32)
    x = _from_shapes(recorded["inputs"]["x"])
    with double():
        check(known, model, x)
    if isinstance(model, Target):
        return model
    if type(model) is not Model:  # an adapter's model: its program knows what it was given
        return model.given()
    # without data, but with the shapes of the inputs and the codes of the groups: enough to predict
    levels = Levels({column: _from_text(values) for column, values in recorded["inputs"]["levels"].items()})
    return Target(model.as_of_now(), x, None, None, model.structure, 0, 0, None, levels)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays, header = read_arrays(path, kind=KIND)
    version = header.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise CredoError(
            f"{path} was written by a newer Credo (format {version}; this one reads up to {VERSION}): update Credo."
        )
    stated = header.pop("sha256", None)
    if stated != _digest({name: header[name] for name in header if name not in ("format", "kind")}, arrays):
        raise CredoError(f"{path} is damaged (its contents do not match their hash): restore it from a copy.")
    return header, arrays


def _digest(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype.str}{arrays[name].shape}".encode())
        for part in contiguous_parts(arrays[name]):
            digest.update(part)
    return digest.hexdigest()


def _encode_info(writer: Writer, info: Mapping[str, Any]) -> Any:
    """The figures of a fit; what no file can hold is kept as its text."""

    def plain(value):
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)([plain(item) for item in value]) if type(value) in (list, tuple) else plain(tuple(value))
        try:
            Writer().encode(value)
        except CredoError:
            return str(value)
        return value

    return writer.encode(plain(info))


def _shapes(x) -> Any:
    """The inputs without their rows, as JSON."""
    if x is None:
        return None
    if isinstance(x, Mapping):
        are_kept = all(isinstance(name, str | int) for name in x)
        return {"dict": [[name, _shapes(leaf)] for name, leaf in x.items()]} if are_kept else UNKEPT
    if type(x) in (list, tuple):
        return {type(x).__name__: [_shapes(leaf) for leaf in x]}
    return {"shape": list(np.shape(x)[1:]), "dtype": str(np.asarray(x).dtype)} if hasattr(x, "dtype") else UNKEPT


def _from_shapes(code) -> Any:
    if code is None:
        return None
    if "dict" in code:
        return {name: _from_shapes(leaf) for name, leaf in code["dict"]}
    if "list" in code or "tuple" in code:
        items = [_from_shapes(leaf) for leaf in code.get("list", code.get("tuple"))]
        return items if "list" in code else tuple(items)
    if code == UNKEPT:
        return Unkept()
    return np.zeros((0, *code["shape"]), code["dtype"])


def _as_text(levels: np.ndarray) -> Any:
    """Levels of a group as JSON: days and times by the number behind them, or by their text."""
    if levels.dtype.kind in "OS":
        return {"dtype": "object", "values": [_plain_level(level) for level in levels.tolist()]}
    levels = np.array(levels.tolist()) if levels.dtype.kind == "T" else levels  # text of any length
    values = levels.view(np.int64) if levels.dtype.kind in "mM" else levels
    return {"dtype": levels.dtype.str, "values": values.tolist()}


def _plain_level(level: Any) -> Any:
    if level is None or isinstance(level, str | bool | int | float):
        return level
    if isinstance(level, datetime.date):  # a datetime is one
        return {type(level).__name__ if type(level) in DAYS else "datetime": level.isoformat()}
    raise CredoError(
        f"A file cannot hold the group level {level!r} ({type(level).__name__}): give the model levels that are text, "
        "numbers or dates."
    )


def _from_text(code) -> np.ndarray:
    if code["dtype"] == "object":
        levels = np.empty(len(code["values"]), object)
        levels[:] = [_day(value) if isinstance(value, Mapping) else value for value in code["values"]]
        return levels
    dtype = np.dtype(code["dtype"])
    return np.array(code["values"], np.int64).view(dtype) if dtype.kind in "mM" else np.array(code["values"], dtype)


def _day(code: Mapping[str, str]) -> datetime.date:
    ((name, value),) = code.items()
    return (datetime.date if name == "date" else datetime.datetime).fromisoformat(value)
