"""Linear regression whose prior and noise precisions maximise the evidence (type-II maximum likelihood).

MacKay (1992); Bishop (2006), section 3.5. See type_two.py for one alpha and relevance.py for one a feature (ARD).
With one alpha the posterior mean is ridge regression at λ = α/β.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import jax
import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike

from credo.methods.exact import checks
from credo.methods.exact.family import NO_DATA, Family, Predictive, distribution, settle
from credo.methods.exact.information import Information, triangularise
from credo.methods.exact.linear_regression import design_and_response, gaussian_predictive
from credo.methods.exact.relevance import one_alpha_a_feature
from credo.methods.exact.type_two import Data, Maximum, one_alpha
from credo.status import CredoError, Estimate

LARGEST = 1e75  # values of x and y, and the inverse of the smallest: alpha is the square of a ratio of the two


@dataclass(frozen=True, eq=False)
class EvidenceLinearRegression(Family):
    """y = X w + ε, w_j ~ N(0, 1/alpha_j), ε ~ N(0, 1/beta), with alpha and beta chosen by maximum evidence.

    ``ard``: one alpha a feature in place of one for all. ``noise_precision``: beta where it is known.

    ``update`` only gathers statistics (a triangle of D + 1 columns); alpha and beta are found when first asked for,
    from all the data so far, so that any split of the data gives the same answer. Features that the data do not
    support have alpha = inf and weight zero: ``sentences`` names them, and says where the maximum is not interior.
    Where the features fit y exactly the evidence is unbounded, and asking for an answer raises CredoError: with
    ``ard`` and N < D that is common, and ``noise_precision`` the remedy.

    ``log_evidence`` is log p(y | alpha, beta) at its maximum, hence above any average over alpha and beta.
    Parameter name: ``weights``.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
    >>> model = EvidenceLinearRegression().update(x, [1.1, 2.1, 2.9, -1.2])
    >>> model.mean()["weights"].round(2)
    array([0.93, 2.06])
    """

    ard: bool = False
    noise_precision: float | None = None
    num_rows: int = field(default=0, kw_only=True)
    triangle: np.ndarray | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self):
        if self.noise_precision is not None:
            settle(self, noise_precision=checks.positive("noise_precision", self.noise_precision))

    def update(self, x: ArrayLike, y: ArrayLike) -> "EvidenceLinearRegression":
        """All data so far and rows ``x`` (N, D) with responses ``y`` (N,)."""
        x, y = design_and_response(x, y, None)
        if self.triangle is None:
            start = np.zeros((0, x.shape[1] + 1))
        else:
            start = self.triangle
            checks.matrix("x", x, start.shape[1] - 1)
        triangle = triangularise(start, x, y)
        return replace(self, num_rows=self.num_rows + len(y), triangle=triangle)

    @cached_property
    def maximum(self) -> Maximum:
        """alpha (D,), beta, their log evidence, and the gradient that is left in log alpha."""
        x, y = self._data
        parts = [(f"Column {j} of x", column) for j, column in enumerate(x.T)] if self.ard else [("x", x)]
        for name, values in (*parts, ("y", y)):
            largest = np.max(np.abs(values))
            if largest > 0 and not 1 / LARGEST < largest < LARGEST:
                raise CredoError(
                    f"{name} has values of size {largest:.1e}, whose squares alpha and beta cannot hold: give it in "
                    "other units."
                )
        maximise = one_alpha_a_feature if self.ard else one_alpha
        return maximise(Data(x, y, self.num_rows, self.noise_precision))

    @property
    def _data(self) -> tuple[np.ndarray, np.ndarray]:
        """A rotation of all rows so far: x (≤ D + 1, D) and y (≤ D + 1,)."""
        if self.triangle is None:
            raise CredoError("alpha and beta are not known before any data: call update(x, y) first.")
        return self.triangle[:, :-1], self.triangle[:, -1]

    @property
    def alpha(self) -> np.ndarray | float:
        """The prior precision: a number, or (D,) with ``ard``; inf where pruned."""
        return self.maximum.alpha if self.ard else float(self.maximum.alpha[0])

    @property
    def beta(self) -> float:
        """The noise precision."""
        return self.maximum.beta

    @property
    def log_evidence(self) -> Estimate:  # type: ignore[override]
        """log p(y | alpha, beta) at the maximum; 0 before any data."""
        return NO_DATA if self.triangle is None else Estimate(self.maximum.log_evidence, 0.0, "exact")

    @property
    def active(self) -> np.ndarray:
        """Which features have a finite alpha (D,)."""
        return np.isfinite(self.maximum.alpha)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What a reader should know of the maximum; empty where it is interior and nothing is pruned."""
        pruned = np.flatnonzero(~self.active)
        if self.maximum.is_noiseless:
            return (
                "The evidence has no interior maximum: it rises towards beta = inf, where the features fit y exactly. "
                "beta is held just below: give noise_precision, add rows or drop features.",
            )
        if len(pruned) == len(self.active):
            return (
                "The evidence has no interior maximum: it is highest at alpha = inf, where all weights are zero. "
                "The data do not support any feature.",
            )
        if len(pruned):
            shown = ", ".join(map(str, pruned[:10])) + (", …" if len(pruned) > 10 else "")
            return (f"{len(pruned)} of {len(self.active)} features are pruned (alpha = inf, weight zero): {shown}.",)
        return ()

    @cached_property
    def _information(self) -> Information:
        """The posterior of the active weights."""
        (x, y), alpha = self._data, self.maximum.alpha[self.active]
        prior = Information(np.diag(np.sqrt(alpha)), np.zeros(len(alpha)))
        return prior.absorb(x[:, self.active], y, scale=np.sqrt(self.beta))[0]

    @property
    def distributions(self) -> dict[str, dist.Distribution]:  # type: ignore[override]
        """The posterior of the *active* weights, under ``weights`` (no entry where none is): the pruned are zero."""
        now = self._information
        if len(now.target) == 0:
            return {}
        return {"weights": distribution(dist.MultivariateNormal, now.mean, scale_tril=now.scale_tril)}

    def mean(self) -> dict[str, np.ndarray]:
        """Posterior mean of the weights (D,), zero where pruned."""
        return {"weights": self._with_zeros(self._information.mean)}

    def sd(self) -> dict[str, np.ndarray]:
        """Posterior standard deviation of the weights (D,), zero where pruned."""
        return {"weights": self._with_zeros(np.sqrt(np.sum(self._information.scale_tril**2, axis=1)))}

    def sample(self, key: int | jax.Array, n: int) -> dict[str, np.ndarray]:
        """``n`` draws of the weights (n, D), zero where pruned."""
        drawn = Family.sample(self, key, n)["weights"] if np.any(self.active) else np.zeros((n, 0))
        return {"weights": self._with_zeros(drawn)}

    def predictive(self, x: ArrayLike, *, joint: bool = False) -> Predictive:
        """Responses at rows ``x`` (M, D): normal, independent a row, or ``joint`` with their shared uncertainty."""
        x = checks.matrix("x", x, len(self.active))
        return gaussian_predictive(self._information, x[:, self.active], self.beta, joint)

    def _with_zeros(self, active_values: np.ndarray) -> np.ndarray:
        values = np.zeros((*active_values.shape[:-1], len(self.active)))
        values[..., self.active] = active_values
        return values
