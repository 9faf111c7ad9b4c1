"""The networks behind the estimators, in numbers and words, from which a model is built again after pickling.

    h_0 = x,  h_l = act(h_{l−1} W_l / √(fan-in) + b_l),  output = h_L W / √(fan-in) + b

Each weight and bias is N(0, prior_scale²) a priori. The division by the root of a layer's inputs makes that scale mean
the same for layers of any width (Neal 1996, chapter 2), and an update of the same size too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from credo.nn import BayesianNetwork, Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Isotropic
from credo.nn.heads import Head
from credo.status import CredoError

ACTIVATIONS: dict[str, Callable] = {"relu": jax.nn.relu, "tanh": jnp.tanh, "silu": jax.nn.silu}
Family = Literal["constant", "input", "bernoulli", "categorical"]  # the first two: what the noise of y depends on
# One object each: compiled programs are keyed on it.
HEADS: dict[str, Head] = {
    "constant": Gaussian(dist.HalfNormal(1.0)),
    "input": HeteroscedasticGaussian(),
    "bernoulli": Bernoulli(),
    "categorical": Categorical(),
}
NOISE_SD = 0.01  # of the log of a noise that was estimated from rows held out
SPREAD_START = 0.1  # initial weights of the noise, a share of the others': it begins nearly constant


@dataclass(frozen=True)
class EstimatedNoise(Gaussian):
    """A noise all but known. Equal whatever it is: compiled programs have it as an argument, by its prior."""

    noise: Distribution = field(default_factory=lambda: dist.LogNormal(0.0, NOISE_SD), compare=False)


@dataclass(frozen=True)
class Perceptron:
    """``apply(params, x)`` of a multilayer perceptron; a pair of outputs where one is the noise's."""

    activation: str

    def __call__(self, params, x):
        hidden = x["features"]
        for name in [name for name in params if name.startswith("layer")]:
            hidden = ACTIVATIONS[self.activation](_affine(params[name], hidden))
        outputs = _affine(params["out"], hidden)
        return (outputs, _affine(params["spread"], hidden)) if "spread" in params else outputs


def _affine(layer, x):
    return x @ layer["w"] * x.shape[-1] ** -0.5 + layer["b"]


@dataclass(frozen=True)
class NetworkRecipe:
    """The model of an estimator. ``seed``: of the initial weights. ``noise``: its sd, where rows held out told it."""

    family: Family
    num_features: int
    hidden: tuple[int, ...]
    activation: str
    num_outputs: int
    prior_scale: float
    seed: int
    noise: float | None = None

    def model(self) -> BayesianNetwork:
        return BayesianNetwork(
            Perceptron(self.activation),
            self.weights(),
            head=HEADS[self.family] if self.noise is None else EstimatedNoise(_near(self.noise)),
            prior=Isotropic(self.prior_scale**-2),
        )

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        """Drawn from N(0, 1), biases of outputs 0."""
        random = np.random.default_rng(self.seed)
        widths = (self.num_features, *self.hidden)
        layers = {
            f"layer_{i:02d}": {"w": random.normal(size=(fan_in, width)), "b": random.normal(size=width)}
            for i, (fan_in, width) in enumerate(zip(widths, self.hidden, strict=False))
        }
        layers["out"] = {"w": random.normal(size=(widths[-1], self.num_outputs)), "b": np.zeros(self.num_outputs)}
        if self.family == "input":
            layers["spread"] = {"w": SPREAD_START * random.normal(size=(widths[-1], 1)), "b": np.zeros(1)}
        return layers


def _near(noise: float) -> Distribution:
    return dist.LogNormal(np.log(noise), NOISE_SD)


def checked_hidden(hidden) -> tuple[int, ...]:
    """Widths of the hidden layers; an int is one layer."""
    widths = (hidden,) if isinstance(hidden, int | np.integer) else hidden
    is_list = isinstance(widths, tuple | list) and len(widths) > 0
    if not is_list or not all(isinstance(w, int | np.integer) and not isinstance(w, bool) and w > 0 for w in widths):
        raise CredoError(f"hidden={hidden!r}: give the width of each hidden layer, such as (50,) or (100, 50).")
    return tuple(int(w) for w in widths)


def checked_word(name: str, given, allowed) -> str:
    if not isinstance(given, str) or given not in tuple(allowed):
        raise CredoError(f"{name}={given!r} does not exist: say {' or '.join(map(repr, allowed))}.")
    return given
