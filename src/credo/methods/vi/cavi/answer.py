"""Factors that coordinate ascent found as a posterior of a model, held against that model.

The ELBO of the updates is the user's, or a ready model's, and the model may be another one. On draws from q

    E_q[log p(u, D) − log q(u)]

is the ELBO where every factor is a parameter of the model. Where there are further factors (latent variables that the
model sums out), it is the larger, by the expected KL divergence of their factors from their conditional distribution.
The same draws find k̂ and what mean field does to means and sds.
"""

from collections.abc import Mapping

import numpy as np

from credo.algorithm import Options, stream
from credo.diagnose.verdict import judge
from credo.methods.particles.correction import gradients
from credo.methods.particles.importance import draw_and_weigh, evaluations_at_once, has_evidence
from credo.methods.vi.cavi.product import product_of
from credo.methods.vi.cavi.sweeps import Ascent, Factors, unfinished
from credo.methods.vi.measure import CHEAP, assess
from credo.methods.vi.needs import rounds_at_once
from credo.model.target import Target
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.status import Estimate, Verdict

SURE = 5.0  # standard errors by which an ELBO must miss its estimate to be called wrong


def answer(ascent: Ascent, factors: Factors, target: Target, *, key, num_draws: int, options: Options) -> Posterior:
    """``factors``: distributions by name, those of the model's parameters among them; all others are latent.

    CredoError where a parameter of the model has no factor, or one of another shape or support.
    """
    deadline = options.deadline()
    with double():
        q, names = product_of(factors, target)
    at_once = evaluations_at_once(target, options.max_memory)
    measured = assess(
        lambda i: draw_and_weigh(q, target, stream(key, 1, i), num_draws, at_once, deadline),
        lambda u: gradients(_log_density, target, u, max(at_once // CHEAP, 1)),
        q,
        target,
        deadline,
        most_rounds=rounds_at_once(num_draws, target.dim, options.max_memory),
    )
    has_latent = len(ascent.factors) > len(names)
    remarks = _disagreement(ascent.elbo, measured.elbo, has_latent) if has_evidence(target) else ()
    return Posterior(
        q,
        target,
        verdict=_verdict(ascent, measured.figures, remarks),
        info={
            "num_gradients": 0,
            "is_complete": not ascent.is_cut_off,
            "num_sweeps": ascent.num_sweeps,
            "elbo_path": np.stack([np.arange(ascent.num_sweeps), ascent.elbo_path]),
            "restarts": ascent.restarts,
            "factors": ascent.factors,
            "evidence_upper": measured.upper if has_evidence(target) and not remarks else None,
        },
        log_evidence=Estimate(ascent.elbo, 0.0, "lower bound") if has_evidence(target) and not remarks else None,
    )


def _log_density(target: Target, u):
    return target.log_density(u)


def _disagreement(elbo: float, found: Estimate, has_latent: bool) -> tuple[str, ...]:
    """A sentence where the ELBO that the updates go by is not that of the factors and the model."""
    slack = SURE * found.error + 1e-6 * abs(elbo)
    is_too_low = found.value - elbo > slack and not has_latent
    if not np.isfinite(found.value) or not (elbo - found.value > slack or is_too_low):
        return ()
    relation = "is above" if has_latent else "differs from"
    return (
        f"elbo gives {elbo:.6g}, which {relation} E_q[log p − log q] = {found.value:.6g} ± {found.error:.2g} of these "
        "factors and this model: a term or constant of elbo is wrong, or it is that of another prior or likelihood.",
    )


def _verdict(ascent: Ascent, figures: Mapping[str, float], wrong: tuple[str, ...]) -> Verdict:
    figures = {
        "elbo_drift": ascent.remaining if np.isfinite(ascent.remaining) else np.nan,
        **figures,
        "elbo": ascent.elbo,
        "num_iterations": ascent.num_sweeps,
    }
    if wrong:
        return judge(figures, wrong, at_best="failed")
    return judge(figures, unfinished(ascent), at_best="pass" if ascent.is_converged else "doubtful")
