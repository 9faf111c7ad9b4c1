"""PyMC's ``ADVI`` and ``FullRankADVI`` with Adam, one draw a step: its defaults but for the optimiser.

``refine`` goes on with the step function that ``fit`` compiled. Every tenth step adds up the parameters, so that
averages over the last half can be judged too.
"""

import numpy as np

from approximators import CHECKPOINTS
from approximators.q import Gaussian

EVERY = 10


class Peer:
    num_gradients = 1  # a step

    def __init__(self, problem, family: str, name: str):
        import pymc

        self.pymc, self.problem, self.family, self.data = pymc, problem, family, problem.data()
        self.method = getattr(pymc, name.removeprefix("PyMC "))

    def climb(self, key: int, rate: float):
        with self.problem.pymc_model(self.data) as model:
            inference = self.method(model=model, random_seed=key)
        group = inference.approx.groups[0]
        self.sizes = [(name.split("_log__")[0].split("_interval__")[0], part.stop - part.start)
                      for name, part, *_ in group.ordering.values()]  # fmt: skip
        params, count = group.params_dict, [0]
        total = {name: 0.0 for name in params}

        def add(*_):
            count[0] += 1
            if count[0] % EVERY == 0:
                for name, value in params.items():
                    total[name] = total[name] + value.get_value()

        inference.fit(1, obj_optimizer=self.pymc.adam(learning_rate=rate), callbacks=[add], progressbar=False)
        yield 0, []
        done, totals = 1, {}
        for steps in CHECKPOINTS:
            inference.refine(steps - done, progressbar=False)
            done, totals[steps] = steps, (count[0] // EVERY, dict(total))
            found = [{name: value.get_value() for name, value in params.items()}]
            if steps // 2 >= CHECKPOINTS[0]:
                half, before = totals[min(totals, key=lambda s: abs(s - steps / 2))]
                found.append({name: (total[name] - before[name]) / (count[0] // EVERY - half) for name in params})
            yield steps, found

    def read(self, params, target) -> Gaussian:
        if self.family == "mean-field":
            return Gaussian.ordered(params["mu"], np.logaddexp(0.0, params["rho"]), self.sizes, target)
        dim = len(params["mu"])
        root = np.zeros((dim, dim))
        root[np.tril_indices(dim)] = params["L_tril"]
        root[np.diag_indices(dim)] = np.logaddexp(0.0, np.diagonal(root))
        return Gaussian.ordered(params["mu"], root, self.sizes, target)
