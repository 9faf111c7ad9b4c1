"""All cores, for work in this process that releases Python's lock."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from credo.status import CredoError


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def at_work_in() -> int:
    """The process in which work began; a fork inherits the answer."""
    return os.getpid()


def begin_work() -> None:
    """CredoError in a process that was forked from one at work: it would wait for ever for JAX's threads."""
    if at_work_in() != os.getpid():
        raise CredoError(
            "This process was forked from one in which a fit had run, and the threads of JAX do not survive a fork: "
            "it would wait for them for ever. Start it by multiprocessing.get_context('spawn') (or 'forkserver'), or "
            "fork before the first fit."
        )


@functools.cache
def workers() -> ThreadPoolExecutor:
    """Threads for short pieces of work, none of which waits for another: starting threads takes about a millisecond
    each. What has signals to hear, or an end of its own, keeps threads of its own."""
    return ThreadPoolExecutor(num_cores(), thread_name_prefix="credo")


def in_groups(function: Callable, items: Sequence, at_once: int) -> Iterator:
    """``function`` of each item, in order, ``at_once`` of them under way; none begins before it is asked for.

    The first of a group is the caller's: the others wait for what it compiles, which JAX sees to.
    """
    for first in range(0, len(items), at_once):
        own, *others = items[first : first + at_once]
        under_way = [workers().submit(function, item) for item in others]
        yield function(own)
        yield from (future.result() for future in under_way)


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=workers.cache_clear)
