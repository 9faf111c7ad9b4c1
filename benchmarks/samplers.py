"""NUTS in each library at its defaults, four chains: a class each, imported in a process of its own.

The constructor imports; ``fit(key)`` answers draws (chain, draw, *shape) by name as NumPy arrays. The first call
builds the model and compiles; a later one reuses what the library lets a user keep. ``parts`` holds the seconds
that the library shows apart.
"""

import os
from time import perf_counter

import numpy as np

NUM_CHAINS = 4
MORE_DEVICES = "--xla_force_host_platform_device_count=4"


class Credo:
    def __init__(self, problem, num_draws: int):
        import credo

        self.method = credo.NUTS(chains=NUM_CHAINS, num_draws=num_draws)
        self.fit_target = credo.fit
        self.problem, self.data, self.target = problem, problem.data(), None
        self.parts: dict[str, float] = {}

    def fit(self, key: int):
        if self.target is None:
            start = perf_counter()
            self.target = self.problem.credo_target(self.data)
            self.parts["model"] = perf_counter() - start
        posterior = self.fit_target(self.target, self.method, key=key, progress=False)
        self.parts.setdefault("compile", posterior.info["seconds"]["compile"])
        return posterior.draws


class NumPyro:
    """README: NUTS(model), 500 warm-up steps (there is no default), chains in parallel on as many CPU devices.

    ``MCMC.run`` shows no compilation time; a second run of the same object still compiles when chains are parallel.
    """

    chain_method = "parallel"

    def __init__(self, problem, num_draws: int):
        import numpyro

        if self.chain_method == "parallel":
            numpyro.set_host_device_count(NUM_CHAINS)
        import numpyro.infer

        self.problem, self.data, self.num_draws, self.mcmc = problem, problem.data(), num_draws, None
        self.parts: dict[str, float] = {}

    def fit(self, key: int):
        import jax
        from numpyro.infer import MCMC, NUTS

        if self.mcmc is None:
            self.mcmc = MCMC(
                NUTS(self.problem.numpyro_model),
                num_warmup=500,
                num_samples=self.num_draws,
                num_chains=NUM_CHAINS,
                chain_method=self.chain_method,
                progress_bar=False,
            )
        self.mcmc.run(jax.random.key(key), **self.data)
        return {name: np.asarray(v) for name, v in self.mcmc.get_samples(group_by_chain=True).items()}


class NumPyroVectorized(NumPyro):
    chain_method = "vectorized"


class BlackJAX:
    """Speed-up guide: a flat position, one jit around warm-up and sampling of a chain, vmap over chains.

    ``window_adaptation`` at its defaults (1,000 steps). Starts are uniform on (−2, 2), as Stan's and NumPyro's.
    """

    def __init__(self, problem, num_draws: int):
        import blackjax  # noqa: F401  the import is timed

        self.problem, self.data, self.num_draws, self.run = problem, problem.data(), num_draws, None
        self.parts: dict[str, float] = {}

    def fit(self, key: int):
        import jax

        is_first = self.run is None
        if is_first:
            self.build()
        k_start, k_run = jax.random.split(jax.random.key(key))
        positions = jax.random.uniform(k_start, (NUM_CHAINS, self.dim), minval=-2.0, maxval=2.0)
        keys = jax.random.split(k_run, NUM_CHAINS)
        keys, positions = self.place(keys, positions)
        if is_first:
            start = perf_counter()
            self.run = self.run.lower(keys, positions).compile()
            self.parts["compile"] = perf_counter() - start
        draws = self.constrain(self.run(keys, positions))
        return {name: np.asarray(v) for name, v in draws.items()}

    def build(self):
        import blackjax
        import jax

        self.dim, log_density, constrain = self.problem.log_density(self.data)
        warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
        num_draws = self.num_draws

        def one_chain(key, position):
            k_warmup, k_sample = jax.random.split(key)
            (state, parameters), _ = warmup.run(k_warmup, position)
            kernel = blackjax.nuts(log_density, **parameters).step

            def one_step(state, key):
                state, _ = kernel(key, state)
                return state, state.position

            return jax.lax.scan(one_step, state, jax.random.split(k_sample, num_draws))[1]

        self.run = jax.jit(self.over_chains(one_chain))
        self.constrain = jax.jit(jax.vmap(jax.vmap(constrain)))

    def over_chains(self, one_chain):
        import jax

        return jax.vmap(one_chain)

    def place(self, keys, positions):
        return keys, positions


class BlackJAXSharded(BlackJAX):
    """How-to "Sample with multiple chains in parallel": a CPU device and a program a chain, by shard_map."""

    def __init__(self, problem, num_draws: int):
        os.environ["XLA_FLAGS"] = MORE_DEVICES  # read when JAX starts
        super().__init__(problem, num_draws)

    def over_chains(self, one_chain):
        import jax
        from jax.sharding import PartitionSpec

        def on_one_device(key, position):
            return one_chain(key[0], position[0])[None]

        chain = PartitionSpec("chain")
        return jax.shard_map(on_one_device, mesh=self.mesh(), in_specs=(chain, chain), out_specs=chain, check_vma=False)

    def mesh(self):
        import jax

        return jax.make_mesh((NUM_CHAINS,), ("chain",))

    def place(self, keys, positions):
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        return jax.device_put((keys, positions), NamedSharding(self.mesh(), PartitionSpec("chain")))


class Nutpie:
    """README: ``compile_pymc_model`` and ``sample``, both at their defaults (numba; tuning steps as nutpie sets)."""

    backend = "numba"

    def __init__(self, problem, num_draws: int):
        import numba  # noqa: F401  imported late by nutpie: its time belongs to imports
        import nutpie  # noqa: F401
        import pymc  # noqa: F401
        import pytensor.link.numba.dispatch

        if self.backend == "jax":
            import pytensor.link.jax.dispatch  # noqa: F401

        self.problem, self.data, self.num_draws, self.compiled = problem, problem.data(), num_draws, None
        self.parts: dict[str, float] = {}

    def fit(self, key: int):
        import nutpie

        if self.compiled is None:
            start = perf_counter()
            model = self.problem.pymc_model(self.data)
            self.parts["model"] = perf_counter() - start
            self.compiled = nutpie.compile_pymc_model(model, backend=self.backend)
            self.parts["compile"] = perf_counter() - start - self.parts["model"]
        trace = nutpie.sample(self.compiled, draws=self.num_draws, chains=NUM_CHAINS, seed=key, progress_bar=False)
        variables = trace.posterior.data_vars
        return {str(name): np.asarray(v.values) for name, v in variables.items() if not str(name).endswith("__")}


class NutpieJAX(Nutpie):
    backend = "jax"


SAMPLERS = {
    "credo": Credo,
    "numpyro": NumPyro,
    "numpyro-vectorized": NumPyroVectorized,
    "blackjax": BlackJAX,
    "blackjax-sharded": BlackJAXSharded,
    "nutpie": Nutpie,
    "nutpie-jax": NutpieJAX,
}
