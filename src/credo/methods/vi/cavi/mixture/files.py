"""A fitted mixture as a file: its statistics, its prior and its figures, as arrays and text."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from credo.checkpoint import read_arrays, write_arrays
from credo.methods.vi.cavi.mixture.factors import NormalWishartFactor, PointFactor
from credo.methods.vi.cavi.mixture.priors import Units
from credo.methods.vi.cavi.mixture.statistics import Features
from credo.posterior.encoding import Reader, Writer
from credo.status import CredoError, Estimate, Verdict

if TYPE_CHECKING:
    from credo.methods.vi.cavi.mixture.answer import MixturePosterior

KIND = "mixture of Gaussians"


def save(posterior: "MixturePosterior", path) -> None:
    """Write ``posterior`` to ``path``, in one step."""
    writer, factor = Writer(), posterior.factor
    prior = {f.name: getattr(factor, f.name) for f in dataclasses.fields(factor) if f.name != "features"}
    header = {
        "dim": factor.features.dim,
        "is_full": factor.features.is_full,
        "is_point": isinstance(factor, PointFactor),
        "prior": writer.encode(prior),
        "statistics": writer.encode(posterior.statistics),
        "units": writer.encode(dict(posterior.units._asdict())),
        "verdict": writer.encode(dataclasses.asdict(posterior.verdict)),
        "info": writer.encode(posterior.info),
        "log_evidence": None if posterior.log_evidence is None else writer.encode(vars(posterior.log_evidence)),
    }
    write_arrays(path, writer.arrays, header, kind=KIND)


def load(path) -> "MixturePosterior":
    """The posterior in the file ``path``."""
    from credo.methods.vi.cavi.mixture.answer import MixturePosterior

    arrays, header = read_arrays(path, kind=KIND)
    reader = Reader(arrays)
    try:
        features = Features(header["dim"], header["is_full"])
        prior: dict[str, Any] = reader.decode(header["prior"])
        factor = (PointFactor if header["is_point"] else NormalWishartFactor)(features, **prior)
        evidence = header["log_evidence"]
        posterior = MixturePosterior(
            factor,
            np.asarray(reader.decode(header["statistics"])),
            Units(**reader.decode(header["units"])),
            info=reader.decode(header["info"]),
            log_evidence=None if evidence is None else Estimate(**reader.decode(evidence)),
        )
        posterior.verdict = Verdict(**reader.decode(header["verdict"]))
        return posterior
    except (KeyError, TypeError, ValueError) as error:
        raise CredoError(f"{path} is damaged ({type(error).__name__}: {error}): restore it from a copy.") from error
