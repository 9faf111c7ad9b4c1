"""Figures that are shown and never judged."""

from credo.diagnose.rules.rule import Rule

INFORMATION: dict[str, Rule] = {
    "acceptance_rate": Rule("mean acceptance probability after warm-up", "information"),
    "barrier": Rule("communication barrier between reference and posterior (Syed et al. 2022)", "information"),
    "condition_number": Rule("largest over smallest eigenvalue of the curvature or metric", "information"),
    "elbo": Rule("evidence lower bound, nats", "information"),
    "elbo_spread": Rule("best less worst bound of the starts, nats", "information"),
    "log_det_error": Rule(
        "Monte Carlo standard error that the determinant of the curvature gives the log evidence, nats", "information"
    ),
    "num_chains": Rule("chains run", "information"),
    "num_determined": Rule(
        "how many of a network's weights the data determine, beside their prior (MacKay 1992)", "information"
    ),
    "num_divergences": Rule("transitions after warm-up whose energy error diverged", "information"),
    "num_draws": Rule("draws taken, over all chains", "information"),
    "num_members": Rule("members of the ensemble", "information"),
    "num_temperatures": Rule("temperatures between prior and posterior", "information"),
    "num_settled": Rule(
        "discrete coordinates that took one value in all draws, after they moved: not in R-hat and ESS", "information"
    ),
    "num_iterations": Rule("iterations of the optimiser", "information"),
    "position_norm": Rule("largest absolute coordinate of the unconstrained position", "information"),
    "prior_gain": Rule(
        "nats of evidence that the best other prior precision of a network's weights would add, the model linearised "
        "at the mode",
        "information",
    ),
    "step_size": Rule("mean step size over the chains", "information"),
}
