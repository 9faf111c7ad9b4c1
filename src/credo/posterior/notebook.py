"""A posterior as a notebook shows it: the verdict, what it says to do, and the first rows of the summary."""

import html
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

MAX_ROWS = 20
COLORS = {"pass": "#1d7333", "doubtful": "#8a5a00", "failed": "#b3261e"}  # read on white and on grey
MARKS = {"pass": "✓", "doubtful": "?", "failed": "✕"}


def as_html(posterior: "Posterior") -> str:
    """See ``Posterior._repr_html_``."""
    verdict, seconds = posterior.verdict, posterior.info.get("seconds", {}).get("total")
    badge = (
        f'<span style="color:#fff;background:{COLORS[verdict.status]};border-radius:1em;padding:.1em .7em;'
        f'font-weight:600">{MARKS[verdict.status]} {verdict.status}</span>'
    )
    facts = [f"{type(posterior.kind).__name__} over {posterior.target.dim} coordinates"]
    facts += [f"log evidence {posterior.log_evidence}"] if posterior.log_evidence is not None else []
    facts += [f"{seconds:.1f} s"] if seconds is not None else []
    said = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in verdict.sentences)
    return (
        f"<div><p>{badge} <b>Posterior</b>: {html.escape(', '.join(facts))}</p>"
        f"{f'<ul>{said}</ul>' if said else ''}{_summary(posterior)}</div>"
    )


def _summary(posterior: "Posterior") -> str:
    """The leaves that fit into the rows, and how many scalars are left out."""
    sizes = {leaf.name: int(np.prod(leaf.shape, dtype=int)) for leaf in posterior.target.structure.leaves}
    chosen, shown = [], 0
    for name, size in sizes.items():
        if chosen and shown + size > MAX_ROWS:
            break
        chosen.append(name)
        shown += size
    if not chosen or shown > 1_000:
        return f"<p>{sum(sizes.values()):,} scalars: see summary(names=[…]).</p>"
    frame = posterior.summary(chosen).head(MAX_ROWS)
    heads = "".join(f"<th>{html.escape(str(column))}</th>" for column in frame.columns)
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(str(scalar))}</th>'
        f"{''.join(f'<td>{value:.4g}</td>' for value in row)}</tr>"
        for scalar, row in zip(frame.index, frame.to_numpy(), strict=True)
    )
    rest = sum(sizes.values()) - len(frame)
    more = f"<p>… and {rest:,} scalars more: see summary().</p>" if rest else ""
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}"
