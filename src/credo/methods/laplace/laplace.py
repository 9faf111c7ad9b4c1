"""Laplace's approximation (MacKay 2003, chapter 27): a Gaussian at the mode with the curvature found there.

    û = argmax log p(u, D),  A = −∇² log p(u, D) at û,  q(u) = N(û, A⁻¹)
    log p(D) ≈ log p(û, D) + (d/2) log 2π − ½ log |A|

u is the unconstrained position, Jacobian included. Exact where log p(u, D) is quadratic; the error of the evidence
falls as 1/N where N data inform every direction (Kass & Raftery 1995, section 4.1).
"""

import time
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Float

from credo.algorithm import Options
from credo.diagnose.startup import check_finite_start
from credo.diagnose.verdict import RULES, judge
from credo.linalg.embedded import Embedded
from credo.linalg.matrix_free import MatrixFree as MatrixFreeScale
from credo.methods.laplace.curvature import Curvature, ExactHessian, GaussNewton, OuterProducts, affordable
from credo.methods.laplace.evidence import Evidence
from credo.methods.laplace.judgement import after_earlier, verdict_of
from credo.methods.laplace.kronecker import Kronecker
from credo.methods.laplace.look import are_independent
from credo.methods.laplace.lowrank import LowRank
from credo.methods.laplace.matrix_free import MatrixFree
from credo.methods.laplace.needs import check_memory
from credo.methods.laplace.network import fit_network
from credo.methods.laplace.proposal import NUM_DRAWS
from credo.methods.laplace.proposal import figures as proposal_figures
from credo.methods.laplace.structure import Dense, Diagonal, Shape, Structure
from credo.methods.laplace.subset import All, Subset, of_part, shape_of
from credo.methods.optimise.diagnosis import coordinate_names, diagnose, transformed
from credo.methods.optimise.hyperparameters import num_hyperparameters
from credo.methods.optimise.map import fit_info
from credo.methods.optimise.newton import MAX_STEPS
from credo.methods.optimise.objective import (
    Objective,
    after,
    chunk_size,
    find_mode,
    in_unconstrained_space,
    solver_for,
    starting_position,
)
from credo.methods.particles.importance import has_evidence
from credo.model.target import Target
from credo.posterior.kinds import Draws, Gaussian, Point
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Estimate, Verdict

FARTHEST = 200.0  # of a log or logit where there is no mode: squares of its exponential are still numbers
OTHER_OUTCOMES = (
    "The Fisher information of these outcomes is not known, so that Gauss-Newton curvature and linearised prediction "
    "are not to be had: this is the Hessian, and predictions average over sampled weights, by which networks underfit. "
    "Give the distribution a sample(), by which the information is found, and nothing of the rows but the network's "
    "outputs (an offset or exposure is one of them), use a head of credo.nn, or DeepEnsemble(), which takes any."
)

LATE = "The time limit came before draws of the Gaussian were weighed against the posterior: raise time_limit."


