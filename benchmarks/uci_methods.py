"""The methods of ``uci.py``, a line each in ``METHODS``, and the networks that they fit.

One hidden layer of ReLU units; each layer is divided by the root of its inputs, so that N(0, 1) is a prior of weights
for any width. The noise of y is one sd for all rows, unknown or chosen beforehand, or a second output of the network.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import uci_dropout
from uci_data import Scaled

import credo
from credo.nn import BayesianNetwork, Custom, Gaussian, HeteroscedasticGaussian, Isotropic, PerLayer
from credo.nn.heads import LEAST_SCALE, Head
from credo.precision import double

LEARNT = Gaussian(dist.HalfNormal(1.0))
INPUT = HeteroscedasticGaussian()
TAILS = Custom(
    lambda z, excess: dist.StudentT(2.0 + excess, z[0][:, 0], LEAST_SCALE + jax.nn.softplus(z[1][:, 0])),
    {"excess": dist.Gamma(2.0, 0.1)},  # degrees of freedom above 2: a predictive has a variance
)
HIERARCHICAL = PerLayer(dist.LogNormal(0.0, 1.0), by="leaf")  # each array of weights finds its own precision
NUM_DRAWS = 500  # of the posterior, in a prediction
SMALL, LARGE = 2_000, 20_000  # rows
FIRST_NOISE = 0.1  # sds of y, of the fit whose residuals on validation rows say more
LEAST_NOISE = 0.01  # sds of y, where sampling of an input-dependent noise begins


class Request(NamedTuple):
    """``setting``: hyperparameters by name. ``seed``: of initial weights and method. ``is_quick``: short chains."""

    data: Scaled
    num_features: int
    hidden: int
    setting: dict[str, float]
    seed: int
    is_quick: bool = False
    table: str = ""


@dataclass(frozen=True)
class Entry:
    """``predict(request)``: a predictive at the new rows, in units of the scaled outcome.

    ``grid``: settings to choose from on validation rows. ``finds_noise``: before that, ``noise`` is set to the root
    mean square of the validation residuals of a first fit. ``most_rows``: of the training set. ``tries``: each setting
    and its predictive, where one fit serves several.
    """

    predict: Callable[[Request], Any]
    grid: tuple[dict[str, float], ...] = ({},)
    finds_noise: bool = False
    most_rows: float = float("inf")
    tries: Callable[[Request], Iterator[tuple[dict[str, float], Any]]] | None = None

    @property
    def has_choice(self) -> bool:
        return self.tries is not None or self.finds_noise or self.grid != ({},)

    def tried(self, request: Request) -> Iterator[tuple[dict[str, float], Any]]:
        """Each setting with its predictive at the new rows, which are the validation rows here."""
        if self.tries is not None:
            yield from self.tries(request)
            return
        for setting in self.grid:
            setting, asked = dict(setting), request._replace(setting=dict(setting))
            if self.finds_noise:
                residuals = self.predict(asked).mean - request.data.y_new
                setting["noise"] = float(np.sqrt(np.mean(residuals**2)))
            yield setting, self.predict(asked._replace(setting=setting))


# networks -------------------------------------------------------------------------------------------------------------


def features(params, x):
    return jax.nn.relu(x @ params["in"]["w"] * x.shape[1] ** -0.5 + params["in"]["b"])


def affine(layer, x):
    return x @ layer["w"] * x.shape[1] ** -0.5 + layer["b"]


def mean_alone(params, x):
    return affine(params["out"], features(params, x))


def mean_and_spread(params, x):
    hidden = features(params, x)
    return affine(params["out"], hidden), affine(params["spread"], hidden)


def mean_and_given_spread(params, x):
    """The raw scale of the noise is the last column, so that another one is other data and compiles nothing."""
    return mean_alone(params, x[:, :-1]), x[:, -1:]


def raw(noise: float) -> float:
    """The output at which ``HeteroscedasticGaussian`` has this sd."""
    return float(np.log(np.expm1(noise)))


def weights(request: Request, is_input: bool = False) -> dict[str, dict[str, np.ndarray]]:
    random, width = np.random.default_rng(request.seed), request.hidden
    found = {
        "in": {"w": random.normal(size=(request.num_features, width)), "b": random.normal(size=width)},
        "out": {"w": random.normal(size=(width, 1)), "b": np.zeros(1)},
    }
    if is_input:
        found["spread"] = {"w": 0.1 * random.normal(size=(width, 1)), "b": np.full(1, -1.0)}
    return found


def constant(request: Request, prior=None) -> BayesianNetwork:
    """Of unknown sd."""
    return BayesianNetwork(mean_alone, weights(request), head=LEARNT, prior=prior or isotropic(request))


def given_noise(request: Request) -> BayesianNetwork:
    return BayesianNetwork(mean_and_given_spread, weights(request), head=INPUT, prior=isotropic(request))


def by_input(request: Request, prior=None, head: Head = INPUT) -> BayesianNetwork:
    start = weights(request, is_input=True)
    return BayesianNetwork(mean_and_spread, start, head=head, prior=prior or isotropic(request))


def with_noise(request: Request) -> Request:
    """Inputs with the column that ``mean_and_given_spread`` asks for."""

    def widened(x):
        return np.column_stack([x, np.full(len(x), raw(request.setting.get("noise", FIRST_NOISE)))])

    data = request.data
    return request._replace(data=data._replace(x=widened(data.x), x_new=widened(data.x_new)))


def isotropic(request: Request) -> Isotropic:
    return Isotropic(request.setting.get("precision", 1.0))


def fit(model: BayesianNetwork, request: Request, method, start=None, precision="float32") -> credo.Posterior:
    target = model.given(request.data.x, request.data.y)
    return credo.fit(target, method, key=request.seed, start=start, precision=precision, progress=False)


def schedule(num_rows: int) -> tuple[int | None, int]:
    """(rows an update, updates): all rows where they are few."""
    return (None, 3_000) if num_rows < SMALL else (256, max(12_000, 80 * num_rows // 256))


def trained(request: Request, members: int, model: BayesianNetwork, init=None) -> credo.Posterior:
    """The networks that other methods begin at."""
    batch, num_steps = schedule(len(request.data.y))
    method = credo.DeepEnsemble(members=members, init=init, batch_size=batch, num_steps=num_steps)
    return fit(model, request, method)


def by_draws(posterior: credo.Posterior, request: Request):
    return posterior.predict(request.data.x_new, credo.MonteCarlo(NUM_DRAWS), key=request.seed)


# methods --------------------------------------------------------------------------------------------------------------


def one_mode(request: Request):
    request = with_noise(request)
    return by_draws(trained(request, 1, given_noise(request)), request)


def after_one_mode(method: credo.Laplace | credo.SWAG | credo.SGHMC | credo.ADVI, rule=None, precision="float32"):
    """``method`` begun at a trained network, with the same noise and prior."""

    def predict(request: Request):
        request = with_noise(request)
        model = given_noise(request)
        posterior = fit(model, request, method, trained(request, 1, model), precision)
        rule_or_draws = rule or credo.MonteCarlo(NUM_DRAWS)
        return posterior.predict(request.data.x_new, rule_or_draws, key=request.seed)

    return predict


def last_layer(request: Request):
    method = credo.Laplace(subset=credo.laplace.LastLayer(), curvature=credo.GaussNewton(), num_steps=0)
    return after_one_mode(method, credo.Linearised(), precision="float64")(request)


def last_layer_bound(request: Request):
    """Features by the bound; linearised in the last layer, which is exact. Noise that is learnt with it would be that
    of the training rows, which features without a posterior fit too well."""
    batch, num_steps = schedule(len(request.data.y))
    method = credo.VBLL(batch_size=batch, num_steps=num_steps)
    head = Gaussian(request.setting.get("noise", FIRST_NOISE))
    model = BayesianNetwork(mean_alone, weights(request), head=head, prior=isotropic(request))
    posterior = fit(model, request, method)
    return posterior.predict(request.data.x_new, credo.Linearised(), key=request.seed)


def ensemble(request: Request):
    return by_draws(trained(request, 5, by_input(request)), request)


def ensemble_of_tails(request: Request):
    """In two stages: the means with one noise for all rows, and from there both together (see ``lifted``)."""
    begun = trained(request, 5, constant(request))
    starts = iter(lifted_weights(begun, request))
    return by_draws(trained(request, 5, by_input(request, head=TAILS), lambda key: next(starts)), request)


def hmc(head: Head | None = None):
    """Chains that begin at the members of an ensemble, with a prior of unknown precision for each array of weights.

    ``head``: of noise that depends on the input.
    """

    def predict(request: Request):
        members, method = plan(len(request.data.y), request.is_quick)
        begun = trained(request, members, constant(request))
        model = constant(request, HIERARCHICAL) if head is None else by_input(request, HIERARCHICAL, head)
        return by_draws(fit(model, request, method, lifted(begun, model, request, head is not None)), request)

    return predict


def plan(num_rows: int, is_quick: bool) -> tuple[int, credo.HMC]:
    """(members, the sampler): what a few minutes of a core allow, or half a minute."""
    if num_rows < SMALL:
        members, num_draws, num_steps = 8, 300, 60
    else:
        members, num_draws, num_steps = 4, 150 if num_rows < LARGE else 80, 40
    if is_quick:
        members, num_draws, num_steps = members // 2, num_draws // 2, num_steps // 2
    metric = credo.mcmc.DiagonalMetric()
    return members, credo.HMC(
        chains=members, num_warmup=num_draws, num_draws=num_draws, num_steps=num_steps, metric=metric
    )


def lifted(begun: credo.Posterior, model: BayesianNetwork, request: Request, is_input: bool) -> np.ndarray:
    """Positions (chain, dim) in ``model`` of an ensemble with constant noise.

    Noise that depends on the input begins at that constant: networks that learn both from nothing explain by noise
    what the mean has not found yet, and stay there.
    """
    target = model.given(request.data.x, request.data.y).flat()
    noise = begun.draws["noise"][0]
    positions = []
    for i, own in enumerate(lifted_weights(begun, request)):
        params: dict[str, Any] = dict(model.start)
        if is_input:
            params["weights"] = own
        else:
            params |= {"weights": {part: own[part] for part in ("in", "out")}, "noise": noise[i]}
        with double():
            positions.append(np.asarray(target.unconstrain(jax.tree.map(jnp.asarray, params))))
    return np.stack(positions)


def lifted_weights(begun: credo.Posterior, request: Request) -> list[dict[str, Any]]:
    """Of each member, with a spread that begins at its constant noise."""
    random, draws = np.random.default_rng(request.seed), {name: values[0] for name, values in begun.draws.items()}
    found = []
    for i in range(len(draws["noise"])):
        own = {part: {leaf: draws[f"weights.{part}.{leaf}"][i] for leaf in ("w", "b")} for part in ("in", "out")}
        noise = max(float(draws["noise"][i]), LEAST_NOISE)
        own["spread"] = {"w": 0.1 * random.normal(size=(request.hidden, 1)), "b": np.full(1, raw(noise))}
        found.append(own)
    return found


PRECISIONS = tuple({"precision": value} for value in (1.0, 4.0, 16.0))
FULL = credo.Laplace(curvature=credo.GaussNewton(), num_steps=0)
SAMPLER = credo.SGHMC(num_warmup=50, num_draws=200, num_steps=100)

METHODS: dict[str, Entry] = {
    "MAP": Entry(one_mode, PRECISIONS, finds_noise=True),
    "Laplace, full": Entry(after_one_mode(FULL, credo.Linearised(), precision="float64"), PRECISIONS, finds_noise=True),
    "Laplace, last layer": Entry(last_layer, PRECISIONS, finds_noise=True),
    "VBLL": Entry(last_layer_bound, PRECISIONS, finds_noise=True),
    "MC dropout": Entry(uci_dropout.predict, tries=uci_dropout.tries),
    "mean-field VI": Entry(after_one_mode(credo.ADVI(max_steps=4_000)), PRECISIONS, finds_noise=True),
    "ensemble": Entry(ensemble, PRECISIONS),
    "ensemble, t noise by input": Entry(ensemble_of_tails),
    "SWAG": Entry(after_one_mode(credo.SWAG(num_steps=0, batch_size=64)), PRECISIONS, finds_noise=True),
    "SGHMC": Entry(after_one_mode(SAMPLER), PRECISIONS, finds_noise=True),
    "HMC": Entry(hmc(), most_rows=SMALL),
    "HMC, noise by input": Entry(hmc(INPUT)),
    "HMC, t noise by input": Entry(hmc(TAILS)),
}
