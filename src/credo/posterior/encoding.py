"""Values as JSON and arrays, and back: what a file of a posterior may hold, and nothing else.

Everything becomes JSON, with arrays named and kept apart. Objects are known by name from short lists, so that reading a
file builds arrays, posteriors' kinds, scale operators and numpyro distributions, and runs no code that the file names.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from credo.linalg.blocks import BlockDiagonal
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.embedded import Embedded
from credo.linalg.factor import DiagonalPlusFactor
from credo.linalg.grouped import Grouped
from credo.linalg.kronecker import Block, Kronecker
from credo.linalg.lowrank import LowRank
from credo.linalg.matrix_free import MatrixFree
from credo.model.curvature import Curvature
from credo.model.fisher import Expected, Sampled, Seen
from credo.model.structure import Structure
from credo.model.target import Target
from credo.posterior.factored import Factored
from credo.posterior.factors import LogGamma, Sticks
from credo.posterior.flow.affine import AffineCoupling
from credo.posterior.flow.spline import SplineCoupling
from credo.posterior.kinds import Draws, Flow, Gaussian, Independent, Mixture, Point
from credo.posterior.masked import Masked
from credo.posterior.product import Product
from credo.status import CredoError, Estimate

KINDS = Point, Gaussian, Factored, Draws, Mixture, Product, Flow, Independent, LogGamma, Sticks, Masked
OPERATORS = Dense, Diagonal, LowRank, DiagonalPlusFactor, BlockDiagonal, Kronecker, Block, Grouped, Embedded
PRODUCTS = MatrixFree, Curvature, Expected, Seen, Sampled
MODULES = {c.__name__: c for c in (*KINDS, *OPERATORS, *PRODUCTS, AffineCoupling, SplineCoupling, Estimate)}
DISTRIBUTIONS = {
    c.__name__: c
    for c in (
        dist.Beta,
        dist.Cauchy,
        dist.Chi2,
        dist.Dirichlet,
        dist.Exponential,
        dist.Gamma,
        dist.Gumbel,
        dist.HalfCauchy,
        dist.HalfNormal,
        dist.InverseGamma,
        dist.Kumaraswamy,
        dist.Laplace,
        dist.LogNormal,
        dist.Logistic,
        dist.LowRankMultivariateNormal,
        dist.MultivariateNormal,
        dist.MultivariateStudentT,
        dist.Normal,
        dist.Pareto,
        dist.StudentT,
        dist.Uniform,
        dist.Weibull,
    )
}


class Writer:
    """``encode`` values; their arrays gather in ``arrays``."""

    def __init__(self):
        self.arrays: dict[str, np.ndarray] = {}

    def encode(self, value) -> Any:
        """JSON for ``value``; CredoError where no file can hold it."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, np.generic):
            return self.encode(value.item())
        if isinstance(value, int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, np.ndarray | jax.Array):
            return self._array(np.asarray(value))
        if isinstance(value, Mapping):
            return {"dict": [[str(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, Structure):
            return {"structure": True}
        if isinstance(value, Target):
            return {"target": True}
        if isinstance(value, list | tuple):
            return {"list" if isinstance(value, list) else "tuple": [self.encode(item) for item in value]}
        if isinstance(value, Distribution):
            return self._distribution(value)
        if type(value) in MODULES.values():
            fields = {f.name: self.encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {"module": type(value).__name__, "fields": fields}
        raise CredoError(f"A file cannot hold {type(value).__name__}: it holds numbers, text, arrays and posteriors.")

    def _array(self, values: np.ndarray) -> Any:
        if values.dtype.kind in "OUS":
            return {"text": [self.encode(item) for item in values.ravel().tolist()], "shape": list(values.shape)}
        if values.dtype.kind not in "biuf":
            raise CredoError(f"A file cannot hold an array of {values.dtype}.")
        name = f"a{len(self.arrays)}"
        self.arrays[name] = values
        return {"array": name}

    def _distribution(self, d: Distribution) -> Any:
        if isinstance(d, dist.ExpandedDistribution):
            return {"expand": list(d.batch_shape), "base": self._distribution(d.base_dist)}
        if isinstance(d, dist.Independent):
            return {"to_event": d.reinterpreted_batch_ndims, "base": self._distribution(d.base_dist)}
        if type(d) not in DISTRIBUTIONS.values():
            raise CredoError(
                f"A file cannot hold the distribution {type(d).__name__}: it holds {', '.join(DISTRIBUTIONS)}."
            )
        arguments = d.get_args()
        if "scale_tril" in arguments:  # the others follow from it
            arguments = {n: a for n, a in arguments.items() if n not in ("covariance_matrix", "precision_matrix")}
        return {
            "distribution": type(d).__name__,
            "arguments": {n: self.encode(np.asarray(a)) for n, a in arguments.items()},
        }


class Reader:
    """``decode`` what a ``Writer`` made; ``structure`` and ``target`` stand where such stood."""

    def __init__(
        self, arrays: Mapping[str, np.ndarray], structure: Structure | None = None, target: Target | None = None
    ):
        self.arrays, self.structure, self.target = arrays, structure, target

    def decode(self, code) -> Any:
        """The value of ``code``. KeyError, TypeError or ValueError where it is no code."""
        if not isinstance(code, dict):
            return code
        if "float" in code:
            return float(code["float"])
        if "array" in code:
            return self.arrays[code["array"]]
        if "dict" in code:
            return {key: self.decode(item) for key, item in code["dict"]}
        if "structure" in code:
            return self.structure
        if "target" in code:
            return self.target
        if "list" in code or "tuple" in code:
            items = [self.decode(item) for item in code["list" if "list" in code else "tuple"]]
            return items if "list" in code else tuple(items)
        if "text" in code:
            items = [self.decode(item) for item in code["text"]]
            is_text = all(isinstance(item, str) for item in items)
            return np.array(items, dtype=None if is_text and items else object).reshape(code["shape"])
        if "expand" in code:
            return self.decode(code["base"]).expand(tuple(code["expand"]))
        if "to_event" in code:
            return self.decode(code["base"]).to_event(code["to_event"])
        if "distribution" in code:
            return DISTRIBUTIONS[code["distribution"]](**{n: self.decode(a) for n, a in code["arguments"].items()})
        return MODULES[code["module"]](**{name: self.decode(item) for name, item in code["fields"].items()})
