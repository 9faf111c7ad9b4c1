"""One variational fit in one process: ``vi.py`` starts it, and reads the JSON of its last line.

python one_approximation.py '{"kind": "credo", "problem": "radon", "family": "full-rank", "name": "Credo ADVI", …}'
kinds: long (the family's best ELBO), credo (a fit to its own end), peer (steps until the ELBO reaches ``mark``), match
(Credo's BatchAndMatch as a peer is measured)
"""

import json
import math
import sys
import warnings
from time import perf_counter

from one_fit import NEXT_KEY, timed

LATE = 1e-6  # nats: what evaluations in another process may round off


def evaluation(problem, target=None):
    from approximators.q import Evaluation

    return Evaluation(problem.credo_target(problem.data()) if target is None else target)


def long(problem, family: str, **_) -> dict:
    from approximators.credo_fits import long_run, read

    import credo
    import credo.vi

    target = problem.credo_target(problem.data())
    posterior = credo.fit(target, long_run(credo.vi, family, target.dim), key=0, progress=False)
    return {"elbo": evaluation(problem, target)(read(posterior, family)), "gradients": posterior.info["num_gradients"]}


def credo(problem, family: str, name: str, key: int, **_) -> dict:
    """Two fits: the second compiles nothing."""
    import numpyro.distributions  # noqa: F401  # as its user has imported it to write the model down
    from approximators.credo_fits import METHODS, read

    import credo
    import credo.vi

    data = problem.data()

    def fit():
        target = problem.credo_target(data)
        method = METHODS[family][name](credo.vi, target.dim)
        return credo.fit(target, method, key=key, progress=False)

    def again(target, method):
        return credo.fit(target, method, key=key + NEXT_KEY, progress=False)

    posterior, wall, cpu = timed(fit)
    method = METHODS[family][name](credo.vi, posterior.target.dim)
    _, warm_wall, warm_cpu = timed(again, posterior.target, method)
    return {
        "wall": wall,
        "cpu": cpu,
        "to_mark": wall - posterior.info["seconds"]["verdict"],
        "compiled_wall": warm_wall,
        "compiled_cpu": warm_cpu,
        "gradients": posterior.info["num_gradients"],
        "elbo": evaluation(problem, posterior.target)(read(posterior, family)),
        "verdict": posterior.verdict.status,
        "reached": True,
    }


def peer(problem, family: str, name: str, key: int, rate: float, mark: float, budget: float, **_) -> dict:
    """The earliest checkpoint at which the last iterate, or an average over half the steps, reaches ``mark``."""
    from approximators import peer as make

    climber = make(family, name, problem)
    climb = climber.climb(key, rate)
    _, setup_wall, setup_cpu = timed(next, climb)
    evaluate, target = None, problem.credo_target(problem.data())
    wall = cpu = 0.0
    best, steps, started = -math.inf, 0, perf_counter()
    while True:
        turn, more_wall, more_cpu = timed(next, climb, None)
        if turn is None:
            break
        wall, cpu = wall + more_wall, cpu + more_cpu
        steps, found = turn
        evaluate = evaluate or evaluation(problem, target)
        best = max(best, *(evaluate(climber.read(params, target)) for params in found))
        if best >= mark - LATE or wall > budget or perf_counter() - started > 4 * budget:
            break
    return {
        "wall": setup_wall + wall,
        "cpu": setup_cpu + cpu,
        "to_mark": setup_wall + wall,
        "compiled_wall": wall,
        "compiled_cpu": cpu,
        "gradients": steps * climber.num_gradients,
        "elbo": best,
        "rate": rate,
        "reached": best >= mark - LATE,
    }


def match(problem, family: str, key: int, mark: float, **_) -> dict:
    """BatchAndMatch cut after more and more steps, a fifth more each time, until its ELBO reaches ``mark``."""
    from approximators.credo_fits import read

    import credo
    import credo.vi

    target, steps = problem.credo_target(problem.data()), 1
    evaluate = evaluation(problem, target)
    while True:
        posterior = credo.fit(target, credo.vi.BatchAndMatch(max_steps=steps, num_draws=1), key=key, progress=False)
        elbo = evaluate(read(posterior, family))
        is_there, is_over = elbo >= mark - LATE, posterior.info["num_steps"] < steps
        if is_there or is_over:
            return {"gradients": posterior.info["num_gradients"], "elbo": elbo, "reached": is_there}
        steps = math.ceil(1.2 * steps)


KINDS = {"long": long, "credo": credo, "peer": peer, "match": match}

if __name__ == "__main__":
    from posteriors import POSTERIORS

    warnings.simplefilter("ignore")
    asked = json.loads(sys.argv[1])
    asked["problem"] = POSTERIORS[asked["problem"]]
    print(json.dumps(KINDS[asked.pop("kind")](**asked)))
