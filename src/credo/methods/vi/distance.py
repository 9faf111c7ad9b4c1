"""How far an approximation q is from the posterior p, by every measure that draws of q allow.

With log weights ℓ = log p(u, D) − log q(u), u ~ q, w = e^ℓ, Z = E_q[w] = p(D):

    KL(q ‖ p) = log Z − E_q[ℓ]       KL(p ‖ q) = E_q[w ℓ]/Z − log Z
    Fisher    = E_q[gᵀ C g],  g = ∇ℓ,  C = Cov_q:  the same in all affine coordinates (Cai et al. 2024, eq. 2)

KL(q ‖ p) without log Z is −ELBO. Errors are those of means and of functions of means (delta method); what rests on Z is
NaN beyond k̂ = 0.7, where the weights have no variance that could be known.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, xlogy

from credo.algorithm import stream
from credo.arguments import as_key
from credo.diagnose.convergence import mcse_mean
from credo.diagnose.pareto import smooth
from credo.diagnose.rules import RULES
from credo.methods.particles.correction import gradients, shifts_of
from credo.methods.particles.importance import draw_and_weigh, evaluations_at_once, kind_with_density
from credo.methods.particles.scalars import SAME, all_values, varying_among
from credo.model.target import Target
from credo.posterior.kinds import Draws, Gaussian, Kind, Point
from credo.posterior.posterior import Posterior
from credo.precision import in_double
from credo.status import CredoError, Estimate

MEANINGS = {
    "elbo": "E_q[log p(u, D) − log q(u)], nats: a lower bound of the log evidence",
    "log_evidence": "log p(D), nats: of the reference where it knows, else by importance weights",
    "kl_q_p": "KL(q ‖ p), nats: what the ELBO lacks",
    "kl_p_q": "KL(p ‖ q), nats, by importance weights",
    "fisher": "Fisher divergence in the units of q, no units: 2 KL, where q is a Gaussian of p's shape",
    "pareto_k": "shape of the tail of the weights: below 0.7 the figures that rest on them hold",
}


class Distance(NamedTuple):
    """Of one scalar: q's mean less the posterior's in posterior sds, Var_q / Var_p, and their standard errors."""

    mean_off: float
    mean_error: float
    variance_ratio: float
    ratio_error: float


@dataclass(frozen=True)
class Divergences:
    """Divergences of q from p with their Monte Carlo errors (NaN: unknown), and how far each parameter's moments are.

    ``scalars``: name -> ``Distance``, of those that vary. ``table()`` and ``moments()`` are DataFrames of the two.
    """

    elbo: Estimate
    log_evidence: Estimate
    kl_q_p: Estimate
    kl_p_q: Estimate
    fisher: Estimate
    pareto_k: Estimate
    scalars: dict[str, Distance]

    def table(self):
        """A DataFrame with a row a figure: value, error, meaning."""
        import pandas as pd

        rows = {name: (getattr(self, name).value, getattr(self, name).error, MEANINGS[name]) for name in MEANINGS}
        return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "error", "meaning"])

    def moments(self):
        """A DataFrame with a row a scalar of the parameters."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.scalars, orient="index", columns=list(Distance._fields))

    def __str__(self) -> str:
        return "\n".join(f"{f.name:>12} {getattr(self, f.name)}" for f in fields(self) if f.name in MEANINGS)

    def _repr_html_(self) -> str:
        """Both tables, as a notebook shows them."""
        return self.table().to_html() + self.moments().to_html(max_rows=20)


