"""One Laplace approximation in one process: ``laplace.py`` starts it, and reads the JSON of its last line.

python one_laplace.py LIBRARY NETWORK STRUCTURE FOLDER, where FOLDER has the network's weights; or train NETWORK FOLDER
"""

import json
import resource
import sys
import warnings
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

MOST, PATIENCE = 7, 3.0


def timed(function, *args) -> tuple:
    """(its answer, seconds); of a fit that says what its verdict took, these apart from ``wall``."""
    wall, cpu = perf_counter(), process_time()
    answer = function(*args)
    wall, cpu = perf_counter() - wall, process_time() - cpu
    verdict = answer["verdict"] if isinstance(answer, dict) else 0.0
    return answer, {"wall": wall - verdict, "verdict": verdict, "cpu": cpu}


def repeated(*calls) -> list[dict]:
    """The calls in turns, up to ``MOST`` times within ``PATIENCE`` seconds: the median of each, since Python collects
    garbage at one of them."""
    begun, found = perf_counter(), []
    while not found or (len(found) < MOST and perf_counter() - begun < PATIENCE):
        found.append([timed(*call)[1] for call in calls])
    return [{unit: median(run[unit] for run in runs) for unit in runs[0]} for runs in zip(*found, strict=True)]


def peak() -> float:
    """MB that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(library: str, name: str, structure: str, folder: str) -> dict:
    from laplaces import LackingError, fitter
    from laplaces.networks import load

    problem = load(name, Path(folder))
    try:
        own = fitter(library, problem, structure)
    except LackingError as error:
        return {"lacking": str(error)}
    before = peak()
    found: dict = {}
    _, found["fit"] = timed(own.fit)
    answer, found["predict"] = timed(own.predict, problem.x_new)
    found["fit again"], found["predict again"] = repeated((own.fit,), (own.predict, problem.x_new))
    found["memory"] = peak() - before
    found["answer"] = answer[:100].tolist()
    if hasattr(own, "evidence_step"):
        try:
            own.evidence_step()
            found["evidence"] = timed(own.evidence_step)[1]
        except LackingError as error:
            found["evidence"] = {"error": str(error)}
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "train":
        from laplaces.networks import save, train

        save(train(sys.argv[2]), Path(sys.argv[3]))
        print("{}")
    else:
        print(json.dumps(measure(*sys.argv[1:])))
