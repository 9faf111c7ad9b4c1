"""Draws that need not fit into memory: arrays in files without a name, which end with the arrays or the process.

Such an array is an ordinary NumPy array over a mapped file. It lies column by column: all draws of one coordinate are
next to each other, since nearly all that is asked of draws (R-hat, quantiles, the draws of one parameter) is asked of
one coordinate at a time, while a chunk of steps is still one run of numbers a column.

Pages that were touched count as memory of the process until ``release`` hands them back; what they hold stays.
"""

import errno
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from credo.status import CredoError

MEMORY_SHARE = 4  # of the memory there is: draws, draws by name, and what is computed of them
CONTAINERS = (  # its limit, and beside it what is used: of the kernel's second interface, and of the first
    ("/sys/fs/cgroup/memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "memory.usage_in_bytes"),
)
AT_ONCE = 4_000_000  # numbers of a stored array in memory at one time: 32 MB in float64


def stored(shape: tuple[int, ...], dtype, folder: Path | None = None, *, by_columns: bool = True) -> np.ndarray:
    """Zeros (chain, draw, …) in a file of ``folder``, or of the system's folder for large temporary files.

    All of the disk's space is taken at once, so that a full disk is a CredoError here and no crash later.
    ``by_columns=False``: in the order of an array in memory, over which sums are the same to the last bit.
    """
    order = (*shape[2:], *shape[:2]) if by_columns else shape
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    folder = temporary_folder() if folder is None else folder
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file.fileno(), num_bytes)
            mapped = np.memmap(file, dtype, "r+", shape=order)
    except OSError as error:
        raise _refused(num_bytes, folder, error.strerror) from error
    return np.moveaxis(np.asarray(mapped), (-2, -1), (0, 1)) if by_columns else np.asarray(mapped)


def check_room(num_bytes: int, folder: Path | None = None) -> None:
    """CredoError where the disk has not as much now: before the work that would fill it."""
    folder = temporary_folder() if folder is None else folder
    if shutil.disk_usage(folder).free < num_bytes:
        raise _refused(num_bytes, folder, os.strerror(errno.ENOSPC))


def _refused(num_bytes: int, folder: Path, why: str | None) -> CredoError:
    return CredoError(
        f"The draws need {num_bytes / 1e9:.3g} GB on the disk of {folder}, which refuses ({why}): free space there, "
        "name another folder in the environment variable TMPDIR, or ask for fewer draws."
    )


def is_stored(array) -> bool:
    """Whether ``array`` is one of ``stored``, or a view of one."""
    return _mapping(array) is not None


def release(*arrays) -> None:
    """Hand the pages of stored arrays back to the system; they are read again from the file when asked for."""
    for array in arrays:
        mapping = _mapping(array)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


def cut(array: np.ndarray, num_draws: int, folder: Path | None = None) -> np.ndarray:
    """The first ``num_draws`` of each chain: a view in memory, and a file of the right length on disk."""
    if num_draws == array.shape[1] or not is_stored(array):
        return array[:, :num_draws]
    shorter = stored((array.shape[0], num_draws, *array.shape[2:]), array.dtype, folder)
    copy_draws(array, shorter, num_draws)
    return shorter


def chosen(array: np.ndarray, is_kept: np.ndarray) -> np.ndarray:
    """The draws (chain, draw, …) of each chain that ``is_kept`` (draw,) says: those of a stored array in a file too."""
    if np.all(is_kept):
        return array
    if not is_stored(array):
        return array[:, is_kept]
    shorter = stored((array.shape[0], int(np.sum(is_kept)), *array.shape[2:]), array.dtype)
    source, into = (each.reshape(*each.shape[:2], -1) for each in (array, shorter))
    for columns in column_blocks(array.shape[0] * array.shape[1], source.shape[2]):
        into[:, :, columns] = source[:, :, columns][:, is_kept]
        release(source, into)
    return shorter


def is_finite(array: np.ndarray) -> bool:
    """Whether all numbers of draws (chain, draw, dim) are, a few columns at a time."""
    for columns in column_blocks(array.shape[0] * array.shape[1], array.shape[2]):
        if not np.all(np.isfinite(array[..., columns])):
            return False
        release(array)
    return True


def copy_draws(source: np.ndarray, into: np.ndarray, num_draws: int) -> None:
    """The first ``num_draws`` of each chain of one array to another, a few columns at a time."""
    source, into = (array.reshape(*array.shape[:2], -1) for array in (source, into))  # views: columns are contiguous
    for columns in column_blocks(source.shape[0] * num_draws, source.shape[2]):
        into[:, :num_draws, columns] = source[:, :num_draws, columns]
        release(source, into)


