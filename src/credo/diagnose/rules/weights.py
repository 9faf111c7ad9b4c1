"""Figures of importance weights and of particles."""

from credo.diagnose.rules.rule import ANY, Rule

WEIGHTS: dict[str, Rule] = {
    # Importance weights
    "pareto_k": Rule(
        "shape of the tail of the importance weights; of a Gaussian or a flow by draws that reach far where a few "
        "of its own would have the say, and 0 where those are worth 90 % of what they would be for the approximation "
        "itself; elsewhere 0 where the weights are worth 99 % of their draws (below about 2,200 draws S, 1 − 1/log10 S "
        "is the better bound)",
        "at most",
        0.7,
        1.0,
        "Vehtari et al. (2024)",
        "The Pareto k-hat of the importance weights is {value:.2f} (0.7 passes): the approximation is too narrow or "
        "in the wrong place for the target. Use NUTS(), or a richer approximation as the proposal.",
        "look for draws at which the log density is not finite; fewer than 30 draws have no tail",
    ),
    "flow_pareto_k": Rule(
        "pareto_k of a flow in more than one dimension, by up to 16 rounds of draws: it may follow a funnel so far "
        "down that what lies beyond is hardly met",
        "at most",
        0.6,
        ANY,
        "this library",
        "The Pareto k-hat of a flow is {value:.2f} (0.6 passes): it may end in a part of the "
        "posterior that gets ever narrower, where draws hardly come. Reparameterise that part (non-centred group "
        "effects), or compare with NUTS().",
        "look for draws at which the log density is not finite; fewer than 30 draws have no tail",
    ),
    "variance_share": Rule(
        "spread of placed particles as a share of the target's, by Stein's identity",
        "at least",
        0.8,
        0.5,
        "this library; Ba et al. (2021)",
        "The particles show {value:.0%} of the target's spread (80 % pass): in many dimensions they collapse towards "
        "the mode. Raise num_particles well above the number of parameters, raise num_steps, or use NUTS().",
        "look for a gradient that is not finite",
    ),
    "mean_offset": Rule(
        "distance of the worst mean of placed particles from the target's, in their sds, by Stein's identity: a "
        "Newton step along their mean score over all rows",
        "at most",
        0.1,
        0.5,
        "this library",
        "By the scores over all rows the worst mean of the particles is off by about {value:.2f} sd (0.1 passes). "
        "Raise num_steps; with minibatches lower step_size or raise batch_size; or use NUTS().",
        "look for a gradient that is not finite",
    ),
    "mean_shift": Rule(
        "move of the worst mean, of parameters or of what is derived of them, under the importance weights, in "
        "posterior sds, that is beyond their error",
        "at most",
        0.1,
        0.5,
        "Yao et al. (2018); this library",
        "Importance weights move the worst mean by at least {value:.2f} sd (0.1 passes): the approximation is in the "
        "wrong place. Use Importance() on it where its k-hat passes, or NUTS().",
        "look for draws at which the log density is not finite, and for parameters without a variance",
    ),
    "log_sd_shift": Rule(
        "change of the log of the worst sd, of the same, under the importance weights that is beyond their error",
        "at most",
        0.095,
        0.7,
        "Yao et al. (2018); this library",
        "Importance weights change the log of the worst sd by at least {value:.2f} (0.095, 10 %, passes): intervals "
        "are too narrow or too wide. Use FullRank() where correlations are left out, Importance() where its k-hat "
        "passes, or NUTS().",
        "look for draws at which the log density is not finite, and for parameters without a variance",
    ),
    "mean_limit": Rule(
        "move of the worst mean, in posterior sds, that the weights cannot rule out (three standard errors, corrected "
        "for skewness); given where mean_shift and log_sd_shift pass. Of weighed draws: error of their own mean",
        "at most",
        0.1,
        ANY,
        "this library",
        "The worst mean may be off by as much as {value:.2f} sd (0.1 passes): the importance weights know no better. "
        "Raise num_draws where there is such a setting, use Importance() on this posterior, or compare with NUTS().",
        "look for draws at which the log density is not finite, and for parameters without a variance",
    ),
    "log_sd_limit": Rule(
        "change of the log of the worst sd that the weights cannot rule out (three standard errors, corrected for "
        "skewness); given where mean_shift and log_sd_shift pass. Of weighed draws: error of their own log sd",
        "at most",
        0.095,
        ANY,
        "this library",
        "The log of the worst sd may be off by as much as {value:.2f} (0.095, 10 %, passes): the importance weights "
        "know no better. Raise num_draws where there is such a setting, use Importance() on this posterior, or compare "
        "with NUTS().",
        "look for draws at which the log density is not finite, and for parameters without a variance",
    ),
    "stein_gap": Rule(
        "by how much the worst of Stein's identities E[φ' + φ ∂ log p] = 0 (φ = 1, z, z² of each coordinate) fails "
        "over weighed draws, as a share of what chance explains but once in fifty",
        "at most",
        1.0,
        ANY,
        "this library; Gorham & Mackey (2015)",
        "The weighed draws break Stein's identities by {value:.2g} times what chance explains (1 passes): they end "
        "where the posterior does not, and miss a part of it (or the density has a jump, where these identities do not "
        "hold). Propose from a richer fit, or use SMC() or NUTS().",
        "look for a gradient that is not finite",
    ),
    "copy_weight": Rule(
        "log weight of copies of the draws, with components exchanged or signs turned, where the density is as high, "
        "to a factor of 100: far above that of the draws, the approximation leaves such a mode out",
        "at most",
        10.0,
        ANY,
        "this library",
        "With entries exchanged, or signs turned, the density is as high, to a factor of 100, and the approximation "
        "has next to nothing there (log weight {value:.0f}, 10 passes): it holds one of several modes. Order the "
        "components (dist.constraints.ordered_vector), take MixtureOf(k) as the family, or use ParallelTempering() or "
        "SMC().",
    ),
    "mode_share": Rule(
        "share of the posterior that lies about other modes, found by climbing from far away and from draws of the "
        "prior, where the approximation has next to nothing",
        "at most",
        0.001,
        0.05,
        "this library",
        "About {value:.1%} of the posterior lies about another mode, found by climbing from far away, where the "
        "approximation has next to nothing (0.1 % passes). Where that is nearly all of it begin there "
        "(start=posterior.info['elsewhere']); else take MixtureOf(k) as the family, or use ParallelTempering() or "
        "SMC().",
    ),
    "peak_share": Rule(
        "share of the posterior about a peak of its density, to which no valley leads, where the approximation has "
        "next to nothing",
        "at most",
        0.001,
        0.05,
        "this library",
        "About {value:.1%} of the posterior lies about the peak of its density, where the approximation has next to "
        "nothing (0.1 % passes): the neck of a hierarchy, or a spike. Write group effects in the other form (centred "
        "or not), take Flow() or MixtureOf(k) as the family, or use NUTS() or SMC().",
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
    "evidence_gap": Rule(
        "by how many nats the path's log evidence and that of bridge sampling from its draws differ, beyond three "
        "standard errors",
        "at most",
        0.1,
        ANY,
        "this library; Meng & Wong (1996)",
        "The log evidence along the path is off by {value:.2g} nats at least from that of bridge sampling between the "
        "draws and a Gaussian (0.1 passes): on the way particles did not spread along some narrow part. "
        "Raise ess_share and num_particles, or begin nearer, at SMC(reference=credo.fit(target, credo.Laplace())).",
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
    # Well-behaved posteriors reach 1.6, funnels 1.6 to 9, one that ends at a hard edge 2.5 for one key in three.
    "tail_memory": Rule(
        "correlation of particles' ranks before and after their moves at one temperature, within either tail of a "
        "parameter, if the posterior lies there too, in standard errors (of 4,096 particles, if there are more)",
        "at most",
        2.0,
        ANY,
        "this library",
        "At one temperature particles in the tail of a parameter remember their places by {value:.1f} standard errors "
        "(2 pass): a narrow part, such as the neck of a funnel, is explored too slowly, and evidence and sds may be "
        "off. Reparameterise the model (a non-centred form where it is centred), or raise max_moves.",
        "look for parameters that are not finite",
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
}
