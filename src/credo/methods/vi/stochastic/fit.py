"""The fit of an ascent on minibatches: warm start, the run, what the path itself says of the end, the answer.

In thousands of dimensions weights of draws say nothing (their log varies by √d nats and more under the best of
Gaussians), and passes over all data cost what the minibatches saved. So nothing is weighed: the ELBO is the mean of the
last steps' own estimates, and the verdict says what was not looked at.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from credo.algorithm import Options, Phase, stream
from credo.compiling import brief
from credo.diagnose.startup import explain
from credo.diagnose.verdict import judge
from credo.methods.optimise.minibatch import ascend
from credo.methods.optimise.objective import starting_position
from credo.methods.particles.importance import has_evidence
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.needs import check_memory, with_family
from credo.methods.vi.stochastic.ascent import EVERY, State, StochasticAscent, Tuning, first_averaged, place
from credo.model.target import Target
from credo.model.windows import shuffled
from credo.posterior.kinds import Gaussian, Kind
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.run import run
from credo.status import CredoError, Estimate, Verdict

SINGLE = 1_000  # dimensions beyond which the ascent runs in float32: noise of minibatches far exceeds its rounding
LARGEST_STEP = 0.1  # ρ of one draw on a minibatch; IVON's learning rate (Shen et al. 2024, section 4)
FIRST_SD = 0.01  # small beside weights: the start is the mode, and natural gradients widen q by up to ρ/2 a step
WARM_SHARE, WARM_LEAST, WARM_RATE = 0.2, 1_000, 0.01  # of the steps, for the mode; Adam's step size
WARM_TIME = 0.25  # of a time limit
LAST = 0.2  # of the steps: what the ELBO and its rise are read from
MAX_PATH = 1_000
STREAM = 1 << 20
FEW = 100  # dimensions in which other methods tell
NO_WEIGHTS = (
    "In {dim:,} dimensions weights of draws cannot tell how near an approximation is to the posterior, and none were "
    "taken: judge it by held-out scores (credo.compare), or beside HMC on a smaller problem."
)
NONE_TAKEN = (
    "Nothing tells how near this approximation is to the posterior, since training by minibatches takes no weights of "
    "draws: judge it by held-out scores (credo.compare), or beside NUTS() or Laplace(), which {dim} dimensions allow."
)


class End(NamedTuple):
    """``elbo``: mean of the last estimates, and its standard error. ``rise``: over those before, in nats a row."""

    elbo: float
    error: float
    rise: float


def fit(
    ascent: StochasticAscent,
    target: Target,
    *,
    key,
    start,
    options: Options,
    step_size: float,
    num_steps: int,
) -> Posterior:
    """``target``: flat. ``ascent.family``: bound to it. ``num_steps``: updates, rounded up to whole tens."""
    deadline = options.deadline()
    is_double = jnp.result_type(float) == jnp.float64 and target.dim <= SINGLE
    random = np.random.default_rng(stream(key, STREAM))
    first = random.integers(target.size) if target.size else 0
    with double(is_double):
        dtype = np.float64 if is_double else np.float32
        check_memory(
            lambda family: _blank(with_family(ascent, family), target.dim, dtype),
            ascent.family,
            (LowRank(), MeanField()),
            target,
            0,
            options.max_memory,
        )
        seen = target.cast(dtype)
        data = shuffled(seen, ascent.batch_size, random)
        num_updates = EVERY * -(-num_steps // EVERY)
        tuning = Tuning(
            first=np.asarray(first, np.int32),
            num_updates=np.asarray(num_updates, np.int32),
            step_size=np.asarray(step_size, dtype),
            num_warm=np.zeros((), np.int32),
        )
        blank = _blank(ascent, target.dim, dtype)

        def begin(data: Target) -> tuple[Tuning, list[State]]:
            q, num_warm = _start(ascent, seen, key, start, num_updates, options.of_start(deadline))
            return tuning._replace(num_warm=np.asarray(num_warm, np.int32)), [blank._replace(q=q)]

        done = run(
            ascent,
            data,
            begin=begin,
            like=(tuning, blank),
            phases=[Phase("ascent", num_updates // EVERY)],
            key=stream(key, 0),
            num_chains=1,
            options=options.until(deadline),
            identity={"dtype": str(np.dtype(dtype))},
        )
    state: State = done.states[0]
    num_warm = int(done.tuning.num_warm)
    path = np.asarray(done.info["ascent"].objective[0], float)
    failed_at = int(state.failed_at)
    if failed_at == 0:
        raise CredoError(explain(target, np.asarray(ascent.family.center(state.q), float)))
    num_done = failed_at if failed_at > 0 else EVERY * len(path)
    end = _end(path[: num_done // EVERY], target.size)
    sentences = [] if done.is_complete else [_cut(num_done, num_updates, ascent.batch_size)]
    if failed_at > 0:
        sentences.append(_failure(ascent, target, data, tuning, state, random_order(key, target.size, ascent)))
    steps = np.unique(np.linspace(0, len(path) - 1, min(len(path), MAX_PATH)).astype(int))
    is_bound = ascent.family.has_density and ascent.objective.is_linear and has_evidence(target)
    return Posterior(
        _average(state, num_updates),
        target,
        verdict=_verdict(end, step_size, num_done, sentences, target.dim),
        info={
            "num_gradients": num_warm + num_done * ascent.num_samples * ascent.gradient.gradients_a_draw(target.dim),
            "is_complete": done.is_complete,
            "num_steps": num_done,
            "failed_at": failed_at,
            "elbo_path": np.stack([EVERY * steps, path[steps]]),
            "seconds": done.seconds,
            "evidence_upper": None,
        },
        log_evidence=Estimate(end.elbo, end.error, "lower bound") if is_bound else None,
    )


def _blank(ascent: StochasticAscent, dim: int, dtype) -> State:
    """The state before the first update, on the host; q at nothing in particular."""

    def build():
        return ascent.begin(ascent.family.start(jnp.zeros(dim, dtype), jnp.ones(dim, dtype)))

    zeros = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), jax.eval_shape(build))
    return zeros._replace(failed_at=np.full((), -1, np.int32))


def _start(ascent: StochasticAscent, target: Target, key, start, num_updates, options: Options) -> tuple[Kind, int]:
    """The family's member round a Gaussian posterior, else a narrow one round the mode; how many gradients it took."""
    position = starting_position(target, key, start)
    if isinstance(start, Posterior):
        sd = np.full(target.dim, FIRST_SD)
        if isinstance(start.kind, Gaussian):
            sd = np.sqrt(np.asarray(start.kind.scale.diagonal()))
            sd = np.where(sd > 0, sd, FIRST_SD)  # what the posterior held fixed begins as elsewhere
        return _placed(ascent.family, position, sd.astype(position.dtype)), 0
    num_steps = max(WARM_LEAST, int(WARM_SHARE * num_updates))
    if options.time_limit is not None:
        options = options._replace(time_limit=WARM_TIME * options.time_limit)
    found = ascend(target, _adam(num_steps), ascent.batch_size, num_steps, key, position, options)
    position = found.of_finite_density(target)
    return _placed(ascent.family, position, np.full(target.dim, FIRST_SD, position.dtype)), found.num_updates


