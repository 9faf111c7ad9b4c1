"""When are there draws enough? A run that goes on until its estimates are as precise as was asked.

Of every monitored scalar f with draws f_1 … f_n of all chains,
    sd(f) / √ESS(f)     Monte Carlo error of its mean, in units of f, or in units of sd(f)
    R-hat, bulk and tail ESS (Vehtari et al. 2021)
are held against what was asked, after each block of draws and then at numbers of draws that grow by a tenth at least.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from credo.algorithm import Phase
from credo.diagnose.convergence import convergence, mcse_mean
from credo.model.structure import scalar_names
from credo.model.target import Target
from credo.posterior.marginals import report_positions
from credo.status import CredoError
from credo.storage import AT_ONCE, is_stored, release, stored

GROWTH = 1.1  # between two looks: what they cost together is eleven times the last one, and as much is drawn in vain
NUMBER = int | float | np.number  # infinity is one: no such limit
LEAST_ESS = 100  # below it an error is known too badly to stop on


@dataclass(frozen=True)
class StoppingRule:
    """Draw until every monitored scalar has the asked Monte Carlo error, R-hat and effective sample size.

    ``mcse``: of the mean, in posterior standard deviations, or in units of the scalar where ``is_relative`` is False.
    ``ess``: bulk and tail. ``r_hat``: infinity, for one chain, asks for none.
    ``names``: parameters and derived quantities to monitor; None for all parameters.
    ``max_draws``: of each chain; the verdict says so where they came first, and is then doubtful at best. The method's
    ``num_draws`` is the size of a block; the draws are those of one run as long.

    A rule that looks at the draws stops a little too soon where they seem more precise than they are: means have no
    bias to first order and intervals cover what they claim as ``mcse`` falls (Glynn & Whitt 1992; Flegal, Haran & Jones
    2008), if it cannot stop on few draws, which is what a least ``ess`` is for (Gong & Flegal 2016).

    >>> import numpyro.distributions as dist, credo
    >>> model = credo.Model({"x": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["x"], 1.0))
    >>> rule = credo.StoppingRule(mcse=0.02, names=("x",))
    >>> posterior = credo.fit(model.given(y=[0.3]), credo.NUTS(until=rule), progress=False)
    >>> bool(posterior.summary()["mcse_mean"].iloc[0] <= 0.02 * posterior.sd()["x"])
    True
    """

    mcse: float = 0.05
    is_relative: bool = True
    ess: float = field(default=400.0, metadata={"at_least": LEAST_ESS})
    r_hat: float = 1.01
    names: tuple[str, ...] | None = None
    max_draws: int = field(default=100_000, metadata={"at_least": 1})

    def __post_init__(self):
        if not (isinstance(self.mcse, NUMBER) and self.mcse > 0):
            raise CredoError(f"mcse is above 0; got {self.mcse!r}: an error of 0 takes draws without end.")
        if not (isinstance(self.ess, NUMBER) and self.ess >= LEAST_ESS):
            raise CredoError(f"ess is {LEAST_ESS:g} or more; got {self.ess!r}.")
        if not (isinstance(self.r_hat, NUMBER) and self.r_hat > 1):
            raise CredoError(f"r_hat is above 1; got {self.r_hat!r}: 1.01 is usual.")
        if self.names is not None and not self.names:
            raise CredoError("The stopping rule names nothing to monitor: leave names out for all parameters.")

    def check(self, target: Target, num_chains: int) -> None:
        """CredoError where a name is none of the target's, or no number of draws would be enough."""
        if num_chains < 2 and self.r_hat < math.inf:
            raise CredoError(
                f"The stopping rule asks for an R-hat of {self.r_hat:g}, which is not known from {num_chains} chain: "
                "run at least 2 chains, or ask for none by r_hat=math.inf."
            )
        known = [leaf.name for leaf in target.structure.leaves]
        known += [name for name in target.derived_names if name not in known]
        for name in self.names or ():
            if name not in known:
                raise CredoError(f"The stopping rule names {name!r}; the model has {', '.join(known[:20])}.")

    def pauses(self, num_draws: int) -> tuple[int, ...]:
        """Numbers of draws of a chain, below ``max_draws``, at which to look, in blocks of ``num_draws``."""
        found, n = [], num_draws
        while n < self.max_draws:
            found.append(n)
            n = num_draws * max(math.ceil(GROWTH * n / num_draws - 1e-9), n // num_draws + 1)
        return tuple(found)

    def unmet(self, target: Target, positions: np.ndarray, at_once: int) -> str | None:
        """What is furthest from what was asked, of draws (chain, draw, dim); None where all is as asked.

        ``at_once``: draws of a chain, no more than there are, that a compiled function is given at a time.
        """
        elementwise = {leaf.name: leaf.is_elementwise for leaf in target.structure.leaves}
        worst, text = 1.0, None
        for name, values in self._values(target, positions, at_once).items():
            x = values.reshape(*values.shape[:2], -1)
            figures = self._figures(x)
            for what, (distance, said) in figures.items():
                if not elementwise.get(name, True):  # an entry that is constant by construction, as of correlations
                    distance = np.where(_is_constant(x), 0.0, distance)
                distance = np.where(np.isnan(distance), np.inf, distance)
                i = int(np.argmax(distance))
                if distance[i] > worst:
                    scalar = scalar_names(name, values.shape[2:])[i]
                    worst, text = (
                        distance[i],
                        f"the {what} of {scalar} is {said[i]:.3g}, and {self._asked(what)} was asked",
                    )
        return text

    def _figures(self, x: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """What -> (distance from what was asked, above 1 where it is not reached; its value)."""
        found, mcse = convergence(x), mcse_mean(x)
        if self.is_relative:
            mcse = mcse / _sd(x)
        with np.errstate(divide="ignore", invalid="ignore"):
            r_hat = {"R-hat": ((found.r_hat - 1) / (self.r_hat - 1), found.r_hat)} if self.r_hat < math.inf else {}
            return r_hat | {
                "Monte Carlo error": (mcse / self.mcse, mcse),
                "bulk effective sample size": (self.ess / found.ess_bulk, found.ess_bulk),
                "tail effective sample size": (self.ess / found.ess_tail, found.ess_tail),
            }

    def _asked(self, what: str) -> str:
        if what == "Monte Carlo error":
            return f"{self.mcse:.3g}{' sd' if self.is_relative else ''}"
        return f"{self.r_hat:.4g}" if what == "R-hat" else f"{self.ess:.0f}"

    def _values(self, target: Target, positions: np.ndarray, at_once: int) -> Mapping[str, np.ndarray]:
        """Monitored values (chain, draw, *shape) by name."""
        names = self.names or tuple(leaf.name for leaf in target.structure.leaves)
        chains, draws, dim = positions.shape
        height = min(at_once, max(1, AT_ONCE // dim))  # one shape, one program, whatever the number of draws
        answer: dict[str, np.ndarray] = {}
        for chain in range(chains):
            for first in range(0, draws, height):
                rows = slice(min(first, draws - height), min(first + height, draws))
                found = report_positions(target, np.ascontiguousarray(positions[chain, rows]))
                for name in names:
                    value = np.asarray(found[name])
                    if name not in answer:
                        make = stored if is_stored(positions) else np.empty
                        answer[name] = make((chains, draws, *value.shape[1:]), value.dtype)
                    answer[name][chain, rows] = value
                release(positions, *answer.values())
        return answer


def sampling_phase(method, target: Target) -> Phase:
    """The phase of sampling: as many draws as the method says, or as its stopping rule wants."""
    rule: StoppingRule | None = getattr(method, "until", None)
    if rule is None:
        return Phase("sampling", method.num_draws, ("position",))
    rule.check(target, method.chains)

    def is_enough(records) -> bool:
        return rule.unmet(target, records[0]["position"], method.num_draws) is None

    return Phase("sampling", rule.max_draws, ("position",), pauses=rule.pauses(method.num_draws), is_enough=is_enough)


def limits(method, target: Target, positions: np.ndarray, is_complete: bool) -> tuple[list[str], bool]:
    """What a limit cut short, in sentences, and whether the method's stopping rule, if it has one, was met."""
    num_draws, rule = positions.shape[1], getattr(method, "until", None)
    if rule is None:
        sentence = f"The time limit came after {num_draws} of {method.num_draws} draws in each chain."
        return ([] if is_complete else [sentence]), True
    if is_complete and num_draws < rule.max_draws:
        return [], True
    unmet = rule.unmet(target, positions, min(method.num_draws, num_draws))
    if unmet is None:
        return [], True
    limit, setting = ("largest number of draws", "max_draws") if is_complete else ("time limit", "time_limit")
    return [f"The {limit} came first, after {num_draws} draws in each chain: {unmet}. Raise {setting}."], False


def _is_constant(x: np.ndarray) -> np.ndarray:
    return np.array([np.ptp(x[..., i]) == 0 for i in range(x.shape[-1])])


def _sd(x: np.ndarray) -> np.ndarray:
    return np.array([np.std(np.asarray(x[..., i], np.float64), ddof=1) for i in range(x.shape[-1])])
