"""Credo's fits of each family at their defaults, to their own end; and long runs that find a family's best ELBO."""

import numpy as np

from approximators.q import Gaussian, Sampled

METHODS = {
    "mean-field": {
        "Credo ADVI": lambda vi, dim: vi.ADVI(),
        "Credo DADVI": lambda vi, dim: vi.DADVI(),
        "Credo NaturalGradient": lambda vi, dim: vi.NaturalGradient(family=vi.MeanField()),
    },
    "full-rank": {
        "Credo ADVI": lambda vi, dim: vi.ADVI(family=vi.FullRank()),
        "Credo BatchAndMatch": lambda vi, dim: vi.BatchAndMatch(),
        "Credo DADVI": lambda vi, dim: vi.DADVI(family=vi.FullRank()),
        "Credo NaturalGradient": lambda vi, dim: vi.NaturalGradient(family=vi.FullRank()),
    },
    "low-rank": {"Credo ADVI": lambda vi, dim: vi.ADVI(family=vi.LowRank(rank_of(dim)))},
    "flow": {"Credo ADVI": lambda vi, dim: vi.ADVI(family=vi.Flow())},
}
LONG = {"num_samples": 128, "tolerance": 1e-3, "max_steps": 20_000}


def rank_of(dim: int) -> int:
    """NumPyro's default: both libraries then have one family."""
    return round(dim**0.5)


def long_run(vi, family: str, dim: int):
    """The fit whose end counts as the family's best."""
    found = {"mean-field": lambda: vi.MeanField(), "full-rank": lambda: vi.FullRank()}
    found |= {"low-rank": lambda: vi.LowRank(rank_of(dim))}
    return vi.ADVI(family=found[family](), **LONG)


def read(posterior, family: str):
    """The member of the family that a fit found; DADVI's posterior has the covariances of linear response instead."""
    import jax

    from credo.posterior import kinds
    from credo.precision import double

    kind = posterior.kind
    if family == "mean-field" and posterior.info.get("family_sd") is not None:
        return Gaussian(np.asarray(kind.mean), np.asarray(posterior.info["family_sd"]))
    if isinstance(kind, kinds.Gaussian):
        with double():
            root = np.linalg.cholesky(np.asarray(kind.scale.dense()))
        return Gaussian(np.asarray(kind.mean), root)

    def push(z):
        with double():
            u = jax.vmap(kind.sample_u)(jax.random.split(jax.random.key(0), len(z)))
            return np.asarray(u), np.asarray(jax.vmap(kind.log_prob_u)(u))

    return Sampled(push)
