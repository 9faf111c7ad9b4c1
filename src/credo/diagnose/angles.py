"""Angles whose mass lies where the circle is cut: neighbours on it are the two ends of the line of their values."""

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from credo.arguments import as_key
from credo.model.structure import Structure, scalar_names
from credo.posterior.kinds import Draws, Kind, Point
from credo.posterior.marginals import draw_weights, sample_positions
from credo.precision import in_double
from credo.storage import column_blocks, release

NEAR = 0.3  # radians from ±π
MOST = 0.05  # of the mass; of a uniform angle 10 % lies there
SOME = 0.005  # at the end that has less
EPS = 1e-6  # π in single precision is larger
NUM_DRAWS = 1_000  # of a kind that stores none


@in_double
def angle_sentence(kind: Kind, structure: Structure) -> str | None:
    """Of the angle with most of its mass next to ±π."""
    places, names, first = [], [], 0
    for leaf in structure.leaves:
        if leaf.support == "circular":
            places += range(first, first + leaf.size)
            names += scalar_names(leaf.name, leaf.shape)
        first += leaf.size
    if not places or isinstance(kind, Point):
        return None
    shares = _shares(kind, np.array(places))
    worst = int(np.argmax(shares))
    if shares[worst] <= MOST:
        return None
    return (
        f"{names[worst]!r} is an angle, and {shares[worst]:.0%} of its mass lies next to ±π, where the circle is cut: "
        "its mean, sd and quantiles are those of numbers on a line. Measure it from another direction, or report its "
        "cosine and sine (derived=)."
    )


def cut(values: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " k"]:
    """Of draws of quantities that may be angles, arctan2 of two parameters say: the share next to ±π.

    0 where values lie beyond, or next to one end alone.
    """
    is_high, is_low = values > np.pi - NEAR, values < NEAR - np.pi
    rarer = np.minimum(is_high.mean(axis=0), is_low.mean(axis=0))
    is_angle = (np.abs(values).max(axis=0) <= np.pi * (1 + EPS)) & (rarer > SOME)
    return np.where(is_angle, (is_high | is_low).mean(axis=0), 0.0)


def _shares(kind: Kind, places: np.ndarray) -> np.ndarray:
    """Of the mass of each of these coordinates, what lies next to ±π."""
    weights = draw_weights(kind)
    if isinstance(kind, Draws):
        positions = np.asarray(kind.positions).reshape(-1, kind.positions.shape[-1])
    else:
        positions = np.asarray(sample_positions(kind, as_key(0), NUM_DRAWS))
    shares = []
    for columns in column_blocks(len(positions), len(places)):
        angles = np.pi * (2 * expit(positions[:, places[columns]].astype(float)) - 1)
        shares.append(np.average(np.abs(angles) > np.pi - NEAR, axis=0, weights=weights))
        release(positions)
    return np.concatenate(shares)
