"""Class probabilities by a formula of the linearised outputs' means and variances, without an integral."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from credo.algorithm import as_key
from credo.model.heads import Head
from credo.predict.inputs import Table
from credo.predict.linearised import NUM_NODES
from credo.predict.links import LINKS, mackay
from credo.predict.outcome import cdf, log_prob, moments
from credo.predict.projection import MANY_OUTPUTS, Outlook, Projection, outlook
from credo.predict.undefined import drawn
from credo.status import CredoError

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior


@dataclass(frozen=True)
class Probit:
    """MacKay's (1992) approximation σ(m / √(1 + π s² / 8)) of a class probability, and its form for several classes.

    Within 0.02 of the integral for two classes; for more, softmax of m_k / √(1 + π s_k² / 8) (Gibbs 1998), which looks
    at each logit alone and may be further off. The epistemic share of the variance is that of the linearised outputs.
    """

    def law(self, posterior: "Posterior", table: Table, key) -> tuple["ProbitLaw", "Projection"]:
        how = outlook(posterior, table, "Probit", key)
        head = how.head
        assert isinstance(head, Head)  # of others there are no classes, as ``outlook`` says
        if head.name == "categorical" and how.num_outputs > MANY_OUTPUTS:
            raise CredoError(
                f"Probit() of {how.num_outputs} classes would form their covariances row by row: use Linearised(), "
                f"which draws the logits above {MANY_OUTPUTS} classes, or MonteCarlo()."
            )
        rows = how.rows(table, is_alone=True)
        if head.name not in ("bernoulli", "categorical"):
            raise CredoError(
                f"Probit() is for classes, and the outcome is {head.name}: use Linearised() or MonteCarlo()."
            )
        return ProbitLaw(how, head, how.num_outputs), rows


class ProbitLaw(eqx.Module):
    """One class distribution a row by MacKay's formula."""

    how: Outlook
    head: Head = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)
    batch: int = eqx.field(static=True, default=1)

    @property
    def width(self) -> int:
        return LINKS[self.head.name].width(NUM_NODES, self.num_outputs)

    @property
    def width_of_mean(self) -> int:
        """Of ``mean``, which takes no nodes."""
        return 1

    def full(self, rows: Projection) -> Projection:
        return self.how.full(rows)

    def likelihood(self, rows: Projection, index):
        rows = self.how.marginal(rows)
        return mackay(rows.mean, rows.covariance, self.head.name)

    def mean(self, rows: Projection):
        """By the formula alone, without the integral that the epistemic share takes."""
        return moments(self.likelihood(rows, 0))[0]

    def moments(self, rows: Projection):
        rows = self.full(rows)
        mean, total = moments(self.likelihood(rows, 0))
        *_, between = LINKS[self.head.name].moments(rows.mean, rows.covariance, None, NUM_NODES)
        epistemic = jnp.minimum(between, total)  # the formula's total may fall below the integral's share
        return mean, total - epistemic, epistemic

    def log_prob(self, rows: Projection, y):
        return log_prob(self.likelihood(rows, 0), y)

    def cdf(self, rows: Projection, part: str | None):
        return lambda y: cdf(self.likelihood(rows, 0), y)

    def shared(self, generator: np.random.Generator, n: int) -> np.ndarray:
        return np.zeros((n, 0))

    def sample(self, rows: Projection, shared, keys):
        return drawn(self.likelihood(rows, 0), as_key(keys[0]), (len(keys),))
