"""One fit in one process: ``road.py`` starts it, and reads the JSON of its last line.

python one_fit.py nuts   LIBRARY PROBLEM KEY DRAWS
python one_fit.py points LIBRARY PROBLEM
"""

import json
import sys
import warnings
from time import perf_counter, process_time

import numpy as np

# Before any timer: what every fit needs and no library is asked to pay for.
import sklearn.datasets  # noqa: F401


def timed(function, *args):
    """(what it returns, wall seconds, CPU seconds of all threads)."""
    wall, cpu = perf_counter(), process_time()
    result = function(*args)
    return result, perf_counter() - wall, process_time() - cpu


def figures(draws: dict[str, np.ndarray]) -> dict:
    """Convergence figures of draws (chain, draw, *shape), the same ArviZ call for every library."""
    import arviz_base
    import arviz_stats

    draws = {name: np.asarray(draws[name], np.float64) for name in sorted(draws)}
    table = arviz_stats.summary(arviz_base.from_dict({"posterior": draws}), kind="diagnostics", round_to="none")
    flat = np.concatenate([v.reshape(*v.shape[:2], -1) for v in draws.values()], axis=-1)
    return {
        "max_r_hat": float(np.max(table["r_hat"].to_numpy())),  # a NaN stays a NaN, and fails
        "min_ess_bulk": float(np.min(table["ess_bulk"].to_numpy())),
        "min_ess_tail": float(np.min(table["ess_tail"].to_numpy())),
        "names": {name: list(v.shape[2:]) for name, v in draws.items()},
        "mean": flat.mean(axis=(0, 1)).tolist(),
        "sd": flat.std(axis=(0, 1)).tolist(),
    }


def nuts(library: str, problem: str, key: int, num_draws: int) -> dict:
    from posteriors import POSTERIORS
    from samplers import SAMPLERS

    sampler, seconds_import, _ = timed(SAMPLERS[library], POSTERIORS[problem], num_draws)
    draws, total, cpu = timed(sampler.fit, key)
    _, warm, warm_cpu = timed(sampler.fit, key + 1_000)
    return {
        "import": seconds_import,
        "total": total,
        "cpu": cpu,
        "warm": warm,
        "warm_cpu": warm_cpu,
        "parts": sampler.parts,
        "precision": str(next(iter(draws.values())).dtype),
        **figures(draws),
    }


def points(library: str, problem: str) -> dict:
    from points import FITS, PROBLEMS

    fit, seconds_import, _ = timed(FITS[library], PROBLEMS[problem]())
    (mean, sd), total, cpu = timed(fit)
    _, warm, _ = timed(fit)
    seconds = {"import": seconds_import, "total": total, "cpu": cpu, "warm": warm, "parts": fit.parts}
    return {**seconds, "mean": np.asarray(mean).tolist(), "sd": None if sd is None else np.asarray(sd).tolist()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    kind, library, problem, *numbers = sys.argv[1:]
    function = {"nuts": nuts, "points": points}[kind]
    print(json.dumps(function(library, problem, *map(int, numbers))))
