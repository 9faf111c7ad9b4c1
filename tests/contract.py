"""The suite that every method must pass: which targets it claims, and what its posteriors must do.

A new method joins by one line in METHODS.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.posterior.kinds import Draws, Point
from credo.posterior.marginals import NUM_DRAWS
from credo.posterior.masked import Masked
from credo.posterior.posterior import Posterior
from targets import GAUSSIAN_COV, Known

SMOOTH = ("gaussian", "ill_conditioned", "skewed", "constrained", "logistic")
GAUSSIANS = ("gaussian", "ill_conditioned")


class Entry(NamedTuple):
    """A method and its claims.

    ``fits``: targets on which it must answer and obey the protocol. ``accurate``: those on which its means and sds
    are right, to ``sd_error`` sds beyond Monte Carlo error, and the log evidence to ``evidence_error`` nats, if that is
    claimed. ``make(known)`` gives the method. ``slow``: targets that are left to the slow tests, rarely the first.
    """

    make: Callable[[Known], object]
    fits: tuple[str, ...]
    accurate: tuple[str, ...]
    sd_error: float = 0.0
    evidence_error: float | None = None
    slow: tuple[str, ...] = ()


# Five standard errors: a false alarm once in 1.7 million scalars, had the draws' errors been Gaussian.
NUM_ERRORS = 5.0
BY_DRAWS = NUM_ERRORS / math.sqrt(NUM_DRAWS)  # of moments that no formula gives


def importance(known: Known):
    return credo.Importance(proposal=credo.fit(known.target, credo.Laplace(), key=1), num_draws=8_000)


def importance_sobol(known: Known):
    return credo.Importance(
        proposal=credo.fit(known.target, credo.Laplace(), key=1), num_draws=8_192, points=credo.Sobol()
    )


def independence(known: Known):
    return credo.IndependenceMH(proposal=credo.fit(known.target, credo.Laplace(), key=1))


def smc(known: Known):
    """From the prior where there is a likelihood apart from it, else from a Gaussian."""
    has_likelihood = known.target.model.likelihood is not None
    return credo.SMC(reference=None if has_likelihood else credo.fit(known.target, credo.Laplace(), key=1))


def cavi(known: Known):
    """Mean field by hand: means one coordinate after the other, variances 1/Λᵢᵢ."""
    precision = np.linalg.inv(GAUSSIAN_COV)

    def update(q, data):
        mean = np.array(q["w"].mean)
        for i in range(len(mean)):
            mean[i] -= precision[i] @ (mean - known.mean["w"]) / precision[i, i]
        return dist.Normal(mean, np.diag(precision) ** -0.5).to_event(1)

    def elbo(q, data):
        variance, off = np.asarray(q["w"].variance), np.asarray(q["w"].mean) - known.mean["w"]
        spread = np.diag(precision) @ variance + off @ precision @ off - len(off)
        return -0.5 * (spread + np.linalg.slogdet(GAUSSIAN_COV)[1] - np.log(variance).sum())

    start = {"w": dist.Normal(np.zeros(3), 1.0).to_event(1)}
    return credo.vi.cavi.CAVI({"w": update}, elbo, start)


def gaussian_blocks(known: Known):
    """Correlations within groups of parameters, and none between them."""
    return credo.ADVI(family=credo.vi.Blocks({"weights": credo.FullRank(), ("scale", "share"): credo.vi.LowRank(1)}))


def ladder(known: Known):
    return credo.Auto(rungs=(credo.ADVI(family=credo.MeanField()), credo.ADVI(family=credo.FullRank())))


def factors(known: Known):
    """The families of the constrained target's own distributions: a gamma, a Dirichlet, and a uniform's beta."""
    return credo.ADVI(
        family=credo.vi.Blocks({"scale": credo.vi.Gamma(), "weights": credo.vi.Dirichlet(), "share": credo.vi.Beta()})
    )


METHODS: dict[str, Entry] = {
    "map": Entry(lambda known: credo.MAP(), (*GAUSSIANS, "logistic"), ()),
    "laplace": Entry(lambda known: credo.Laplace(), SMOOTH, GAUSSIANS, 1e-8),
    "laplace_matrix_free": Entry(
        lambda known: credo.Laplace(structure=credo.laplace.MatrixFree()),
        ("gaussian", "logistic"),
        ("gaussian",),
        1e-6,
        slow=("logistic",),
    ),
    "advi_mean_field": Entry(
        lambda known: credo.ADVI(family=credo.MeanField()), ("gaussian", "skewed", "logistic"), ()
    ),
    "advi_full_rank": Entry(
        lambda known: credo.ADVI(family=credo.FullRank()),
        SMOOTH,
        ("gaussian",),
        0.02,
        slow=("ill_conditioned", "skewed", "logistic"),
    ),
    "cavi": Entry(cavi, ("gaussian",), ()),
    "advi_low_rank": Entry(
        lambda known: credo.ADVI(family=credo.vi.LowRank(1)), ("gaussian", "logistic"), (), slow=("logistic",)
    ),
    "advi_mixture": Entry(
        lambda known: credo.ADVI(family=credo.vi.MixtureOf(2, credo.FullRank())), ("mixture",), ("mixture",), 0.05
    ),
    "advi_flow": Entry(
        lambda known: credo.ADVI(family=credo.vi.Flow(credo.vi.NeuralSpline())),
        ("skewed",),
        ("skewed",),
        0.05,
        slow=("skewed",),  # half a minute of compilation; the protocol of a flow is asked in test_families_fits.py too
    ),
    "advi_blocks": Entry(gaussian_blocks, ("constrained",), ()),
    "advi_factors": Entry(
        factors, ("constrained",), ("constrained",), BY_DRAWS, evidence_error=1e-6, slow=("constrained",)
    ),
    "dadvi": Entry(lambda known: credo.DADVI(), SMOOTH, GAUSSIANS, 1e-6),
    "dadvi_full_rank": Entry(lambda known: credo.DADVI(family=credo.FullRank()), SMOOTH, GAUSSIANS, 1e-6),
    "batch_and_match": Entry(
        lambda known: credo.BatchAndMatch(), SMOOTH, GAUSSIANS, 1e-6, slow=("ill_conditioned", "skewed", "constrained")
    ),
    "pathfinder": Entry(lambda known: credo.Pathfinder(), SMOOTH, (), slow=("ill_conditioned", "skewed")),
    "pathfinder_of_paths": Entry(
        lambda known: credo.Pathfinder(num_paths=4), (*GAUSSIANS, "constrained", "logistic"), (*GAUSSIANS, "logistic")
    ),
    "natural_gradient": Entry(
        lambda known: credo.NaturalGradient(), SMOOTH, GAUSSIANS, 1e-6, slow=("ill_conditioned", "skewed", "logistic")
    ),
    # a path that passes ends the ladder, and sds within 10 % are what a pass promises
    "auto": Entry(lambda known: credo.Auto(), ("gaussian", "logistic"), ("gaussian",), 0.05),
    "auto_of_two": Entry(ladder, ("gaussian",), ("gaussian",), 0.02),
    "importance": Entry(importance, ("gaussian", "logistic"), ("gaussian", "logistic")),
    "importance_sobol": Entry(importance_sobol, ("gaussian", "logistic"), ("gaussian", "logistic")),
    "sgld": Entry(
        lambda known: credo.SGLD(batch_size=None), ("gaussian", "skewed", "logistic"), ("gaussian", "skewed"), 0.06
    ),
    "sghmc": Entry(
        lambda known: credo.SGHMC(batch_size=None), ("gaussian", "skewed", "logistic"), ("gaussian", "skewed"), 0.06
    ),
    "sgnht": Entry(
        lambda known: credo.SGNHT(batch_size=None), ("gaussian", "skewed", "logistic"), ("gaussian", "skewed"), 0.06
    ),
    "constant_sgd": Entry(lambda known: credo.ConstantSGD(batch_size=64), ("logistic",), ()),
    "deep_ensemble": Entry(lambda known: credo.DeepEnsemble(), ("gaussian", "logistic"), ()),
    "snapshots": Entry(lambda known: credo.StochasticWeightSnapshots(), ("gaussian", "logistic"), ()),
    "swag": Entry(lambda known: credo.SWAG(), ("logistic",), ()),
    "mixture_of_laplaces": Entry(
        lambda known: credo.MixtureOfLaplaces(members=8, weights="evidence"),
        (*GAUSSIANS, "logistic", "mixture"),
        (*GAUSSIANS, "mixture"),
        1e-6,
    ),
    "multi_swag": Entry(lambda known: credo.MultiSWAG(members=2), ("logistic",), ()),
    "svgd": Entry(lambda known: credo.SVGD(), ("gaussian", "skewed", "logistic"), (), slow=("skewed", "logistic")),
    "mc_dropout": Entry(lambda known: credo.MCDropout(num_steps=500), ("logistic",), ()),
    "gaussian_dropout": Entry(lambda known: credo.GaussianDropout(num_steps=500), ("logistic",), ()),
    "vbll": Entry(lambda known: credo.VBLL(num_steps=500), ("logistic",), ()),
    "smc": Entry(smc, ("gaussian", "skewed", "logistic"), ("gaussian", "skewed", "logistic"), slow=("skewed",)),
    "grid": Entry(
        lambda known: credo.Grid(),
        ("gaussian", "skewed", "logistic"),
        ("gaussian", "skewed", "logistic"),
        1e-6,
        slow=("logistic",),
    ),
    "exact": Entry(lambda known: credo.Exact(), GAUSSIANS, GAUSSIANS, 1e-8),
    "chees": Entry(
        lambda known: credo.ChEES(), (*SMOOTH, "funnel", "mixture"), SMOOTH, slow=("skewed", "logistic", "mixture")
    ),
    "parallel_tempering": Entry(
        lambda known: credo.ParallelTempering(), (*SMOOTH, "mixture"), (*SMOOTH, "mixture"), slow=SMOOTH[1:]
    ),
    "hmc": Entry(lambda known: credo.HMC(), ("gaussian", "skewed"), ("gaussian", "skewed")),
    "mala": Entry(lambda known: credo.MALA(), SMOOTH, SMOOTH),
    "random_walk": Entry(lambda known: credo.RandomWalkMetropolis(), SMOOTH, SMOOTH),
    "slice": Entry(lambda known: credo.Slice(), SMOOTH, SMOOTH),
    "elliptical_slice": Entry(
        lambda known: credo.EllipticalSlice(), (*GAUSSIANS, "logistic"), (*GAUSSIANS, "logistic"), slow=("logistic",)
    ),
    "independence": Entry(independence, ("gaussian", "constrained", "logistic"), ("gaussian", "logistic")),
    "gibbs": Entry(
        lambda known: credo.Gibbs({name: credo.NUTS() for name in known.mean}),
        ("gaussian", "constrained"),
        ("gaussian", "constrained"),
    ),
    "nuts": Entry(lambda known: credo.NUTS(), (*SMOOTH, "funnel", "mixture"), SMOOTH),
}


def check_protocol(posterior: Posterior, known: Known) -> None:
    """What every posterior answers, whatever its kind."""
    structure = posterior.target.structure
    assert posterior.verdict.status in ("pass", "doubtful", "failed")
    assert all(sentence.rstrip().endswith(".") for sentence in posterior.verdict.sentences)
    if posterior.verdict.status != "pass":
        assert posterior.verdict.sentences, "a verdict that is not pass says why"
    assert posterior.verdict.figures
    info = posterior.info
    assert {"num_gradients", "num_gradients_useful", "layout", "is_complete", "seconds"} <= set(info)
    assert 0 <= info["num_gradients_useful"] <= info["num_gradients"]
    assert info["layout"] in ("single", "threads", "vectorized")
    assert info["is_complete"] is True, "there was no time limit"
    assert {"compile", "total"} <= set(info["seconds"])
    assert all(0 <= each <= info["seconds"]["total"] for each in info["seconds"].values())
    if "warmup" in info["seconds"] or info["layout"] != "single":
        assert {"warmup", "sampling"} <= set(info["seconds"])
        assert info["num_gradients_useful"] < info["num_gradients"] or info["num_densities"]

    draws = posterior.sample(3, 5)
    again = posterior.sample(3, 5)
    for leaf in structure.leaves:
        values = posterior.target.model.prior.leaves(draws)[leaf.name]
        assert isinstance(values, np.ndarray)
        assert values.dtype == np.float64
        assert values.shape == (5, *leaf.shape)
        np.testing.assert_array_equal(values, posterior.target.model.prior.leaves(again)[leaf.name])

    mean, sd, median = posterior.mean(), posterior.sd(), posterior.quantile(0.5)
    assert set(mean) == set(sd) == set(median)
    low, high = posterior.quantile([0.1, 0.9])[next(iter(mean))]
    assert np.all(low <= high)
    if isinstance(posterior.kind, Point | Draws | Masked):
        with pytest.raises(credo.CredoError, match="density"):
            posterior.log_prob(mean)
    else:
        assert math.isfinite(posterior.log_prob(mean))
    table = posterior.summary()
    assert list(table.index[: len(structure.scalar_names())]) == structure.scalar_names()
    assert {"mean", "sd"} <= set(table.columns)
    has_terms = posterior.target.y is not None and posterior.target.model.likelihood is not None
    tree = posterior.to_arviz(log_likelihood=has_terms)
    by_draw = [values for group in tree.children if group != "observed_data" for values in tree[group].values()]
    assert len({values.shape[:2] for values in by_draw}) == 1, "one draw after the other, in every group"
    assert ("log_likelihood" in tree.children) == has_terms
    assert not jax.config.jax_enable_x64


def check_accuracy(posterior: Posterior, known: Known, sd_error: float, evidence_error: float | None = None) -> None:
    """Means and sds against the truth: Monte Carlo error, and what the entry grants beyond; and the evidence."""
    if evidence_error is not None:
        assert posterior.log_evidence is not None
        assert known.log_evidence is not None
        assert abs(posterior.log_evidence.value - known.log_evidence) < evidence_error
    num_effective = effective_draws(posterior)
    mean, sd = posterior.mean(), posterior.sd()
    for name, true_sd in known.sd.items():
        tolerance = sd_error + (NUM_ERRORS / math.sqrt(num_effective) if num_effective else 0.0)
        np.testing.assert_array_less(np.abs(mean[name] - known.mean[name]) / true_sd, tolerance + 1e-12, err_msg=name)
        # the sd of an sd estimate is about sd·sqrt((kurtosis − 1)/4n); 2 covers kurtosis up to 17
        np.testing.assert_array_less(np.abs(sd[name] / true_sd - 1), 2.0 * tolerance + 1e-12, err_msg=name)


def effective_draws(posterior: Posterior) -> float | None:
    """The number of independent draws that the posterior is worth; None where it is no sample."""
    if not isinstance(posterior.kind, Draws):
        return None
    figures = posterior.verdict.figures
    if "min_ess_bulk" in figures:
        return min(figures["min_ess_bulk"], figures["min_ess_tail"])
    return figures.get("importance_ess", figures.get("island_ess"))
