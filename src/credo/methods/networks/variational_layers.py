"""Mean-field variational inference of a network of VB layers, by what each draws of its outputs (nn/layers.py).

    minimise  KL(q ‖ p) − (N/M) Σ_{i in batch} log p(y_i | z_i),   z_i drawn layer by layer at x_i

over q(w) = Π N(μ_j, σ_j²): the KL of the weights in closed form and once for all data. What the head has of its own
(the noise) is a coordinate of q as well, drawn once a batch. Training begins with the means alone, at small sds, under
the normal priors: at the mode where all are normal.
"""

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from credo.algorithm import Options, as_key, stream, streams
from credo.compiling import sound
from credo.convolutions import canonical
from credo.diagnose.verdict import judge
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import Stored
from credo.methods.networks.descent import Descended, descend
from credo.methods.optimise.objective import starting_position
from credo.methods.optimise.training import batch_of, default_num_steps
from credo.methods.particles.importance import has_evidence
from credo.model.data import Rows
from credo.model.distributions import transform_to
from credo.model.target import Target, log_prob_rows, weighed
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Estimate

INITIAL_SD = 0.01
ENTROPY = 0.5 * (1 + float(np.log(2 * np.pi)))  # of a standard normal number, nats
NARROW = (
    "Independent normals leave the correlations of a network's weights out and hold one mode of many: the posterior is "
    "wider. Judge predictions by held-out scores (credo.compare)."
)


class Parameters(NamedTuple):
    """q over flat positions."""

    mean: Float[Stored, " dim"]
    log_sd: Float[Stored, " dim"]


@dataclass(frozen=True)
class VariationalLayers:
    """A factorised normal over the weights of a ``credo.nn.VBNetwork``, trained by local reparameterisation.

    ``num_steps``: updates (None: 60 epochs, 2,000 at least), of which the first ``warm_share`` train the means alone.
    ``optimiser``: an optax one that minimises, of the loss a datum; None for Adam with a cosine decay from 0.01.
    ``batch_size`` None: all rows. ``initial_sd``: of each weight when its sd begins to be trained.
    ``num_draws``: of the weights, by which the ELBO is measured on all data at the end.

    With ``LogUniform()`` layers this is variational dropout; ``credo.nn.prune`` then sets to zero what carries nothing.
    The answer is a Gaussian with independent coordinates. ``info``: ``loss_path``, the mean loss along the way, and
    ``failed_at``, the update whose loss was not finite, or −1. Raises CredoError for other models than a VBNetwork.

    >>> import numpy as np, credo
    >>> model = credo.nn.VBNetwork([credo.nn.VBLinear(1, 1)], head=credo.nn.Gaussian(0.5))
    >>> x = np.linspace(-1.0, 1.0, 50)[:, None]
    >>> posterior = credo.fit(model.given(x, 2.0 * x[:, 0]), credo.VariationalLayers(num_steps=1_000), progress=False)
    >>> round(float(posterior.mean()["weights"]["layer0"]["w"][0, 0]), 1)
    2.0
    """

    num_steps: int | None = field(default=None, metadata={"at_least": 1})
    batch_size: int | None = field(default=128, metadata={"at_least": 1})
    optimiser: optax.GradientTransformation | None = None
    warm_share: float = 0.4
    initial_sd: float = INITIAL_SD
    num_draws: int = field(default=32, metadata={"at_least": 2})

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        composed_of(target)
        if not (0 <= self.warm_share < 1 and self.initial_sd > 0):
            raise CredoError(
                f"warm_share lies in [0, 1) and initial_sd above 0; got {self.warm_share} and {self.initial_sd}."
            )
        deadline = options.deadline()
        position = np.asarray(starting_position(target, key, start)).astype(jnp.result_type(float))
        batch = batch_of(target, self.batch_size)
        num_steps = self.num_steps or default_num_steps(target, batch)
        num_warm = min(round(self.warm_share * num_steps), num_steps - 1)
        begun = _spread_of(start, position, self.initial_sd)
        train = functools.partial(descend, target=target, position=position, optimiser=self.optimiser, batch_size=batch)
        parts: list[Descended] = []
        if num_warm:
            warm = train(
                Bound(is_warm=True),
                parameters=begun,
                num_steps=num_warm,
                key=stream(key, 0),
                options=options.until(deadline),
                name="warming",
            )
            parts, begun = [warm], warm.parameters
        if all(part.is_complete and part.failed_at < 0 for part in parts):  # else a checkpoint would go on from here
            parts.append(
                train(
                    Bound(),
                    parameters=begun,
                    num_steps=num_steps - num_warm,
                    key=stream(key, 1),
                    options=options.until(deadline),
                )
            )
        q = parts[-1].parameters
        kind = Gaussian(q.mean, Diagonal(np.exp(q.log_sd)))
        values = np.asarray(_elbos(target, q, streams(key, self.num_draws, 2)), np.float64)
        elbo = Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), "lower bound")
        is_bound = has_evidence(target)
        figures = {"elbo": elbo.value} if is_bound else {}
        num_updates = sum(part.num_updates for part in parts)
        failed_at = next((part.failed_at for part in parts if part.failed_at >= 0), -1)
        sentences = [sentence for part in parts for sentence in part.sentences]
        if num_warm and not parts[0].is_complete:
            sentences.append("The sds are as they began: till then the means alone are trained.")
        return Posterior(
            kind,
            target,
            verdict=judge(
                figures | {"num_iterations": num_updates},
                [*sentences, NARROW],
                at_best="failed" if failed_at >= 0 else "doubtful",
            ),
            info={
                "num_gradients": num_updates,
                "is_complete": all(part.is_complete for part in parts),
                "loss_path": np.concatenate([part.losses for part in parts]),
                "failed_at": failed_at,
            },
            log_evidence=elbo if is_bound else None,
        )


