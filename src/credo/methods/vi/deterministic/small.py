"""A deterministic fit of a Gaussian family with Hessians in full: one compiled program, and linear algebra on the host.

The program gives derivatives of log p at the mode's positions and then at the draws (derivatives.py); F and its
derivatives follow by the chain rule (gaussian.py), linear response and the draws' own error by one factor
(response.py); at last it weighs fresh draws.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from credo.algorithm import Options
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.memory import budget
from credo.methods.optimise.newton import Optimum
from credo.methods.optimise.objective import chunk_size
from credo.methods.particles.weighing import Weighed
from credo.methods.vi.deterministic.climb import Problem, climb
from credo.methods.vi.deterministic.derivatives import AtPositions
from credo.methods.vi.deterministic.fitted import Fitted
from credo.methods.vi.deterministic.gaussian import FixedDraws, Gaussians
from credo.methods.vi.deterministic.refine import refine
from credo.methods.vi.deterministic.response import Response, respond
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.start import Start, density_of, find_start
from credo.model.target import Target
from credo.posterior.kinds import Gaussian
from credo.status import CredoError

MAX_POINT = 1_500  # entries of (a, C)
MAX_WORK = 3e10  # draws · dim² · (N + 10 dim), about the operations of an evaluation


def has_curvature(family: Family, dim: int) -> bool:
    """Whether the curvature of F can be formed."""
    return {MeanField: 2 * dim, FullRank: dim * (dim + 3) // 2}.get(type(family), np.inf) <= MAX_POINT


def is_small(family: Family, target: Target, num_draws: int, max_memory: int | None) -> bool:
    """Whether it also fits into memory, and is worth its price at every step: of a family with correlations, without
    which products with F's Hessian are many, always."""
    if not has_curvature(family, target.dim) or num_draws > most_draws(target.dim, max_memory):
        return False
    work = num_draws * target.dim**2 * (target.size + 10.0 * target.dim)
    return family.has_correlations or work <= MAX_WORK


def bytes_of_hessians(num_draws: int, dim: int) -> int:
    """Of a fit, with as much again for all else."""
    return 2 * 8 * num_draws * dim**2


def most_draws(dim: int, max_memory: int | None) -> int:
    """Whose Hessians memory holds."""
    return budget(max_memory) // max(bytes_of_hessians(1, dim), 1)


def fit_small(
    target: Target,
    family: Family,
    draw: Callable[[int, int], np.ndarray],
    num_pairs: int,
    *,
    key,
    start,
    options: Options,
    more_pairs: Callable[[Fitted], int | None],
    linear_response: bool | None,
    max_steps: int,
    begun: Start | None = None,
) -> Fitted:
    """``draw(num_pairs, dim)``: white noise (K, dim). ``more_pairs``: None where a fit's draws were enough, else how
    many pairs the next one takes. ``begun``: where to start, if that is known."""
    deadline = options.deadline()
    objective = density_of(target)
    program = AtPositions.suited(target, chunk_size(target, options.max_memory))
    if begun is None:
        begun = find_start(target, family, key, start, options, solver=program)
    q, num_gradients, path, dtype = begun.q, begun.num_gradients, [], np.dtype(jnp.result_type(float))
    draws, optimum = None, None
    while True:
        noise = draw(num_pairs, target.dim)

        def problem(q) -> Problem:
            coordinates = Gaussians.about(q)
            solver = FixedDraws(coordinates, noise, program, dtype, path)  # noqa: B023  # called before the next turn
            return Problem(objective.function, objective.args, coordinates.origin(), solver)

        refined = None
        if draws is not None and optimum is not None:
            draws = FixedDraws(draws.coordinates, noise, program, dtype, path)
            refined = refine(draws, objective.function, objective.args, optimum, deadline)
        if refined is None:
            q, solved, optimum = climb(problem, family, q, target, max_steps=max_steps, deadline=deadline)
            draws = solved.solver
        else:
            optimum = refined
        assert isinstance(draws, FixedDraws)
        q = draws.coordinates.at(optimum.position)
        num_gradients += len(noise) * optimum.num_gradients + optimum.num_products
        found = respond(draws, objective.function, objective.args, optimum)
        fitted = _fitted(draws, found, optimum, linear_response, num_gradients, begun)
        wanted = more_pairs(fitted)
        if wanted is None:
            return fitted
        num_pairs = wanted


def weigh(program: AtPositions, target: Target, q: Gaussian, key, num_draws: int, deadline: float) -> Weighed:
    """Draws of q and their log importance weights, from the program that is compiled already."""
    z = np.random.default_rng(np.asarray(key).ravel().tolist()).normal(size=(num_draws, target.dim))
    return weigh_white(program, target, q, z, deadline)


def weigh_white(program: AtPositions, target: Target, q: Gaussian, z: np.ndarray, deadline: float = np.inf) -> Weighed:
    """The same at white coordinates (S, dim)."""
    scale = q.scale
    assert isinstance(scale, Dense | Diagonal)
    deviations = z @ np.asarray(scale.lower).T if isinstance(scale, Dense) else z * np.asarray(scale.scale)
    u = (np.asarray(q.mean) + deviations).astype(np.dtype(jnp.result_type(float)))
    objective = density_of(target)
    values = program.values(objective.function, objective.args, u, deadline)
    log_q = -0.5 * np.sum(z**2, axis=1) - float(scale.log_det()) - 0.5 * target.dim * np.log(2 * np.pi)
    return u[: len(values)], values - log_q[: len(values)]


def _fitted(
    draws: FixedDraws,
    found: Response,
    optimum: Optimum,
    linear_response: bool | None,
    num_gradients: int,
    begun: Start,
) -> Fitted:
    coordinates = draws.coordinates
    q = coordinates.at(optimum.position)
    wants = coordinates.is_diagonal if linear_response is None else linear_response
    is_known = bool(np.all(np.isfinite(found.covariance)))
    responding, sd = None, np.sqrt(np.asarray(q.scale.diagonal()))
    if wants and is_known:
        try:
            responding = Gaussian(q.mean, Dense.from_covariance(found.covariance))
            sd = np.sqrt(np.diagonal(found.covariance))
        except CredoError:  # singular to rounding
            responding = None
    return Fitted(
        q=q,
        start=begun.q,
        responding=responding,
        response_variances=np.diagonal(found.covariance) if is_known else None,
        error_of_mean=found.error_of_mean / sd,
        error_of_log_sd=found.error_of_log_sd,
        loss=found.loss,
        value=optimum.value,
        lacks=0.5 * float(optimum.gradient_norm) ** 2,
        status=optimum.status,
        path=draws.path,
        num_draws=len(draws.noise),
        num_gradients=num_gradients,
        free=begun.free,
        program=draws.program,
    )
