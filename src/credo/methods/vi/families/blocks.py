"""Structured mean field: parameters in groups, each with a family of its own, independent between groups.

    q(u) = Π_b q_b(u_b);  a tangent is a tuple of the groups' own, with no Fisher information between them

The best member near a Gaussian of precision P is, group by group, that near precision P_bb.
"""

import functools
import itertools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax
import numpy as np

from credo.linalg.blocks import BlockDiagonal, Spans, join, size_of, take
from credo.linalg.operator import Stored
from credo.methods.vi.families.family import Draw, Family
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.optimisers.momentum import Momentum
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.model.structure import Leaf, Structure
from credo.posterior.kinds import Gaussian, Independent, Kind
from credo.status import CredoError

Names = str | tuple[str, ...]


@dataclass(frozen=True)
class Blocks(Family):
    """``Blocks({"w": FullRank(), ("a", "b"): LowRank(3), "rate": Gamma()}, others=MeanField())``.

    ``blocks``: a family for each parameter, or each tuple of parameters, named; ``weights.last`` names all under it.
    ``others``: that of all others; ``Point()`` gives them no spread. The
    posterior is a ``Gaussian`` where all families are, else ``Independent``. Every fit fills in ``spans``, where the
    groups stand in the position. Raises CredoError, at the fit, for names that the model lacks or that stand twice,
    and for a family that cannot represent the support of its parameters.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2]), "rate": dist.Gamma(2.0, 1.0)},
    ...                     lambda params, x: dist.Normal(x @ params["w"], 1 / params["rate"]))
    >>> target = model.given(np.array([[1.0, 0.9], [1.0, 1.1], [0.9, 1.0]]), np.array([1.0, 1.2, 0.8]))
    >>> family = credo.vi.Blocks({"w": credo.FullRank()})
    >>> float(credo.fit(target, credo.ADVI(family=family)).mean()["w"].sum().round(1))
    1.0
    """

    blocks: Mapping[Names, Family] | tuple[tuple[Names, Family], ...]
    others: Family = field(default_factory=MeanField)
    spans: tuple[Spans, ...] = ()
    has_correlations: ClassVar[bool] = True

    def __post_init__(self):
        pairs = self.blocks.items() if isinstance(self.blocks, Mapping) else self.blocks
        object.__setattr__(self, "blocks", tuple((names, family) for names, family in pairs))  # hashable
        if not self.blocks or not all(isinstance(family, Family) for family in (*self._families, self.others)):
            raise CredoError(
                'Blocks takes a dict of families by the names of parameters, such as {"w": FullRank(), ("a", "b"): '
                f"MeanField()}}; got {dict(self.blocks)!r}."
            )

    def bound(self, structure: Structure) -> "Blocks":
        known = {leaf.name: leaf for leaf in structure.leaves}
        groups = [_resolved((names,) if isinstance(names, str) else names, known) for names, _ in self._pairs]
        named = [name for group in groups for name in group]
        for name in named:
            if name not in known:
                raise CredoError(f"There is no parameter {name!r} for a block: the model has {', '.join(known)}.")
            if named.count(name) > 1:
                raise CredoError(f"Parameter {name!r} stands in more than one block: name it in one.")
        unnamed = tuple(name for name in known if name not in named)
        families = self._families
        if unnamed:
            groups, families = [*groups, unnamed], (*families, self.others)
        places = _places(structure.leaves)
        spans = tuple(_merged(sorted(places[name] for name in group)) for group in groups)
        parts = [structure._replace(leaves=tuple(x for x in structure.leaves if x.name in group)) for group in groups]
        families = tuple(family.bound(part) for family, part in zip(families, parts, strict=True))
        pairs = tuple(zip([names for names, _ in self._pairs], families, strict=False))
        return replace(self, blocks=pairs, others=families[-1] if unnamed else self.others, spans=spans)

    @property
    def _pairs(self) -> tuple[tuple[Names, Family], ...]:
        assert isinstance(self.blocks, tuple)
        return self.blocks

    @property
    def _families(self) -> tuple[Family, ...]:
        return tuple(family for _, family in self._pairs)

    @property
    def families(self) -> tuple[Family, ...]:
        """Those of the groups, in the order of ``spans``."""
        if not self.spans:
            raise CredoError("Blocks waits for a model: bound(target.structure) gives it one, as every fit does.")
        return self._families if len(self.spans) == len(self.blocks) else (*self._families, self.others)

    def _sizes(self) -> list[int]:
        return [size_of(spans) for spans in self.spans]

    @property
    def has_density(self) -> bool:
        return all(family.has_density for family in self.families)

    @property
    def num_strata(self) -> int:
        return max(family.num_strata for family in self.families)

    def optimiser(self) -> Optimiser:
        """That of all families, or each its own."""
        own = tuple(family.optimiser() for family in self.families)
        return own[0] if all(each == own[0] == Momentum() for each in own) else EachOwn(own)

    def noise(self, key, num_samples: int, dim: int):
        keys = jax.random.split(key, len(self.spans))
        each = zip(self.families, keys, self._sizes(), strict=True)
        return tuple(family.noise(key, num_samples, size) for family, key, size in each)

    def num_samples(self, dim: int, size: int) -> int:
        return max(f.num_samples(own, size) for f, own in zip(self.families, self._sizes(), strict=True))

    def largest_step(self, num_samples: int, dim: int) -> float:
        return min(f.largest_step(num_samples, own) for f, own in zip(self.families, self._sizes(), strict=True))

    def start(self, mean, sd) -> Kind:
        return self._joined(f.start(take(mean, s), take(sd, s)) for f, s in zip(self.families, self.spans, strict=True))

    def around(self, mean, precision) -> Kind:
        return self._joined(
            family.around(take(mean, spans), _within(precision, spans))
            for family, spans in zip(self.families, self.spans, strict=True)
        )

    def center(self, q: Kind):
        return join([family.center(part) for family, part in self._each(q)], self.spans)

    def variances(self, q: Kind):
        return join([family.variances(part) for family, part in self._each(q)], self.spans)

    def rest(self, q: Kind):
        return tuple(family.rest(part) for family, part in self._each(q))

    def draw(self, q: Kind, tangent, z) -> Draw:
        draws = [f.draw(part, xi, own) for (f, part), xi, own in zip(self._each(q), tangent, z, strict=True)]
        return Draw(
            join([draw.u for draw in draws], self.spans),
            _sum(draw.path_log_prob for draw in draws),
            _sum(draw.log_share for draw in draws),
        )

    def entropy(self, q: Kind, tangent):
        each = [family.entropy(part, xi) for (family, part), xi in zip(self._each(q), tangent, strict=True)]
        return None if any(entropy is None for entropy in each) else _sum(each)

    def log_probs(self, q: Kind, u):
        each = zip(self._each(q), self.spans, strict=True)
        terms = [family.log_probs(part, take(u, spans)) for (family, part), spans in each]
        return None if any(term is None for term in terms) else join(terms, self.spans)

    def natural(self, gradient, step_size):
        return tuple(family.natural(g, step_size) for family, g in zip(self.families, gradient, strict=True))

    def careful(self, step, share, longest):
        return tuple(f.careful(own, share, longest) for f, own in zip(self.families, step, strict=True))

    def contract(self, q: Kind) -> Kind:
        return self._joined(family.contract(part) for family, part in self._each(q))

    def move(self, q: Kind, tangent) -> Kind:
        return self._joined(family.move(part, xi) for (family, part), xi in zip(self._each(q), tangent, strict=True))

    def _each(self, q: Kind) -> list[tuple[Family, Kind]]:
        """The groups' families and members."""
        if isinstance(q, Independent):
            return list(zip(self.families, q.parts, strict=True))
        assert isinstance(q, Gaussian)
        assert isinstance(q.scale, BlockDiagonal)
        parts = [Gaussian(take(q.mean, s), block) for s, block in zip(self.spans, q.scale.blocks, strict=True)]
        return list(zip(self.families, parts, strict=True))

    def _joined(self, parts: Iterable[Kind]) -> Kind:
        parts = tuple(parts)
        normals = [part for part in parts if isinstance(part, Gaussian)]
        if len(normals) < len(parts):
            return Independent(parts, self.spans)
        scale = BlockDiagonal(tuple(part.scale for part in normals), self.spans)
        return Gaussian(join([part.mean for part in normals], self.spans), scale)


