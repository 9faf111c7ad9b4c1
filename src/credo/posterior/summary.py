"""A posterior as a table: a row a scalar."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from credo.diagnose import convergence
from credo.diagnose.verdict import RULES
from credo.model.structure import scalar_names
from credo.posterior.kinds import Draws
from credo.posterior.marginals import mcse_of_weighted_mean, quantiles
from credo.precision import double
from credo.status import CredoError

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

MAX_SCALARS = 1_000
QUANTILES = (0.05, 0.5, 0.95)


def summary(posterior: "Posterior", names: Sequence[str] | None = None):
    """See ``Posterior.summary``."""
    import pandas as pd

    mean, sd = posterior._moments
    order = [leaf.name for leaf in posterior.target.structure.leaves]
    order += [name for name in posterior.target.derived_names if name not in order]
    names = [names] if isinstance(names, str) else names
    if names is not None and not (isinstance(names, Iterable) and (names := list(names))):
        raise CredoError(
            f"names={names!r} names nothing to show: give a list of names, such as summary(names=[{order[0]!r}]), or "
            "leave it out for everything."
        )
    unknown = [name for name in names or () if name not in order]
    if unknown:
        raise CredoError(f"The posterior has no {unknown[0]!r}; it has {', '.join(order[:20])}.")
    chosen = [name for name in order if names is None or name in names]
    num_scalars = sum(np.size(mean[name]) for name in chosen)
    if names is None and num_scalars > MAX_SCALARS:
        raise CredoError(
            f"The posterior has {num_scalars} scalars: name the ones to show, as summary(names=[{order[0]!r}])."
        )

    def drawn():
        return {name: values for name, values in posterior._wide().items() if name in chosen}

    with double():
        quantile = quantiles(posterior.kind, posterior.target, drawn, np.asarray(QUANTILES))
    table = {
        "mean": _stack(mean, chosen),
        "sd": _stack(sd, chosen),
        **{f"q{int(100 * p)}": _stack({n: quantile[n][i] for n in chosen}, chosen) for i, p in enumerate(QUANTILES)},
    }
    if isinstance(posterior.kind, Draws) and posterior.kind.log_weights is None:
        draws = posterior.draws
        columns = [draws[name].reshape(*draws[name].shape[:2], -1) for name in chosen]
        for figure in (convergence.mcse_mean, convergence.ess_bulk, convergence.ess_tail, convergence.r_hat):
            table[figure.__name__] = np.concatenate([figure(x) for x in columns])
    elif num_groups := independent_groups(posterior):
        wide, weights = posterior._wide(), posterior.weights
        is_known = posterior.verdict.figures.get("pareto_k", 0.0) <= RULES["pareto_k"].passes
        error = _stack({n: mcse_of_weighted_mean(wide[n], weights, num_groups) for n in chosen}, chosen)
        table["mcse_mean"] = error if is_known else np.full_like(error, np.nan)
    index = [scalar for name in chosen for scalar in scalar_names(name, np.shape(mean[name]))]
    return pd.DataFrame(table, index=index)


def independent_groups(posterior: "Posterior") -> int:
    """How many independent groups weighted draws fall into; 0 where they are no sample (the nodes of a grid).

    Several chains are groups (scrambles of Sobol points, islands of particles); the draws of one chain are independent.
    """
    if not isinstance(posterior.kind, Draws) or posterior.kind.log_weights is None:
        return 0
    chains, size = posterior.kind.log_weights.shape
    return chains if chains > 1 else size * ("grid_boundary_mass" not in posterior.verdict.figures)


def _stack(values, names) -> np.ndarray:
    return np.concatenate([np.ravel(values[name]) for name in names])
