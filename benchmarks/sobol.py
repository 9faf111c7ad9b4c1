"""Errors of the evidence by Sobol points and by as many independent draws, under the proposal of Laplace().

    python benchmarks/sobol.py

Nine posteriors of two to four parameters. ``ratio``: the median error of independent draws over that of Sobol points.
``beyond``: in how many of the keys the evidence by Sobol points lies beyond 1.96 of its error, from one by 300,000.
"""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from sklearn.datasets import load_breast_cancer, load_diabetes

import credo

NUM_KEYS = 40


def normal(size: int, sd: float) -> dist.Distribution:
    return dist.Normal(0.0, sd).expand([size])


def posteriors() -> Iterator[tuple[str, credo.Target]]:
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    for columns in ([0], [0, 1], [0, 1, 4]):
        model = credo.Model({"w": normal(len(columns) + 1, 2.0)}, lambda p, x: dist.Bernoulli(logits=x @ p["w"]))
        for rows in (40, 569):
            design = np.column_stack([np.ones(rows), x[:rows, columns]])
            yield f"logistic, {len(columns) + 1} parameters, {rows} rows", model.given(design, y[:rows])
    x, y = load_diabetes(return_X_y=True)
    x, y = x[:, [2, 8]] / x[:, [2, 8]].std(axis=0), (y - y.mean()) / y.std()
    prior = {"w": normal(2, 1.0), "sd": dist.HalfNormal(1.0)}
    model = credo.Model(prior, lambda p, x: dist.Normal(x @ p["w"], p["sd"]))
    for rows in (20, 442):
        yield f"regression, 3 parameters, {rows} rows", model.given(x[:rows], y[:rows])
    prior = {"one": dist.Gamma(2.0, 1.0), "other": dist.Gamma(2.0, 1.0)}
    model = credo.Model(prior, lambda p, x: dist.Poisson(jnp.where(x, p["one"], p["other"])))
    yield "counts, 2 parameters, 6 rows", model.given(np.array([0, 1, 0, 1, 1, 0], bool), np.array([3, 5, 1, 4, 2, 0]))


def evidence(target: credo.Target, proposal: credo.Posterior, key: int, **settings) -> credo.Posterior:
    return credo.fit(target, credo.Importance(proposal, **settings), key=key, progress=False)


def main() -> None:
    print(f"{'posterior':36} {'points':>7} {'error':>9} {'ratio':>6} {'beyond':>7}")
    for name, target in posteriors():
        proposal = credo.fit(target, credo.Laplace(), progress=False)
        known = evidence(target, proposal, NUM_KEYS, num_draws=300_000, points=credo.Sobol()).log_evidence.value
        sobol = [evidence(target, proposal, key, points=credo.Sobol()) for key in range(NUM_KEYS)]
        number = int(np.prod(sobol[0].kind.positions.shape[:2]))
        plain = [evidence(target, proposal, key, num_draws=number).log_evidence.error for key in range(5)]
        value, error = np.array([(each.log_evidence.value, each.log_evidence.error) for each in sobol]).T
        beyond = int(np.sum(np.abs(value - known) > 1.96 * error))
        ratio = np.median(plain) / np.median(error)
        print(f"{name:36} {number:7,} {np.median(error):9.2g} {ratio:6.1f} {f'{beyond}/{NUM_KEYS}':>7}", flush=True)


if __name__ == "__main__":
    main()
