"""Files that a crash cannot spoil: arrays by name with a header of text (safetensors), replaced in one step.

A file holds numbers and JSON and no code. It is written beside its place, flushed to the disk and renamed over the old
one, so that at any moment, kill -9 included, there stands either the old file or the new one.
"""

import contextlib
import json
import math
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credo.status import CredoError
from credo.storage import contiguous_parts, memory_for_draws, release, row_blocks, stored

FORMAT = "credo-1"
TYPES = {f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
TYPES |= {"bool": "BOOL", "float16": "F16", "float32": "F32", "float64": "F64"}  # NumPy's names -> those of the file


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any], *, kind: str) -> None:
    """Write ``arrays`` and the JSON-able ``header`` to ``path``. ``kind``: what the file is, asked for on reading.

    CredoError where the disk refuses.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    checked = {} if "sha256" in header else {"crc32": _checksum(arrays)}
    text = json.dumps({"format": FORMAT, "kind": kind, **checked, **header})
    write_parts(path, _as_safetensors(arrays, {"credo": text}))


def _checksum(arrays: Mapping[str, np.ndarray]) -> int:
    """Of the arrays' bytes, by name: a file of the right length may hold wrong numbers."""
    found = 0
    for name in sorted(arrays):
        for part in contiguous_parts(arrays[name]):
            found = zlib.crc32(part, found)
    return found


def _as_safetensors(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The file of ``arrays`` in parts: the length of a head of JSON, the head, the arrays' bytes in C order.

    The library's own writer holds everything in memory twice.
    """
    head: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        head[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of 8
    yield len(text).to_bytes(8, "little") + text
    for array in arrays.values():
        yield from contiguous_parts(array)


def read_arrays(path: str | Path, *, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, header) of a file that ``write_arrays`` wrote; CredoError where it is missing, damaged or foreign."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: _read(file, name, path) for name in file.keys()}  # noqa: SIM118 (no iterator of its own)
        header = json.loads(metadata["credo"]) if "credo" in metadata else {}
    except FileNotFoundError:
        raise CredoError(f"There is no file {path}: look at its name, or restore it from a copy.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CredoError(
            f"{path} is damaged or no file of Credo's ({error}): restore it from a copy, or start again elsewhere."
        ) from error
    stated = header.pop("crc32", None)
    if stated is not None and stated != _checksum(arrays):
        raise CredoError(f"{path} is damaged (its numbers do not match their checksum): restore it from a copy.")
    if header.get("format") != FORMAT or header.get("kind") != kind:
        seen = f"{header.get('format', 'no format')}, {header.get('kind', 'no kind')}"
        raise CredoError(f"{path} is not a {kind} file of this version of Credo ({seen}; {FORMAT}, {kind} is needed).")
    return arrays, header


def _read(file, name: str, path: Path) -> np.ndarray:
    """One array of an open file; draws that memory is short for go from file to file."""
    part = file.get_slice(name)
    shape, dtype = tuple(part.get_shape()), next((n for n, kind in TYPES.items() if kind == part.get_dtype()), None)
    if len(shape) < 3 or dtype is None or math.prod(shape) * np.dtype(dtype).itemsize <= memory_for_draws():
        return file.get_tensor(name)
    with open(path, "rb") as start:  # what the library maps, nobody can release
        size = int.from_bytes(start.read(8), "little")
        offset = 8 + size + json.loads(start.read(size))[name]["data_offsets"][0]
    source, answer = np.memmap(path, dtype, "r", offset, shape), stored(shape, dtype)
    for chain in range(shape[0]):
        for rows in row_blocks(shape[1], math.prod(shape[2:])):
            answer[chain, rows] = source[chain, rows]
            release(source, answer)
    return answer


def write_tree(path: str | Path, tree: Any, header: Mapping[str, Any], *, kind: str) -> None:
    """``write_arrays`` of the leaves of a pytree of numbers, each named by its place in the tree."""
    write_arrays(path, {name: np.asarray(leaf) for name, leaf in named_leaves(tree).items()}, header, kind=kind)


def read_tree(path: str | Path, like: Any, *, kind: str) -> tuple[Any, dict[str, Any]]:
    """(tree, header): a tree in the structure, shapes and dtypes of ``like``; CredoError where the file's differ."""
    arrays, header = read_arrays(path, kind=kind)
    return as_tree(arrays, like, path), header


def as_tree(arrays: Mapping[str, np.ndarray], like: Any, path: str | Path) -> Any:
    """The arrays of one file in the structure of ``like``."""
    expected = named_leaves(like)
    if set(arrays) != set(expected):
        odd = sorted(set(arrays) ^ set(expected))[:3]
        raise CredoError(f"{path} was written by another method or version: it differs in {', '.join(odd)}.")
    for name, leaf in expected.items():
        if arrays[name].shape != np.shape(leaf) or arrays[name].dtype != leaf.dtype:
            raise CredoError(
                f"{path} was written for another target: {name} has shape {arrays[name].shape} and type "
                f"{arrays[name].dtype} there, and shape {np.shape(leaf)} and type {leaf.dtype} here."
            )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their place in it, such as ``kernel/position``."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def write_text_atomically(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` (UTF-8) so that a reader sees the old file or the new one, never a part."""
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """Replace ``path`` in one step that survives a crash. CredoError where the disk refuses."""
    write_parts(path, (content,))


def write_parts(path: str | Path, parts: Iterable[bytes | memoryview]) -> None:
    """The same of content that need not be in memory all at once."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        with open(beside, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # a name that is too long cannot be removed either
            beside.unlink(missing_ok=True)
        raise CredoError(
            f"{path} cannot be written ({error.strerror}): free space or choose another folder. "
            "What was written before is whole."
        ) from error


def _flush_folder(folder: Path) -> None:
    """Make the renaming itself durable, where the system lets a folder be opened (POSIX)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
