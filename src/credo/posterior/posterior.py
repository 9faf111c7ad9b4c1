"""What is now believed: one object for every approximation."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.arguments import as_key, as_numbers, check_count
from credo.compiling import sound
from credo.model.missing import NAME
from credo.model.target import Target
from credo.posterior.kinds import Draws, Kind
from credo.posterior.marginals import (
    NUM_DRAWS,
    draw_weights,
    impute_positions,
    moments,
    quantiles,
    report_positions,
    report_stored,
    sample_positions,
)
from credo.precision import double, in_double, to_numpy
from credo.status import CredoError, Estimate, Verdict
from credo.storage import is_stored

SAME = 1e-5  # of a parameter's size, or of one: what its coordinates say of it again, but for rounding


class Posterior:
    """An approximation of p(u | D), its verdict, and what can be asked of it.

    ``kind``: the approximation itself over flat unconstrained positions (Gaussian, Draws, …).
    ``verdict``: whether to trust it. ``log_evidence``: an ``Estimate`` of log p(D), or None.
    ``info``: figures of the fit, such as ``num_gradients`` and ``seconds``.

    Every method answers in the user's space, with NumPy arrays in the structure of the prior; a dict of parameters
    also carries the model's derived quantities, and ``y_missing`` where missing outcomes are imputed. Where the prior
    is a single distribution, a parameter is the bare array; by name (``draws``, ``summary``, ArviZ) it is "params".
    Draws have the precision of the fit; means, sds and quantiles are summed in float64.
    """

    _recorded: Mapping[str, Any] | None = None  # of a posterior without its model: what identifies that
    _kept: Mapping[str, np.ndarray] = {}  # and the stored draws of its derived quantities

    def __init__(
        self,
        kind: Kind,
        target: Target,
        *,
        verdict: Verdict,
        info: Mapping[str, Any] | None = None,
        log_evidence: Estimate | None = None,
    ):
        self.kind = kind
        self.target = target.flat()
        self.verdict = verdict
        self.info = dict(info or {})
        self.log_evidence = log_evidence

    # draws and densities ----------------------------------------------------------------------------------------

    @in_double
    def sample(self, key, n: int):
        """``n`` independent draws of the parameters: arrays (n, *shape). ``key``: int or JAX key."""
        check_count(n)
        return self._named(self._sampled(as_key(key), n))

    def _sampled(self, key, n: int) -> dict[str, Any]:
        """``n`` draws by name."""
        if self._kept:  # what was derived cannot be derived again: rows of the stored draws, drawn by the same key
            assert isinstance(self.kind, Draws)
            shape = self.kind.positions.shape[:2]
            rows = Draws(np.arange(shape[0] * shape[1]).reshape(*shape, 1), self.kind.log_weights)
            index = np.asarray(sample_positions(rows, key, n))[:, 0]
            return {name: values[index] for name, values in self._drawn.items()}
        return self._report(sample_positions(self.kind, key, n), key)

    def _report(self, positions, key) -> dict[str, Any]:
        """Parameters and derived quantities at positions (n, dim), by name; ``key`` imputes missing outcomes."""
        return self._report_with(positions, self._imputing_keys(key, len(positions)))

    def _imputing_keys(self, key, n: int):
        return jax.random.split(jax.random.fold_in(key, 1), n) if self._is_imputed else None

    def _report_with(self, positions, keys) -> dict[str, Any]:
        values = report_positions(self.target, positions)
        return {**values, NAME: impute_positions(self.target, positions, keys)} if self._is_imputed else values

    @property
    def _is_imputed(self) -> bool:
        return self.target.missing is not None and self.target.missing.is_imputed

    @in_double
    def log_prob(self, params) -> float | np.ndarray:
        """The log density of the approximation at ``params`` in the user's space, up to no constant.

        ``params``: one set of parameters -> float; with a leading axis (n, *shape) on each -> (n,).
        −∞ outside of the support. Raises CredoError for points and draws, which have no density, and for parameters of
        other names or shapes.
        """
        values, is_batch = self._at(params)
        result = _log_prob(self.kind, self.target, values, is_batch)
        return np.asarray(result) if is_batch else float(result)

    def _at(self, params) -> tuple[Any, bool]:
        """(``params`` in the structure of the prior, whether they are several)."""
        leaves = self.target.structure.leaves
        prior = self.target.model.prior
        try:
            given = prior.leaves(params)
            if any(leaf.name not in given for leaf in leaves):  # lists stand for arrays, but where the prior has lists
                given = prior.leaves(jax.tree.map(np.asarray, params, is_leaf=lambda node: isinstance(node, list)))
        except CredoError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError):
            given = {}
        lacking = [leaf.name for leaf in leaves if leaf.name not in given]
        if lacking:
            raise CredoError(
                f"params lacks {lacking[0]!r}: give a value for each of {', '.join(leaf.name for leaf in leaves)}."
            )
        values = {leaf.name: as_numbers(given[leaf.name]) for leaf in leaves}
        is_batch = values[leaves[0].name].ndim > len(leaves[0].shape)
        batch = values[leaves[0].name].shape[:1] if is_batch else ()
        for leaf in leaves:
            is_number = np.asarray(given[leaf.name]).dtype.kind in "biuf"
            if not is_number or values[leaf.name].shape != (*batch, *leaf.shape):
                got = f"the shape {np.shape(given[leaf.name])}" if is_number else repr(given[leaf.name])
                raise CredoError(
                    f"params gives {leaf.name!r} {got}; in the model it has the shape {leaf.shape}: give numbers of "
                    "that shape, or several, (n, …), of every parameter."
                )
        return self.target.structure.assemble(values), is_batch

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """The stored draws by name, derived quantities included: arrays (chain, draw, *shape)."""
        if not isinstance(self.kind, Draws):
            raise CredoError(
                f"A {type(self.kind).__name__} posterior stores no draws: make some with posterior.sample(key, n)."
            )
        shape = self.kind.positions.shape[:2]
        return {name: values.reshape(shape + values.shape[1:]) for name, values in self._drawn.items()}

    @cached_property
    def _drawn(self) -> dict[str, np.ndarray]:
        """Draws (n, *shape) by name: the stored ones, or a fixed set made once."""
        with double():
            if isinstance(self.kind, Draws):
                positions = self.kind.positions.reshape(-1, self.kind.positions.shape[-1])
                if is_stored(positions):
                    keys = self._imputing_keys(as_key(0), len(positions))
                    return {**report_stored(self._report_with, np.asarray(self.kind.positions), keys), **self._kept}
            else:
                positions = sample_positions(self.kind, as_key(0), NUM_DRAWS)
            return {**to_numpy(self._report(positions, as_key(0))), **self._kept}

    def _wide(self) -> dict[str, np.ndarray]:
        """``_drawn`` in float64: the sum of many draws of a single-precision fit is none of single precision.

        Draws on disk stay as they are: what sums them takes a few at a time, in float64.
        """
        return {name: v if is_stored(v) else np.asarray(v, np.float64) for name, v in self._drawn.items()}

    # summaries --------------------------------------------------------------------------------------------------

    @cached_property
    def _moments(self):
        with double():
            return _as_double(moments(self.kind, self.target, self._wide))

    def mean(self):
        """Posterior means, in the structure of the prior."""
        return self._named(self._moments[0])

    def sd(self):
        """Posterior standard deviations, in the structure of the prior; zero for a point posterior."""
        return self._named(self._moments[1])

    @in_double
    def quantile(self, p: float | Sequence[float]):
        """Marginal quantiles at ``p`` in [0, 1]: arrays (*shape) for a float, (len(p), *shape) for a sequence."""
        levels = as_numbers(p)
        if not np.all((levels >= 0) & (levels <= 1)):
            raise CredoError(f"A quantile's level lies in [0, 1]; got {p!r}.")
        return self._named(_as_double(quantiles(self.kind, self.target, self._wide, levels)))

    def summary(self, names: Sequence[str] | None = None):
        """A DataFrame with a row a scalar (``theta[0]``): mean, sd, quantiles, and convergence figures for draws.

        ``names``: the parameters or derived quantities to show; required above 1,000 scalars.
        """
        from credo.posterior.summary import summary

        return summary(self, names)

    # use --------------------------------------------------------------------------------------------------------

    def predict(self, x=None, rule=None, *, key=0):
        """p(y* | x*, D) at inputs ``x`` by ``rule``: a ``Predictive``.

        ``rule`` left out: ``MonteCarlo()``, and ``Linearised()`` for Laplace of a network.
        """
        from credo.predict.predictive import predict

        return predict(self, x, rule, as_key(key))

    def check(self, statistic: Callable, *, num_draws: int = 1_000, key=0):
        """A posterior predictive check: a statistic of the data beside that of data replicated at the same inputs.

        ``statistic(y)``, or ``statistic(y, x)``, returns one number; it takes NumPy arrays in the form of the fit. The
        answer, a ``Check``, has ``observed``, ``replicated`` (num_draws,), ``p_value``, ``sentence`` and ``plot()``.
        Rows that the likelihood masks are left out of y and x; where it masks a part of a row, that is NaN in y. Rows
        stand there as often as their weights count them. Raises CredoError without observed data, for weights that
        are no whole numbers, or where the statistic is no number.
        """
        from credo.posterior.check import check

        return check(self, statistic, num_draws, as_key(key))

    def to_arviz(self, *, log_likelihood: bool = False, log_prior: bool = False, posterior_predictive: bool = False):
        """An ArviZ ``DataTree`` with the posterior group, sample statistics (by ArviZ's names) and observed data.

        Without stored draws there are 4,000. On request, at every draw:

        ``log_likelihood``: log p(y_i | x_i, θ) of every row, times the row's weight, as ``arviz_stats.loo`` and
        ``compare`` take it: (chain, draw, N) for each outcome, rows of weight 0 left out, and (chain, draw, 1) where
        the likelihood is joint.
        ``log_prior``: log p of each parameter given those it hangs on, (chain, draw), as ``arviz_stats.psense`` takes
        it to ask what the prior decides.
        ``posterior_predictive``: data drawn anew at the inputs of the fit, (chain, draw, N, …), as ``plot_ppc_dist``
        and ``loo_pit`` take them.

        CredoError for a group that this model does not have, or that does not fit into memory.
        """
        from credo.posterior.export import to_arviz

        return to_arviz(
            self, log_likelihood=log_likelihood, log_prior=log_prior, posterior_predictive=posterior_predictive
        )

    def save(self, path: str | Path) -> None:
        """Write this posterior to a file that holds arrays and text, and no code; ``credo.load`` reads it."""
        from credo.posterior.files import save

        save(self, path)

    def __repr__(self) -> str:
        evidence = f", log evidence {self.log_evidence}" if self.log_evidence else ""
        kind = type(self.kind).__name__
        return f"<Posterior: {kind} over {self.target.dim} coordinates{evidence}, {self.verdict.status}>"

    def _repr_html_(self) -> str:
        """The verdict and the summary, as a notebook shows them."""
        from credo.posterior.notebook import as_html

        return as_html(self)

    def _named(self, values: Mapping[str, Any]):
        """Values by leaf name -> the structure of the prior, with the derived quantities beside the parameters."""
        params = self.target.structure.assemble(values)
        if self.target.model.prior.names is None:
            return params
        return {**params, **{name: values[name] for name in self.target.derived_names if name in values}}

    @property
    def weights(self) -> np.ndarray | None:
        """Normalised weights of the stored draws, flat; None where they count alike."""
        return draw_weights(self.kind)


def _as_double(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


@sound
def _log_prob_one(kind: Kind, target: Target, params):
    u = target.unconstrain(params)
    is_known = jnp.all(jnp.array([jnp.all(~jnp.isnan(leaf)) for leaf in jax.tree.leaves(params)]))
    pairs = zip(jax.tree.leaves(target.constrain(u)), jax.tree.leaves(params), strict=True)
    is_apart = [jnp.any(jnp.abs(again - given) > SAME * (1 + jnp.abs(given))) for again, given in pairs]
    # where no coordinate belongs to it, or one that belongs to another value: a simplex that does not sum to one
    # nor a finite one, on its boundary
    is_outside = is_known & (jnp.any(~jnp.isfinite(u)) | jnp.any(jnp.array(is_apart)))
    return jnp.where(is_outside, -jnp.inf, kind.log_prob_u(u) - target.log_jacobian(u))


def _log_prob(kind: Kind, target: Target, params, is_batch: bool):
    if not is_batch:
        return _log_prob_one(kind, target, params)
    return _log_prob_many(kind, target, params)


_log_prob_many = sound(jax.vmap(_log_prob_one, in_axes=(None, None, 0)))
