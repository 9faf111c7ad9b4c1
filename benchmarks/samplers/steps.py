"""How many gradients a fit took. One leapfrog step is one gradient, in every library.

| library | steps of the draws | steps of warm-up |
|---|---|---|
| Credo | ``info["num_gradients_useful"]`` | ``info["num_gradients"]`` less those |
| NumPyro | extra field ``num_steps`` of ``run`` | the same of ``warmup(collect_warmup=True)``: another fit |
| BlackJAX | ``num_integration_steps`` of each step's info | the same, in the info that ``window_adaptation`` returns |
| nutpie | ``sample_stats["n_steps"]`` | ``warmup_sample_stats["n_steps"]`` |
| PyMC | ``sample_stats["n_steps"]``, or ``["tree_size"]`` | the same of ``warmup_sample_stats``, kept on request |
| Stan | ``n_leapfrog__`` | the same with ``save_warmup=True``: another fit |

The few gradients that find a start or a first step size are in none of them.

*Executed* are the gradients that the machine evaluated: chains in one vectorised program wait for the longest
trajectory of each step, and evaluate gradients nobody uses meanwhile. Their number is at least
``chains × Σ_t max_c steps(c, t)``; a chain on a thread or in a process of its own executes what it uses. Credo counts
them itself, ``info["num_gradients_executed"]``.
"""

import numpy as np


def count(sampling, warmup=None, *, in_lockstep: bool = False) -> dict[str, int | None]:
    """Gradients by phase, from steps (chain, draw). ``warmup`` None: not known (yet)."""

    def executed(steps) -> int:
        steps = np.asarray(steps, np.int64)
        return int(len(steps) * steps.max(axis=0).sum() if in_lockstep else steps.sum())

    known = [np.asarray(steps) for steps in (sampling, warmup) if steps is not None]
    return {
        "sampling": int(known[0].sum()),
        "warmup": None if warmup is None else int(known[1].sum()),
        "executed": sum(map(executed, known)),
    }
