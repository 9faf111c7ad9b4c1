"""One measurement in one process: ``processes.py`` starts it, and reads the JSON of its last line.

python one_fit.py nuts   LIBRARY PROBLEM KEY DRAWS [WARMUP]    a fit, and a second one for what compiling hides
python one_fit.py first  LIBRARY PROBLEM KEY DRAWS [WARMUP]    the first alone
python one_fit.py lanes  LIBRARY PROBLEM KEY DRAWS CHAINS    gradients of many chains
python one_fit.py floor  -       PROBLEM                       a bare leapfrog loop
python one_fit.py points LIBRARY PROBLEM
"""

import json
import os
import resource
import sys
import threading
import warnings
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

# Before any timer: what every fit needs and no library is asked to pay for.
import sklearn.datasets  # noqa: F401

NEXT_KEY = 1_000  # of the second fit


def cpu_seconds() -> float:
    """Processor time of this process, of those it started and has awaited, and (on Linux) of those that still run."""
    awaited = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + awaited.ru_utime + awaited.ru_stime + sum(map(_of_living, _children()))


def _children() -> list[str]:
    found = []
    for tasks in Path("/proc/self/task").glob("*/children"):
        found += tasks.read_text().split()
    return found


def _of_living(process: str) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # ended meanwhile
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # user, system, and the two of its own children


def timed(function, *args):
    """(what it returns, wall seconds, CPU seconds of all threads and processes)."""
    wall, cpu = perf_counter(), cpu_seconds()
    result = function(*args)
    return result, perf_counter() - wall, cpu_seconds() - cpu


class Compiling:
    """Processor seconds that go into tracing and compiling, as JAX reports them, while the block runs.

    NumPyro compiles again at every fit. JAX tells the wall seconds of a compilation; a thread that reads the clocks all
    the while tells what they were worth in processor time, which on a busy machine is another thing.
    """

    def __init__(self):
        self.spans: list[tuple[float, float]] = []
        self.clocks: list[tuple[float, float]] = []
        self.is_over = threading.Event()

    def __enter__(self):
        if "jax" in sys.modules:
            sys.modules["jax"].monitoring.register_event_duration_secs_listener(self.hear)
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()

    def hear(self, event: str, duration: float, **_) -> None:
        if event.startswith("/jax/core/compile/"):
            end = perf_counter()
            self.spans.append((end - duration, end))

    def watch(self) -> None:
        while True:
            self.clocks.append((perf_counter(), process_time()))
            if self.is_over.wait(0.005):
                break

    def cpu_seconds(self) -> float:
        """The spans' union: one event reports the time of another too."""
        wall, cpu = zip(*self.clocks, strict=True)
        total, reached = 0.0, float("-inf")
        for start, end in sorted(self.spans):
            if end > reached:
                total += float(np.diff(np.interp([max(start, reached), end], wall, cpu))[0])
                reached = end
        return total


def convergence(draws: dict[str, np.ndarray]) -> dict[str, float]:
    """R-hat and ESS of draws (chain, draw, *shape), the worst of all, by the same ArviZ call for every library."""
    import arviz_base
    import arviz_stats

    table = arviz_stats.summary(arviz_base.from_dict({"posterior": draws}), kind="diagnostics", round_to="none")
    return {
        "max_r_hat": float(np.max(table["r_hat"].to_numpy())),  # a NaN stays a NaN, and fails
        "min_ess_bulk": float(np.min(table["ess_bulk"].to_numpy())),
        "min_ess_tail": float(np.min(table["ess_tail"].to_numpy())),
    }


def named(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.asarray(draws[name], np.float64) for name in sorted(draws)}


def moments(draws: dict[str, np.ndarray]) -> dict:
    """Mean and sd of every number, to five digits."""
    flat = np.concatenate([v.reshape(*v.shape[:2], -1) for v in draws.values()], axis=-1)
    short = {"mean": flat.mean(axis=(0, 1)), "sd": flat.std(axis=(0, 1))}
    names = {name: list(v.shape[2:]) for name, v in draws.items()}
    return {"names": names} | {name: [float(f"{x:.5g}") for x in values] for name, values in short.items()}


def first(library: str, problem: str, key: int, num_draws: int, num_warmup: int | None = None):
    """(the library's sampler, draws, figures of its first fit)."""
    from posteriors import POSTERIORS
    from samplers import SAMPLERS

    sampler, seconds_import, _ = timed(SAMPLERS[library], POSTERIORS[problem], num_draws, num_warmup)
    draws, total, cpu = timed(sampler.fit, key)
    precision = str(next(iter(draws.values())).dtype)
    seconds = {"import": seconds_import, "total": total, "cpu": cpu, "parts": sampler.parts}
    draws = named(draws)
    facts = {"num_warmup": sampler.num_warmup, "precision": precision}
    return sampler, draws, {**seconds, **facts, **convergence(draws), **moments(draws)}