def gather(array: np.ndarray, index) -> np.ndarray:
    """``array[index]`` in memory, ``index`` of the leading axes alone: rows of a stored array lie far apart."""
    if not is_stored(array):
        return array[index]
    found = [array[..., :1][index]]
    answer = np.empty((*found[0].shape[:-1], array.shape[-1]), array.dtype)
    for columns in column_blocks(array[..., 0].size, array.shape[-1]):
        answer[..., columns] = array[..., columns][index]
        release(array)
    return answer


def contiguous_parts(array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of ``array`` in C order, one part after the other: stored arrays a few rows at a time."""
    if not is_stored(array):
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        return
    for block in _blocks(array):
        yield np.ascontiguousarray(block).reshape(-1).view(np.uint8).data
        release(array)


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """``array`` along its first axes, in blocks of about ``AT_ONCE`` numbers, in C order."""
    each = math.prod(array.shape[1:])
    if each > AT_ONCE:
        for part in array:
            yield from _blocks(part)
        return
    height = max(1, AT_ONCE // max(each, 1))
    for first in range(0, len(array), height):
        yield array[first : first + height]


def by_columns(function: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    """``function((n, *shape)) -> (…, *shape)``, one that treats scalars apart, of ``values`` as large as they may be.

    Large ones go a few columns at a time, in float64.
    """
    if values.size <= AT_ONCE:
        return function(values)
    n, shape = len(values), values.shape[1:]
    flat, parts = values.reshape(n, -1), []
    for columns in column_blocks(n, flat.shape[1]):
        parts.append(function(np.asarray(flat[:, columns], np.float64, order="F")))
        release(values)
    return np.concatenate(parts, axis=-1).reshape(*parts[0].shape[:-1], *shape)


def column_blocks(num_rows: int, num_columns: int, at_once: int | None = None) -> Iterator[slice]:
    """Slices of columns that hold about ``at_once`` numbers each."""
    width = max(1, (AT_ONCE if at_once is None else at_once) // max(num_rows, 1))
    for first in range(0, num_columns, width):
        yield slice(first, min(first + width, num_columns))


def row_blocks(num_rows: int, num_columns: int) -> Iterator[slice]:
    """Slices of rows that hold about ``AT_ONCE`` numbers each, all of one length: the last one may overlap."""
    height = max(1, min(num_rows, AT_ONCE // max(num_columns, 1)))
    for first in range(0, num_rows, height):
        yield slice(min(first, num_rows - height), min(first + height, num_rows))


def memory_for_draws() -> int:
    """Bytes of draws that may lie in memory where nobody says how many."""
    return available_memory() // MEMORY_SHARE


def available_memory() -> int:
    """Bytes that the system could give to this process now, as far as it says."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        try:
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (AttributeError, OSError, ValueError):
            return 4 * 2**30  # a system that does not say: any computer of these years has as much
    for limit, used in CONTAINERS:
        try:
            free = min(free, max(0, _left(Path(limit), used)))
        except (OSError, ValueError):
            continue
    return free


def _left(limit: Path, used: str) -> int:
    """Bytes of a container's limit that it does not use, or uses for files which it can read again."""
    stat = dict(line.split() for line in limit.with_name("memory.stat").read_text(encoding="ascii").splitlines())
    size, taken = (int(file.read_text(encoding="ascii")) for file in (limit, limit.with_name(used)))
    return size - taken + int(stat.get("inactive_file", 0))


def temporary_folder() -> Path:
    """What TMPDIR says, else /var/tmp, since /tmp may lie in memory, else what Python takes."""
    if not any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")) and os.access("/var/tmp", os.W_OK):
        return Path("/var/tmp")
    return Path(tempfile.gettempdir())


def _mapping(array) -> mmap.mmap | None:
    while array is not None:
        if isinstance(array, np.memmap):
            return array._mmap  # type: ignore[attr-defined]
        array = getattr(array, "base", None)
    return None


def _reserve(descriptor: int, num_bytes: int) -> None:
    """OSError where the disk has not as much: at a page without room, a file with holes would end the process."""
    if hasattr(os, "posix_fallocate"):
        try:
            return os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot reserve
                raise
    if shutil.disk_usage(descriptor).free < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, num_bytes)
