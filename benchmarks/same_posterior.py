"""Equal work: the log density of each model in each library's words, at random unconstrained positions.

    python benchmarks/same_posterior.py

Prints the largest difference from BlackJAX's form, a constant taken out: rounding, if the models are one.
"""

import jax
import numpy as np
from posteriors import POSTERIORS

LOG = "_log__"  # PyMC's name of the logarithm of a positive parameter


def forms(problem, data):
    """{library: log density of the position that named parameters come from}."""
    from numpyro.infer.util import log_density

    target = problem.credo_target(data).flat()
    model = problem.pymc_model(data)
    pymc_log_density = model.compile_logp()
    names = [v.name for v in model.value_vars]
    free = [n.removesuffix(LOG) for n in names]

    def credo(params):
        return target.log_density(target.unconstrain({n: params[n] for n in free}))

    def numpyro(params):
        log_jacobian = sum(np.log(params[n.removesuffix(LOG)]) for n in names if n.endswith(LOG))
        return log_density(problem.numpyro_model, (), data, {n: params[n] for n in free})[0] + log_jacobian

    def pymc(params):
        return pymc_log_density(
            {n: np.log(params[f]) if n != f else params[n] for n, f in zip(names, free, strict=True)}
        )

    return {"credo": credo, "numpyro": numpyro, "pymc": pymc}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    for name, problem in POSTERIORS.items():
        data = problem.data()
        dim, log_density, constrain = problem.log_density(data)
        positions = rng.uniform(-2, 2, (10, dim))
        own = np.array([log_density(u) for u in positions])
        points = [{n: np.asarray(v) for n, v in constrain(u).items()} for u in positions]
        for library, form in forms(problem, data).items():
            difference = np.array([form(params) for params in points]) - own
            print(f"{name} {library}: {np.ptp(difference):.1e} (of values near {np.abs(own).mean():.0f})", flush=True)


if __name__ == "__main__":
    main()
