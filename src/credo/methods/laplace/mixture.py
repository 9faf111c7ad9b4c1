"""Mixture of Laplace approximations (Eschenhagen, Daxberger, Hennig & Kristiadi 2021, section 3): one around each mode.

    q(u) = Σ_k π_k N(u; û_k, A_k⁻¹),   û_k where training from the k-th initialisation ends, A_k the curvature there

π_k is the share of the members that found mode k, as in a deep ensemble, or proportional to the evidence that Laplace's
method gives it, Z_k = p(û_k, D) (2π)^{d/2} |A_k|^−½ (MacKay 2003, chapter 27): the mass of the posterior around û_k.
Members whose modes are one count there as one, which the distance in posterior sds tells. Σ_k Z_k estimates p(D).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from credo.algorithm import Options, stream
from credo.batches import in_batches
from credo.compiling import sound
from credo.diagnose.rules import RULES
from credo.diagnose.verdict import all_pass, judge
from credo.memory import Need, require
from credo.methods.laplace.judgement import LINEARISED, WEIGHED
from credo.methods.laplace.laplace import Laplace
from credo.methods.laplace.look import UP_TO_DENSE
from credo.methods.laplace.matrix_free import MatrixFree
from credo.methods.laplace.needs import MATRICES, num_bytes
from credo.methods.laplace.network import BATCH_SIZE
from credo.methods.laplace.proposal import MOST_HELD, NUM_DRAWS
from credo.methods.laplace.proposal import figures as proposal_figures
from credo.methods.laplace.structure import Dense
from credo.methods.laplace.subset import All, of_part
from credo.methods.optimise.hyperparameters import holding, of_prior
from credo.methods.optimise.members import train_members
from credo.methods.optimise.objective import (
    chunk_size,
    first_of,
    generator,
    in_unconstrained_space,
    members,
    starting_position,
)
from credo.methods.optimise.surprise import surprise
from credo.methods.optimise.training import adam, batch_of, default_num_steps
from credo.methods.particles.correction import correct, gradients
from credo.methods.particles.elsewhere import Climber
from credo.model.target import Target
from credo.posterior.kinds import Draws, Gaussian, Kind, Mixture
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Estimate, Verdict

NUM_MEMBERS = 5  # of the paper
SAME = 0.5  # posterior sds between two modes that are one: two Gaussians so near are told apart by no 80 draws
STREAM = 2_000  # of the key's random numbers
ONE_SIDED = (
    "The modes have the weights of an ensemble, how many members found them, which need not be their mass: "
    "weights='evidence' takes that from Laplace's method."
)


@dataclass(frozen=True)
class MixtureOfLaplaces:
    """A Gaussian around each of ``members`` modes, which training from different initialisations finds.

    ``members``: 5, or as many as ``start=`` has. ``laplace``: the Laplace approximation of each; of a network it
    polishes the trained weights and tunes what the model leaves unknown, and with ``Laplace(num_steps=0)`` takes them
    as they are. ``weights``: "equal", each member counts alike, or "evidence", each mode counts by the mass that its
    evidence gives it. A network's mirror images, hidden units swapped or their signs turned, are modes of the same
    evidence and the same predictions: none is known of unless a member found it, and the weights are right where the
    modes found have as many of them.
    ``init``, ``optimiser``, ``batch_size``, ``num_steps``: of the training, as for ``DeepEnsemble``; ``init`` should
    spread as far as modes may lie apart. ``start=`` of the fit: a posterior by ``DeepEnsemble``, or positions
    (members, dim), takes the place of the training. A checkpoint holds the training.

    Predictions of a network are linearised around each mode and mixed. ``log_evidence`` sums that of the modes found.
    ``info``: ``weights`` and ``log_evidences`` by mode, ``mode_of`` by member. Verdict: the worst figures of the
    members, ``unseen_share``, and those of weighed draws of the whole mixture, where Laplace's own verdict has them.
    Raises CredoError for settings that do not go together, and where no evidence is known to weigh by.

    >>> import credo, jax.numpy as jnp
    >>> from numpyro.distributions import constraints
    >>> density = lambda params: jnp.logaddexp(-8.0 * (params["x"] - 1) ** 2, 1 - 8.0 * (params["x"] + 1) ** 2)
    >>> target = credo.Model.from_log_density(density, {"x": constraints.real}).given()
    >>> posterior = credo.fit(target, credo.MixtureOfLaplaces(members=8, weights="evidence"))
    >>> [round(float(w), 2) for w in posterior.info["weights"]]
    [0.73, 0.27]
    """

    members: int | None = field(default=None, metadata={"at_least": 1})
    laplace: Laplace = field(default_factory=Laplace)
    weights: Literal["equal", "evidence"] = "equal"
    init: Callable | None = None
    optimiser: optax.GradientTransformation | None = None
    batch_size: int | None = BATCH_SIZE
    num_steps: int | None = field(default=None, metadata={"at_least": 1})

    takes_source: ClassVar[bool] = True

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target, deadline = target.flat(), options.deadline()
        is_network = self.laplace.takes_network(target)
        self._check(is_network)
        given = self._given(target, start)
        number = (self.members or NUM_MEMBERS) if given is None else len(given)
        _check_memory(self.laplace, target, number, is_network, options)
        num_updates, sentences = 0, []
        if given is None:
            trained = train_members(
                target,
                number,
                self.init,
                self._optimiser(target, starting_position(target, key, first_of(start)), is_network),
                self.batch_size,
                self.num_steps,
                stream(key, 2),
                options,
            )
            given, sentences = trained.of_finite_density(target), trained.sentences()
            num_updates = trained.num_updates * number
        found = [
            self.laplace.around(target, u, key=stream(key, 3, i), options=options.until(deadline))
            for i, u in enumerate(given)
        ]
        modes = distinct(found)
        log_weights, counted = self._weigh([mode.posterior for mode in modes], [mode.count for mode in modes])
        kinds = [modes[i].posterior.kind for i in counted]
        kind = kinds[0] if len(kinds) == 1 else Mixture(log_weights, tuple(kinds))
        evidences = [mode.posterior.log_evidence for mode in modes]
        values = np.array([np.nan if each is None else each.value for each in evidences])
        mode_of = np.zeros(number, int)
        for i, mode in enumerate(modes):
            mode_of[list(mode.members)] = i
        weights = np.zeros(len(modes))
        weights[counted] = np.exp(log_weights)
        info = {name: value for name, value in found[0].info.items() if name in ("mode", "structure", "curvature")}
        info |= {
            "weights": weights,
            "log_evidences": values,
            "mode_of": mode_of,
            "num_gradients": num_updates + sum(each.info["num_gradients"] for each in found),
            "is_complete": all(each.info["is_complete"] for each in found),
        }
        if is_network:
            info["predicts"] = "linearised"
        total = None if np.isnan(values).any() else Estimate(float(np.logaddexp.reduce(values)), np.nan, "laplace")
        posterior = Posterior(kind, target, verdict=Verdict("doubtful"), info=info, log_evidence=total)
        posterior.verdict, posterior.info["num_densities"] = self._verdict(
            posterior, [modes[i] for i in counted], modes, number, is_network, sentences, key, options.until(deadline)
        )
        return posterior

    def _check(self, is_network: bool) -> None:
        if self.laplace.prior is not None:
            raise CredoError(
                "MixtureOfLaplaces(laplace=Laplace(prior=…)): members are trained under the model's own prior. Leave "
                "prior out, or go batch by batch with Laplace() alone."
            )
        if isinstance(self.laplace.structure, MatrixFree):
            raise CredoError(
                "MixtureOfLaplaces(laplace=Laplace(structure=MatrixFree())): a draw chooses among the Gaussians within "
                "a compiled program, and linear solves cannot be chosen among. Use Kronecker(), LowRank() or "
                "Diagonal()."
            )
        if is_network and self.laplace.num_steps:
            raise CredoError(
                f"MixtureOfLaplaces(laplace=Laplace(num_steps={self.laplace.num_steps})): the members are trained "
                "once, by MixtureOfLaplaces(num_steps=…). Leave it out there, or say 0 to take their weights as they "
                "are."
            )
        if self.weights == "evidence" and not isinstance(self.laplace.subset, All):
            raise CredoError(
                "weights='evidence' with a subset of the parameters: its evidence is that given the others, which "
                "differ between members. Say weights='equal', or subset=All()."
            )

    def _given(self, target: Target, start) -> Float[np.ndarray, "member dim"] | None:
        """Positions of members that are trained; None where they are to be."""
        if isinstance(start, Posterior):
            if not isinstance(start.kind, Draws) or start.kind.log_weights is not None:
                raise CredoError(
                    f"start= is a posterior of kind {type(start.kind).__name__}, and MixtureOfLaplaces() begins at the "
                    "members of an ensemble: give one by DeepEnsemble(), positions (members, dim), or leave it out."
                )
            size = int(np.prod(start.kind.positions.shape[:-1]))
            given = members(start, min(self.members or size, size))
        elif start is not None and np.ndim(start) == 2:
            size, given = len(start), np.asarray(start)
        elif start is not None and target.model.start is None:
            raise CredoError(
                "start= is one position, and MixtureOfLaplaces() begins each member at a place of its own: give "
                "positions (members, dim), an ensemble by DeepEnsemble(), or leave it out."
            )
        else:  # where the model starts: members begin elsewhere
            return None
        assert given is not None
        if not len(given):
            raise CredoError("start= holds no position: give positions (members, dim), or leave it out.")
        if self.members is not None and len(given) != self.members:
            raise CredoError(
                f"MixtureOfLaplaces(members={self.members}) was given start= with {size}: give as many, or leave "
                "members out."
            )
        return given.astype(jnp.result_type(float))

    def _optimiser(self, target: Target, u: np.ndarray, is_network: bool) -> optax.GradientTransformation | None:
        """As Laplace trains one network: hyperparameters of the prior stay, which would run away with the weights."""
        if self.optimiser is not None or not is_network:
            return self.optimiser
        steps = adam(self.num_steps or default_num_steps(target, batch_of(target, self.batch_size)))
        return holding(steps, of_prior(target, u))

    def _weigh(self, found: Sequence[Posterior], counts: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """Log weights of the modes that count, and which these are."""
        if self.weights == "equal":
            return np.log(counts) - np.log(sum(counts)), list(range(len(found)))
        counted = [i for i, each in enumerate(found) if each.log_evidence is not None]
        if not counted:
            raise CredoError(
                "weights='evidence': no member has an evidence (improper priors leave none, nor does a place that is "
                "no mode). Say weights='equal', give proper priors, or train longer (num_steps=)."
            )
        values = np.array([each.log_evidence.value for i in counted if (each := found[i]).log_evidence is not None])
        return values - np.logaddexp.reduce(values), counted

    def _verdict(
        self, posterior: Posterior, counted, modes, number: int, is_network: bool, sentences, key, options: Options
    ) -> tuple[Verdict, int]:
        """That of the worst member as a mode, and of the whole against the target where draws can be weighed."""
        target, kind, deadline = posterior.target, posterior.kind, options.deadline()
        at_best, said = "pass", list(sentences)
        figures = worst([mode.posterior.verdict.figures for mode in counted]) | {"num_members": float(number)}
        for own in (mode.posterior.verdict for mode in counted):
            said += [sentence for sentence in own.sentences if sentence not in judge(own.figures).sentences]
        left = [member for mode in modes if mode not in counted for member in mode.members]
        if left:
            at_best = "doubtful"
            said.append(
                f"No mode, and of no weight: members {', '.join(map(str, left))}. Train them longer (num_steps=)."
            )
        if number > 1:
            figures["unseen_share"] = sum(mode.count == 1 for mode in modes) / number
        if is_network:
            figures["surprise"] = worst(
                [{"surprise": surprise(mode.posterior, stream(key, 6), is_linearised=True)} for mode in counted]
            )["surprise"]
        if is_network and target.dim > WEIGHED:
            at_best, weighed, num_draws = "doubtful", {}, 0
            said.append(
                f"The posterior of {target.dim:,} coordinates was not compared with this mixture: in so many, weights "
                "of draws say nothing. Judge it by held-out scores (credo.compare)."
            )
        else:
            weighed, num_draws = _weighed(kind, target, key, options, deadline)
            is_good = all_pass(weighed)
            if not is_good and len(counted) > 1 and self.weights == "equal":
                said.append(ONE_SIDED)
            if not is_good and is_network:  # as for one Laplace: its predictions may be good all the same
                at_best, weighed = "doubtful", {}
                said.append(
                    "The posterior of the weights is not this mixture, by the weights of draws. Judge its predictions "
                    "by held-out scores (credo.compare)."
                )
        if is_network and at_best != "pass":
            said.append(LINEARISED)
        verdict = judge(figures | weighed, list(dict.fromkeys(said)), at_best=at_best)
        return of_part(verdict, counted[0].posterior.kind.scale, target), num_draws


class Mode(NamedTuple):
    """``posterior``: the member of highest density that found it. ``members``: all of them, by number."""

    posterior: Posterior
    members: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.members)


def distinct(found: Sequence[Posterior]) -> list[Mode]:
    """The modes of the members, highest density first, each once: those nearer than ``SAME`` posterior sds are one."""
    modes: list[Mode] = []
    for i in sorted(range(len(found)), key=lambda i: (-found[i].info["log_density"], i)):
        for place, mode in enumerate(modes):
            if _distance(mode.posterior.kind, found[i].kind) <= SAME:
                modes[place] = mode._replace(members=(*mode.members, i))
                break
        else:
            modes.append(Mode(found[i], (i,)))
    return modes


def _distance(a: Kind, b: Kind) -> float:
    """Between the centres, in sds of the narrower along the way."""
    assert isinstance(a, Gaussian)
    assert isinstance(b, Gaussian)
    return float(max(_length(a, b.mean), _length(b, a.mean)))


@sound
def _length(kind: Gaussian, u):
    return jnp.linalg.norm(kind.scale.solve(u - kind.mean))


def worst(each: Sequence[dict[str, float | None]]) -> dict[str, float]:
    """Of each figure that of the member where it is worst; unknown where it is unknown of one."""
    out = {}
    for name in dict.fromkeys(name for figures in each for name in figures):
        values = [np.nan if (value := figures[name]) is None else value for figures in each if name in figures]
        out[name] = float((np.min if RULES[name].direction in ("at least", "above") else np.max)(values))
    return out


def _weighed(kind: Kind, target: Target, key, options: Options, deadline: float) -> tuple[dict[str, float], int]:
    """What draws of the Gaussian or of the mixture, weighed against the target, say; and how many they were."""
    objective, chunk = in_unconstrained_space(target), chunk_size(target, options.max_memory, most=NUM_DRAWS)
    if isinstance(kind, Gaussian):
        return proposal_figures(objective, kind, target, key, chunk, deadline)
    assert isinstance(kind, Mixture)
    if NUM_DRAWS * target.dim > MOST_HELD or not all(part.scale.rank == target.dim for part in kind.components):  # type: ignore[attr-defined]
        return {"pareto_k": np.nan}, 0
    noise, cumulative = generator(key, STREAM), np.cumsum(np.exp(np.asarray(kind.log_weights)))

    def draw(_: int):
        levels = (np.arange(NUM_DRAWS) + noise.uniform(size=NUM_DRAWS)) / NUM_DRAWS * cumulative[-1]
        which = np.minimum(np.searchsorted(cumulative, levels, side="right"), len(cumulative) - 1).astype(np.int32)
        z = noise.normal(size=(NUM_DRAWS, target.dim)).astype(jnp.result_type(float))
        log_weights, u = _log_weights(objective.function, chunk, objective.args, kind, which, z)
        return np.asarray(u), np.asarray(log_weights)

    def gradient(u):
        return gradients(objective.function, objective.args, u, chunk)

    done = correct(draw, gradient, kind, target, deadline, climber=Climber.of(target, objective))
    return done.figures, done.num_draws


@functools.partial(sound, static_argnames=("function", "chunk"))
def _log_weights(function: Callable, chunk: int, args, kind: Mixture, which, z):
    """log p(u, D) − log q(u) at draws of the mixture, and where they are."""

    def one(pair):
        k, z = pair
        branches = [lambda z, part=part: part.mean + part.scale.matvec(z) for part in kind.components]  # type: ignore[attr-defined]
        u = jax.lax.switch(k, branches, z)
        return function(args, u) - kind.log_prob_u(u), u

    return in_batches(one, (which, z), chunk)


def _check_memory(laplace: Laplace, target: Target, number: int, is_network: bool, options: Options) -> None:
    """CredoError where the Gaussians of all members, beside the work on one of them, do not fit."""
    chosen = Dense() if not is_network or target.dim <= UP_TO_DENSE else None
    structure = laplace.structure or chosen
    one = None if structure is None or not isinstance(laplace.subset, All) else num_bytes(structure, target)
    if one is None:
        return
    each = one / MATRICES
    others = [Need("one member", one)]
    require(
        Need(f"A mixture of {number} by {type(structure).__name__}()", one + (number - 1) * each),
        f"{target.dim:,} parameters",
        options.max_memory,
        others,
    )
