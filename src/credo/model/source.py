"""Data outside of memory: rows of files, read by their numbers from within compiled programs.

A batch is a set of row numbers, drawn as for data in memory, and read when the program asks for it. Estimates are
therefore those of arrays in memory, number for number: unbiased because each row is in as many windows as any other,
whatever the order of the rows on disk (model/windows.py).
"""

import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int

from credo.arguments import leaves_of, unmasked
from credo.memory import budget, bytes_of, in_words
from credo.model.data import Rows, column_name, is_leaf, num_rows
from credo.precision import abstract
from credo.status import CredoError
from credo.storage import temporary_folder

FEW = 16  # rows in memory, to look at shapes
AT_ONCE = 2**26  # bytes of a file that are checked at one time


class Loader:
    """Data for ``model.given(loader)`` that come in batches, or that memory cannot hold.

    ``batches``: any iterable of ``Rows``, (x, y) or (x, y, weights), such as a list, a generator or the loader of
    another library; or one ``Rows`` of whole arrays, which may be ``np.memmap``. ``size``: the number of rows N, where
    it is known; a loader that gives more or fewer is refused. ``in_memory``: None for what fits into a quarter of it.
    An iterable is read once, in its own order, and kept: in memory, or in a file without a name in TMPDIR as large as
    the data. Every fit shuffles the rows by its key, whatever the loader does; random augmentation inside the loader is
    therefore drawn once. Fits by minibatches read a batch when they need it, by a call of Python that takes some tenths
    of a millisecond beside the disk's own time, and Laplace() all rows at every turn, some at a time.

    >>> import numpy as np, credo
    >>> batches = ((np.ones((4, 2)), np.zeros(4)) for _ in range(3))
    >>> credo.Loader(batches, size=12).rows().y.shape
    (12,)
    """

    def __init__(self, batches: Rows | Iterable, *, size: int | None = None, in_memory: bool | None = None):
        is_bare = isinstance(batches, tuple) and not isinstance(batches, Rows)
        if is_bare and any(isinstance(part, np.ndarray) for part in batches):
            raise CredoError("A Loader of whole arrays takes credo.Rows(x, y); a bare pair would be two batches.")
        if not isinstance(batches, Rows) and not isinstance(batches, Iterable):
            raise CredoError(f"A Loader takes an iterable of batches (x, y), or Rows(x, y); got {batches!r}.")
        if size is not None and not (isinstance(size, int | np.integer) and size > 0):
            raise CredoError(f"size is the number of rows of all batches together; got {size!r}.")
        self._batches, self._size, self._in_memory = batches, size, in_memory
        self._rows: Rows | None = None

    def rows(self) -> Rows:
        """All rows, as arrays in memory or on disk. CredoError where their number is not ``size``."""
        if self._rows is None:
            whole = isinstance(self._batches, Rows)
            found: Rows = jax.tree.map(unmasked, self._batches) if whole else _gathered(self._batches, self._size)
            number = num_rows(found.x, found.y, found.weights)
            if self._size is not None and number != self._size:
                raise CredoError(f"The data have {number:,} rows, and the loader says {self._size:,}: correct size=.")
            self._rows, self._batches = found, ()
        return self._rows

    @property
    def is_in_memory(self) -> bool:
        """Whether the rows become arrays in memory, as if they had been given so."""
        if self._in_memory is not None:
            return self._in_memory
        return 8 * sum(leaf.size for leaf in jax.tree.leaves(self.rows())) <= budget() // 2  # numbers of 8 bytes each