@in_double
def divergences(
    q: Posterior, target: Target | None = None, *, key=0, num_draws: int = 4_000, reference: Posterior | None = None
) -> Divergences:
    """How far the approximation ``q`` is from the posterior of ``target`` (by default that which it was fitted to).

    ``reference``: a posterior to be trusted, as by NUTS, whose moments, and whose evidence if that is exact or has a
    known error, then take the place of those by importance weights. ``num_draws``: of q. ``key``: int or JAX key.
    Raises CredoError where ``q`` has no density, or the posteriors have other parameters than the target.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> target = model.given(y=np.array([3, 5, 1, 4]))
    >>> found = credo.vi.divergences(credo.fit(target, credo.Laplace()), target)
    >>> bool(0 < found.kl_q_p.value < 0.05)
    True
    """
    for name, posterior in (("q", q), ("reference", reference)):
        if not isinstance(posterior, Posterior) and (name == "q" or posterior is not None):
            raise CredoError(f"{name} is a {type(posterior).__name__}: give a posterior, as credo.fit returns.")
    if not isinstance(target, Target | None):
        raise CredoError(f"target is a {type(target).__name__}: give model.given(x, y), or leave it out.")
    target = (q.target if target is None else target).flat()
    _check(q, target, reference, num_draws)
    at_once = evaluations_at_once(target)
    u, log_weights = draw_and_weigh(q.kind, target, stream(as_key(key)), num_draws, at_once)
    fisher = Estimate(np.nan, np.nan, "monte carlo")  # discrete parameters have no derivative
    if not target.structure.discrete_names:
        slope = gradients(_log_weight, (target, q.kind), u, max(at_once // 4, 1))
        fisher = _mean(np.einsum("si,ij,sj->s", slope, _covariance(q.kind, u), slope), "monte carlo")
    smoothed = smooth(log_weights)
    elbo = _mean(log_weights, "lower bound")
    shift = float(np.max(log_weights))
    w = np.exp(log_weights - shift) / np.mean(np.exp(log_weights - shift))  # p/q, the densities normalised
    log_z = float(logsumexp(log_weights) - np.log(num_draws))
    is_known = smoothed.k_hat <= RULES["pareto_k"].passes
    w_log_w = xlogy(w, w)  # 0 where p = 0
    inclusive = float(np.mean(w_log_w))
    log_evidence = Estimate(log_z, _error(w - 1.0) if is_known else np.nan, "monte carlo")
    of_kl = w - log_weights  # log Z and the ELBO move together
    exclusive = Estimate(log_z - elbo.value, _error(of_kl) if is_known else np.nan, "monte carlo")
    told = None if reference is None else reference.log_evidence
    if told is not None and told.kind in ("exact", "monte carlo") and np.isfinite(told.error):
        log_evidence = told
        exclusive = Estimate(told.value - elbo.value, float(np.hypot(told.error, elbo.error)), "monte carlo")
    of_inclusive = w_log_w - (inclusive + 1) * w
    tail = min(num_draws / 5, 3 * np.sqrt(num_draws))
    return Divergences(
        elbo,
        log_evidence,
        exclusive,
        Estimate(inclusive, _error(of_inclusive) if is_known else np.nan, "monte carlo"),
        fisher,
        Estimate(float(smoothed.k_hat), float((1 + abs(smoothed.k_hat)) / np.sqrt(tail)), "monte carlo"),
        _by_weights(q.kind, target, u, smoothed.log_weights) if reference is None else _by_reference(q, reference),
    )


def _log_weight(args, u):
    target, kind = args
    return target.log_density(u) - kind.log_prob_u(u)


def _check(q: Posterior, target: Target, reference: Posterior | None, num_draws: int) -> None:
    for name, posterior in (("q", q), ("reference", reference)):
        if posterior is not None and posterior.target.structure != target.structure:
            raise CredoError(f"The parameters of {name} are not those of the target: fit the same model.")
    if reference is not None and isinstance(reference.kind, Point):
        raise CredoError("The reference is a point, which has no moments: give a posterior, such as one by NUTS().")
    if isinstance(q.kind, Point | Draws):
        raise CredoError(
            f"A posterior of kind {type(q.kind).__name__} has no density: divergences compare an approximation that "
            "has one (Laplace(), ADVI() and the like) with the target; give draws as reference=."
        )
    kind_with_density(q, target, "approximation")
    if not isinstance(num_draws, int | np.integer) or num_draws < 30:
        raise CredoError(f"num_draws is {num_draws}: give 30 or more, 1,000 to know k-hat.")


def _mean(terms: Float[np.ndarray, " S"], kind) -> Estimate:
    return Estimate(float(np.mean(terms)), _error(terms), kind)


def _error(influence: Float[np.ndarray, " S"]) -> float:
    with np.errstate(invalid="ignore"):  # infinite where p is 0 at a draw: the error is then not known
        return float(np.std(influence, ddof=1) / np.sqrt(len(influence)))


def _covariance(kind: Kind, u: np.ndarray) -> np.ndarray:
    return np.asarray(kind.scale.dense()) if isinstance(kind, Gaussian) else np.atleast_2d(np.cov(u, rowvar=False))


def _by_weights(kind: Kind, target: Target, u, log_weights) -> dict[str, Distance]:
    mean, log_sd = shifts_of(kind, target, u, log_weights, also_derived=False)
    ratio = np.exp(-2 * log_sd.value)
    rows = zip(-mean.value, mean.error, ratio, 2 * ratio * log_sd.error, strict=True)
    names = np.array(target.structure.scalar_names())[varying_among(all_values(target, u))]
    return {name: Distance(*map(float, row)) for name, row in zip(names.tolist(), rows, strict=True)}


def _by_reference(q: Posterior, reference: Posterior) -> dict[str, Distance]:
    names = [leaf.name for leaf in q.target.structure.leaves]
    mean_q, sd_q, mean, sd = (
        np.concatenate([np.ravel(each[name]) for name in names]) for p in (q, reference) for each in p._moments
    )
    of_mean, of_variance = _errors(reference, names, mean, sd)
    kept = np.flatnonzero(sd > SAME * np.abs(mean))
    scalars = np.array(q.target.structure.scalar_names())[kept].tolist()
    mean_q, sd_q, mean, sd, of_mean, of_variance = (x[kept] for x in (mean_q, sd_q, mean, sd, of_mean, of_variance))
    ratio = (sd_q / sd) ** 2
    rows = zip((mean_q - mean) / sd, of_mean / sd, ratio, ratio * of_variance / sd**2, strict=True)
    return {name: Distance(*map(float, row)) for name, row in zip(scalars, rows, strict=True)}


def _errors(reference: Posterior, names: list[str], mean: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Monte Carlo standard errors of the reference's means and variances: 0 for a formula, NaN for weighted draws."""
    if not isinstance(reference.kind, Draws):
        return np.zeros_like(mean), np.zeros_like(mean)
    if reference.kind.log_weights is not None:
        return np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    draws = reference.draws
    values = np.concatenate([draws[name].reshape(*draws[name].shape[:2], -1) for name in names], axis=-1)
    return mcse_mean(values), mcse_mean((values - mean) ** 2)