@dataclass(frozen=True)
class Bound:
    """−ELBO. ``is_warm``: of the means alone, without noise."""

    is_warm: bool = False

    def __call__(self, parameters: Parameters, target: Target, rows: Rows, key):
        composed, k_own, k_rows = composed_of(target), *jax.random.split(key)
        own, mean = _parts(target, parameters.mean)
        own_log_sd, log_sd = _parts(target, parameters.log_sd)
        if self.is_warm:
            noise: Any = jax.tree.map(jnp.zeros_like, own)
            divergence, outputs = composed.penalty(mean), composed(mean, rows.x)
        else:
            noise = {name: _normal(k_own, i, value) for i, (name, value) in enumerate(own.items())}
            divergence, outputs = composed.kl(mean, log_sd), composed.drawn(mean, log_sd, rows.x, k_rows)
        u = {name: own[name] + jnp.exp(own_log_sd[name]) * noise[name] for name in own}
        head = target.model.network.head  # type: ignore[attr-defined]
        values = {name: transform_to(prior)(u[name]) for name, prior in head.priors().items()}
        terms = log_prob_rows(head.outcome(outputs, values), rows.y)
        terms = weighed(terms, rows.weights)
        own_divergence = -_own_log_prior(head, u)
        if not self.is_warm:
            own_divergence = own_divergence - sum(jnp.sum(value + ENTROPY) for value in own_log_sd.values())
        return divergence + own_divergence - target.size / terms.shape[0] * jnp.sum(terms)


def composed_of(target: Target) -> Any:
    """The network of VB layers that a target's model is. CredoError where it is none."""
    apply: Any = getattr(getattr(target.model, "network", None), "apply", None)
    if not hasattr(apply, "drawn"):
        raise CredoError(
            "VariationalLayers() trains a credo.nn.VBNetwork, whose layers say how they are drawn; this model is "
            f"{type(target.model).__name__}: write it with VBLinear and VBConv, or fit ADVI()."
        )
    return apply


def _spread_of(start, position, initial_sd: float) -> Parameters:
    """At ``position``, with the sds of a Gaussian posterior that the fit starts from."""
    log_sd = np.full_like(position, np.log(initial_sd))
    if isinstance(start, Posterior) and isinstance(start.kind, Gaussian):
        variance = np.asarray(start.kind.scale.diagonal())
        variance = np.where(variance > 0, variance, initial_sd**2)  # of what it held fixed, or pruned
        log_sd = 0.5 * np.log(variance).astype(position.dtype)
    return Parameters(position, log_sd)


def _parts(target: Target, vector) -> tuple[dict[str, Any], Any]:
    """(the head's own coordinates by name, the weights in their structure) of a flat vector."""
    tree = target.structure.assemble(target.structure.unravel(vector))
    return {name: value for name, value in tree.items() if name != "weights"}, tree["weights"]


def _own_log_prior(head, u):
    """log density of the head's own unconstrained coordinates, Jacobian included."""
    total = 0.0
    for name, prior in head.priors().items():
        transform = transform_to(prior)
        value = transform(u[name])
        total = total + jnp.sum(prior.log_prob(value)) + jnp.sum(transform.log_abs_det_jacobian(u[name], value))
    return total


def _normal(key, i: int, like):
    return jax.random.normal(jax.random.fold_in(key, i), jnp.shape(like), jnp.result_type(like))


@sound
def _elbos(target: Target, q: Parameters, keys):
    """log p(u, D) − log q(u) at draws of the weights themselves, one at a time."""

    def one(data):
        noise = jax.random.normal(as_key(data), q.mean.shape, q.mean.dtype)
        u = q.mean + jnp.exp(q.log_sd) * noise
        log_q = -0.5 * jnp.dot(noise, noise) - jnp.sum(q.log_sd) - 0.5 * noise.size * jnp.log(2 * jnp.pi)
        return target.log_density(u) - log_q

    return jax.lax.map(canonical(one), keys)
