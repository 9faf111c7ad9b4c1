"""``credo predict``: what a fitted posterior says of new rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from credo.checkpoint import write_text_atomically
from credo.fitting import load
from credo.models.columns import drop_missing, is_numeric, require
from credo.models.reading import read_frame
from credo.models.regression import Prepared
from credo.predict import Predictive
from credo.reporting.recipe import FILE, load_prepared
from credo.reporting.results import VERDICTS
from credo.status import CredoError

MASS = 0.9  # of the interval


def predict_table(source: Path, new: str, out: Path, *, missing: str | None = None) -> None:
    """Predict the rows of the CSV file ``new`` by the posterior in ``source`` and write them to the CSV file ``out``.

    ``source``: a file of a posterior, or the folder of a comparison, whose trusted method then predicts. ``missing``:
    "drop" predicts the complete rows alone, with a column of their numbers in ``new``, from 0.
    """
    from credo.reporting.console import Terminal

    if out.is_dir():
        raise CredoError(f"{str(out)!r} is a folder: name the file of the predictions with --out.")
    if not out.parent.is_dir():
        raise CredoError(f"There is no folder {str(out.parent)!r} for the predictions: make it, or choose another.")
    path = chosen_posterior(source)
    prepared = load_prepared(path.parent / FILE)
    frame, x, notes = _complete(new, prepared, missing)
    posterior = load(path, prepared.model)
    predictive = posterior.predict(x)
    columns = prediction_columns(predictive, prepared)
    given = {name: _other_name(name, [*columns, *frame.columns]) for name in columns if name in frame.columns}
    table = frame.rename(columns=given).assign(**columns)
    write_text_atomically(out, table.to_csv(index=False))
    terminal = Terminal()
    if given:
        terminal.say(f"Columns of {new} that are named as predictions are written as {', '.join(given.values())}.")
    for note in notes:
        terminal.say(note)
    if posterior.verdict.status != "pass":
        terminal.say(f"{path.stem} is {posterior.verdict.status}: {' '.join(posterior.verdict.sentences)}")
    terminal.say(f"Wrote {out}: {len(frame):,} rows by {path.stem}, with {', '.join(columns)}.")


def _complete(new: str, prepared: Prepared, missing: str | None) -> tuple[Any, Any, tuple[str, ...]]:
    """(rows that have all that the model reads, what it reads of them, notes on the others)."""
    needed, fitted = prepared.table.required, prepared.table.frame
    _, frame, _, _ = read_frame(new, [name for name in needed if not is_numeric(fitted[name])])
    require(frame, needed)
    by = [column for group in prepared.table.groups for column in group.group.by if frame[column].isna().any()]
    is_complete = frame[list(needed)].notna().all(axis=1).to_numpy()
    try:
        rows, notes = drop_missing(Path(new).name, frame, needed, missing)
    except CredoError as error:
        if not by or missing is not None:
            raise
        raise CredoError(
            f"{error} A row without {by[0]!r} can also be predicted as a new group: give it a name of its own there, "
            "such as 'unknown'."
        ) from error
    try:
        x = prepared.inputs(rows)
    except CredoError as error:
        if is_complete.all():
            raise
        raise CredoError(f"{error} Rows are counted without the {np.sum(~is_complete)} left out.") from error
    if missing == "drop":
        rows.insert(0, "row" if "row" not in rows.columns else "row number", np.flatnonzero(is_complete))
    return rows, x, notes


def _other_name(name: str, taken: list[str]) -> str:
    while (name := f"{name} (given)") in taken:
        pass
    return name


def chosen_posterior(source: Path) -> Path:
    """The file itself, or that of the method to trust in a folder."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise CredoError(
            f"{str(source)!r} is neither a file nor a folder: name a posterior, or what credo compare wrote."
        )
    try:
        verdicts = json.loads((source / VERDICTS).read_text(encoding="utf-8"))
        names = [name for name, verdict in verdicts.items() if verdict.get("is_answer")]
    except (OSError, ValueError, AttributeError) as error:
        raise CredoError(
            f"The folder {str(source)!r} holds no comparison that was ended (there is no readable {VERDICTS}): name "
            "one posterior file in it."
        ) from error
    if not names:
        raise CredoError(
            f"No method in {str(source)!r} can be trusted, so none predicts by itself: name one posterior file in it."
        )
    return source / f"{names[0]}.credo"


def prediction_columns(predictive: Predictive, prepared: Prepared) -> dict[str, np.ndarray]:
    """The columns beside the new rows: probabilities and the likeliest class, or mean, sd and interval."""
    table, mean = prepared.table, np.asarray(predictive.mean)
    if table.family in ("bernoulli", "categorical"):
        probs = np.column_stack([1.0 - mean, mean]) if table.family == "bernoulli" else mean
        epistemic = np.asarray(predictive.epistemic)
        named = {f"probability of {label}": probs[:, k] for k, label in enumerate(table.classes)}
        likeliest = np.argmax(probs, axis=1)
        spread = epistemic if epistemic.ndim == 1 else np.take_along_axis(epistemic, likeliest[:, None], axis=1)[:, 0]
        return {
            f"predicted {table.target}": np.asarray(table.classes)[likeliest],
            **named,
            "epistemic sd": np.sqrt(spread),
        }
    low, high = predictive.interval(MASS)
    return {
        f"predicted {table.target}": mean,
        "sd": np.sqrt(np.asarray(predictive.variance)),
        "epistemic sd": np.sqrt(np.asarray(predictive.epistemic)),
        "5 %": np.asarray(low),
        "95 %": np.asarray(high),
    }
