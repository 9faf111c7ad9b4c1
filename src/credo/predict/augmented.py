"""Test-time augmentation: predictions averaged over transforms of the inputs.

A model that should not care which of the transforms f_a of x it sees is p̄(y | x, θ) = (1/A) Σ_a p(y | f_a(x), θ). Its
predictive is a mixture over draws and transforms, p(y | x, D) = Σ_s w_s p̄(y | x, θ_s): what the transforms of a row
disagree on under one θ is aleatoric, since knowing θ would not remove it.
"""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from credo.model.distributions import unwrapped
from credo.predict.inputs import Table, check_inputs
from credo.predict.monte_carlo import MixtureLaw, MonteCarlo
from credo.predict.outcome import num_classes, over
from credo.status import CredoError

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior


@dataclass(frozen=True)
class Augmented:
    """Predictions at each of ``transforms`` of x, averaged with equal weights.

    ``transforms``: functions of all inputs (M, …) that return inputs of the same shapes, row by row; name the identity
    among them where the row itself should count. ``rule``: by draws, ``MonteCarlo()`` where left out.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 0.1))
    >>> posterior = credo.fit(model.given(np.ones(20), np.ones(20)), credo.MAP())
    >>> flipped = posterior.predict(np.ones(2), credo.Augmented([lambda x: x, lambda x: -x]))
    >>> [round(abs(float(mean)), 6) for mean in flipped.mean]
    [0.0, 0.0]
    """

    transforms: Sequence[Callable]
    rule: MonteCarlo | Any = None

    def __post_init__(self):
        is_list = isinstance(self.transforms, Sequence) and not isinstance(self.transforms, str) and self.transforms
        if not is_list or not all(callable(each) for each in self.transforms):
            raise CredoError(
                "Augmented() takes a list of functions of x, one at least, with the identity named among them; got "
                f"{self.transforms!r}."
            )
        if self.rule is not None and not isinstance(self.rule, MonteCarlo):
            raise CredoError(
                f"Augmented() averages over draws of the parameters: leave rule out, or give MonteCarlo(…); got "
                f"{self.rule!r}."
            )

    def law(self, posterior: "Posterior", table: Table, key) -> tuple[MixtureLaw, Any]:
        if self.rule is None and posterior.info.get("predicts") == "linearised":
            warnings.warn(
                "Augmented() averages over draws of the weights, and predictions of this posterior are linearised in "
                "them, since draws of a Laplace approximation fit far worse (Immer, Korzepa & Bauer 2021): compare "
                "both on rows held out, or take SWAG() or an ensemble. Augmented(…, MonteCarlo()) is not told this.",
                stacklevel=5,  # of posterior.predict
            )
        law, x = (MonteCarlo() if self.rule is None else self.rule).law(posterior, table, key)
        if not isinstance(law, MixtureLaw) or table.new_rows:
            raise CredoError(
                "Augmented() averages over draws of the parameters: leave rule out, or give MonteCarlo(…), and give x "
                "levels that the fit has seen."
            )
        if x is None:
            raise CredoError("Augmented() transforms the inputs x, and this model has none.")
        shapes, views = _shapes(x), []
        for number, transform in enumerate(self.transforms):
            view = check_inputs(posterior.target, jax.tree.map(np.asarray, transform(x))).x
            if _shapes(view) != shapes:
                raise CredoError(
                    f"Transform {number} of x returned arrays of shapes {_shapes(view)}: it must return those that it "
                    f"is given, {shapes}."
                )
            views.append(view)
        return dataclasses.replace(law, views=len(views), average=average), tuple(views)


def _shapes(x) -> list[tuple[int, ...]]:
    return [np.shape(leaf) for leaf in jax.tree.leaves(x)]


def average(distributions: Sequence[Any]) -> Any:
    """The mixture of equal weights; of classes it is of their own family."""

    def one(first, *rest):
        each: list[Any] = [unwrapped(d) for d in (first, *rest)]
        weight = 1.0 / len(each)
        if num_classes(first) is not None:
            return dist.CategoricalProbs(sum(d.probs for d in each) * weight)
        if isinstance(each[0], dist.BernoulliLogits | dist.BernoulliProbs):
            return dist.BernoulliProbs(jnp.clip(sum(d.probs for d in each) * weight, 0.0, 1.0))
        return dist.MixtureGeneral(dist.Categorical(probs=jnp.full(len(each), weight)), [first, *rest])

    return over(one, *distributions)
