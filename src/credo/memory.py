"""Memory, planned before work begins: what there is, what a computation takes by its shapes, and what to say of it.

An estimate is an upper bound: all that a traced program computes, as if nothing were freed before its end. What does
not fit is cut into chunks; what cannot be cut is refused, with the figure, the budget and what would fit.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import numpy as np

from credo.equations import programs_in
from credo.status import CredoError
from credo.storage import available_memory

SHARE = 2  # of the memory that is free now: the work of one fit or prediction, where nobody says how much
CHUNK = 256 * 2**20  # bytes of intermediates at once: more is no faster
LIMIT: ContextVar[int | None] = ContextVar("max_memory", default=None)
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class TooLarge(CredoError):
    """Work that memory does not hold, refused before it begins."""


class Need(NamedTuple):
    """What one way to do the work holds at its peak, in bytes."""

    name: str
    num_bytes: float


@contextmanager
def limited(max_memory: int | None) -> Iterator[None]:
    """``max_memory`` for work that is not told, as predictions for a verdict within a fit."""
    token = LIMIT.set(max_memory)
    try:
        yield
    finally:
        LIMIT.reset(token)


def budget(max_memory: int | None = None) -> int:
    """Bytes that the work may take: ``max_memory`` of the fit, else half of what the machine could give now."""
    limit = LIMIT.get() if max_memory is None else max_memory
    return available_memory() // SHARE if limit is None else limit


def chunk_bytes(max_memory: int | None = None) -> int:
    """Bytes of intermediates at one time: a quarter of the budget, and no more than serves speed."""
    return min(CHUNK, budget(max_memory) // 4)


def in_words(num_bytes: float) -> str:
    """``num_bytes`` for a reader, to two digits: 80 GB, 0.8 MB."""
    for unit, name in UNITS:
        if num_bytes >= 0.1 * unit:
            value = num_bytes / unit
            return f"{value:,.0f} {name}" if value >= 10 else f"{value:.1f} {name}"
    return f"{num_bytes:.0f} bytes"


def require(wanted: Need, what: str, max_memory: int | None = None, others: Iterable[Need] = ()) -> None:
    """TooLarge where ``wanted`` exceeds the budget. ``what``: of what size the task is; ``others``: other ways."""
    limit = budget(max_memory)
    if wanted.num_bytes <= limit:
        return
    cheaper = [need for need in others if need.num_bytes < wanted.num_bytes]
    fitting = [need for need in cheaper if need.num_bytes <= limit]
    said = ", ".join(f"{need.name} needs {in_words(need.num_bytes)}" for need in fitting or cheaper)
    sentence = f"{wanted.name} needs {in_words(wanted.num_bytes)} for {what}; the budget is {in_words(limit)}"
    if fitting:
        raise TooLarge(f"{sentence}: {said}.")
    raise TooLarge(
        f"{sentence}, and nothing smaller fits{f' ({said})' if said else ''}: give max_memory= more bytes on a machine "
        "that has them, fit in precision='float32', or make fewer parameters random."
    )


def require_count(
    need: Callable[[int], Need], number: int, what: str, max_memory: int | None = None, least: int = 1
) -> None:
    """TooLarge, with the count that ``fewer`` offers, where ``need(number)`` exceeds the budget."""
    require(need(number), what, max_memory, [fewer(need, number, max_memory, least)])


def fewer(need: Callable[[int], Need], number: int, max_memory: int | None = None, least: int = 1) -> Need:
    """The need of the largest count of one digit that fits, from ``least`` to below ``number``; else of the first."""
    digits = [digit * 10**power for power in range(len(str(number))) for digit in range(1, 10)]
    counts = [count for count in digits if least <= count < number] or [least]
    fitting = [count for count in counts if need(count).num_bytes <= budget(max_memory)]
    return need(fitting[-1] if fitting else counts[0])


def footprint(function: Callable, *args: Any) -> int:
    """An upper bound of the bytes that ``function(*args)`` takes beside its arguments: the sum of all it computes."""
    return max(of_program(jax.make_jaxpr(function)(*args).jaxpr), 1)


def of_program(jaxpr) -> int:
    """Bytes of all that a traced program computes; the body of a loop counts once."""
    total = 0
    for equation in jaxpr.eqns:
        total += sum(map(of_program, programs_in(equation)))
        total += sum(size_of(out.aval) for out in equation.outvars)
    return total


def peak(function: Callable, *args: Any) -> int:
    """Bytes that ``function(*args)`` holds at one time beside its arguments, each array until its last use."""
    return max(peak_of_program(jax.make_jaxpr(function)(*args).jaxpr), 1)


def peak_of_program(jaxpr) -> int:
    """The same of a traced program, run in its own order."""
    last = {
        variable: i for i, equation in enumerate(jaxpr.eqns) for variable in equation.invars if _is_variable(variable)
    }
    last |= {variable: len(jaxpr.eqns) for variable in jaxpr.outvars if _is_variable(variable)}
    ending: dict[int, int] = {}
    held = most = 0
    for i, equation in enumerate(jaxpr.eqns):
        inner = sum(map(peak_of_program, programs_in(equation)))
        for variable in equation.outvars:
            size = size_of(variable.aval)
            held += size
            end = last.get(variable, i)
            ending[end] = ending.get(end, 0) + size
        most = max(most, held + inner)
        held -= ending.pop(i, 0)
    return most


def _is_variable(atom) -> bool:
    return not hasattr(atom, "val")


def size_of(array) -> int:
    """Bytes of an array, abstract or not."""
    if not hasattr(array, "shape"):
        return 0
    return math.prod(array.shape) * getattr(array.dtype, "itemsize", 8)


def bytes_of(tree) -> int:
    """Bytes of the arrays in a pytree."""
    return sum(size_of(leaf) for leaf in jax.tree.leaves(tree))


def at_once(bytes_each: float, most: int, max_memory: int | None = None) -> int:
    """How many things of ``bytes_each`` to work on together."""
    return int(np.clip(chunk_bytes(max_memory) // max(bytes_each, 1), 1, max(most, 1)))