def nuts(library: str, problem: str, key: int, num_draws: int, num_warmup: int | None = None) -> dict:
    sampler, draws, found = first(library, problem, key, num_draws, num_warmup)
    return {**found, **without_compiling(sampler, key, draws, found)}


def without_compiling(sampler, key: int, draws, found: dict) -> dict:
    """Processor time, gradients and ESS of one fit that compiles nothing, or of which that is taken off."""
    if hasattr(sampler, "seconds_of_draws"):
        # what the library says of its first fit, since all its fits compile
        seconds, ess = (
            {"warm": None, "warm_cpu": sampler.seconds_of_draws},
            {k: found[k] for k in found if "_ess_" in k},
        )
    else:
        with Compiling() as compiling:
            draws, wall, cpu = timed(sampler.fit, key + NEXT_KEY)
        heard = compiling.cpu_seconds()
        verdict = getattr(sampler, "verdict_cpu", 0.0)
        seconds = {"warm": wall, "warm_cpu": cpu - heard, "warm_compile_cpu": heard, "warm_verdict_cpu": verdict}
        ess = convergence(named(draws))
        if hasattr(sampler, "count_warmup"):
            sampler.count_warmup(key + NEXT_KEY)
    return {**seconds, "warm_ess_bulk": ess["min_ess_bulk"], "warm_ess_tail": ess["min_ess_tail"]} | {
        "gradients": sampler.gradients
    }


def lanes(library: str, problem: str, key: int, num_draws: int, num_chains: int) -> dict:
    from posteriors import POSTERIORS
    from samplers import SAMPLERS

    sampler = SAMPLERS[library](POSTERIORS[problem], num_draws, None, num_chains)
    _, total, cpu = timed(sampler.fit, key)
    if hasattr(sampler, "count_warmup"):
        sampler.count_warmup(key)
    return {"total": total, "cpu": cpu, "gradients": sampler.gradients}


def floor(_: str, problem: str) -> dict:
    """Seconds a gradient of a bare leapfrog loop: one chain, float64, one jitted program with nothing else in it."""
    import jax
    from jax import lax
    from posteriors import POSTERIORS

    jax.config.update("jax_enable_x64", True)
    module = POSTERIORS[problem]
    dim, log_density, _ = module.log_density(module.data())
    evaluate, step_size = jax.value_and_grad(log_density), 1e-4  # so short that the path stays where it began

    @jax.jit
    def leapfrog(position, momentum, num_steps):
        def step(_, state):
            position, momentum, gradient, log_densities = state
            momentum = momentum + 0.5 * step_size * gradient
            position = position + step_size * momentum
            log_density, gradient = evaluate(position)
            return position, momentum + 0.5 * step_size * gradient, gradient, log_densities + log_density

        state = (position, momentum, jax.grad(log_density)(position), 0.0)
        return lax.fori_loop(0, num_steps, step, state)

    rng = np.random.default_rng(0)
    start = 0.1 * rng.normal(size=dim), rng.normal(size=dim)

    def run(num_steps: int):
        return jax.block_until_ready(leapfrog(*start, num_steps))

    run(1)
    num_steps = 100
    while (took := timed(run, num_steps)[2]) < 0.3:
        num_steps *= max(2, min(10, int(0.5 / max(took, 1e-4))))
    times = [timed(run, num_steps)[1:] for _ in range(3)]
    wall, cpu = (float(np.median(column)) / num_steps for column in zip(*times, strict=True))
    return {"wall": wall, "cpu": cpu, "num_steps": num_steps}


def points(library: str, problem: str) -> dict:
    from points import FITS, PROBLEMS

    fit, seconds_import, _ = timed(FITS[library], PROBLEMS[problem]())
    (mean, sd), total, cpu = timed(fit)
    _, warm, _ = timed(fit)
    seconds = {"import": seconds_import, "total": total, "cpu": cpu, "warm": warm, "parts": fit.parts}
    return {**seconds, "mean": np.asarray(mean).tolist(), "sd": None if sd is None else np.asarray(sd).tolist()}


KINDS = {"nuts": nuts, "first": lambda *args: first(*args)[2], "lanes": lanes, "floor": floor, "points": points}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    kind, library, problem, *numbers = sys.argv[1:]
    print(json.dumps(KINDS[kind](library, problem, *map(int, numbers))))