@dataclass(frozen=True)
class Laplace:
    """A Gaussian at the mode in unconstrained space.

    ``structure``: of ``credo.laplace``: ``Dense()`` (every covariance), ``MatrixFree()`` (likewise, by linear solves),
    ``Diagonal()``, ``LowRank(rank)``, or ``Kronecker()`` for weights of networks. ``curvature``: ``ExactHessian()``, or
    ``GaussNewton()``, which is never negative for the likelihood's part. ``subset``: which parameters vary, ``All()``,
    ``LastLayer()``, ``Named(…)`` or ``LargestVariance(k)``; the others stay at the mode, known, and the evidence is
    that given them. ``num_steps``: at most this many evaluations on the way to the mode; 0 takes the curvature where it
    starts.
    ``prior``: a posterior of earlier data, which takes the place of the target's prior, so that data can come batch by
    batch: ``fit(next_batch, Laplace(prior=posterior))``. Its log evidence then counts all batches, and
    ``info["log_evidence_increment"]`` the last. Exact with ``Dense()``, for any split, where model and prior are
    Gaussian; what the posterior of earlier data lost, such as correlations, is lost for good, and its doubts stay.
    ``Kronecker()`` and ``LowRank()`` take none with correlations: networks come batch by batch with ``Diagonal()``, or
    with ``Dense()`` where they are small.

    Of a network (``credo.nn.BayesianNetwork``) it starts at the given weights, trains them by Adam on minibatches
    (``num_steps`` updates, 60 epochs if left out; 0 for weights that are trained) and polishes them on all data.
    ``structure`` and ``curvature`` left out: Gauss-Newton, dense up to 1,000 coordinates (3,000 of a subset) and
    Kronecker above, as ``info`` says; where a row has more than 64 outputs and a backward pass for each would be dear,
    by 32 random columns a row or fewer, ``SampledFisher(32)``. ``tune``: noise and prior precisions that are unknown to
    the model are found by the evidence, in turns with the weights (``Evidence(…)`` has the settings; False leaves them
    parameters like the others; without any it does nothing): that of the whole matrix, up to 1,000 weights or 2,000
    outputs of all rows, else of Kronecker factors, which stand in for it. ``predict(x)`` is then ``Linearised()``,
    since draws of the weights underfit.

    Verdict: ``gradient_norm``, ``min_curvature`` (a saddle or a flat direction fails, and the Gaussian then has |A| for
    A, sds of 5 at most on logs and logits, so that its draws are numbers, and no evidence), and ``pareto_k``
    and how far weights move means and sds (``mean_shift``, ``mean_limit``, ``log_sd_shift``, ``log_sd_limit``), by
    1,000 draws of the Gaussian weighed against the target, up to 32,000 where fewer cannot tell.
    ``log_evidence`` is None under an improper prior. Raises CredoError where the density is not finite at the start,
    the curvature asked for does not exist, or a noise that is tuned goes to zero.
    """

    structure: Structure | None = None
    curvature: Curvature | None = None
    prior: Posterior | None = None
    subset: Subset = field(default_factory=All)
    num_steps: int | None = field(default=None, metadata={"at_least": 0})
    tune: Evidence | bool | None = None

    takes_source: ClassVar[bool] = True

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        return self._fit(target.flat(), key, start, options, is_part=False)

    def around(self, target: Target, position: Float[np.ndarray, " dim"], *, key, options: Options) -> Posterior:
        """One of several: around the mode near ``position`` (dim,), to which the weights of a network are polished.

        Its verdict is on the mode alone: what the whole is worth, a mixture says.
        """
        return self._fit(target.flat(), key, position, options, is_part=True)

    def _fit(self, target: Target, key, start, options: Options, *, is_part: bool) -> Posterior:
        deadline = options.deadline()
        is_network = self.takes_network(target)
        if target.source is not None and isinstance(self.structure, MatrixFree):
            raise CredoError(
                "MatrixFree() multiplies by all data whenever its posterior is used, and these come in a Loader: take "
                "structure=Kronecker(), LowRank() or Diagonal(), or give arrays."
            )
        check_memory(
            self.structure or (Diagonal() if is_network else Dense()),
            self.subset,
            target,
            options.max_memory,
            has_factors=is_network or isinstance(self.curvature, OuterProducts),
        )
        if is_network:
            return self._fit_network(target, key, start, options, is_part)
        if self.tune:
            raise CredoError(
                "Laplace(tune=…) finds the noise and prior precisions of a network (credo.nn.BayesianNetwork) with "
                "known natural outputs and a curvature that is never negative: here they are parameters."
            )
        structure, curvature = self.structure or Dense(), self.curvature or ExactHessian()
        curvature.check(target)
        objective = self._objective(target)
        start = self.prior if start is None else start
        solver, chunk = solver_for(target, options.max_memory), chunk_size(target, options.max_memory)
        optimum = find_mode(
            objective,
            target,
            starting_position(target, key, start),
            key,
            solver,
            max_steps=MAX_STEPS if self.num_steps is None else self.num_steps,
            time_limit=options.time_limit,
        )
        diagnosis = diagnose(target, objective, optimum, solver)
        is_mode = not (diagnosis.figures["mode_at_infinity"] or diagnosis.figures["mode_on_boundary"])
        shape = shape_of(structure, self.subset, curvature, objective, target, optimum, chunk, is_mode)
        is_positive = shape.min_curvature > 0
        mean = optimum.position if is_mode and is_positive else within_range(target, optimum.position)
        kind = Gaussian(jax.device_put(mean), shape.scale)
        sentences = (*diagnosis.sentences, *shape.sentences)
        if target.model.weights_name is not None and target.head is None:
            sentences = (OTHER_OUTCOMES, *sentences)
        if not is_positive:
            name = coordinate_names(target)[shape.coordinate]
            sentences = (
                *(s for s in sentences if "direction led by" not in s),
                f"The direction of smallest curvature is led by {name}. The Gaussian has the absolute curvature in its "
                "place, which is no approximation of the posterior.",
            )
        # all at once where memory allows: a program without a loop compiles in less than half the time
        at_once = chunk_size(target, options.max_memory, most=NUM_DRAWS)
        figures, num_draws = {}, 0
        # a draw of it is a solve with all data
        is_late = not is_part and isinstance(structure, MatrixFree) and time.monotonic() > deadline
        if is_late:
            diagnosis, sentences = diagnosis._replace(at_best="doubtful"), (*sentences, LATE)
        elif not is_part:
            figures, num_draws = proposal_figures(objective, kind, target, key, at_once, deadline)
        verdict = diagnosis._replace(sentences=sentences).verdict(
            min_curvature=shape.min_curvature, **shape.figures, **figures
        )
        is_mode = is_mode and is_positive and optimum.gradient_norm <= RULES["gradient_norm"].doubtful
        evidence, increment = self._evidence(target, optimum.value, shape) if is_mode else (None, None)
        info = fit_info(objective, optimum, is_complete=not is_late) | {"num_densities": num_draws}
        if self.prior is not None:
            info["log_evidence_increment"] = increment
        verdict = after_earlier(of_part(verdict, shape.scale, target), self.prior)
        return Posterior(kind, target, verdict=verdict, info=info, log_evidence=evidence)

    def takes_network(self, target: Target) -> bool:
        """Whether this is a network and its curvature one that is never negative."""
        if target.model.weights_name is None or target.y is None or isinstance(self.curvature, ExactHessian):
            return False
        return target.head is not None or self.curvature is not None

    def _fit_network(self, target: Target, key, start, options: Options, is_part: bool) -> Posterior:
        deadline = options.deadline()
        if self.prior is not None and self.num_steps:
            raise CredoError(
                f"Laplace(prior=…, num_steps={self.num_steps}) of a network trains no weights: those of the posterior "
                "given as prior are polished on the new data. Leave num_steps out."
            )
        (self.curvature or GaussNewton()).check(target)
        curvature = self.curvature or affordable(target)
        objective = self._objective(target)
        u = starting_position(target, key, self.prior if start is None else start)
        try:
            found = fit_network(self, objective, target, u, curvature, key, options, is_begun=is_part)
        except CredoError:
            if self.num_steps == 0:  # no training has looked at the start: a curvature of NaN is a consequence
                check_finite_start(target, u)
            raise
        names = [leaf.name for leaf in target.structure.leaves for _ in range(leaf.size)]
        info = {
            "mode": objective.mode,
            "log_density": found.value,
            "structure": type(found.structure).__name__,
            "curvature": type(curvature).__name__,
            "predicts": "linearised",
            "num_gradients": found.num_updates + found.num_gradients,
            "is_complete": found.is_complete,
        }
        if found.path:
            tuned = list(dict.fromkeys(names[: num_hyperparameters(target)]))
            info |= {"tuned": tuned, "log_evidence_by_turns": list(found.path)}
        evidence, increment = self._evidence(target, found.value, found.shape)
        if found.evidence is not None:
            evidence = Estimate(found.evidence, np.nan, "laplace") if has_evidence(target) else None
        if not (found.mode_distance <= RULES["mode_distance"].doubtful and found.shape.min_curvature > 0):
            evidence, increment = None, None
        if self.prior is not None:
            info["log_evidence_increment"] = increment
        posterior = Posterior(found.kind, target, verdict=Verdict("doubtful"), info=info, log_evidence=evidence)
        figures: dict[str, float | None] = {
            "mode_distance": found.mode_distance,
            "min_curvature": found.shape.min_curvature,
            "num_iterations": float(found.num_updates + found.num_gradients),
            **found.shape.figures,
        }
        if is_part:
            posterior.verdict = judge(figures, found.sentences)
            return posterior
        chunk = chunk_size(target, options.max_memory, most=NUM_DRAWS)
        posterior.verdict, num_draws = verdict_of(posterior, objective, figures, found.sentences, key, chunk, deadline)
        posterior.verdict = after_earlier(of_part(posterior.verdict, found.shape.scale, target), self.prior)
        posterior.info["num_densities"] = num_draws
        return posterior

    def _objective(self, target: Target) -> Objective:
        if self.prior is None:
            return in_unconstrained_space(target)
        if not isinstance(self.prior, Posterior) or isinstance(self.prior.kind, Point | Draws):
            raise CredoError(
                "Laplace(prior=…) takes a posterior that has a density, such as one by Laplace() or ADVI(); got "
                f"{type(getattr(self.prior, 'kind', self.prior)).__name__}."
            )
        target.structure.check_same(self.prior.target.structure, "posterior given as prior")
        if target.y is None or target.model.likelihood is None:
            raise CredoError("Laplace(prior=…) needs a target with a likelihood: this one is a bare log density.")
        scale = getattr(self.prior.kind, "scale", None)
        if isinstance(scale, Embedded):
            raise CredoError(
                "The posterior given as prior is of some parameters, the others known: it has no density over all of "
                "them. Fit it with subset=All()."
            )
        if any(isinstance(each, MatrixFreeScale) for each in jax.tree.leaves(scale, is_leaf=_is_matrix_free)):
            raise CredoError(
                "The posterior given as prior has a covariance without a matrix, and its density takes linear solves "
                "with the earlier data: fit those with another structure, or all data at once."
            )
        if isinstance(self.structure, Kronecker | LowRank) and not are_independent(self.prior):
            raise CredoError(
                f"{type(self.structure).__name__}() takes a prior of independent coordinates, and the posterior given "
                "as prior has correlations: say structure=Dense() or Diagonal(), fit the earlier data with the latter, "
                "or fit all data at once."
            )
        return after(self.prior.kind, target)

    def _evidence(self, target: Target, value: float, shape: Shape) -> tuple[Estimate | None, float | None]:
        """log p(D), of all batches so far, and of the last."""
        if shape.log_fixed is None:
            return None, None
        increment = value - shape.log_fixed + 0.5 * shape.scale.rank * float(np.log(2 * np.pi))
        increment += float(shape.scale.log_det())
        if self.prior is None:
            return (Estimate(increment, np.nan, "laplace") if has_evidence(target) else None), increment
        earlier = self.prior.log_evidence
        return (None if earlier is None else Estimate(earlier.value + increment, np.nan, "laplace")), increment


def _is_matrix_free(node) -> bool:
    return isinstance(node, MatrixFreeScale)


def within_range(target: Target, position: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
    """``position`` with logs and logits no further off than ``FARTHEST``."""
    return np.where(transformed(target), np.clip(position, -FARTHEST, FARTHEST), position)
