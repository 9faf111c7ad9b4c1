"""Threads for short pieces of work: started once, and again in a process that was forked."""

import os
import subprocess
import sys
import threading

import pytest

from credo.cores import in_groups, num_cores, workers


def test_threads_are_started_once():
    assert workers() is workers()
    assert list(workers().map(lambda i: i * i, range(20))) == [i * i for i in range(20)]
    assert num_cores() >= 1


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_no_more_begins_than_is_asked_for(at_once):
    begun = []

    def square(i):
        begun.append(i)
        return i * i

    answers = in_groups(square, range(5), at_once)
    assert next(answers) == 0
    assert set(begun) <= set(range(at_once))
    assert list(answers) == [1, 4, 9, 16]


def test_the_first_of_a_group_is_the_callers():
    threads = list(in_groups(lambda _: threading.get_ident(), range(4), 2))
    assert [thread == threading.get_ident() for thread in threads] == [True, False, True, False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_threads_of_its_own():
    program = """
import os
from credo.cores import workers
workers().submit(len, "ab").result()
child = os.fork()
if child == 0:
    os._exit(workers().submit(len, "abc").result(timeout=20))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forked_from_one_at_work_says_that_it_would_wait_for_ever():
    program = """
import os
import numpyro.distributions as dist
import credo
target = credo.Model({"a": dist.Normal(0.0, 1.0)}, None).given()
for begun in range(2):
    child = os.fork()
    if child == 0:
        try:
            credo.fit(target, credo.MAP(), progress=False)
        except credo.CredoError as error:
            os._exit(7 if "threads of JAX do not survive a fork" in str(error) else 8)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7 * begun
    credo.fit(target, credo.MAP(), progress=False)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=120, check=True)
