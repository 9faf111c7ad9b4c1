"""Figures of posteriors of networks, whose weights have too many dimensions, and too many modes, to be weighed."""

from credo.diagnose.rules.rule import ANY, Rule

NETWORKS: dict[str, Rule] = {
    "mode_distance": Rule(
        "distance to the mode of a network's weights in posterior sds, by the gradient there and the curvature of the "
        "approximation (MAP and MLE: of Gauss-Newton and the prior): no linearised output is further off, in its own "
        "epistemic sds, and half its square is what the log density would still gain",
        "at most",
        0.1,
        10.0,
        "this library",
        "Training stopped {value:.2g} posterior sds from the mode (0.1 passes): outputs may be off by as many of their "
        "epistemic sds. Raise num_steps, or start from these weights (start=posterior).",
        "look for a log density or a gradient that is not finite at these weights",
    ),
    "surprise": Rule(
        "by how many nats a row the data, at 1,000 rows at most, are less likely than the predictive itself expects, "
        "beyond three standard errors",
        "at most",
        0.1,
        ANY,
        "this library",
        "The data that were fitted are less likely, by {value:.2g} nats a row, than the predictive expects (0.1 "
        "passes): it is too narrow. Let the noise be unknown, under a prior that reaches the size of the residuals, "
        "tune the prior by the evidence, train longer, or give the network more units.",
        "look for a likelihood that is not finite at some row",
    ),
}
