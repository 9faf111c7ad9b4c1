"""SWAG (Maddox, Garipov, Izmailov, Vetrov & Wilson 2019): a Gaussian with the moments of stochastic gradient descent.

Of T snapshots u_t along a path of constant step size, with mean ū and the last K deviations D̂ = (u_t − ū):

    q = N(ū, ½ diag(mean u² − ū²) + ½ D̂ D̂ᵀ / (K − 1))

The width is that of the path. Where a loss a datum of curvature A has minibatch gradients of covariance V, steps ε with
momentum β give the stationary covariance ε V / (2 (1 − β) A): the posterior's 1 / (N A) for ε = 2 (1 − β) / (N V). In d
dimensions ε = 2 (1 − β) d / (N tr V) comes nearest in KL divergence (Mandt, Hoffman & Blei 2017, eq. 15). That is the
step size here, where it is stable; what it leaves of a heuristic the verdict says. A mixture of several, from several
initialisations, is MultiSWAG (Wilson & Izmailov 2020).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from credo.algorithm import Options, as_key, stream
from credo.compiling import brief
from credo.convolutions import canonical
from credo.linalg.lowrank import LowRank
from credo.linalg.products import hvp
from credo.methods.ensemble.deep_ensemble import DeepEnsemble
from credo.methods.optimise.hyperparameters import without_mode
from credo.methods.optimise.members import Trained, train, train_members
from credo.methods.optimise.objective import starting_position
from credo.methods.optimise.starts import fresh_positions
from credo.methods.optimise.surprise import judged
from credo.methods.optimise.training import adam, batch_of, default_num_steps
from credo.posterior.kinds import Gaussian, Mixture
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict

NUM_GRADIENTS, NUM_PRODUCTS = 64, 20  # that tell the gradients' variance and the largest curvature
WIDTH = NUM_GRADIENTS + NUM_PRODUCTS
NARROW = 0.25  # of the variance wanted: half the width
LEAST_SD = 1e-6  # of a coordinate that did not move, beside the largest
HEURISTIC = (
    "The width of SWAG is that of the optimiser's path, right at best on average over the weights: nothing here says "
    "how far it can be trusted. Judge it by held-out scores (credo.compare)."
)


@dataclass(frozen=True)
class SWAG:
    """A Gaussian of low rank + diagonal covariance from ``num_snapshots`` snapshots, one each ``every`` updates.

    ``step_size``: of stochastic gradient descent with ``momentum`` on the loss a datum; None for the one that gives the
    path the posterior's width on average, or the largest stable one where that is smaller: the path is narrower then,
    as with batches of a large share of the rows. ``rank``: K. ``every`` None: one epoch. ``num_steps``: updates of Adam
    before that (None: 60 epochs; 0 where the weights are trained).
    ``batch_size``: rows an update; a path on all rows would not move.
    """

    num_snapshots: int = field(default=40, metadata={"at_least": 2})
    rank: int = field(default=20, metadata={"at_least": 2})
    step_size: float | None = None
    momentum: float = 0.9
    batch_size: int = field(default=128, metadata={"at_least": 1})
    every: int | None = field(default=None, metadata={"at_least": 1})
    num_steps: int | None = field(default=None, metadata={"at_least": 0})

    takes_source: ClassVar[bool] = True

    def fit(self, target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        deadline, before = options.deadline(), []
        positions = starting_position(target, key, start)[None]
        if self.num_steps != 0:
            batch = batch_of(target, self.batch_size)
            num_steps = self.num_steps or default_num_steps(target, batch)
            begun = train(target, adam(num_steps), batch, positions, stream(key, 2), options, num_steps=num_steps)
            positions, before = begun.of_finite_density(target), [begun]
        kinds, trained, said = self.gaussians(target, positions, key, options.until(deadline))
        return self.answer(kinds[0], target, [*before, trained], said, key)

    def gaussians(self, target, positions, key, options: Options) -> tuple[list[Gaussian], Trained, list[str]]:
        """One for each of ``positions`` (member, dim), all paths at once; and what to say of their width."""
        if not (self.step_size is None or self.step_size > 0) or not 0 <= self.momentum < 1:
            raise CredoError(f"SWAG needs step_size > 0 and momentum in [0, 1); got {self.step_size}, {self.momentum}.")
        batch = batch_of(target, self.batch_size)
        if batch is None:
            raise CredoError(
                f"SWAG reads the spread of minibatch steps, and a batch of {self.batch_size} is all of the "
                f"{target.size} rows: give a smaller batch_size, or use Laplace()."
            )
        every = self.every or max(target.size // batch, 1)
        times = tuple(every * (i + 1) for i in range(self.num_snapshots))
        optimiser = sgd(self.momentum)
        step_size, said = self.step_size, []
        if step_size is None:
            steps, shares = zip(*(_widest_step(target, batch, stream(key, 4), u) for u in positions), strict=True)
            step_size, share = (1 - self.momentum) * float(min(steps)), float(min(shares))
            if share < NARROW:
                said.append(
                    f"The path is narrower than the posterior, with about {share:.1g} of its variance by the steps "
                    f"taken: batches of {batch} of the {target.size} rows differ too little. Lower batch_size."
                )
        trained = train(
            target,
            optimiser,
            batch,
            positions,
            stream(key, 3),
            options,
            num_steps=times[-1],
            snapshots=times,
            step_size=step_size,
            is_independent=True,
            keep=self.rank,
            name="path",
            setting="num_snapshots or every",
        )
        if not np.all(np.isfinite(trained.variance)):
            raise CredoError(
                f"The path ran away to where numbers end (step_size is {float(step_size):.3g}): lower step_size."
            )
        paths = zip(trained.snapshots, trained.mean, trained.variance, strict=True)
        return [gaussian_of(last, mean, variance) for last, mean, variance in paths], trained, said

    def answer(self, kind, target, parts: list[Trained], said: list[str], key) -> Posterior:
        """``parts``: the training of the members, where there was one, and then their paths."""
        failed_at = parts[-1].failed_at
        for before in parts[:-1]:
            failed_at = np.where(before.failed_at >= 0, before.failed_at, failed_at)
        num_updates = sum(part.num_updates for part in parts) + (WIDTH if self.step_size is None else 0)
        info = {"num_gradients": num_updates * len(failed_at), "failed_at": failed_at}
        found = [sentence for part in parts for sentence in part.sentences()]
        said = [*found, *without_mode(target, parts[-1].positions[0]), *said, HEURISTIC]
        figures = {"num_members": float(len(failed_at))}
        return judged(Posterior(kind, target, verdict=Verdict("doubtful"), info=info), figures, said, key)


@dataclass(frozen=True)
class MultiSWAG:
    """A mixture of ``members`` SWAGs of equal weight from different initialisations; ``init``: see ``DeepEnsemble``.

    ``SWAG(num_steps=0)``: ``init(key)`` gives weights that are trained, and the paths begin there.
    """

    members: int = field(default=3, metadata={"at_least": 1})
    swag: SWAG = field(default_factory=SWAG)
    init: Callable | None = None

    takes_source: ClassVar[bool] = True
    own_start: ClassVar[str] = DeepEnsemble.own_start

    def fit(self, target, *, key, start, options: Options) -> Posterior:
        target, deadline, swag, before = target.flat(), options.deadline(), self.swag, []
        if swag.num_steps == 0:
            positions = fresh_positions(target, self.members, self.init, stream(key, 2))
            positions = positions.astype(jnp.result_type(float), copy=False)
        else:
            settings = self.init, None, swag.batch_size, swag.num_steps
            begun = train_members(target, self.members, *settings, stream(key, 2), options)
            positions, before = begun.of_finite_density(target), [begun]
        kinds, trained, said = swag.gaussians(target, positions, key, options.until(deadline))
        weights = np.full(self.members, -np.log(self.members))
        return swag.answer(Mixture(weights, tuple(kinds)), target, [*before, trained], said, key)


@functools.lru_cache(maxsize=32)  # a compiled program is keyed on the object
def sgd(momentum: float) -> optax.GradientTransformation:
    """Constant steps, whose size is given to the training: the path has a width."""
    return optax.sgd(1.0, momentum=momentum or None)


@functools.partial(brief, static_argnames="batch_size")
def _widest_step(target, batch_size: int, key, u):
    """2 d / (N tr V) at ``u``, and at most half the inverse of the largest curvature of the loss a datum; and the share
    that this is of what gives a path whose batches are drawn without replacement its width."""
    k_noise, k_power = jax.random.split(as_key(key))

    def loss(u, batch=None):
        return -target.log_density(u, batch) / target.size

    def one(key):
        return jax.grad(loss)(u, jax.random.randint(key, (batch_size,), 0, target.size))

    keys = jax.random.split(k_noise, NUM_GRADIENTS)

    def add(i, carry):
        """Welford (1962): the gradients' mean and the sum of their variances, without holding them all."""
        mean, total = carry
        g = one(keys[i])
        off = g - mean
        mean = mean + off / (i + 1).astype(u.dtype)
        return mean, total + jnp.vdot(off, g - mean)

    _, total = jax.lax.fori_loop(0, NUM_GRADIENTS, canonical(add), (jnp.zeros_like(u), jnp.zeros((), u.dtype)))
    trace_V = total / (NUM_GRADIENTS - 1)

    def iterate(_, carry):
        v, _ = carry
        v = hvp(loss, u, v)
        size = jnp.linalg.norm(v)
        return v / size, size

    v = jax.random.normal(k_power, u.shape, u.dtype)
    _, curvature = jax.lax.fori_loop(
        0, NUM_PRODUCTS, canonical(iterate), (v / jnp.linalg.norm(v), jnp.zeros((), u.dtype))
    )
    wanted, stable = 2 * u.size / (target.size * trace_V), 0.5 / curvature
    step = jnp.minimum(wanted, stable)
    return step, step / wanted * (1 - batch_size / target.size)


def gaussian_of(last: Float[np.ndarray, "rank dim"], mean: Float[np.ndarray, " dim"], variance) -> Gaussian:
    """From the mean and variance (dim,) of a path and the ``last`` of its snapshots."""
    sd = np.sqrt(0.5 * np.maximum(variance, LEAST_SD**2 * max(float(variance.max()), 1e-30)))
    B = np.empty(last.shape[::-1], last.dtype)  # the one array of this size beside the snapshots
    np.subtract(last.T, mean[:, None], out=B)
    B /= (sd * np.sqrt(2.0 * (len(last) - 1)))[:, None]
    return Gaussian(mean, LowRank.from_whitened(sd, B))
