"""Figures of modes, Gaussians and other approximations, and of exact answers."""

from credo.diagnose.rules.rule import ANY, Rule

APPROXIMATIONS: dict[str, Rule] = {
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
        "The smallest curvature at the mode is {value:.2g}, as at a saddle or in a flat direction: no Gaussian stands "
        "round it. Give the parameter that the data leave free a proper prior, or use NUTS().",
        "look for second derivatives that are not finite",
    ),
    "solver_error": Rule(
        "relative error of linear solves with the curvature: the largest residual left, and Sᵀ A S z against z along a "
        "random direction, S the root of the covariance that draws are made with",
        "at most",
        1e-3,
        0.1,
        "this library",
        "Linear solves with the curvature leave a relative error of {value:.1e} (1e-3 passes): draws and spreads are "
        "off by about as much. Raise max_products of MatrixFree(), or bring the inputs to like scales.",
        "raise max_products of MatrixFree(), or use structure=Diagonal()",
    ),
    "estimated_sd_error": Rule(
        "relative standard error of an estimated sd, which one in twenty exceeds",
        "at most",
        0.1,
        ANY,
        "this library",
        "One in twenty of the sds is known to ± {value:.0%} or worse (10 % passes). Raise num_probes of MatrixFree(), "
        "or take sds of parameters from posterior.sample().",
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
    "unseen_share": Rule(
        "share of the members of a mixture whose mode no other member found: the chance that a further start leads to "
        "a mode not yet seen",
        "at most",
        0.1,
        ANY,
        "Good (1953); bound of this library",
        "Of the members {value:.0%} found modes that no other member found (10 % passes): by that chance a further "
        "start leads to a mode that is not in the mixture. Raise members=; those of a network are too many to find.",
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
        "The ELBO was still rising by {value:.2g} nats when the fit stopped (0.1 passes). Allow more steps; by "
        "noisy gradients also a larger step size or, where it leaps to and fro, a smaller one, or DADVI().",
        "allow more steps or time; or look for draws at which the log density is not finite, and lower the step size",
    ),
    "elbo_rise": Rule(
        "ELBO gained from the last fifth but one of the steps to the last, beyond twice its noise, nats a row",
        "at most",
        0.01,
        0.1,
        "this library",
        "The ELBO still rose by {value:.2g} nats a row over the last steps (0.01 passes). Raise max_steps, or start "
        "nearer (start=).",
        "allow more steps, and look for draws at which the log density is not finite",
    ),
    "num_best_starts": Rule(
        "starts that led to the best bound found, or within a hundred-thousandth of it",
        "at least",
        2.0,
        1.0,
        "this library",
        "Of the starts {value:.0f} led to the best bound found (2 pass): optima are separated, and a better one may be "
        "unseen. Raise num_starts.",
    ),
    "draws_error": Rule(
        "largest standard error that fixed draws leave, of a mean in sds (and of the log of an sd of the family's own)",
        "at most",
        0.06,
        0.3,
        "Giordano, Ingram & Broderick (2024); this library",
        "The draws that the fit kept fixed leave the worst mean (or the log of an sd) a standard error of {value:.2f} "
        "sd (0.06 passes). Raise num_draws.",
        "give two pairs of draws or more, and look for a log density whose second derivatives are not finite",
    ),
    # Exact answers
    "grid_boundary_mass": Rule(
        "posterior mass that the grid may cut off, by what its outermost cells hold",
        "at most",
        1e-6,
        1e-3,
        "this library",
        "By what its outermost cells hold, the grid may cut {value:.1e} of the mass off (1e-6 passes). Widen its "
        "bounds.",
    ),
    "grid_variance_beyond": Rule(
        "variance that the density beyond the grid, as far again as it is wide, adds to the worst parameter's, as a "
        "share",
        "at most",
        0.01,
        ANY,
        "this library",
        "The density beyond the grid adds {value:.2g} times the variance of some parameter to it (0.01 passes): its "
        "tail is heavy, and its sd, or even its mean, may not exist. Report its median and quantiles, or give it a "
        "prior with a lighter tail; where bounds were given, widen them.",
        "look for parameters whose values overflow",
    ),
    "noise_rows": Rule(
        "rows less what they determine of the coefficients: what is left to tell the noise by, where one value of it "
        "is taken for certain",
        "at least",
        20.0,  # a normal interval of 90 % holds 88 % of what Student's t of 20 degrees of freedom gives
        -ANY,
        "MacKay (1992); this library",
        "Only {value:.1f} rows are left to tell the noise by (20 pass), and its one best value is taken for certain: "
        "predictions are too narrow. Add rows, or use inference=NUTS(), which averages over the noise.",
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
}