@dataclass(frozen=True)
class EachOwn(Optimiser):
    """An optimiser for each group."""

    optimisers: tuple[Optimiser, ...]

    def start(self, rest):
        return tuple(each.start(own) for each, own in zip(self.optimisers, rest, strict=True))

    def update(self, direction, state, step_size):
        groups = zip(self.optimisers, direction, state, strict=True)
        pairs = [each.update(g, own, step_size) for each, g, own in groups]
        return tuple(step for step, _ in pairs), tuple(new for _, new in pairs)


def _resolved(names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """A name may be that of a branch: ``weights.last`` for ``weights.last.w`` and ``weights.last.b``."""
    found: list[str] = []
    for name in names:
        within = [each for each in known if each.startswith(f"{name}.")]
        found += [name] if name in known or not within else within
    return tuple(found)


def _places(leaves: tuple[Leaf, ...]) -> dict[str, tuple[int, int]]:
    """Where each parameter stands in the position."""
    ends = list(itertools.accumulate(leaf.size for leaf in leaves))
    return {leaf.name: (end - leaf.size, end) for leaf, end in zip(leaves, ends, strict=True)}


def _merged(spans: list[tuple[int, int]]) -> Spans:
    """Neighbouring spans become one; empty ones go."""
    merged: list[tuple[int, int]] = []
    for first, end in spans:
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], end)
        elif end > first:
            merged.append((first, end))
    return tuple(merged)


def _within(precision: Stored, spans: Spans) -> Stored:
    group = np.concatenate([np.arange(first, end) for first, end in spans])
    return precision[group] if np.ndim(precision) == 1 else precision[np.ix_(group, group)]


def _sum(terms):
    return functools.reduce(operator.add, terms)
