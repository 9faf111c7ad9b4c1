"""NumPyro and BlackJAX, each in two ways of running chains."""

import os
from time import perf_counter

import numpy as np

from samplers.steps import count


class NumPyro:
    """README: NUTS(model), 500 warm-up steps (there is no default), chains in parallel on as many CPU devices.

    ``MCMC.run`` shows no compilation time; a second run of the same object still compiles when chains are parallel.
    """

    chain_method = "parallel"

    def __init__(self, problem, num_draws: int, num_warmup: int | None = None, num_chains: int = 4):
        import numpyro

        if self.chain_method == "parallel":
            numpyro.set_host_device_count(num_chains)
        import numpyro.infer

        self.problem, self.data, self.num_draws, self.mcmc = problem, problem.data(), num_draws, None
        self.num_warmup, self.num_chains = 500 if num_warmup is None else num_warmup, num_chains
        self.parts: dict[str, float] = {}

    def new(self):
        from numpyro.infer import MCMC, NUTS

        return MCMC(
            NUTS(self.problem.numpyro_model),
            num_warmup=self.num_warmup,
            num_samples=self.num_draws,
            num_chains=self.num_chains,
            chain_method=self.chain_method,
            progress_bar=False,
        )

    def fit(self, key: int):
        import jax

        if self.mcmc is None:
            self.mcmc = self.new()
        self.mcmc.run(jax.random.key(key), extra_fields=("num_steps",), **self.data)
        draws = {name: np.asarray(v) for name, v in self.mcmc.get_samples(group_by_chain=True).items()}
        self.sampling_steps = self.mcmc.get_extra_fields(group_by_chain=True)["num_steps"]
        self.gradients = count(self.sampling_steps, in_lockstep=self.chain_method == "vectorized")
        return draws

    def count_warmup(self, key: int) -> None:
        """The same warm-up, its steps collected."""
        import jax

        mcmc = self.new()
        mcmc.warmup(jax.random.key(key), extra_fields=("num_steps",), collect_warmup=True, **self.data)
        steps = mcmc.get_extra_fields(group_by_chain=True)["num_steps"]
        self.gradients = count(self.sampling_steps, steps, in_lockstep=self.chain_method == "vectorized")


class NumPyroVectorized(NumPyro):
    chain_method = "vectorized"


class BlackJAX:
    """Speed-up guide: a flat position, one jit around warm-up and sampling of a chain, vmap over chains.

    ``window_adaptation`` at its defaults (1,000 steps). Starts are uniform on (−2, 2), as Stan's and NumPyro's.
    """

    is_in_lockstep = True

    def __init__(self, problem, num_draws: int, num_warmup: int | None = None, num_chains: int = 4):
        import blackjax  # noqa: F401  the import is timed

        self.problem, self.data, self.num_draws, self.run = problem, problem.data(), num_draws, None
        self.num_warmup, self.num_chains = 1_000 if num_warmup is None else num_warmup, num_chains
        self.parts: dict[str, float] = {}

    def fit(self, key: int):
        import jax

        is_first = self.run is None
        if is_first:
            self.build()
        k_start, k_run = jax.random.split(jax.random.key(key))
        positions = jax.random.uniform(k_start, (self.num_chains, self.dim), minval=-2.0, maxval=2.0)
        keys = jax.random.split(k_run, self.num_chains)
        keys, positions = self.place(keys, positions)
        if is_first:
            start = perf_counter()
            self.run = self.run.lower(keys, positions).compile()
            self.parts["compile"] = perf_counter() - start
        positions, steps, warmup_steps = self.run(keys, positions)
        draws = {name: np.asarray(v) for name, v in self.constrain(positions).items()}
        self.gradients = count(steps, warmup_steps, in_lockstep=self.is_in_lockstep)
        return draws

    def build(self):
        import blackjax
        import jax

        self.dim, log_density, constrain = self.problem.log_density(self.data)
        warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
        num_draws, num_warmup = self.num_draws, self.num_warmup

        def one_chain(key, position):
            k_warmup, k_sample = jax.random.split(key)
            (state, parameters), adaptation = warmup.run(k_warmup, position, num_warmup)
            kernel = blackjax.nuts(log_density, **parameters).step

            def one_step(state, key):
                state, info = kernel(key, state)
                return state, (state.position, info.num_integration_steps)

            draws, steps = jax.lax.scan(one_step, state, jax.random.split(k_sample, num_draws))[1]
            return draws, steps, adaptation.info.num_integration_steps

        self.run = jax.jit(self.over_chains(one_chain))
        self.constrain = jax.jit(jax.vmap(jax.vmap(constrain)))

    def over_chains(self, one_chain):
        import jax

        return jax.vmap(one_chain)

    def place(self, keys, positions):
        return keys, positions


class BlackJAXSharded(BlackJAX):
    """How-to "Sample with multiple chains in parallel": a CPU device and a program a chain, by shard_map."""

    is_in_lockstep = False

    def __init__(self, problem, num_draws: int, num_warmup: int | None = None, num_chains: int = 4):
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_chains}"  # read when JAX starts
        super().__init__(problem, num_draws, num_warmup, num_chains)

    def over_chains(self, one_chain):
        import jax
        from jax.sharding import PartitionSpec

        def on_one_device(key, position):
            return jax.tree.map(lambda leaf: leaf[None], one_chain(key[0], position[0]))

        chain = PartitionSpec("chain")
        return jax.shard_map(on_one_device, mesh=self.mesh(), in_specs=(chain, chain), out_specs=chain, check_vma=False)

    def mesh(self):
        import jax

        return jax.make_mesh((self.num_chains,), ("chain",))

    def place(self, keys, positions):
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        return jax.device_put((keys, positions), NamedSharding(self.mesh(), PartitionSpec("chain")))
