"""Variational Bayesian last layer (Harrison, Willes & Snoek 2024): a Gaussian over it, fitted with the rest.

With features a(x), outputs z = Wᵀa + b and q(w_j) = N(w̄_j, S_j) for the weights and bias of each output j, z is normal
with mean m and variance v_k = Σ_j g_kj² aᵀ S_j a (g: what the head makes of the layer). Features and noise are points:

    minimise  KL(q ‖ p) − log p(points) − (N/M) Σ_{i in batch} ℓ_i

    Gaussian      ℓ = log N(y; m, s²) − v / 2s²                        E_q[log p(y)] itself
    categorical   ℓ = m_y − log Σ_k exp(m_k + v_k/2) ≤ E_q[log p(y)]   E log Σ exp z ≤ log Σ E exp z, by Jensen
    Bernoulli     the same for the logits 0 and z;  Poisson  ℓ = y m − exp(m + v/2) − log y!

No draw is taken. A Gaussian's q is at last what its features and noise make it exactly, on all data.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from credo.algorithm import Options, stream
from credo.batches import in_batches
from credo.compiling import TINY, brief, sound
from credo.diagnose.startup import check_finite_start
from credo.linalg.grouped import Grouped
from credo.linalg.operator import Stored
from credo.memory import require
from credo.methods.networks.descent import descend, need
from credo.methods.optimise.objective import starting_position
from credo.methods.optimise.surprise import judged
from credo.methods.optimise.training import batch_of, default_num_steps
from credo.model.data import Rows
from credo.model.last_layer import last_layers
from credo.model.layers import Layers, find_layers
from credo.model.target import Target, weighed
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.precision import abstract, double, to_numpy
from credo.status import CredoError, Verdict

INITIAL_SD = 0.03
NORMAL = ("normal", "columns of normal")
HEADS = (*NORMAL, "categorical", "bernoulli", "poisson")
MAX_ENTRIES = 2**24  # of the factors of covariances: 128 MB, and as much again for each moment of the optimiser
AT_ONCE = 4_096  # rows
LAST_ONLY = (
    "The last layer alone is uncertain, and features and noise are points: away from the data the features may not "
    "know that they are. Judge predictions by held-out scores (credo.compare)."
)


class Parameters(NamedTuple):
    """``position``: points, and w̄ in the last layer. ``log_sd`` (out, n), ``lower`` (out, n, n): S_j = L_j L_jᵀ with
    L_j = diag(exp(log_sd_j)) + the strict lower triangle of ``lower``_j; None where S_j is diagonal."""

    position: Float[Stored, " dim"]
    log_sd: Float[Stored, "out n"]
    lower: Float[Stored, "out n n"] | None


class LastLayer(NamedTuple):
    """``index`` (out, n): the coordinates of each output's weights, its bias last.

    ``place``, ``bias``: of the products and of the biases among the ``layers``.
    """

    index: np.ndarray
    place: int
    bias: int | None
    layers: Layers

    def features(self, u, row) -> tuple[Any, Any, Any]:
        """(outputs z (K,), what multiplies the weights (n,), ∂z/∂(the layer's outputs) (K, out)) of one row."""
        z, inputs, back = self.layers.linearised(u, row)
        a, found = inputs[self.place][0][0], jax.vmap(back)(jnp.eye(z.shape[0], dtype=z.dtype))
        g = found[self.place][0][:, 0]
        if self.bias is not None:  # the products may be scaled before it is added
            scaled = jnp.sum(found[self.bias][0][:, 0] * g) / jnp.maximum(jnp.sum(g * g), jnp.finfo(g.dtype).tiny)
            a = jnp.concatenate([a, scaled[None]])
        return z, a, g


@dataclass(frozen=True)
class VBLL:
    """A Gaussian over the weights of a network's last layer, by a bound without draws; features are trained with it.

    The last layer is found in the program of the model. ``covariance``: "dense", of all weights of an output, or
    "diagonal". The priors of weights and noise are the model's. ``optimiser``: an optax one that minimises, of the loss
    a datum; None for Adam with a cosine decay from 0.01. ``batch_size`` None: all rows. ``num_steps``: updates; None
    for 60 epochs, 2,000 at least.

    The answer is a Gaussian over the last layer, everything else fixed: ``predict(x, rule=credo.Linearised())`` is in
    closed form for regression. ``info``: ``loss_path``, and ``bound``, the ELBO given the points. Outcomes: numbers
    with Gaussian noise of one sd, a class, 0 or 1, or a count. CredoError for others, for outputs that are not linear
    in a last layer, and for priors of its weights that are not normal.
    """

    covariance: Literal["dense", "diagonal"] = "dense"
    batch_size: int | None = field(default=128, metadata={"at_least": 1})
    optimiser: optax.GradientTransformation | None = None
    num_steps: int | None = field(default=None, metadata={"at_least": 1})

    takes_source: ClassVar[bool] = True

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        position = np.asarray(starting_position(target, key, start)).astype(jnp.result_type(float))
        batch = batch_of(target, self.batch_size)
        last = _checked(target, position, self.covariance == "dense")
        shape, dtype = last.index.shape, position.dtype
        begun = Parameters(position, np.full(shape, np.log(INITIAL_SD), dtype), None)
        less = wanted = need("VBLL(covariance='diagonal')", target, begun, batch)
        if self.covariance == "dense":
            begun = begun._replace(lower=np.zeros((*shape, shape[1]), dtype))
            wanted = need("VBLL()", target, begun, batch)
        require(wanted, f"{shape[1]:,} weights of each output", options.max_memory, [less])
        done = descend(
            LastLayerBound(),
            target,
            begun,
            position=position,
            optimiser=self.optimiser,
            batch_size=batch,
            num_steps=self.num_steps or default_num_steps(target, batch),
            key=stream(key, 0),
            options=options,
        )
        q: Parameters = done.parameters
        if _head_of(target).name in NORMAL and done.failed_at < 0:
            q = _regressed(q, target)
        info = {
            "num_gradients": done.num_updates,
            "is_complete": done.is_complete,
            "loss_path": done.losses,
            "failed_at": done.failed_at,
            "bound": -_loss(q, target),
        }
        kind = Gaussian(q.position, _scale(q, last.index))
        posterior = Posterior(kind, target, verdict=Verdict("doubtful"), info=info)
        return judged(posterior, {"num_iterations": done.num_updates}, [*done.sentences, LAST_ONLY], key)


@dataclass(frozen=True)
class LastLayerBound:
    """KL(q ‖ p) − log p(points) − (N/M) Σ ℓ_i; the density of the points is that in the user's space."""

    def __call__(self, parameters: Parameters, target: Target, rows: Rows, key):
        last = find_last_layer(target, rows)
        u = parameters.position
        mean, variance = moments(parameters, target, last, rows.x)
        terms = expected_log_lik(_head_of(target).name, mean, variance, rows.y)
        terms = weighed(terms, rows.weights)
        is_dense = parameters.lower is not None
        variances = jnp.sum(jnp.square(_roots(parameters)), axis=-1) if is_dense else jnp.exp(2 * parameters.log_sd)
        spread = 0.5 * jnp.sum(_prior_precision(target, u, last.index) * variances) - jnp.sum(parameters.log_sd)
        constant = 0.5 * parameters.log_sd.size * (1 + np.log(2 * np.pi))  # of the entropy
        points = target.log_jacobian(u) - target.log_prior(u)
        return points + spread - constant - target.size / terms.shape[0] * jnp.sum(terms)


def moments(parameters: Parameters, target: Target, last: LastLayer, x) -> tuple[Any, Any]:
    """Mean and variance (M, K) of the outputs."""

    def one(row):
        z, a, g = last.features(parameters.position, row)
        if parameters.lower is None:
            return z, jnp.square(g) @ (jnp.exp(2 * parameters.log_sd) @ jnp.square(a))
        return z, jnp.square(g) @ jnp.sum(jnp.square(jnp.einsum("jnm,n->jm", _roots(parameters), a)), axis=-1)

    return in_batches(one, x, AT_ONCE)


def expected_log_lik(name: str, mean, variance, y):
    """ℓ (M,)."""
    if name in NORMAL:  # a location and a log scale for each column
        precision = jnp.exp(-2 * mean[:, 1::2])
        squares = jnp.square(jnp.reshape(y, precision.shape) - mean[:, ::2]) + variance[:, ::2]
        return jnp.sum(-0.5 * squares * precision - mean[:, 1::2] - 0.5 * np.log(2 * np.pi), axis=1)
    if name == "categorical":
        chosen = jnp.take_along_axis(mean, y[:, None], axis=1)[:, 0]
        return chosen - jax.nn.logsumexp(mean + 0.5 * variance, axis=1)
    mean, variance = mean[:, 0], variance[:, 0]
    if name == "bernoulli":
        return y * mean - jax.nn.softplus(mean + 0.5 * variance)
    return y * mean - jnp.exp(mean + 0.5 * variance) - jax.scipy.special.gammaln(y + 1.0)


def find_last_layer(target: Target, rows: Rows) -> LastLayer:
    """CredoError where the outputs of a row come from no single dense layer."""
    outputs = target.outputs
    assert outputs is not None

    def of_row(u, row):
        return outputs(target.constrain(u), jax.tree.map(lambda leaf: leaf[None], row))[0]

    row = jax.tree.map(lambda leaf: abstract(leaf.shape[1:], jnp.asarray(leaf[:0]).dtype), rows.x)
    layers = find_layers(of_row, abstract((target.dim,)), row)
    found = last_layers(layers)
    products, biases = [layer for layer in found if not layer.is_bias], [layer for layer in found if layer.is_bias]
    is_one = len(products) == 1 and len(products[0].uses) == 1 and len(biases) <= 1
    if not is_one or any(bias.index.shape[1] != products[0].index.shape[1] for bias in biases):
        raise CredoError(
            "VBLL() needs outputs that are a last layer's, one matrix product of features and a bias at most; this "
            f"model's come from {len(products)} products and {len(biases)} biases whose weights are read at that place "
            "alone: use Laplace() or ADVI()."
        )
    index = np.concatenate([products[0].index, *(bias.index for bias in biases)], axis=0).T
    place = next(i for i, layer in enumerate(layers.layers) if layer is products[0])
    bias = next((i for i, layer in enumerate(layers.layers) if any(layer is each for each in biases)), None)
    return LastLayer(np.ascontiguousarray(index), place, bias, layers)


def _checked(target: Target, position, is_dense: bool) -> LastLayer:
    """The last layer, after all that can be wrong with the model is ruled out."""
    head = target.head
    if target.y is None or head is None or head.name not in HEADS:
        raise CredoError(
            "VBLL() knows outcomes that are numbers with Gaussian noise, or a class, 0 or 1, or a count a row; these "
            "are not: use Laplace() or ADVI()."
        )
    last = find_last_layer(target, Rows(target.x, target.y, target.weights))
    num_out, n = last.index.shape
    if num_out * n * n > MAX_ENTRIES and is_dense:
        raise CredoError(
            f"Dense covariances of {num_out} outputs with {n} weights each hold {num_out * n * n:,} numbers: use "
            "VBLL(covariance='diagonal')."
        )
    few = jax.tree.map(lambda leaf: leaf[:8], Rows(target.x, target.y, target.weights))
    is_linear, is_normal, is_shared = _checks(target, position, few)
    if not is_linear:
        check_finite_start(target, position)  # outputs that are no numbers are linear in nothing
        raise CredoError(
            "The outputs are not linear in the last layer, or the noise depends on it: VBLL() needs a head whose "
            "output is that layer's, such as credo.nn.Gaussian() or Categorical(). Use Laplace() or ADVI()."
        )
    if not is_normal:
        raise CredoError("VBLL() needs a normal prior of the last layer's weights: use credo.nn.Isotropic().")
    if not is_shared:
        raise CredoError("The bias of the last layer does not enter its outputs one by one: use Laplace() or ADVI().")
    return last


@sound
def _checks(target: Target, position, rows: Rows):
    """(the outputs are linear in the last layer, its prior is normal, its bias is added as it is)."""
    last = find_last_layer(target, rows)
    index = last.index.ravel()
    step = jnp.zeros_like(position).at[index].set(jnp.cos(1.0 + jnp.arange(index.size)))

    def outputs(u):
        return target.outputs(target.constrain(u), rows.x)  # type: ignore[misc]

    _, a, g = last.features(position, jax.tree.map(lambda leaf: leaf[0], rows.x))
    locations = g[::2]
    middle, (below, above) = outputs(position), (outputs(position + sign * step) for sign in (-1, 1))
    scale = jnp.max(jnp.abs(above - below)) + 1e-30
    rounding = float(np.sqrt(np.finfo(np.float32).eps))  # some modules compute in single precision, whatever they get
    is_linear = jnp.max(jnp.abs(above + below - 2 * middle)) < rounding * (scale + jnp.max(jnp.abs(middle)))
    if _head_of(target).name in NORMAL:
        is_linear &= jnp.max(jnp.abs(above - below)[:, 1::2]) <= rounding * scale
        is_linear &= locations.shape[0] == locations.shape[1]
        own = jnp.eye(*locations.shape, dtype=bool)
        is_linear &= jnp.all(jnp.where(own, True, locations == 0))  # each of its own unit
    here, there = (_prior_precision(target, u, last.index) for u in (position, position + step))
    is_normal = jnp.all(jnp.abs(here - there) <= rounding * jnp.abs(here)) & jnp.all(here > 0)
    n = last.index.shape[1]
    moved = jnp.zeros_like(position).at[last.index[:, n - 1]].set(jnp.cos(jnp.arange(len(last.index))))
    by_bias = outputs(position + moved) - middle
    expected = g @ jnp.cos(jnp.arange(len(last.index))) * a[-1]
    is_shared = jnp.all(jnp.abs(by_bias[0] - expected) < 10 * rounding * (1 + jnp.max(jnp.abs(middle))))
    return is_linear, is_normal, is_shared if last.bias is not None else True


def _prior_precision(target: Target, u, index: np.ndarray):
    """−∂² log p / ∂w² (out, n) of the weights ``index``, independent under the prior."""
    chosen = jnp.zeros_like(u).at[index.ravel()].set(1.0)
    return -jax.jvp(jax.grad(target.log_prior), (u,), (chosen,))[1][index]


@functools.partial(brief, options=TINY)  # on the host each operation would be a program of its own
def _roots(parameters: Parameters) -> Any:
    """L (out, n, n), where there is one."""
    assert parameters.lower is not None
    return jax.vmap(jnp.diag)(jnp.exp(parameters.log_sd)) + jnp.tril(parameters.lower, -1)


def _scale(q: Parameters, index: np.ndarray) -> Grouped:
    size = len(q.position)
    if q.lower is None:
        return Grouped.of_variances(index.ravel(), np.exp(q.log_sd).ravel(), size)
    return Grouped(index, np.asarray(_roots(q)), size)


def _head_of(target: Target) -> Any:
    return target.head


def _blocks(target: Target) -> Iterator[Rows]:
    """All rows: at once, or some at a time where they lie outside of memory."""
    return iter([target.rows()]) if target.source is None else target.source.files.blocks()


def _loss(q: Parameters, target: Target) -> float:
    """On all rows: the mean over blocks, by their sizes, of what a block says of all."""
    found = [(jax.tree.leaves(rows.y)[0].shape[0], _loss_by(q, target, rows)) for rows in _blocks(target)]
    return sum(size / target.size * float(loss) for size, loss in found)


@sound
def _loss_by(q: Parameters, target: Target, rows: Rows):
    return LastLayerBound()(q, target, rows, None)


def _regressed(q: Parameters, target: Target) -> Parameters:
    """The q that minimises the bound for these features and this noise, found in float64: with little noise the
    precisions of the directions that the data tell and of those that they leave to the prior lie far apart."""
    with double():
        wide, own = target.cast(np.float64), jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), q)
        products = [_products(own, wide, rows) for rows in _blocks(wide)]
        found = to_numpy(_exact(own, wide, *map(sum, zip(*products, strict=True))))
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found)):
        raise CredoError(
            "The precision of the last layer's weights is not positive definite in double precision: their prior is "
            "too wide beside the noise. Give it a larger precision, or bring the outcomes to a like scale."
        )
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), found, q)


