"""Equal work: the log density of each model in each library's words, at random unconstrained positions.

    python benchmarks/same_posterior.py            # add --stan for Stan's too, which compiles a minute a model
    python benchmarks/same_posterior.py radon      # one model

Prints the largest difference from BlackJAX's form, a constant taken out: rounding, if the models are one. Ends with an
error where it is more.
"""

import argparse

import jax
import numpy as np
from posteriors import POSTERIORS

LOG, INTERVAL = "_log__", "_interval__"  # PyMC's names of the logarithm and of the logit of what is bounded
ROUNDING = 1e-9  # relative


def unbounded(name: str, value):
    """(what PyMC calls ``name``, log |d value / d u|): ``value`` is positive, or on (−1, 1), or anywhere."""
    if name.endswith(LOG):
        return np.log(value), np.log(value)
    if name.endswith(INTERVAL):
        return np.log((value + 1) / (1 - value)), np.log((1 - value**2) / 2)
    return value, 0.0


def forms(problem, data, with_stan: bool):
    """{library: log density of the position that named parameters come from}."""
    from numpyro.infer.util import log_density

    target = problem.credo_target(data).flat()
    model = problem.pymc_model(data)
    pymc_log_density = model.compile_logp()
    names = [v.name for v in model.value_vars]
    free = [n.removesuffix(LOG).removesuffix(INTERVAL) for n in names]

    def credo(params):
        return target.log_density(target.unconstrain({n: params[n] for n in free}))

    def numpyro(params):
        log_jacobian = sum(np.sum(unbounded(n, params[f])[1]) for n, f in zip(names, free, strict=True))
        return log_density(problem.numpyro_model, (), data, {n: params[n] for n in free})[0] + log_jacobian

    def pymc(params):
        return pymc_log_density({n: unbounded(n, params[f])[0] for n, f in zip(names, free, strict=True)})

    found = {"credo": credo, "numpyro": numpyro, "pymc": pymc}
    if with_stan:
        import stan

        program, stan_data = problem.stan_program(data)
        built = stan.build(program, data=stan_data)

        def stan_log_density(params):
            values = {n: np.asarray(params[n]).tolist() for n in free}
            return built.log_prob(list(built.unconstrain_pars(values)))

        found["stan"] = stan_log_density
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(POSTERIORS)}; all by default")
    parser.add_argument("--stan", action="store_true", help="Stan's form too")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    differ = []
    for name in options.models or POSTERIORS:
        problem = POSTERIORS[name]
        data = problem.data()
        dim, log_density, constrain = problem.log_density(data)
        positions = rng.uniform(-2, 2, (10, dim))
        own = np.array([log_density(u) for u in positions])
        points = [{n: np.asarray(v) for n, v in constrain(u).items()} for u in positions]
        for library, form in forms(problem, data, options.stan).items():
            difference, scale = np.array([form(params) for params in points]) - own, np.abs(own).mean()
            print(f"{name} {library}: {np.ptp(difference):.1e} (of values near {scale:.0f})", flush=True)
            if not np.ptp(difference) <= ROUNDING * max(1.0, scale):
                differ.append(f"{name} in {library}")
    if differ:
        raise SystemExit(f"Not the same density: {', '.join(differ)}.")


if __name__ == "__main__":
    main()
