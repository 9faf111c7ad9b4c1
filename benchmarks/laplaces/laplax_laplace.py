"""laplax (Weber et al. 2025): JAX, full and diagonal curvature; no Kronecker factors, no last layer."""

import jax
import jax.numpy as jnp
import numpy as np

from laplaces import LackingError, networks

KINDS = {"full": "full", "diagonal": "diagonal"}


class Laplax:
    def __init__(self, problem: networks.Problem, structure: str):
        if structure not in KINDS:
            raise LackingError(f"no {structure} structure")
        self.problem, self.kind = problem, KINDS[structure]
        network = networks.apply(problem.name)
        self.weights = jax.tree.map(jnp.asarray, problem.weights)

        def one(input, params):  # the names that laplax calls by
            return network(params, input[None])[0]

        self.network = one
        y = problem.y[:, None] if problem.is_regression else problem.y
        self.data = {"input": jnp.asarray(problem.x), "target": jnp.asarray(y)}
        self.loss = "mse" if problem.is_regression else "cross_entropy"
        # its squared error is not halved, and knows no noise
        self.factor = 0.5 / networks.NOISE**2 if problem.is_regression else 1.0

    def fit(self) -> None:
        from laplax.api import laplace

        self.posterior, self.curvature = laplace(
            self.network, self.weights, self.data, loss_fn=self.loss, curv_type=self.kind, curv_mv_jit=True
        )

    def predict(self, x) -> np.ndarray:
        from laplax.eval.pushforward import lin_pred_mean, lin_pred_var, lin_setup, set_lin_pushforward

        if not hasattr(self, "compiled"):
            push = set_lin_pushforward(
                self.network,
                self.weights,
                self.posterior,
                {"prior_prec": networks.PRECISION, "sigma_squared": self.factor},
                pushforward_fns=[lin_setup, lin_pred_mean, lin_pred_var],
            )

            def evaluate(x):
                found = jax.lax.map(push, x, batch_size=100)
                mean, variance = found["pred_mean"], found["pred_var"]
                if self.problem.is_regression:
                    return variance + networks.NOISE**2
                return jax.nn.softmax(mean / jnp.sqrt(1 + jnp.pi / 8 * variance))

            self.compiled = jax.jit(evaluate)
        return np.asarray(self.compiled(jnp.asarray(x)))
