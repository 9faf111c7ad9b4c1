"""One thread for small linear algebra: for as long as anybody asks for it, and found quickly."""

import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest
import threadpoolctl
from numpyro.distributions import constraints

import credo
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


@pytest.mark.parametrize(("dim", "expected"), [(3, {1}), (blas.SMALL, {1}), (blas.SMALL + 1, {2})])
def test_a_fit_keeps_to_one_thread_where_matrices_are_small(dim, expected):
    seen = []

    def log_density(params):
        seen.append(num_threads())  # as it is traced
        return -0.5 * jnp.sum(params["x"] ** 2)

    model = credo.Model.from_log_density(log_density, {"x": constraints.real}, {"x": (dim,)})
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        target = model.given()
        seen.clear()
        credo.fit(target, credo.MAP(), key=0, progress=False)
        assert seen
        assert all(each == expected for each in seen)
        assert num_threads() == {2}


def test_a_fit_that_fails_gives_the_threads_back():
    model = credo.Model.from_log_density(lambda p: jnp.nan * jnp.sum(p["x"]), {"x": constraints.real}, {"x": (3,)})
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        with pytest.raises(credo.CredoError):
            credo.fit(model.given(), credo.MAP(), key=0, progress=False)
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


def test_a_limit_that_fails_leaves_nothing_behind(monkeypatch):
    def refuse(_):
        raise RuntimeError("no such library")

    with monkeypatch.context() as context:
        context.setattr(blas, "_libraries", refuse)
        with pytest.raises(RuntimeError), ONE_THREAD:
            pass
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        with ONE_THREAD:
            assert num_threads() == {1}
        assert num_threads() == {2}
