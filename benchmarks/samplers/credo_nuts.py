"""Credo's NUTS at its defaults."""

from time import perf_counter, process_time


class Credo:
    layout = None  # a chain a thread, on a CPU

    def __init__(self, problem, num_draws: int, num_warmup: int | None = None, num_chains: int = 4):
        import credo
        from credo import fitting
        from credo.methods.mcmc import chains

        self.verdict_cpu = 0.0  # of the last fit: what no peer gives
        chains.as_posterior = self.judged(chains.as_posterior)
        fitting._with_remarks = self.judged(fitting._with_remarks)
        warmup = {} if num_warmup is None else {"num_warmup": num_warmup}
        self.method = credo.NUTS(chains=num_chains, num_draws=num_draws, **warmup)
        self.num_warmup = self.method.num_warmup
        self.fit_target = credo.fit
        self.problem, self.data, self.target = problem, problem.data(), None
        self.parts: dict[str, float] = {}

    def judged(self, function):
        """``function``, whose processor time is the verdict's."""

        def timed(*args):
            begun = process_time()
            found = function(*args)
            self.verdict_cpu += process_time() - begun
            return found

        return timed

    def fit(self, key: int):
        if self.target is None:
            start = perf_counter()
            self.target = self.problem.credo_target(self.data)
            self.parts["model"] = perf_counter() - start
        self.verdict_cpu = 0.0
        posterior = self.fit_target(self.target, self.method, key=key, layout=self.layout, progress=False)
        info = posterior.info
        for name in ("compile", "warmup", "sampling"):
            self.parts.setdefault(name, info["seconds"][name])
        after_warmup = info["num_gradients_useful"]
        self.gradients = {
            "sampling": after_warmup,
            "warmup": info["num_gradients"] - after_warmup,
            "executed": info["num_gradients_executed"],
        }
        return posterior.draws


class CredoVectorized(Credo):
    layout = "vectorized"
