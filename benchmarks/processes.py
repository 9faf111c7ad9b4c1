"""One measurement in one fresh process: started, awaited, its JSON read."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
TOO_LONG = "no answer in"
CACHES = ("JAX_", "XLA_", "NUMBA_", "PYTENSOR")  # a user's own settings of these would decide what is measured


def environment(library: str, folder: str, is_kept: bool) -> dict[str, str]:
    """Every library's disk cache lies in ``folder``. ``is_kept``: JAX, which has none by default, keeps one there."""
    found = {k: v for k, v in os.environ.items() if not k.startswith(CACHES)}
    found |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "NUMBA_CACHE_DIR": folder,
        "PYTENSOR_FLAGS": f"base_compiledir={folder}",
    }
    if is_kept:
        found |= {
            "JAX_ENABLE_COMPILATION_CACHE": "true",
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        }
    if library == "stan":
        found["XDG_CACHE_HOME"] = folder  # where PyStan keeps the programs it built
    return found


def run_fit(kind: str, library: str, problem: str, *numbers: int, timeout: float, cache: str | None = None) -> dict:
    """The JSON of one fit in a fresh process, or {"error": its last words}. ``cache``: a folder that outlives it."""
    return run_program("one_fit.py", [kind, library, problem, *map(str, numbers)], library, timeout, cache)


def run_program(program: str, words: list[str], library: str, timeout: float, cache: str | None = None) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, str(HERE / program), *words]
        where = environment(library, cache or scratch, cache is not None)
        # A session of its own: the processes that a library starts end with it.
        process = subprocess.Popen(
            command,
            env=where,
            cwd=scratch if library == "stan" else None,  # it leaves a folder where it builds
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, 9)
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                return {"error": f"{TOO_LONG} {timeout:g} s"}
            raise
    if process.returncode:
        return {"error": (err.strip().splitlines() or ["no message"])[-1][:200]}
    return json.loads(out.strip().splitlines()[-1])


def seconds_to_import(statement: str) -> float:
    """Of ``statement``, an import, in a fresh process."""
    code = f"from time import perf_counter as t; s = t(); {statement}; print(t() - s)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    """Versions, cores and load, in two lines."""

    def of(name: str) -> str:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            return f"{name} absent"

    names = ("credo", "jax", "numpyro", "blackjax", "nutpie", "pymc", "pystan", "arviz-stats")
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"Python {platform.python_version()}; {'; '.join(map(of, names))}.\n"
        f"{os.cpu_count()} cores; load before the run {load}."
    )
