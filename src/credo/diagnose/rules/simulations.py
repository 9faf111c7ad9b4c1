"""Figures of simulation-based calibration."""

from credo.diagnose.rules.rule import ANY, Rule

SIMULATIONS: dict[str, Rule] = {
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
    "num_simulations": Rule(
        "simulated data sets that were fitted in simulation-based calibration",
        "at least",
        100,
        -ANY,
        "this library; the mean of 100 uniform ranks is known to 3 % of their range",
        "Only {value:.0f} simulated data sets were fitted (100 pass), which show gross faults alone: simulate more.",
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
}
