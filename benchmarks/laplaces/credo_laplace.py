"""Credo's Laplace at given weights: no training."""

import numpy as np

from laplaces import networks


class Credo:
    def __init__(self, problem: networks.Problem, structure: str):
        import credo

        self.problem, self.credo = problem, credo
        structures = {"kronecker": credo.laplace.Kronecker(), "diagonal": credo.laplace.Diagonal()}
        self.choices = {
            "structure": structures.get(structure, credo.laplace.Dense()),
            "curvature": credo.laplace.GaussNewton(),
            "subset": credo.laplace.LastLayer() if structure == "last layer" else credo.laplace.All(),
            "num_steps": 0,
        }
        self.network = networks.apply(problem.name)

    def target(self, precision):
        credo, problem = self.credo, self.problem
        outputs = (lambda w, x: self.network(w, x)[:, 0]) if problem.is_regression else self.network
        head = credo.nn.Gaussian(networks.NOISE) if problem.is_regression else credo.nn.Categorical()
        model = credo.nn.BayesianNetwork(outputs, problem.weights, head=head, prior=credo.nn.Isotropic(precision))
        return model.given(problem.x, problem.y)

    def fit(self) -> dict[str, float]:
        """Seconds of it that a verdict took, which no peer gives."""
        if not hasattr(self, "known"):
            self.known = self.target(networks.PRECISION)
        self.posterior = None  # the last one goes first, as it does where the peers are fitted again
        method = self.credo.Laplace(**self.choices, tune=False)
        self.posterior = self.credo.fit(self.known, method, key=0, precision="float32", progress=False)
        return {"verdict": self.posterior.info["seconds"].get("verdict", 0.0)}

    def predict(self, x) -> np.ndarray:
        """Probabilities (M, K), or variances of the outcome (M, 1)."""
        if self.problem.is_regression:
            predictive = self.posterior.predict(x, rule=self.credo.Linearised())
            return np.stack([predictive.mean, predictive.variance], axis=-1)[:, 1:]
        return np.asarray(self.posterior.predict(x, rule=self.credo.Probit()).probs)
