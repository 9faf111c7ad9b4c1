"""Chunks of rows: how large they may be, and a function run over them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from credo.algorithm import stream as stream_of
from credo.compiling import sound
from credo.cores import in_groups
from credo.memory import of_program
from credo.precision import double
from credo.predict.outcome import Outcome, Outcomes, over
from credo.status import CredoError
from credo.traced import by_shapes

FEW = 8  # rows that are looked at together
MEMORY = 2**26  # bytes that the work on one chunk of rows may take, roughly
STREAMED = 2**28  # and where each draw of the parameters is made again for each chunk
WIDE = 2**21  # bytes of all distributions behind a row: chunks would be of fewer than 32 rows
LARGE = 2**14  # numbers
NUM_TEMPORARIES = 10  # arrays of the size of the outcomes that one evaluation holds at a time


@runtime_checkable
class Law(Protocol):
    """A predictive distribution as a pytree of pure functions of a chunk of rows.

    ``width``: how many distributions stand behind each row. ``batch``: how many of them are evaluated at a time.
    ``shared(generator, n)``: what all rows have in common in each of n draws, made on the host; ``sample``: the draws
    (n, …), given it and key data (n, 2) of these rows' own.
    """

    batch: int

    @property
    def width(self) -> int: ...
    def likelihood(self, rows, index) -> Outcomes: ...
    def moments(self, rows) -> Any: ...
    def log_prob(self, rows, y) -> Any: ...
    def cdf(self, rows, part: str | None) -> Callable: ...
    def shared(self, generator: np.random.Generator, n: int) -> np.ndarray: ...
    def sample(self, rows, shared, keys) -> Any: ...


class Stream(NamedTuple):
    """A law over ``size`` rows, taken ``chunk`` at a time; size None: no inputs, so that the rows cannot be cut.

    ``light``: how many at a time where the law's mean alone is asked for. ``at_once``: chunks under way together.
    ``alone``: of what is asked for beside the one row of a model without inputs, how many at a time.
    """

    law: Any
    rows: Any
    size: int | None
    chunk: int | None
    light: int | None = None
    at_once: int = 1
    alone: int | None = None

    def __call__(
        self, function: Callable, *more, key=None, chunk: int | None = None, axis: int = 0, is_light: bool = False
    ):
        """``function(law, rows, *more)`` over the chunks, as NumPy arrays joined along ``axis``.

        ``more``: pytrees with the same leading axis as the rows. ``key``: a chunk's own key is handed on as ``key=``.
        """
        if self.alone is not None and more:
            return self._of_one_row(function, more, key, axis, self.alone)
        trees = (self.rows, *more)
        most = (self.light if is_light else None) or self.chunk
        chunk = min(chunk or most or 1, most or 1)
        size = self.size
        if size is None or most is None or chunk >= size or not self._can_cut(size, chunk):
            return _to_numpy(function(self.law, *trees, **_keyed(key, 0)))
        is_double = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]

        def of_chunk(start: int):
            # the last chunk is filled up with the last row, so that one program serves all
            index = np.minimum(np.arange(start, start + chunk), size - 1)
            is_whole, rows = start + chunk <= size, slice(start, start + chunk)

            def cut(leaf):
                return leaf[rows if is_whole and isinstance(leaf, np.ndarray) else index]  # a slice copies nothing

            with double(is_double):  # of this thread
                piece = _to_numpy(function(self.law, *jax.tree.map(cut, trees), **_keyed(key, start)))
            if is_whole:
                return piece
            kept = np.arange(size - start)
            return jax.tree.map(lambda leaf: np.take(leaf, kept, axis=axis), piece)

        pieces = list(in_groups(of_chunk, range(0, size, chunk), self.at_once))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *pieces)

    def _of_one_row(self, function: Callable, more: tuple, key, axis: int, chunk: int):
        """All of ``more`` is asked of the same row; outcomes of unlike lengths are one question, which is not cut."""
        sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(more)}
        if len(sizes) != 1 or sizes == {()}:
            return _to_numpy(function(self.law, self.rows, *more, **_keyed(key, 0)))
        (size,), pieces = sizes.pop(), []
        for start in range(0, size, chunk):
            own = jax.tree.map(lambda leaf, start=start: leaf[start : start + chunk], more)
            pieces.append(_to_numpy(function(self.law, self.rows, *own, **_keyed(key, start))))
        return pieces[0] if len(pieces) == 1 else jax.tree.map(lambda *a: np.concatenate(a, axis=axis), *pieces)

    def _can_cut(self, size: int, chunk: int) -> bool:
        """Known of rows that are cut in any case."""
        return (self.chunk or size) < size or can_cut(self.law, self.rows, size, chunk)


def stream(law: Law, rows, size: int | None) -> tuple[Any, Stream]:
    """(what is known of the outcomes, the stream). CredoError where the likelihood cannot take these rows."""
    outcomes, cost = _outline(law, rows, size=size)
    named = list(outcomes.values()) if isinstance(outcomes, dict) else [outcomes]
    num_rows = size or max(outcome.shape[0] for outcome in named)
    row_cost, own_cost = _costs(law, rows, size, num_rows, cost)
    element = 8 * sum(math.prod(o.shape[1:]) * (o.num_classes or 1) for o in named)
    chunk, light, alone, is_streamed = None, None, None, False
    together = NUM_TEMPORARIES * law.width * element + row_cost
    if together - row_cost > WIDE and getattr(law, "is_streamed", None) is not None:  # draw after draw
        is_streamed, together = True, NUM_TEMPORARIES * element + row_cost
    if size is not None and not any(o.is_joint for o in named):
        chunk = even(size, (STREAMED if is_streamed else MEMORY) // together)
        if chunk < size and not can_cut(law, rows, size, chunk):
            chunk = None
        elif not is_streamed:
            width = getattr(law, "width_of_mean", law.width)
            light = even(size, MEMORY // (NUM_TEMPORARIES * width * element + row_cost))
    if size is None and num_rows == 1 and not any(o.is_joint for o in named):
        alone = int(max(1, MEMORY // together))
    batch = int(max(1, MEMORY // ((chunk or num_rows) * row_cost + own_cost)))
    batch = next(b for b in range(min(batch, law.width), 0, -1) if law.width % b == 0)
    changed = {"batch": 1, "is_streamed": True} if is_streamed else {"batch": batch}
    fields: Any = law  # a law is a dataclass, which its protocol does not say
    if any(getattr(law, name) != value for name, value in changed.items()):
        law = dataclasses.replace(fields, **changed)
    if any(np.size(leaf) > LARGE for leaf in jax.tree.leaves(law)):
        law = jax.tree.map(_moved_once, law)
    return outcomes, Stream(law, rows, size, chunk, light, alone=alone)


def _moved_once(leaf):
    """A large array on the device; small ones go there with each call in less time than this takes."""
    return jax.device_put(leaf) if np.size(leaf) > LARGE else leaf


def even(size: int, most: float) -> int:
    """The rows of a chunk, ``most`` or fewer, where all chunks are about as large."""
    most = int(min(size, max(1, most)))
    return -(-size // -(-size // most))


@by_shapes
def _outline(law: Law, rows, *, size: int | None) -> tuple[Any, float]:
    """What is known of the outcomes, and the bytes of all that one evaluation of the likelihood computes."""
    seen: list[Any] = []

    def look(law, rows):
        found = law.likelihood(rows, 0)
        seen.append(over(Outcome.of, found))
        return jax.tree.leaves(found)

    try:
        jaxpr = jax.make_jaxpr(look)(law, rows)
    except CredoError:
        raise
    except (TypeError, ValueError) as error:
        raise CredoError(
            f"The likelihood cannot be evaluated at these inputs ({str(error)[:120]}): a parameter with one entry a "
            "row must be indexed by a column of x."
        ) from error
    for outcome in seen[0].values() if isinstance(seen[0], dict) else seen:
        if size is not None and outcome.shape[:1] != (size,):
            raise CredoError(
                f"The likelihood returned {outcome.family} of shape {outcome.shape} for {size} rows of x: a parameter "
                "with one entry a row must be indexed by a column of x."
            )
    return seen[0], of_program(jaxpr.jaxpr)


def _costs(law: Law, rows, size: int | None, num_rows: int, cost: float) -> tuple[float, float]:
    """Bytes of one evaluation, ``cost`` in all: what one row more computes, and what is of the parameters alone."""
    few = num_rows // 2
    if size is not None and few > 0 and cost > MEMORY:
        try:
            _, cost_of_few = _outline(law, jax.tree.map(lambda leaf: leaf[:few], rows), size=few)
        except CredoError:  # the rows cannot be cut
            return max(cost / num_rows, 1.0), 0.0
        row_cost = max((cost - cost_of_few) / (num_rows - few), 1.0)
        return row_cost, max(cost - num_rows * row_cost, 0.0)
    return max(cost / num_rows, 1.0), 0.0


def can_cut(law: Law, rows, size: int, chunk: int) -> bool:
    """Whether the likelihood takes ``chunk`` of the rows, and says the same of them."""
    try:
        _outline(law, jax.tree.map(lambda leaf: leaf[:chunk], rows), size=chunk)
    except CredoError:
        return False
    return _stand_alone(law, rows, size)


def _stand_alone(law: Law, rows, size: int) -> bool:
    """Whether the likelihood of a row is the same without the rows beside it: not after a scan or a lag along x.

    By values, at one draw, of the first and the last of a few rows. Networks were looked at when they met their data.
    """
    target, few = getattr(law, "target", None), min(size, FEW)
    if target is None or target.model is None or target.model.weights_name is not None:
        return True
    together = _leaves_of_likelihood(law, jax.tree.map(lambda leaf: leaf[:few], rows))
    for place in (0, few - 1):
        alone = _leaves_of_likelihood(law, jax.tree.map(lambda leaf, i=place: leaf[i : i + 1], rows))
        pairs = [(all_[place], one[0]) for all_, one in zip(together, alone, strict=True) if all_.shape[:1] == (few,)]
        if not all(np.allclose(among, one, rtol=1e-3, atol=1e-6, equal_nan=True) for among, one in pairs):
            return False
    return True


def _leaves_of_likelihood(law: Law, rows) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in _likelihood(law, rows)]


@sound
def _likelihood(law: Law, rows):
    return jax.tree.leaves(law.likelihood(rows, 0))


def _to_numpy(tree):
    return jax.tree.map(np.asarray, tree)


def _keyed(key, start: int) -> dict[str, Any]:
    return {} if key is None else {"key": stream_of(key, start)}
