"""NumPyro's automatic guides by ``SVI`` with Adam and ``Trace_ELBO``, one draw a step: its defaults.

The steps of ``svi.run(progress_bar=False)``, a scan of ``svi.update``, are taken by one compiled loop to the next
checkpoint. The same loop adds up the parameters, so that averages over the last half of the steps can be judged too.
"""

import numpy as np

from approximators import CHECKPOINTS
from approximators.q import Gaussian, Sampled


class Peer:
    num_gradients = 1  # a step

    def __init__(self, problem, family: str, name: str):
        import numpyro.infer.autoguide

        self.guide = getattr(numpyro.infer.autoguide, name.removeprefix("NumPyro "))
        self.family, self.problem, self.data = family, problem, problem.data()

    def climb(self, key: int, rate: float):
        import jax
        from numpyro.infer import SVI, Trace_ELBO
        from numpyro.optim import Adam

        self.made = guide = self.guide(self.problem.numpyro_model)
        svi = SVI(self.problem.numpyro_model, guide, Adam(rate), Trace_ELBO())
        data = jax.tree.map(jax.numpy.asarray, self.data)
        state = svi.init(jax.random.key(key), **data)
        total = jax.tree.map(jax.numpy.zeros_like, svi.get_params(state))

        @jax.jit
        def advance(state, total, num_steps):
            def step(_, carry):
                state, total = carry
                state, _ = svi.update(state, **data)
                return state, jax.tree.map(jax.numpy.add, total, svi.get_params(state))

            return jax.lax.fori_loop(0, num_steps, step, (state, total))

        advance = advance.lower(state, total, 1).compile()
        yield 0, []
        done, totals = 0, {0: total}
        for steps in CHECKPOINTS:
            state, total = jax.block_until_ready(advance(state, total, steps - done))
            done, totals[steps] = steps, total
            found = [svi.get_params(state)]
            if steps // 2 >= CHECKPOINTS[0]:
                half = min(totals, key=lambda s: abs(s - steps / 2))
                found.append(jax.tree.map(lambda a, b: (a - b) / (steps - half), total, totals[half]))  # noqa: B023
            yield steps, found

    def read(self, params, target):
        """The approximation that parameters of the guide stand for."""
        guide = self.made
        if self.family == "mean-field":
            names = [n.removesuffix("_auto_loc") for n in params if n.endswith("_auto_loc")]
            sizes = [(n, np.size(params[f"{n}_auto_loc"])) for n in names]
            mean, sd = (np.concatenate([np.ravel(params[f"{n}_auto_{w}"]) for n in names]) for w in ("loc", "scale"))
            return Gaussian.ordered(mean, sd, sizes, target)
        sizes = [(name, np.size(value)) for name, value in sorted(guide._init_locs.items())]
        if self.family == "flow":
            return self._flow(params, sizes, target)
        posterior = guide.get_posterior(params)
        covariance = np.asarray(posterior.covariance_matrix, float)
        return Gaussian.ordered(posterior.loc, np.linalg.cholesky(covariance), sizes, target)

    def _flow(self, params, sizes, target):
        import jax

        from approximators.q import order_of

        transform, base, order = self.made.get_transform(params), self.made.get_base_dist(), order_of(sizes, target)

        @jax.jit
        def push(z):
            u = transform(z)
            return u[:, order], base.log_prob(z) - transform.log_abs_det_jacobian(z, u)

        return Sampled(lambda z: tuple(np.asarray(part, float) for part in push(z.astype(np.float32))))