@sound
def _products(q: Parameters, target: Target, rows: Rows) -> tuple[Any, Any]:
    """(AᵀWA (out, n, n), AᵀWr (out, n)): features A, precisions W of the noise, what the layer is to explain r."""
    last = find_last_layer(target, rows)
    u, index = jnp.asarray(q.position), last.index

    def one(row):
        z, a, g = last.features(u, row)
        return z, jnp.diagonal(g[::2])[:, None] * a

    z, A = in_batches(one, rows.x, AT_ONCE)

    def of_column(location, log_scale, y, A, w):
        weights = jnp.exp(-2 * log_scale) if rows.weights is None else rows.weights * jnp.exp(-2 * log_scale)
        return (A * weights[:, None]).T @ A, A.T @ (weights * (y - location + A @ w))

    columns = (z[:, ::2], z[:, 1::2], jnp.reshape(rows.y, z[:, ::2].shape), A)
    return jax.vmap(of_column, in_axes=(1, 1, 1, 1, 0))(*columns, u[index])


@sound
def _exact(q: Parameters, target: Target, squares, pulls) -> Parameters:
    """Linear regression of each column."""
    index = find_last_layer(target, Rows(target.x, target.y, target.weights)).index
    u = jnp.asarray(q.position)
    P = _prior_precision(target, u, index)
    prior = jax.grad(target.log_prior)(u)[index] + P * u[index]  # the prior's precision times its mean

    def regression(square, pull, P):
        precision = square + jnp.diag(P)
        mean = jnp.linalg.solve(precision, pull)
        if q.lower is None:
            return mean, -0.5 * jnp.log(jnp.diag(precision)), None
        flipped = jnp.linalg.cholesky(precision[::-1, ::-1])  # as in linalg/dense.py
        identity = jnp.eye(len(pull), dtype=flipped.dtype)
        root = jax.scipy.linalg.solve_triangular(flipped, identity, lower=True)[::-1, ::-1].T
        return mean, jnp.log(jnp.diag(root)), root

    mean, log_sd, root = jax.vmap(regression)(squares, pulls + prior, P)
    return Parameters(u.at[index].set(mean), log_sd, root)