class Files:
    """Arrays with a common leading axis, read in ``dtype``. Equal to themselves alone: compiled code is keyed on it."""

    def __init__(self, rows: Rows, dtype=np.float64):
        self.rows, self.dtype = rows, np.dtype(dtype)
        self._cast: dict[Any, Files] = {}

    def cast(self, dtype) -> "Files":
        if np.dtype(dtype) == self.dtype:
            return self
        return self._cast.setdefault(np.dtype(dtype), Files(self.rows, dtype))

    def read(self, index) -> Rows:
        """The rows of numbers ``index``, read in the order of the file."""
        index = np.asarray(index)
        order = np.argsort(index, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        rows = jax.tree.map(lambda leaf: np.asarray(leaf[index[order]])[back], self.rows)
        return jax.tree.map(lambda leaf, dtype: leaf.astype(dtype, copy=False), rows, self.dtypes)

    @property
    def dtypes(self) -> Rows:
        """Of what is read: inputs that are booleans stay so."""

        def of(leaf):
            is_float = np.issubdtype(leaf.dtype, np.floating)
            return self.dtype if is_float else np.dtype(np.int64)

        def of_input(leaf):
            return leaf.dtype if leaf.dtype == bool else of(leaf)

        weights = None if self.rows.weights is None else self.dtype
        return Rows(jax.tree.map(of_input, self.rows.x), jax.tree.map(of, self.rows.y), weights)

    def like(self, number: int) -> Rows:
        """Shapes and types of ``number`` rows."""

        def shape(leaf, dtype):
            return abstract((number, *leaf.shape[1:]), dtype)

        return jax.tree.map(shape, self.rows, self.dtypes)

    def blocks(self) -> Iterator[Rows]:
        """All rows as they lie, some at a time."""
        size = jax.tree.leaves(self.rows)[0].shape[0]
        height = max(1, AT_ONCE * size // max(bytes_of(self.rows), 1))
        for first in range(0, size, height):
            yield self.read(np.arange(first, min(first + height, size)))


class Source(eqx.Module):
    """Rows of ``files``, in ``order`` where they are shuffled."""

    files: Files = eqx.field(static=True)
    order: Int[Array, " N"] | np.ndarray | None = None

    def read(self, index) -> Rows:
        """The rows at the places ``index`` (M,), traced or not."""
        place = index if self.order is None else jax.numpy.asarray(self.order)[index]
        wanted = self.files.like(int(np.shape(place)[0]))

        def read(place):
            return jax.tree.map(lambda leaf, like: _bits(leaf.astype(like.dtype)), self.files.read(place), wanted)

        # as bits: a thread that calls back knows nothing of the precision of the program, and would round to float32
        bits = jax.tree.map(lambda like: jax.ShapeDtypeStruct(_bits_shape(like), np.uint32), wanted)
        found = jax.pure_callback(read, bits, place, vmap_method="sequential")
        return jax.tree.map(_unbits, found, wanted)


def is_mapped(tree) -> bool:
    """Whether an array lies in a file."""
    return any(isinstance(leaf, np.memmap) for leaf in leaves_of(tree, "the data", is_leaf))


def _bits_shape(like) -> tuple[int, ...]:
    words = like.dtype.itemsize // 4
    return like.shape if words <= 1 else (*like.shape, words)


def _bits(values: np.ndarray) -> np.ndarray:
    if values.dtype == bool:
        return values.astype(np.uint32)
    return np.ascontiguousarray(values).view(np.uint32).reshape(_bits_shape(values))


def _unbits(bits, like):
    return bits != 0 if like.dtype == bool else jax.lax.bitcast_convert_type(bits, like.dtype)


def _gathered(batches: Iterable, size: int | None) -> Rows:
    """All batches one after the other, in files as soon as they are more than a quarter of what memory may hold."""
    parts: list[Rows] = []
    files: list | None = None
    structure, count, limit = None, 0, budget() // 2
    held = 0
    for number, rows in enumerate(_read(batches)):
        leaves, found = jax.tree.flatten(rows)
        if all(leaf.shape[:1] == (0,) for leaf in leaves):
            continue
        shapes = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        if structure is None:
            structure = found, shapes
        if (found, shapes) != structure:
            raise CredoError(f"Batch {number} has other columns or types than the first: give all batches alike.")
        count += num_rows(rows.x, rows.y, rows.weights)
        if size is not None and count > size:
            raise CredoError(
                f"The loader gave {count:,} rows by its batch {number} and says that it has {size:,}: correct size=, "
                "or let it end."
            )
        held += bytes_of(rows)
        if files is None and 2 * held > limit:
            files = [tempfile.TemporaryFile(dir=temporary_folder()) for _ in leaves]  # noqa: SIM115 - kept by its map
            for part in parts:
                _append(files, jax.tree.leaves(part))
            parts = []
        if files is None:
            parts.append(rows)
        else:
            _append(files, leaves)
    if structure is None:
        raise CredoError("The loader gave no rows: if it is a generator, it may have been read before.")
    if size is not None and count != size:
        raise CredoError(
            f"The loader gave {count:,} rows and says that it has {size:,}: a generator that was partly read gives "
            "what is left; else correct size=."
        )
    if files is None:
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    arrays = []
    for file, (shape, dtype) in zip(files, structure[1], strict=True):
        file.flush()
        arrays.append(np.memmap(file, dtype, "r", shape=(count, *shape)))
        file.close()  # the map keeps what it shows
    return jax.tree.unflatten(structure[0], arrays)


def _read(batches: Iterable) -> Iterator[Rows]:
    """One batch after the other; CredoError where the iterable raises an error of its own."""
    number = count = 0
    try:
        for batch in batches:
            rows = _batch(batch, number)
            yield rows
            number, count = number + 1, count + len(jax.tree.leaves(rows)[0])
    except CredoError:
        raise
    except Exception as error:
        raise CredoError(
            f"Reading batch {number} of the loader failed ({type(error).__name__}: {error}), after {count:,} rows: "
            "mend what gives the batches, or leave out what it cannot read."
        ) from error


def _batch(batch, number: int) -> Rows:
    if not isinstance(batch, tuple | list) or not 2 <= len(batch) <= 3:
        raise CredoError(
            f"Batch {number} of the loader is a {type(batch).__name__}: give (x, y), (x, y, weights) or Rows(x, y)."
        )
    parts = (jax.tree.map(lambda leaf: np.asarray(unmasked(leaf)), part, is_leaf=is_leaf) for part in batch)
    rows = Rows(*parts)
    if rows.y is None:
        raise CredoError(f"Batch {number} of the loader has no outcomes y.")
    for root, tree in zip(Rows._fields, rows, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if leaf.dtype.kind not in "biuf":
                raise CredoError(
                    f"Batch {number}: {column_name(path, root)} has dtype {leaf.dtype}, not numbers: encode it, "
                    "classes as whole numbers from 0 on."
                )
    return rows


def _append(files: list, leaves: list) -> None:
    for file, leaf in zip(files, leaves, strict=True):
        try:
            file.write(np.ascontiguousarray(leaf).tobytes())
        except OSError as error:
            raise CredoError(
                f"The loader's data do not fit on the disk of {temporary_folder()} ({error}; {in_words(leaf.nbytes)} a "
                "batch): point TMPDIR to a larger one."
            ) from error
