"""Dropout as variational inference (Gal & Ghahramani 2016): q(W) = diag(z) W, z_i ~ Bernoulli(1 − p) / (1 − p).

    minimise  −E_q[log p(u)] − (N/M) Σ_{i in batch} log p(y_i | x_i, z_i ∘ u),   masks z_i drawn anew for each row

which is KL(q ‖ p) less the expected log-likelihood up to a constant: q is a mixture of points, widened to normals of a
vanishing sd, whose entropy does not depend on u. For a normal prior N(0, s²) the first term is Σ w² / (2 s² (1 − p)):
weight decay that follows from prior and N, and is not a setting. In general it is, for a prior of independent weights,

    E_q[log p(u)] = Σ_layers [p log p(u without the layer) + (1 − p) log p(u, the layer / (1 − p))] − …

Gaussian dropout (Srivastava et al. 2014; Kingma, Salimans & Welling 2015) has weights N(w, α w²), α = p / (1 − p),
independent of each other, drawn by local reparameterisation; its entropy Σ log |w| belongs to the KL. Under
``credo.nn.LogUniform()`` the two cancel, and only the likelihood trains.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from credo.algorithm import Options, stream
from credo.compiling import sound
from credo.linalg.grouped import Grouped
from credo.memory import require
from credo.methods.networks.descent import descend, need
from credo.methods.optimise.objective import starting_position
from credo.methods.optimise.surprise import judged
from credo.methods.optimise.training import batch_of, default_num_steps
from credo.model.data import Rows
from credo.model.noisy import Site, likelihood_layers, masking, sites_of, spreading, terms
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.posterior.masked import Masked
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict, is_number

HEURISTIC = (
    "The width of dropout is that of the rate given, and not of the data: it does not narrow as data grow. Choose the "
    "rate by held-out scores, and judge the answer by them (credo.compare)."
)
MAX_NAMES = 5  # that a sentence tells
NODES = 5  # of the quadrature over Gaussian noise: exact for normal priors
WEIGHTS = "weights."

Rates = float | Mapping[str, float]


@dataclass(frozen=True)
class MCDropout:
    """Dropout on the inputs of layers, in training and in prediction: each mask is a draw of the weights.

    ``rate``: of the inputs that are left out, for all layers, or by the name of their weights (``{"out.w": 0.2}``; 0
    for the others). Layers are found in the program of the model. ``by``: in convolutions a mask for each "channel", or
    for each "element" of the window. ``optimiser``: an optax one that minimises, of the loss a datum; None: Adam with a
    cosine decay from 0.01. ``batch_size`` None: all rows. ``num_steps``: updates (None: 60 epochs, 2,000 at least; 0
    for weights that were trained with dropout: those where the model starts).

    The answer draws masks: predictions, samples and scores need nothing else. Other parameters (the noise) are points.
    Raises CredoError where the model has no layer, or a prior that is infinite at zero.
    """

    rate: Rates = 0.1
    by: Literal["channel", "element"] = "channel"
    batch_size: int | None = field(default=128, metadata={"at_least": 1})
    optimiser: optax.GradientTransformation | None = None
    num_steps: int | None = field(default=None, metadata={"at_least": 0})

    takes_source: ClassVar[bool] = True

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        return _fit(self, Bernoulli, self.by, target, key, start, options)


@dataclass(frozen=True)
class GaussianDropout:
    """Weights N(w, α w²) with α = rate / (1 − rate) given: Gaussian dropout, the sds a share of the weights.

    They maximise the whole ELBO under the model's prior. Its entropy Σ log |w| is −∞ where a weight is 0, so that small
    ones stay on the side of 0 where they began; under the log-uniform prior of Kingma, Salimans & Welling (2015) it
    cancels. Settings as ``MCDropout``; a weight of a convolution is noisy by itself. The answer is a Gaussian with
    independent coordinates, biases and other parameters being points.
    """

    rate: Rates = 0.1
    batch_size: int | None = field(default=128, metadata={"at_least": 1})
    optimiser: optax.GradientTransformation | None = None
    num_steps: int | None = field(default=None, metadata={"at_least": 0})

    takes_source: ClassVar[bool] = True

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        return _fit(self, Normal, "element", target, key, start, options)


class Noise(NamedTuple):
    """The noise in a layer: hooks that draw it, its marginal law as (values, weights), the entropy of the weights.

    ``answer``: the posterior's kind.
    """

    hooks: Callable[[Site, float, Any], dict]
    law: Callable[[float], tuple[np.ndarray, np.ndarray]]
    entropy: Callable[[Any], Any]
    answer: Callable[[Any, tuple[Site, ...], np.ndarray], Kind]


def _draw_mask(site: Site, rate: float, key) -> dict:
    mask = jax.random.bernoulli(key, 1 - rate, site.groups.shape[:1])
    return masking(site, mask / (1 - rate))


def _masked(position, sites: tuple[Site, ...], rates: np.ndarray) -> Masked:
    return Masked(position, tuple(site.groups for site in sites), rates)


def _normal_law(rate: float) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return 1 + np.sqrt(rate / (1 - rate)) * nodes, weights / weights.sum()


def _gaussian(position, sites: tuple[Site, ...], rates: np.ndarray) -> Gaussian:
    index = np.concatenate([site.groups.ravel() for site in sites])
    sd = [
        np.sqrt(rate / (1 - rate)) * np.abs(position[site.groups.ravel()])
        for site, rate in zip(sites, rates, strict=True)
    ]
    sd = np.maximum(np.concatenate(sd), np.finfo(position.dtype).tiny)
    return Gaussian(position, Grouped.of_variances(index, sd, len(position)))


Bernoulli = Noise(
    _draw_mask,
    lambda rate: (np.array([0.0, 1 / (1 - rate)]), np.array([rate, 1 - rate])),
    lambda weights: 0.0,
    _masked,
)
Normal = Noise(
    lambda site, rate, key: spreading(site, rate / (1 - rate), key),
    _normal_law,
    lambda weights: jnp.sum(jnp.log(jnp.abs(weights))),
    _gaussian,
)


@dataclass(frozen=True)
class DropoutLoss:
    """−ELBO up to a constant; ``rates``: of each layer that multiplies, in order."""

    noise: Noise
    by: str
    rates: tuple[float, ...]

    def __call__(self, u, target: Target, rows: Rows, key):
        layers = likelihood_layers(target, rows)
        sites = [(s, r) for s, r in zip(sites_of(layers, self.by), self.rates, strict=True) if r > 0]

        def one(row, key):
            hooks = {}
            for i, (site, rate) in enumerate(sites):
                hooks |= self.noise.hooks(site, rate, jax.random.fold_in(key, i))
            return terms(layers, hooks, u, row)[0]

        size = jax.tree.leaves(rows.y)[0].shape[0]
        likelihood = jnp.sum(jax.vmap(one)(rows, jax.random.split(key, size)))
        return target.log_jacobian(u) - self.expected_log_prior(u, target, sites) - target.size / size * likelihood

    def expected_log_prior(self, u, target: Target, sites):
        """E_q[log p(u)], and the entropy of the weights' own noise."""
        base = target.log_prior(u)
        total = base
        for site, rate in sites:
            index = site.groups.ravel()
            for value, weight in zip(*self.noise.law(rate), strict=True):
                total = total + weight * (target.log_prior(u.at[index].multiply(value)) - base)
            total = total + self.noise.entropy(u[index])
        return total


