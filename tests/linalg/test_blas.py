"""One thread for small linear algebra: for as long as anybody asks for it, and found quickly."""

import sys
import types

import numpy as np
import threadpoolctl

from credo.linalg import blas
from credo.linalg.blas import ONE_THREAD


def num_threads() -> set[int]:
    np.linalg.inv(np.eye(2))
    return {each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"}


def test_one_thread_until_the_last_leaves():
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        with ONE_THREAD:
            with ONE_THREAD:
                assert num_threads() == {1}
            assert num_threads() == {1}
        assert num_threads() == {2}


def test_libraries_are_looked_for_again_where_modules_came(monkeypatch):
    searches = []
    controller = threadpoolctl.ThreadpoolController
    monkeypatch.setattr(threadpoolctl, "ThreadpoolController", lambda: searches.append(1) or controller())
    blas._libraries.cache_clear()
    for _ in range(3):
        with ONE_THREAD:
            pass
    assert len(searches) == 1
    monkeypatch.setitem(sys.modules, "a_module_that_came", types.ModuleType("a_module_that_came"))
    with ONE_THREAD:
        pass
    assert len(searches) == 2
