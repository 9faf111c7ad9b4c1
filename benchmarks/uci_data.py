"""The nine regression tables of Bayesian deep learning, their standard splits, and what was published of them.

``DIR/NAME.npz`` holds X (N, D) and y (N,), rows in the standard order (Hernández-Lobato & Adams 2015).
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

TABLES: tuple[str, ...] = "boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht"
NUM_SPLITS = 20
FEWER = {"protein": 5}
HIDDEN = {"protein": 100}  # 50 elsewhere
VALIDATION = 0.2  # of the training rows

# Means over the splits as published; RMSE of dropout alone.
DROPOUT_RMSE: dict[str, float] = dict(zip(TABLES, (2.90, 4.82, 0.54, 0.08, 0.00, 4.01, 4.27, 0.62, 0.67), strict=True))
PUBLISHED: dict[str, dict[str, float]] = {
    "dropout, tuned": dict(zip(TABLES, (-2.40, -2.93, -1.21, 1.14, 4.45, -2.80, -2.87, -0.93, -1.25), strict=True)),
    "deep ensembles": dict(zip(TABLES, (-2.41, -3.06, -1.38, 1.20, 5.63, -2.79, -2.83, -0.94, -1.18), strict=True)),
    "DVI": dict(zip(TABLES, (-2.41, -3.06, -1.01, 1.13, 6.29, -2.80, -2.85, -0.90, -0.47), strict=True)),
}


class Rows(NamedTuple):
    """Inputs (M, D) and outcomes (M,) in the units of the table."""

    x: np.ndarray
    y: np.ndarray


class Split(NamedTuple):
    """What is fitted, and what is predicted."""

    train: Rows
    test: Rows


def read(folder: Path, table: str) -> Rows:
    with np.load(folder / f"{table}.npz") as found:
        return Rows(found["X"].astype(np.float64), found["y"].astype(np.float64))


def num_splits(table: str) -> int:
    return FEWER.get(table, NUM_SPLITS)


def splits(rows: Rows, number: int) -> Iterator[Split]:
    """The first ``number`` standard splits."""
    random, size = np.random.RandomState(1), len(rows.y)
    for _ in range(number):
        order = random.choice(size, size, replace=False)
        yield divide(rows, order, round(0.9 * size))


def inner(train: Rows, index: int) -> Split:
    """Training rows divided once more: hyperparameters are chosen on the last of them."""
    order = np.random.RandomState(1_000 + index).permutation(len(train.y))
    return divide(train, order, round((1 - VALIDATION) * len(order)))


def divide(rows: Rows, order: np.ndarray, size: int) -> Split:
    return Split(*(Rows(rows.x[part], rows.y[part]) for part in (order[:size], order[size:])))


class Scaled(NamedTuple):
    """A split with columns and outcomes centred and in units of the training rows' sds; constant columns are zero."""

    x: np.ndarray
    y: np.ndarray
    x_new: np.ndarray
    y_new: np.ndarray
    unit: float

    @classmethod
    def of(cls, split: Split) -> "Scaled":
        centre, sd = split.train.x.mean(axis=0), split.train.x.std(axis=0)
        sd = np.where(sd > 1e-12 * np.abs(split.train.x).max(axis=0), sd, math.inf)
        middle, unit = split.train.y.mean(), split.train.y.std()
        x, x_new = ((rows.x - centre) / sd for rows in split)
        return cls(x, (split.train.y - middle) / unit, x_new, (split.test.y - middle) / unit, float(unit))
