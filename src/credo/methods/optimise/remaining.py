"""How far trained weights are from their mode: the Newton decrement in the metric of Gauss-Newton and the prior.

    A = Σᵢ Jᵢᵀ Fᵢ Jᵢ − ∇² log p(u),   d = (gᵀ A⁻¹ g)^½,   g = ∇ log p(u, D)

d is the distance to the mode in posterior standard deviations, and ½ d² the log density still to be gained, where the
outputs are linear in the weights: the length of the gradient in coordinates in which Laplace's Gaussian is white. By
conjugate gradients from zero, in coordinates in which the prior's precision is one, so that no eigenvalue of A is less:
after k steps, with step lengths α_j and residuals r_j, β_k = |r_k|² / |r_{k−1}|²,

    Σ_{j<k} α_j |r_j|² ≤ d² ≤ Σ_{j<k} α_j |r_j|² + γ_k |r_k|²
    γ_0 = 1,  γ_k = (γ_{k−1} − α_{k−1}) / (γ_{k−1} − α_{k−1} + β_k)

(Hestenes & Stiefel 1952; the rule of Gauss-Radau: Meurant & Tichý 2013, section 3). They end where the two bounds agree
or pass. A saddle has d = 0 too: where d is small, the most negative vᵀHv / vᵀAv, H the exact curvature, is sought by
locally optimal conjugate gradients (Knyazev 2001).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from credo.compiling import brief
from credo.diagnose.rules import RULES
from credo.equations import multiplications
from credo.linalg.products import second_order
from credo.methods.optimise.diagnosis import STALLED, Diagnosis
from credo.methods.optimise.newton import Optimum
from credo.methods.optimise.objective import Objective
from credo.model.curvature import Curvature
from credo.model.data import Rows
from credo.model.fisher import Expected
from credo.model.structure import somewhere
from credo.model.target import Target

MOST, FEWEST, WORK = 250, 20, 1e11  # products with A; of them times rows times multiplications of a row
CLOSE = 1.1  # between the bounds of d, where they count as one
SOLVED = 1e-3  # residual where no bound from above is known
SEARCHES = 30  # products with H
SADDLE = -0.1  # of vᵀHv / vᵀAv: one sd along it gains 0.05 nats
NUM_SEEN, AT_ONCE = 64, 512  # rows whose outputs are compared: first, and together where these are the same
ROWS_A_WEIGHT = 10  # from which on a noise at the joint mode is too small by a twentieth at most
ON_SADDLE = (
    "The density of the weights rises to both sides of this point along some direction: a saddle. Train further, or "
    "start from other weights (start=)."
)
SAME_OUTPUTS = (
    "The network gives all rows the same outputs, whatever their inputs: its units are off at every row (dead ReLUs), "
    "or the prior has drawn their weights to zero. Train from other weights (start=) by smaller steps "
    "(optimiser=optax.adam(0.001)), or give a wider prior."
)
UNBOUNDED = (
    "Without a normal prior of known precision the data may leave directions of the weights free, so that there is no "
    "one mode, and no covariance: give credo.nn.Isotropic(precision) and fit MAP()."
)


class Remaining(NamedTuple):
    """``distance``: d; NaN where its bounds did not settle. ``is_bounded``: the prior gives a bound from above.

    ``saddle``: the curvature along a direction to both sides of which the density rises; None where none was found.
    """

    distance: float
    is_bounded: bool
    saddle: float | None
    num_products: int


def of_network(diagnosis: Diagnosis, objective: Objective, target: Target, optimum: Optimum) -> tuple[Diagnosis, int]:
    """``diagnosis`` by the rule for networks, where these are weights of one; and products with a curvature it took.

    In the place of the Newton decrement to full precision, which training does not reach, and of the exact curvature,
    which is not positive on the way.
    """
    figures = dict(diagnosis.figures)
    if not has_outputs(target) or figures["mode_at_infinity"] or figures["mode_on_boundary"]:
        return diagnosis, 0
    smallest = figures.pop("min_curvature", None)
    is_positive = smallest is not None and smallest > 0
    found = remaining(objective, target, optimum.position, is_positive=is_positive)
    if found is None:
        return diagnosis, 0
    del figures["gradient_norm"]
    figures["mode_distance"] = distance = found.distance
    sentences = [sentence for sentence in diagnosis.sentences if "direction led by" not in sentence]
    if distance > RULES["mode_distance"].passes:
        sentences.append(f"About {0.5 * distance**2:.2g} nats of log density are left to gain, were it quadratic.")
    else:
        sentences = [sentence for sentence in sentences if sentence != STALLED]
    if is_positive:
        figures["min_curvature"] = smallest
    elif found.saddle is not None:
        figures["min_curvature"] = found.saddle
        sentences.append(ON_SADDLE)
    elif not found.is_bounded:
        sentences.append(UNBOUNDED)
    at_best = "pass" if is_positive or found.is_bounded else "doubtful"
    if have_same_outputs(target, optimum.position):
        sentences, at_best = [SAME_OUTPUTS, *sentences], "doubtful"
    return diagnosis._replace(figures=figures, sentences=tuple(sentences), at_best=at_best), found.num_products


def of_noise(diagnosis: Diagnosis, target: Target) -> Diagnosis:
    """No pass for a network whose noise is at its joint mode with many weights: these fit the noise of the rows too."""
    name = target.model.weights_name
    if name is None or not has_outputs(target):
        return diagnosis
    tops = {leaf.name: leaf.name.split(".")[0] for leaf in target.structure.leaves}
    own = [leaf for leaf, top in tops.items() if top not in (name, "precision")]
    num_weights = sum(leaf.size for leaf in target.structure.leaves if tops[leaf.name] == name)
    if not own or target.num_counted > ROWS_A_WEIGHT * num_weights:
        return diagnosis
    sentence = (
        f"{own[0]!r} is at its joint mode with {num_weights:,} weights of {target.num_counted:,} rows, where it is "
        "too small: the weights fit noise. Laplace() finds it by the evidence, better so with prior precisions that "
        "are unknown (prior=credo.nn.PerLayer(dist.LogNormal(0.0, 2.0)))."
    )
    at_best = "doubtful" if diagnosis.at_best == "pass" else diagnosis.at_best
    return diagnosis._replace(sentences=(*diagnosis.sentences, sentence), at_best=at_best)


def have_same_outputs(target: Target, u: Float[np.ndarray, " dim"]) -> bool:
    """Whether all rows have, to the last digit, though their inputs differ, and have others at other weights.

    Few rows tell mostly; where these agree, all are looked at.
    """
    few = np.unique(np.linspace(0, target.size - 1, NUM_SEEN).astype(int))
    first = np.asarray(_outputs(target, u, target.rows(few)))
    if np.any(first != first[:1]):
        return False
    elsewhere = np.asarray(_outputs(target, somewhere(u.size).astype(u.dtype), target.rows(few)))
    if not np.any(elsewhere != elsewhere[:1]):
        return False
    rows = np.arange(-(-target.size // AT_ONCE) * AT_ONCE).reshape(-1, AT_ONCE) % target.size
    return not any(np.any(np.asarray(_outputs(target, u, target.rows(each))) != first[:1]) for each in rows)


@brief
def _outputs(target: Target, u, rows: Rows):
    params = target.constrain(u)
    assert target.head is not None  # checked by who asks
    return target.head.natural(target.likelihood_distribution(params, rows.x), params, rows.x)


def has_outputs(target: Target) -> bool:
    """Whether this is a network whose natural outputs are known."""
    is_network = target.model.weights_name is not None
    return is_network and target.y is not None and target.model.likelihood is not None and target.head is not None


def remaining(
    objective: Objective, target: Target, u: Float[np.ndarray, " dim"], *, is_positive: bool = False
) -> Remaining | None:
    """At ``u`` (dim,) of the flat ``target``; None where A is not positive, or the gradient no number.

    ``is_positive``: the exact curvature is known to be, so that this is no saddle.
    """
    rule = RULES["mode_distance"]
    gradient, precision, is_apart = _look(objective.function, objective.log_prior, objective.args, u)
    precision, gradient = np.asarray(precision), np.asarray(gradient)
    if not np.all(np.isfinite(gradient)):
        return None
    is_bounded = bool(is_apart) and bool(np.all(precision > 0))
    D = np.sqrt(precision) if is_bounded else np.ones_like(u)
    bound = np.asarray(rule.passes**2, u.dtype)
    most = most_products(target.size, max(len(u), _work_of_a_row(target, u)))
    found = _decrement(objective.log_prior, most, objective.args, target, u, gradient, D, is_bounded, bound)
    lower, upper, is_convex, count = (each.item() for each in found)
    if not is_convex:
        return None
    least, distance = float(np.sqrt(lower)), float(np.sqrt(upper))
    if distance > CLOSE * least and least > rule.doubtful:
        distance = least
    elif distance > CLOSE * least and rule.status(least) != rule.status(distance):
        distance = np.nan
    saddle, more = None, 0
    if distance <= rule.passes and not is_positive:
        saddle, more = _saddle(objective, target, u, D, min(SEARCHES, most))
    return Remaining(distance, is_bounded, saddle, count + more)


def most_products(num_rows: int, work: int) -> int:
    """With A: of a large network fewer, so that to judge it takes no longer than to train it. ``work``: of a row, in
    multiplications, a weight of a dense layer one and that of a convolution as many as it has places."""
    return int(np.clip(WORK / (max(num_rows, 1) * work), FEWEST, MOST))


def _work_of_a_row(target: Target, u) -> int:
    return multiplications(jax.make_jaxpr(_outputs.function)(target, u, target.rows(np.arange(1))).jaxpr)


@functools.partial(brief, static_argnames=("function", "log_prior"))
def _look(function: Callable, log_prior: Callable, args, u):
    """∇ log p(u, D); the diagonal of −∇² log p(u), right where coordinates are independent; whether they are."""
    *_, product = second_order(lambda v: log_prior(args, v), u)
    signs = jnp.where(jnp.cos(1.0 + jnp.arange(u.size)) > 0, 1.0, -1.0).astype(u.dtype)
    diagonal, other = -product(jnp.ones_like(u)), -product(signs) * signs
    is_apart = jnp.all(jnp.abs(diagonal - other) <= jnp.sqrt(jnp.finfo(u.dtype).eps) * (1 + jnp.abs(diagonal)))
    return jax.grad(lambda v: function(args, v))(u), diagonal, is_apart


@functools.partial(brief, static_argnames=("log_prior", "most"))
def _decrement(log_prior: Callable, most: int, args, target: Target, u, g, D, is_bounded, bound):
    """Bounds of d², whether A was found positive, the number of products."""
    A = metric(log_prior, args, target, u)
    b = g / D
    size = jnp.dot(b, b)

    def upper_of(lower, γ, rr):
        solved = jnp.where(rr <= SOLVED**2 * size, lower, jnp.inf)
        return jnp.where(is_bounded, lower + γ * rr, solved)

    def is_open(state):
        *_, rr, lower, γ, is_positive, count = state
        upper = upper_of(lower, γ, rr)
        is_settled = (upper <= bound) | (upper <= CLOSE**2 * lower)
        return is_positive & ~is_settled & (count < most)

    def body(state):
        r, p, rr, lower, γ, _, count = state
        Ap = A(p / D) / D
        bend = jnp.dot(p, Ap)
        α = rr / bend
        r = r - α * Ap
        new = jnp.dot(r, r)
        β = new / rr
        left = jnp.maximum(γ - α, 0.0)
        return r, r + β * p, new, lower + α * rr, left / (left + β), bend > 0, count + 1

    one = jnp.ones((), u.dtype)
    start = b, b, size, 0 * one, one, jnp.ones((), bool), jnp.zeros((), jnp.int32)
    *_, rr, lower, γ, is_positive, count = jax.lax.while_loop(is_open, body, start)
    return lower, upper_of(lower, γ, rr), is_positive, count


def metric(log_prior: Callable, args, target: Target, u) -> Callable:
    """v ↦ A v; of rows that memory does not hold together some after the others."""
    *_, of_prior = second_order(lambda v: log_prior(args, v), u)
    chunk = target.rows_at_once or target.size
    likelihood = Curvature(target, u, jnp.zeros_like(u), None, Expected(), chunk, target.size).linear()
    return lambda v: likelihood(v) - of_prior(v)


# saddles -------------------------------------------------------------------------------------------------------------


@functools.partial(brief, static_argnames=("function", "log_prior"))
def _both(function: Callable, log_prior: Callable, args, target: Target, u, v):
    """H v and A v."""
    *_, product = second_order(lambda w: function(args, w), u)
    return -product(v), metric(log_prior, args, target, u)(v)


def _saddle(objective: Objective, target: Target, u, D, most: int) -> tuple[float | None, int]:
    """vᵀHv / |v|² of a direction with vᵀHv < ``SADDLE`` vᵀAv, None where none was found; the number of products."""

    def image(v):
        H, A = _both(objective.function, objective.log_prior, objective.args, target, u, (v / D).astype(u.dtype))
        return np.stack([v, np.asarray(H, np.float64) / D, np.asarray(A, np.float64) / D])

    start = image(np.random.default_rng(0).normal(size=u.size))
    basis, count = [start / np.linalg.norm(start[0])], 1  # each direction, H times it and A times it
    while True:
        vectors, H, A = np.stack(basis, axis=1)
        try:
            values, coefficients = scipy.linalg.eigh(_even(vectors @ H.T), _even(vectors @ A.T))
        except np.linalg.LinAlgError:  # the directions have become one
            return None, count
        best = np.tensordot(coefficients[:, 0], np.stack(basis), axes=1)
        if values[0] < SADDLE:
            return float(best[0] @ best[1]) / float(np.sum((best[0] / D) ** 2)), count
        slope = best[1] - values[0] * best[2]
        if count >= most or np.linalg.norm(slope) <= SOLVED * np.linalg.norm(best[1]):
            return None, count
        step = best - basis[0] * coefficients[0, 0]  # what the last directions added
        kept = [best, step] if len(basis) > 1 else [best]
        basis = [each / np.linalg.norm(each[0]) for each in (*kept, image(slope / np.linalg.norm(slope)))]
        count += 1


def _even(matrix):
    return 0.5 * (matrix + matrix.T)
