"""What every test may use. Keys are explicit everywhere, so nothing needs seeding here."""

import ctypes
import gc
import hashlib
import os
import time
from pathlib import Path

import jax
import numpyro.distributions  # noqa: F401  before arviz_stats, after which it lacks a module of its own (Python 3.13)
import pytest

from credo.lowered import let_go

SHARE = 6  # of the machine's memory that one of the processes may fill with programs

# Their assertions are those of the tests that import them.
pytest.register_assert_rewrite("contract", "oracles", "targets")


@pytest.fixture
def strict():
    """Refuse implicit promotion of dtypes and ranks: for Credo's own kernels and linear algebra.

    Use it for a whole file with ``pytestmark = pytest.mark.usefixtures("strict")``. NumPyro's densities and users'
    code need the usual promotion.
    """
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="module", autouse=True)
def _room_for_programs():
    """Forget compiled programs before the process has as many memory maps as Linux allows it, where LLVM aborts, and
    before they fill the memory: those of all tests take 12 GB."""
    yield
    maps, limit = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
    if not limit.exists():
        return
    has_many = len(maps.read_bytes().splitlines()) > int(limit.read_text()) // 3
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    if has_many or pages > os.sysconf("SC_PHYS_PAGES") // SHARE:
        jax.clear_caches()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc: what is free goes back to the system
        if trim is not None:
            trim(0)


@pytest.fixture(autouse=True)
def _few_contexts():
    """Forget how programs were written for XLA, as each fit does, where tests do without fits."""
    yield
    let_go()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--time-budget",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="skip, with a word, each test that would start after this many seconds",
    )
    parser.addoption(
        "--files-by",
        metavar="WORD",
        help="take the files in an order that WORD decides, so that a time budget leaves out others another time",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    word = config.getoption("--files-by")
    if word is not None:
        items.sort(key=lambda item: hashlib.sha256(f"{word} {item.location[0]}".encode()).digest())


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[STARTED] = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    budget = item.config.getoption("--time-budget")
    if time.monotonic() - item.config.stash[STARTED] > budget:
        pytest.skip(f"the time budget of {budget:g} s is spent")


STARTED = pytest.StashKey[float]()
