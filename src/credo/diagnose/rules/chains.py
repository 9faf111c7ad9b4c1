"""Figures of Markov chains."""

from credo.diagnose.rules.rule import ANY, Rule

CHAINS: dict[str, Rule] = {
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
    "settled_share": Rule(
        "largest share of the posterior, by Laplace's method, at other values of a discrete coordinate that took one "
        "value in all draws",
        "at most",
        0.001,
        ANY,
        "this library",
        "A discrete parameter took one value in all draws, where others have {value:.1%} of the posterior (0.1 % "
        "passes): given the other parameters it cannot leave that value. Sum it out of the likelihood, draw it "
        "together with the parameters that hold it, or fit each value by itself and compare evidence.",
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
        "is biased there. Raise target_acceptance, or reparameterise: effects whose scale is a parameter, if there are "
        "any, in the other form (centred or non-centred).",
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
    "undefined_proposals": Rule(
        "share of the draws at which, or on the way to which, a density was met that is no number or +inf",
        "at most",
        1e-3,
        ANY,
        "this library",
        "The log density was NaN or +inf at, or on the way to, {value:.1%} of the draws. Nothing can be drawn from "
        "such a region, whatever the posterior is there. Write the log density such that it is finite, or -inf where "
        "the parameters are impossible.",
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
    "unmet_shift": Rule(
        "by how much the worst mean (in sds) or log sd of the chains misses that of draws which reach further than "
        "they do, or than the proposal of an independence sampler, beyond their error",
        "at most",
        0.095,
        0.7,
        "this library",
        "Draws that reach further put the worst mean or log sd of the chains off by at least {value:.2f} (0.095 "
        "passes): they are short, or never met a part of the posterior that lies far out. Draw longer; if it stays, "
        "use SMC(), or Importance() on an approximation, whose draws reach far.",
        "look for draws at which the log density is not finite, and for parameters without a variance",
    ),
    "sd_error": Rule(
        "largest Monte Carlo standard error of a log sd, of parameters on the line or a part of it, in the user's "
        "space, by their kurtosis and the effective size of their tails",
        "at most",
        0.15,
        ANY,
        "this library; Vehtari et al. (2021)",
        "The sd of some parameter is known to within {value:.0%} only (15 % passes). Draw longer; if it stays, its "
        "tail is heavy, and its sd, or even its mean, may not exist: report its median and quantiles (tail ESS says "
        "how well these are known), or give it a prior with a lighter tail.",
        "look for parameters whose values overflow",
    ),
    "tail_shape": Rule(
        "largest shape k̂ of a tail, |θ|^(−1/k), among such parameters of a kurtosis above 9",
        "at most",
        0.4,  # half is where variances end, and a tail of 200 draws knows it to 0.1
        ANY,
        "this library; Vehtari et al. (2024)",
        "The tail of some parameter has the shape {value:.2f} (0.4 passes): from 0.5 on it has no variance, from 1 on "
        "no mean, and near that draws understate the sd and its error. A rare part of the posterior that few draws "
        "have met looks alike: draw longer, and where that is all, it passes. Else report its median and quantiles "
        "(tail ESS says how well these are known), or give it a prior with a lighter tail.",
        "look for parameters whose values overflow or stay the same for long",
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
    "num_lost_chains": Rule(
        "chains that stayed for a window or two of warm-up where no draw is near, though as likely as the draws are",
        "at most",
        0.0,
        ANY,
        "this library",
        "Chains that stayed, for much of warm-up, where the density is as high as at the draws and no draw is near: "
        "{value:.0f}. The draws may miss a mode. Use ParallelTempering() or SMC(), which weigh modes.",
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
    "temperature_error": Rule(
        "largest difference from one of temperatures that forces and positions of a stochastic-gradient chain show: "
        "in the mean over coordinates and, beyond two standard errors and not of a network, along the directions of "
        "the largest gradient noise and curvature, and in the mean without the first",
        "at most",
        0.1,
        0.5,
        "this library; Leimkuhler & Matthews (2015), section 6.1.5",
        "Step size and gradient noise change the temperature of the chain by {value:.0%} (10 % passes): variances are "
        "wrong by about as much. Give a smaller step_size, a larger batch_size, or longer chains.",
        "look for a gradient that is not finite",
    ),
}
