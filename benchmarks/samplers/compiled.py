"""nutpie, PyMC and Stan: what compiles by numba or a C++ compiler."""

import contextlib
import os
from time import perf_counter

import numpy as np

from samplers.steps import count


def arrays(group) -> dict[str, np.ndarray]:
    """An ArviZ group's draws (chain, draw, *shape), without the library's own unconstrained ones."""
    return {str(name): np.asarray(v.values) for name, v in group.data_vars.items() if not str(name).endswith("__")}


class Nutpie:
    """README: ``compile_pymc_model`` and ``sample``, both at their defaults (numba; tuning steps as nutpie sets)."""

    backend = "numba"

    def __init__(self, problem, num_draws: int, num_warmup: int | None = None, num_chains: int = 4):
        import numba  # noqa: F401  imported late by nutpie: its time belongs to imports
        import nutpie  # noqa: F401
        import pymc  # noqa: F401
        import pytensor.link.numba.dispatch

        if self.backend == "jax":
            import pytensor.link.jax.dispatch  # noqa: F401

        self.problem, self.data, self.num_draws, self.compiled = problem, problem.data(), num_draws, None
        self.num_warmup, self.num_chains = num_warmup, num_chains
        self.parts: dict[str, float] = {}

    def fit(self, key: int):
        import nutpie

        if self.compiled is None:
            start = perf_counter()
            model = self.problem.pymc_model(self.data)
            self.parts["model"] = perf_counter() - start
            self.compiled = nutpie.compile_pymc_model(model, backend=self.backend)
            self.parts["compile"] = perf_counter() - start - self.parts["model"]
        trace = nutpie.sample(
            self.compiled,
            draws=self.num_draws,
            tune=self.num_warmup,
            chains=self.num_chains,
            seed=key,
            progress_bar=False,
        )
        steps, warmup_steps = (group["n_steps"].values for group in (trace.sample_stats, trace.warmup_sample_stats))
        self.num_warmup, self.gradients = warmup_steps.shape[1], count(steps, warmup_steps)
        return arrays(trace.posterior)


class NutpieJAX(Nutpie):
    backend = "jax"


class PyMC:
    """``pm.sample`` at its defaults: 1,000 tuning steps, jitter+adapt_diag, a process a core.

    It compiles at every call, so there is no second fit: ``seconds_of_draws`` is the processor time of all its draws,
    tuning included, as it reports itself. Tuning draws are kept, for their statistics.
    """

    def __init__(self, problem, num_draws: int, num_warmup: int | None = None, num_chains: int = 4):
        import pymc  # noqa: F401

        self.problem, self.data, self.num_draws = problem, problem.data(), num_draws
        self.num_warmup, self.num_chains = 1_000 if num_warmup is None else num_warmup, num_chains
        self.parts: dict[str, float] = {}

    def fit(self, key: int):
        import pymc as pm

        start = perf_counter()
        with self.problem.pymc_model(self.data):
            self.parts["model"] = perf_counter() - start
            trace = pm.sample(
                draws=self.num_draws,
                tune=self.num_warmup,
                chains=self.num_chains,
                random_seed=key,
                progressbar=False,
                discard_tuned_samples=False,
                compute_convergence_checks=False,  # ArviZ's warnings, which nobody reads here
            )
        groups = trace.sample_stats, trace.warmup_sample_stats
        name = "n_steps" if "n_steps" in groups[0] else "tree_size"
        self.gradients = count(*(group[name].values for group in groups))
        self.seconds_of_draws = float(sum(group["process_time_diff"].values.sum() for group in groups))
        return arrays(trace.posterior)


class Stan:
    """PyStan: ``stan.build`` and ``sample`` at their defaults, 1,000 warm-up steps, a process a core.

    A built program stays on disk and serves the next ``build``; so would a fit of the same seed.
    """

    def __init__(self, problem, num_draws: int, num_warmup: int | None = None, num_chains: int = 4):
        import stan  # noqa: F401

        self.program, self.data = problem.stan_program(problem.data())
        self.num_draws, self.num_chains = num_draws, num_chains
        self.num_warmup = 1_000 if num_warmup is None else num_warmup
        self.parts: dict[str, float] = {}

    def fit(self, key: int):
        return self.sample(key)[0]

    def sample(self, key: int, save_warmup: bool = False):
        import stan

        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            start = perf_counter()
            posterior = stan.build(self.program, data=self.data, random_seed=key + 1)
            self.parts.setdefault("compile", perf_counter() - start)
            found = posterior.sample(
                num_chains=self.num_chains,
                num_samples=self.num_draws,
                num_warmup=self.num_warmup,
                save_warmup=save_warmup,
            )

        def by_chain(name):  # (*shape, draw × chain), the chain running fastest
            values = np.asarray(found[name])
            values = values.reshape(*values.shape[:-1], -1, self.num_chains)
            return np.moveaxis(values, (-1, -2), (0, 1))

        draws = {name: by_chain(name) for name in found}
        draws = {name: v[..., 0] if not posterior.dims[i] else v for i, (name, v) in enumerate(draws.items())}
        steps = by_chain("n_leapfrog__")[..., 0]
        self.gradients = count(steps)
        return draws, steps

    def count_warmup(self, key: int) -> None:
        """The same fit with its warm-up kept."""
        steps = self.sample(key, save_warmup=True)[1]
        self.gradients = count(steps[:, self.num_warmup :], steps[:, : self.num_warmup])
