"""Can the answer be trusted? One table of figures, bounds and sentences, and the judge that reads it.

``docs/verdict.md`` is this table for readers; a test holds the two equal. Nothing else in the library knows a bound.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from credo.status import Verdict, VerdictStatus

ORDER: tuple[VerdictStatus, ...] = ("pass", "doubtful", "failed")
ANY = math.inf  # as a doubtful bound of "at most": never failed by this figure alone


@dataclass(frozen=True)
class Rule:
    """What a figure means, the values that pass or are doubtful, and the sentence for the others.

    ``direction``: which side of the bounds is good; "information" is never judged. ``passes`` is the bound of a pass,
    ``doubtful`` that of a doubt; beyond it the answer failed. ``sentence`` holds ``{value}`` and the next step;
    ``unknown`` is the next step where the figure could not be computed.
    """

    meaning: str
    direction: Literal["at most", "at least", "above", "information"]
    passes: float = math.nan
    doubtful: float = math.nan
    source: str = "this library"
    sentence: str = ""
    unknown: str = "treat the answer as unchecked and compare it with another method"

    def status(self, value: float) -> VerdictStatus:
        """``value`` against the bounds. What is not finite on the good side was not computed: doubtful."""
        if self.direction == "information":
            return "pass"
        if not self.is_known(value):
            return "doubtful"
        if self._is_good(value, self.passes):
            return "pass"
        return "doubtful" if self._is_good(value, self.doubtful) else "failed"

    def is_known(self, value: float) -> bool:
        """Whether ``value`` says anything: a number, or infinite on the bad side."""
        return not math.isnan(value) and value != (-math.inf if self.direction == "at most" else math.inf)

    def _is_good(self, value: float, bound: float) -> bool:
        if self.direction == "at most":
            return value <= bound
        return value >= bound if self.direction == "at least" else value > bound


RULES: dict[str, Rule] = {
    # Markov chains
    "max_r_hat": Rule(
        "largest rank-normalised split R-hat of the parameters",
        "at most",
        1.01,
        1.05,
        "Vehtari et al. (2021); Gelman & Rubin (1992)",
        "The largest R-hat is {value:.3f} (1.01 passes): the chains disagree on at least one parameter. Draw longer; "
        "if it stays, start the chains from several points and look for separated modes.",
        "run two chains or more, of at least four draws each, and look for parameters that are constant or not finite",
    ),
    "min_ess_bulk": Rule(
        "smallest bulk effective sample size of the parameters",
        "at least",
        400.0,
        100.0,
        "Vehtari et al. (2021)",
        "The smallest bulk effective sample size is {value:.0f} (400 passes): means and standard deviations are not "
        "yet precise. Draw longer, or reparameterise the slowest parameters of summary().",
        "look for parameters that are constant or not finite, and draw at least four times",
    ),
    "min_ess_tail": Rule(
        "smallest effective sample size of the 5 % and 95 % quantiles of the parameters",
        "at least",
        400.0,
        100.0,
        "Vehtari et al. (2021)",
        "The smallest tail effective sample size is {value:.0f} (400 passes): quantiles and intervals are not yet "
        "precise. Draw longer, or reparameterise the slowest parameters of summary().",
        "look for parameters that are constant or not finite, and draw at least four times",
    ),
    # Eight schools, 4 x 1,000 draws: the non-centred form, which is right, has a stray divergence for one key in four;
    # the centred one, which is biased, sometimes has no more, but is a funnel, which the draws show.
    "persistent_divergences": Rule(
        "divergences that are not stray: more than one in a thousand transitions, gathered in a place, or in a funnel",
        "at most",
        0.0,
        ANY,
        "Betancourt (2017), section 6.2; this library",
        "Transitions that diverged: {value:.0f}. The sampler skirts a region of strong curvature, and the posterior "
        "is biased there. Use a non-centred form of group effects, or raise target_acceptance.",
    ),
    "divergence_share": Rule(
        "share of transitions after warm-up that diverged",
        "at most",
        0.1,
        0.1,
        "this library",
        "{value:.0%} of the transitions diverged (above 10 % nothing here can be trusted). Reparameterise the model, "
        "or check that its log density is smooth.",
    ),
    "e_bfmi": Rule(
        "smallest energy Bayesian fraction of missing information of the chains",
        "at least",
        0.3,
        0.2,
        "Betancourt (2016); bounds of Stan",
        "The smallest E-BFMI is {value:.2f} (0.3 passes): the chains move slowly through the energies, as in heavy "
        "tails and funnels. Reparameterise the scale parameters, or warm up longer.",
        "look for a chain that stands still or has energies that are not finite",
    ),
    "max_depth_share": Rule(
        "share of trajectories cut off at the largest tree depth",
        "at most",
        0.05,
        ANY,
        "this library; Hoffman & Gelman (2014)",
        "{value:.0%} of the trajectories were cut off at the largest tree depth: the draws are valid but dear. "
        "Warm up longer, bring the parameters to like scales, or raise the largest depth.",
    ),
    "num_stuck_chains": Rule(
        "chains that stood still for all or a tenth of their draws",
        "at most",
        0.0,
        0.0,
        "this library",
        "Chains that stood still: {value:.0f}. Start elsewhere (start=), warm up longer, or look for a likelihood "
        "that is not finite near the starts.",
    ),
    "num_round_trips": Rule(
        "replicas that came to the posterior from a draw of the reference, over all chains",
        "at least",
        100.0,
        10.0,
        "this library; Syed et al. (2022)",
        "Replicas that came from the reference to the posterior: {value:.0f} (100 pass). The weights of separated "
        "modes rest on so few. Draw longer, or raise num_temperatures to twice the figure barrier.",
    ),
    "swap_rate": Rule(
        "smallest share of swaps accepted between two neighbouring temperatures",
        "at least",
        0.2,
        0.01,
        "this library; Syed et al. (2022)",
        "Between two temperatures {value:.0%} of the swaps are accepted (20 % pass): replicas hardly get past. Raise "
        "num_temperatures to twice the figure barrier, or warm up longer.",
    ),
    # Importance weights
    "pareto_k": Rule(
        "shape of the tail of the importance weights; 0 where they are worth 99 % of their draws, so that no mean is "
        "off by more than 0.1 sd (below about 2,200 draws S, 1 − 1/log10 S is the better bound)",
        "at most",
        0.7,
        1.0,
        "Vehtari et al. (2024)",
        "The Pareto k-hat of the importance weights is {value:.2f} (0.7 passes): the approximation is too narrow or "
        "in the wrong place for the target. Use NUTS(), or a richer approximation as the proposal.",
        "take at least 30 draws, and look for draws at which the log density is not finite",
    ),
    "mean_shift": Rule(
        "largest move of a mean under the importance weights, in sds, beyond their error",
        "at most",
        0.1,
        0.5,
        "Yao et al. (2018)",
        "Importance weights move the worst mean by at least {value:.2f} sd (0.1 passes): the approximation is in the "
        "wrong place. Use Importance() on it where its k-hat passes, or NUTS().",
        "look for draws at which the log density is not finite",
    ),
    "log_sd_shift": Rule(
        "largest change of the log of an sd under the importance weights, beyond their error",
        "at most",
        0.1,
        0.7,
        "Yao et al. (2018)",
        "Importance weights change the log of the worst sd by at least {value:.2f} (0.1 passes): intervals are too "
        "narrow or too wide. Use FullRank(), Importance() where its k-hat passes, or NUTS().",
        "look for draws at which the log density is not finite",
    ),
    "importance_ess": Rule(
        "effective sample size of the importance weights",
        "at least",
        400.0,
        100.0,
        "Kong (1992); bounds as for ESS",
        "The importance weights are worth {value:.0f} draws (400 passes). Raise num_draws, or use a proposal nearer "
        "to the target.",
        "look for draws at which the log density is not finite",
    ),
    # Particles
    "island_ess": Rule(
        "smallest number of independent draws that the means of the parameters are worth, by the spread of the islands",
        "at least",
        400.0,
        100.0,
        "this library; bounds as for ESS",
        "The spread of the islands makes the worst mean worth {value:.0f} independent draws (400 passes): they "
        "disagree, about the weights of separated modes perhaps. Raise num_particles, or ess_share.",
        "look for parameters that are constant or not finite",
    ),
    "evidence_error": Rule(
        "standard error of the log evidence by the spread of the islands, nats",
        "at most",
        0.2,
        1.0,
        "this library",
        "The log evidence is known to ± {value:.2g} nats (0.2 passes). Raise num_particles, or ess_share.",
    ),
    "mutation_correlation": Rule(
        "largest correlation of particles with where they were before their moves at one temperature",
        "at most",
        0.25,
        0.6,
        "this library; Buchholz, Chopin & Jacob (2021)",
        "At one temperature the moves left a correlation of {value:.2f} with where the particles were (0.25 passes). "
        "Raise max_moves, or reparameterise the model.",
        "look for a log density whose gradient is not finite",
    ),
    "mutation_acceptance": Rule(
        "smallest mean acceptance of the moves at one temperature",
        "at least",
        0.3,
        0.1,
        "this library",
        "At one temperature the moves were accepted {value:.0%} of the time (30 % passes): many particles stand still. "
        "Raise max_moves, or look for a likelihood that is zero or not smooth over part of the prior.",
    ),
    "num_ancestors": Rule(
        "first draws that the last particles descend from",
        "at least",
        32.0,
        16.0,
        "this library; Lee & Whiteley (2018)",
        "All particles descend from {value:.0f} draws of the prior (32 pass): the weights of separated modes rest on "
        "so few. Raise num_particles, or ess_share.",
    ),
    "undefined_share": Rule(
        "share of the first draws at which the log density is no number, or infinite",
        "at most",
        0.0,
        ANY,
        "this library",
        "The log density is no number at {value:.2%} of the draws of the prior, which counted as impossible. Guard the "
        "term of the likelihood that overflows, divides by zero or takes the log of a negative number.",
    ),
    # Optimisation and Laplace
    "gradient_norm": Rule(
        "distance to the mode in posterior sds, by the gradient there",
        "at most",
        1e-6,
        0.1,
        "this library",
        "The optimiser stopped {value:.1e} posterior sds from the mode (1e-6 passes). "
        "Allow more iterations, start nearer (start=), or bring the inputs to like scales.",
        "look for a log density that is not finite on the way to the mode",
    ),
    "min_curvature": Rule(
        "smallest eigenvalue of the curvature at the mode",
        "above",
        0.0,
        0.0,
        "MacKay (2003), chapter 27",
        "The smallest curvature at the mode is {value:.2g}: a saddle or a flat direction, round which no Gaussian "
        "stands. Give the parameter that the data leave free a proper prior, or use NUTS().",
        "look for second derivatives that are not finite",
    ),
    "mode_at_infinity": Rule(
        "1 where the density rises towards infinity",
        "at most",
        0.0,
        0.0,
        "Albert & Anderson (1984)",
        "The density rises towards infinity, so that there is no mode: the data leave a direction free (separable "
        "classes, say). Give the parameters a proper prior.",
    ),
    "mode_on_boundary": Rule(
        "1 where the mode lies on the boundary of the support",
        "at most",
        0.0,
        0.0,
        "this library",
        "The mode lies on the boundary of the support (a scale at zero, say), where no Gaussian fits. Use a prior "
        "that keeps away from the boundary, or integrate the parameter out with NUTS().",
    ),
    # Variational inference
    "elbo_error": Rule(
        "Monte Carlo standard error of the ELBO, nats",
        "at most",
        0.1,
        1.0,
        "this library",
        "The ELBO is known to ± {value:.2g} nats (0.1 passes). Evaluate it with more draws; if the error stays, the "
        "approximation misses a tail of the target.",
        "look for draws at which the log density is not finite",
    ),
    "elbo_drift": Rule(
        "ELBO still being gained when the fit stopped, nats",
        "at most",
        0.1,
        1.0,
        "this library",
        "The ELBO was still rising by {value:.2g} nats when the fit stopped (0.1 passes). Allow more steps, or a "
        "larger step size.",
        "look for draws at which the log density is not finite, and lower the step size",
    ),
    # Exact answers
    "grid_boundary_mass": Rule(
        "posterior mass in the outermost cells of the grid",
        "at most",
        1e-6,
        1e-3,
        "this library",
        "The outermost cells of the grid hold {value:.1e} of the mass (1e-6 passes): the grid cuts the posterior off. "
        "Widen its bounds.",
    ),
    "exact_residual": Rule(
        "relative residual of the equations that the exact answer solves",
        "at most",
        1e-8,
        1e-8,
        "this library",
        "The exact answer leaves a relative residual of {value:.1e} (1e-8 passes): its equations are ill-conditioned. "
        "Bring the inputs to like scales, drop columns that repeat others, or give a tighter prior.",
    ),
    # Simulation-based calibration
    "sbc_p_value": Rule(
        "probability of ranks at least as far from uniform in simulation-based calibration, times the number of "
        "quantities; a right method is below 0.01 once in 100 calls at most",
        "at least",
        0.01,
        1e-4,
        "Talts et al. (2018); Säilynoja, Bürkner & Vehtari (2022)",
        "The ranks of true values among draws are not uniform (p = {value:.1e} over all quantities; 0.01 passes): fits "
        "do not give the posterior of the model. Where the method approximates, that is its error, and NUTS() is the "
        "remedy; where it is exact, look for a density other than the one that simulates (a Jacobian, weights, the "
        "order of rows), or draws that have not converged.",
    ),
    "sbc_failure_share": Rule(
        "share of the simulated data sets to which no fit succeeded",
        "at most",
        0.0,
        0.05,
        "this library",
        "{value:.1%} of the simulated data sets could not be fitted (none passes), and calibration says nothing about "
        "them. Look at failures, and give the model a prior that keeps away from such data.",
    ),
    "sbc_excess_spread": Rule(
        "what dependence between the draws that are ranked adds to the variance of the ranks, relative to it",
        "at most",
        0.01,
        ANY,
        "this library; the spread of 1,000 uniform ranks is known to 3 %",
        "Draws that are not independent spread the ranks by {value:.1%} too widely (1 % passes). Draw longer in each "
        "fit, or rank fewer draws by num_ranks.",
        "look for parameters whose draws are constant or not finite",
    ),
    # Information: shown, never judged
    "acceptance_rate": Rule("mean acceptance probability after warm-up", "information"),
    "barrier": Rule("communication barrier between reference and posterior (Syed et al. 2022)", "information"),
    "condition_number": Rule("largest over smallest eigenvalue of the curvature or metric", "information"),
    "elbo": Rule("evidence lower bound, nats", "information"),
    "num_chains": Rule("chains run", "information"),
    "num_divergences": Rule("transitions after warm-up whose energy error diverged", "information"),
    "num_draws": Rule("draws taken, over all chains", "information"),
    "num_temperatures": Rule("temperatures between prior and posterior", "information"),
    "num_settled": Rule(
        "discrete coordinates that took one value in all draws, after they moved: not in R-hat and ESS", "information"
    ),
    "num_iterations": Rule("iterations of the optimiser", "information"),
    "num_simulations": Rule("simulated data sets that were fitted", "information"),
    "position_norm": Rule("largest absolute coordinate of the unconstrained position", "information"),
    "step_size": Rule("mean step size over the chains", "information"),
}


def judge(
    figures: Mapping[str, float | int | None], sentences: Iterable[str] = (), *, at_best: VerdictStatus = "pass"
) -> Verdict:
    """The verdict on ``figures``: that of the worst one, and never better than ``at_best``.

    A figure that is NaN or None could not be computed and is doubtful. ``sentences`` are the method's own and follow
    those of the table, which come worst first. KeyError for a figure that the table lacks: a fault of the program.
    """
    values = {name: math.nan if value is None else float(value) for name, value in figures.items()}
    found = []
    for name, value in values.items():
        if name not in RULES:
            raise KeyError(
                f"The figure {name!r} is not in the table of verdicts: add a rule to credo.diagnose.verdict.RULES and "
                f"a row to docs/verdict.md. The table has {', '.join(RULES)}."
            )
        found.append((RULES[name].status(value), _sentence(name, value)))
    worst = max((at_best, *(status for status, _ in found)), key=ORDER.index)
    said = [sentence for status in ("failed", "doubtful") for s, sentence in found if s == status]
    return Verdict(worst, values, (*said, *sentences))


def as_table() -> str:
    """The rules as the Markdown table of ``docs/verdict.md``."""
    rows = ["| figure | meaning | pass | doubtful | source | sentence |", "|---|---|---|---|---|---|"]
    for name, rule in RULES.items():
        sign = {"at most": "≤", "at least": "≥", "above": ">", "information": ""}[rule.direction]
        doubtful = "–" if rule.doubtful == rule.passes else f"{sign} {rule.doubtful:g}"
        bounds = ("–", "–") if not sign else (f"{sign} {rule.passes:g}", doubtful.replace(f"{sign} inf", "any"))
        source = rule.source if sign else "information only"
        shown = re.sub(r"\{value[^}]*\}", "*x*", rule.sentence) or "–"
        rows.append(f"| `{name}` | {rule.meaning} | {bounds[0]} | {bounds[1]} | {source} | {shown} |")
    return "\n".join(rows)


def _sentence(name: str, value: float) -> str:
    rule = RULES[name]
    if not rule.is_known(value):
        return f"The figure {name} ({rule.meaning}) could not be computed, so it does not pass: {rule.unknown}."
    return rule.sentence.format(value=value)