def _fit(method: Any, noise: Noise, by: str, target: Target, key, start, options: Options) -> Posterior:
    target = target.flat()
    position = np.asarray(starting_position(target, key, start)).astype(jnp.result_type(float))
    batch = batch_of(target, method.batch_size)
    sites, rates = _sites(method, target, by)
    loss = DropoutLoss(noise, by, tuple(rates.tolist()))
    kept = tuple(site for site, rate in zip(sites, rates, strict=True) if rate > 0)
    left = () if isinstance(method.rate, Mapping) else _left(target, sites)
    _check_prior(loss, target, position)
    num_steps = default_num_steps(target, batch) if method.num_steps is None else method.num_steps
    info: dict[str, Any] = {"num_gradients": 0}
    sentences: tuple[str, ...] = ()
    if num_steps:
        name, few = type(method).__name__, max((batch or target.size) // 10, 1)
        each = {f"{name}()": batch, f"{name}(batch_size={few})": few}
        wanted, less = (need(name, target, position, rows) for name, rows in each.items())
        require(wanted, f"{target.dim:,} parameters", options.max_memory, [less])
        done = descend(
            loss,
            target,
            position,
            position=position,
            optimiser=method.optimiser,
            batch_size=batch,
            num_steps=num_steps,
            key=stream(key, 0),
            options=options,
        )
        position, sentences = done.parameters, done.sentences
        info = {
            "num_gradients": done.num_updates,
            "is_complete": done.is_complete,
            "loss_path": done.losses,
            "failed_at": done.failed_at,
        }
    kind = noise.answer(position, kept, rates[rates > 0])
    figures = {"num_iterations": info["num_gradients"]}
    posterior = Posterior(kind, target, verdict=Verdict("doubtful"), info=info)
    return judged(posterior, figures, [*sentences, *left, HEURISTIC], key)


def _sites(method: Any, target: Target, by: str) -> tuple[tuple[Site, ...], np.ndarray]:
    """The layers of the model, and the rate of each."""
    if target.y is None or target.model.likelihood is None or target.num_terms != target.size:
        raise CredoError("Dropout needs a likelihood of rows that are independent of each other: give x and y.")
    sites = sites_of(likelihood_layers(target), by)
    if not sites:
        raise CredoError(
            "The model's likelihood holds no matrix product or convolution of its parameters, so that there is nothing "
            "to drop: use ADVI() or Laplace()."
        )
    names = [_name(target, site) for site in sites]
    if isinstance(method.rate, Mapping):
        given = {name.removeprefix(WEIGHTS): value for name, value in method.rate.items()}
        odd = sorted(set(given) - set(names))
        if odd:
            raise CredoError(f"rate names {odd[0]!r}, and the layers of the model are {', '.join(names)}.")
        rates = [given.get(name, 0.0) for name in names]
    else:
        rates = [method.rate] * len(sites)
    if not (all(is_number(rate) and 0 <= rate < 1 for rate in rates) and any(rates)):
        raise CredoError(f"A rate of dropout lies between 0 and 1, and one is above 0; got {method.rate!r}.")
    return sites, np.array(rates, float)


def _left(target: Target, sites: tuple[Site, ...]) -> tuple[str, ...]:
    """A sentence on the matrices that are no layer of the program and have no noise, if there are any."""
    is_noisy, names, first = np.zeros(target.dim, bool), [], 0
    is_noisy[np.concatenate([site.groups.ravel() for site in sites])] = True
    for leaf in target.structure.leaves:
        if len(leaf.shape) > 1 and not is_noisy[first : first + leaf.size].all():
            names.append(leaf.name)
        first += leaf.size
    if not names:
        return ()
    shown = ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
    return (
        f"Without dropout are {shown}: the program uses them otherwise than as the weights of one product or "
        "convolution (in a loop, tied, as a table, in groups). They are points.",
    )


def _name(target: Target, site: Site) -> str:
    ends = np.cumsum([leaf.size for leaf in target.structure.leaves])
    leaf = target.structure.leaves[int(np.searchsorted(ends, site.groups.flat[0], side="right"))]
    return leaf.name.removeprefix(WEIGHTS)


def _check_prior(loss: DropoutLoss, target: Target, position) -> None:
    """CredoError where the expected log prior is no number at the start."""
    if not np.isfinite(float(_expected_log_prior(loss, target, position))):
        raise CredoError(
            "The prior of the weights is infinite at zero, or a weight is zero where noise is a share of it: dropout "
            "needs a prior that is finite there, such as credo.nn.Isotropic(1.0), and weights other than zero."
        )


@functools.partial(sound, static_argnames="loss")
def _expected_log_prior(loss: DropoutLoss, target: Target, position):
    sites = sites_of(likelihood_layers(target), loss.by)
    return loss.expected_log_prior(position, target, [(s, r) for s, r in zip(sites, loss.rates, strict=True) if r > 0])