def _placed(family: Family, mean, sd) -> Kind:
    return jax.tree.map(np.asarray, family.start(mean, sd))


@functools.lru_cache(maxsize=32)  # the compiled program is keyed on the object
def _adam(num_steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(WARM_RATE, num_steps))


def _end(path: Float[np.ndarray, " steps"], size: int) -> End:
    """Windows that follow each other cover the data between them, so that the standard error errs on the large side."""
    num = max(int(LAST * len(path)), 1)
    last, before = path[-num:], path[-2 * num : -num]
    if len(before) < 2:
        return End(float(np.mean(last)) if len(last) else np.nan, np.nan, np.nan)
    error = float(np.std(last, ddof=1) / np.sqrt(num))
    noise = np.hypot(error, np.std(before, ddof=1) / np.sqrt(num))
    rise = float(np.mean(last) - np.mean(before) - 2 * noise)
    return End(float(np.mean(last)), error, max(rise, 0.0) / max(size, 1))


def _verdict(end: End, step_size: float, num_done: int, sentences: list[str], dim: int) -> Verdict:
    figures = {"elbo_rise": end.rise, "elbo": end.elbo, "num_iterations": num_done, "step_size": step_size}
    unknown = (NONE_TAKEN if dim <= FEW else NO_WEIGHTS).format(dim=dim)
    return judge(figures, [*sentences, unknown], at_best="doubtful")


def _average(state: State, num_updates: int) -> Kind:
    """q averaged over the last updates; q itself where these were not reached, or failed."""
    num_averaged = int(state.count) - int(first_averaged(num_updates))
    if num_averaged <= 0 or int(state.failed_at) >= 0:
        return state.q
    return jax.tree.map(lambda leaf: np.asarray(leaf) / np.asarray(num_averaged, leaf.dtype), state.total)


def _cut(num_done: int, num_updates: int, batch_size: int | None) -> str:
    noisy = "steps" if batch_size is None else "minibatches"
    return (
        f"The time limit came after {num_done:,} of {num_updates:,} steps, before the step size had fallen: the answer "
        f"carries the noise of its {noisy}. Raise time_limit, or lower max_steps."
    )


def random_order(key, size: int, ascent: StochasticAscent) -> np.ndarray:
    """Which row stands where in the shuffled data: the numbers that ``shuffled`` drew."""
    random = np.random.default_rng(stream(key, STREAM))
    random.integers(size)
    return random.permutation(size) if ascent.batch_size is not None else np.arange(size)


def _failure(ascent: StochasticAscent, target: Target, data, tuning: Tuning, state: State, order: np.ndarray) -> str:
    """Which batch it was, and which rows of it have no finite likelihood at the centre of the last q."""
    at = int(state.failed_at)
    rows = order
    if ascent.batch_size is not None:
        begin = int(place(tuning, target.size, ascent.batch_size, at))
        rows = order[(begin + np.arange(ascent.batch_size)) % target.size]
    center = np.asarray(ascent.family.center(state.q), float)
    terms = np.asarray(_terms(target, center, rows))
    bad, rows = target.numbers_given(rows[~np.isfinite(terms)]), target.numbers_given(rows)
    where = (
        f"row {bad[0]} has no finite likelihood at the centre of q"
        if bad.size
        else "every row has a finite likelihood at the centre of q, so that it was a draw away from it that failed"
    )
    return (
        f"The ELBO or its gradient was not finite at step {at:,}, on the {len(rows)} rows {_some(rows)}: the ascent "
        f"stopped there, and this is the last finite q ({where}). Lower step_size, or look at these rows."
    )


@brief
def _terms(target: Target, u, rows):
    return target.log_likelihood(u, rows)


def _some(rows: np.ndarray) -> str:
    shown = ", ".join(map(str, rows[:3]))
    return shown if len(rows) <= 3 else f"{shown}, …"
