"""The posterior mode (MAP): the parameters of highest density in the user's own space.

    maximise log p(θ, D) = log p(u, D) − log |∂θ/∂u| over the unconstrained position u

Without the Jacobian: the answer is the mode of the density as the user wrote it, and changes if the model is written in
other parameters. Second order on full data (newton.py), or any optax optimiser on minibatches (minibatch.py).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import optax

from credo.algorithm import Options
from credo.diagnose.verdict import RULES, judge
from credo.methods.optimise.diagnosis import diagnose
from credo.methods.optimise.hyperparameters import without_mode
from credo.methods.optimise.minibatch import Ascended, ascend, default_num_steps, default_optimiser
from credo.methods.optimise.newton import MAX_STEPS, Optimum, Status
from credo.methods.optimise.objective import Objective, find_mode, in_users_space, solver_for, starting_position
from credo.methods.optimise.remaining import has_outputs, of_network, of_noise
from credo.methods.optimise.subproblem import ConjugateGradients
from credo.methods.optimise.training import without_density
from credo.model.target import Target
from credo.posterior.kinds import Point
from credo.posterior.posterior import Posterior
from credo.status import CredoError

FEW_PRODUCTS = 10  # that show where trained weights run off to
FIRST_ORDER = (
    "Updates by gradients alone, of minibatches above all, come near the mode slowly: MAP() without them, or "
    "Laplace(), reaches it from here (start=posterior)."
)


@dataclass(frozen=True)
class MAP:
    """The mode of the density in the user's space.

    By default second order on full data, to a gradient of 1e-8 and less (its length in the metric of the curvature:
    the distance to the mode in posterior standard deviations). ``optimiser``, an optax one that minimises, and
    ``batch_size`` go by gradients of full data or of minibatches instead; with ``batch_size`` alone the optimiser is
    Adam with a cosine decay from 0.05, and from 0.01 for the weights of a network. Keep one optimiser object for
    several fits: a new one compiles anew. ``num_steps``: at most this many evaluations (default 300), or exactly this
    many updates (default: 30 epochs of minibatches, 1,000 at least, and twice as many of a network). Either way the
    full-data gradient at the end is in the verdict.

    A mode at infinity or on a boundary, a saddle and a ridge are ``failed``, with a sentence that names the parameter.
    Weights of a network are judged as ``Laplace()`` judges them, by ``mode_distance``: within 0.1 posterior sds of the
    mode they pass, within 10, which are 50 nats of log density, they are doubtful; a saddle fails. With fewer than ten
    rows a weight a noise that is unknown is too small at the mode, and the fit doubtful.
    An update by gradients that is not finite ends the ascent: the last finite position is ``failed``, with the rows.
    Raises CredoError where the density is not finite at the start, or the likelihood cannot be split into minibatches.
    """

    optimiser: optax.GradientTransformation | None = None
    batch_size: int | None = None
    num_steps: int | None = None

    takes_source: ClassVar[bool] = True

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        if self.num_steps is not None and self.num_steps < 1:
            raise CredoError(f"num_steps is {self.num_steps}: give a positive number.")
        objective = in_users_space(target)
        solver = solver_for(target, options.max_memory)
        position = starting_position(target, key, start)
        deadline = options.deadline()
        num_updates, num_wanted, max_steps = 0, 0, self.num_steps or MAX_STEPS
        if self.optimiser is not None or self.batch_size is not None:
            num_wanted = self.num_steps or default_num_steps(target, self.batch_size)
            optimiser = self.optimiser or default_optimiser(target, num_wanted)
            found = ascend(target, optimiser, self.batch_size, num_wanted, key, position, options)
            if found.failure:
                return _failed(target, objective, found)
            position, num_updates, max_steps = found.position, found.num_updates, 0
            if has_outputs(target):  # whose distance is judged by other products
                solver = ConjugateGradients(FEW_PRODUCTS)
        time_limit = options.until(deadline).time_limit
        optimum = find_mode(objective, target, position, key, solver, max_steps=max_steps, time_limit=time_limit)
        diagnosis, num_products = of_network(diagnose(target, objective, optimum, solver), objective, target, optimum)
        diagnosis = of_noise(diagnosis, target)
        diagnosis = diagnosis._replace(sentences=(*without_mode(target, optimum.position), *diagnosis.sentences))
        optimum = optimum._replace(num_products=optimum.num_products + num_products)
        distance = diagnosis.figures.get("gradient_norm")  # None of a network, which is judged otherwise
        if num_wanted and distance is not None and RULES["gradient_norm"].status(distance) != "pass":
            diagnosis = diagnosis._replace(sentences=(*diagnosis.sentences, FIRST_ORDER))
        if num_updates < num_wanted:
            sentence = f"The time limit came after {num_updates:,} of {num_wanted:,} updates."
            diagnosis = diagnosis._replace(sentences=(*diagnosis.sentences, sentence))
        return Posterior(
            Point(jax.device_put(optimum.position)),
            target,
            verdict=diagnosis.verdict(num_iterations=float(num_updates or optimum.num_gradients)),
            info=fit_info(objective, optimum, num_updates, is_complete=num_updates == num_wanted),
        )


def _failed(target: Target, objective: Objective, found: Ascended) -> Posterior:
    """The last position that training reached, whatever the density of all data is there."""
    figures = {"num_iterations": float(found.num_updates)}
    sentences = [found.failure, without_density(target, found.position)]
    return Posterior(
        Point(jax.device_put(found.position)),
        target,
        verdict=judge(figures, filter(None, sentences), at_best="failed"),
        info={
            "mode": objective.mode,
            "failed_at": found.num_updates,
            "num_gradients": found.num_updates,
            "is_complete": True,
        },
    )


def fit_info(objective: Objective, optimum: Optimum, num_updates: int = 0, *, is_complete: bool = True) -> dict:
    """What every method of this family and Laplace report of the ascent."""
    return {
        "mode": objective.mode,
        "log_density": optimum.value,
        "status": optimum.status.value,
        "num_gradients": num_updates + optimum.num_gradients,
        "num_hessians": optimum.num_hessians,
        "num_hessian_products": optimum.num_products,
        "is_complete": is_complete and optimum.status is not Status.TIME,
    }
