"""The comparison as one self-contained HTML page: no network, no script."""

import html
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from credo._version import __version__
from credo.checkpoint import write_text_atomically
from credo.model.structure import scalar_names
from credo.posterior.posterior import Posterior
from credo.reporting import figures
from credo.reporting.console import COLUMNS, cell, evidence_cell, shown_columns

MAX_PANELS = 24

STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1f; --soft: #6b6b70; --line: #ddd; --paper: #fff; --card: #f6f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf0; --soft: #a0a0a8; --line: #3a3a40; --paper: #17171a; --card: #212126; }
  svg { background: #fff; border-radius: 6px; }
}
body {
  font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 68rem; margin: 2rem auto; padding: 0 1rem;
}
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
.soft { color: var(--soft); }
.answer { background: var(--card); border-radius: 8px; padding: .8rem 1.1rem; margin: 1rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.status { font-weight: 600; }
.pass { color: #2e8b3d; }
.doubtful { color: #b8860b; }
.failed { color: #c0392b; }
svg { max-width: 100%; height: auto; }
code { background: var(--card); padding: .1rem .3rem; border-radius: 4px; }
"""


def write_report(
    path: Path,
    title: str,
    posteriors: Mapping[str, Posterior],
    table,
    *,
    labels: Mapping[str, str] | None = None,
    held_out=None,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Write the page: the answer, the table, the marginals of all methods overlaid, the verdicts, the settings."""
    shown = leading_scalars(posteriors)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<div class="answer">{_answer(posteriors, table)}</div>',
        f'<div class="scroll">{_table(table)}</div>',
        _note(table),
        "<h2>Verdicts</h2>",
        _verdicts(posteriors),
        "<h2>Marginals</h2>",
        f'<p class="soft">{_which(posteriors, shown)}</p>',
        figures.to_svg(figures.marginals(posteriors, shown, labels)),
        *(_calibration(posteriors, held_out) if held_out is not None else []),
        "<h2>Settings</h2>",
        _settings(settings or {}),
    ]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )
    write_text_atomically(path, page)


def leading_scalars(posteriors: Mapping[str, Posterior]) -> list[str]:
    """The scalars whose posterior lies farthest from zero in sds under the last posterior with a spread."""
    posterior = next((p for p in reversed(list(posteriors.values())) if np.any(_flat(p._moments[1], p) > 0)), None)
    if posterior is None:
        posterior = next(iter(posteriors.values()))
    names = [s for leaf in posterior.target.structure.leaves for s in scalar_names(leaf.name, leaf.shape)]
    mean, sd = _flat(posterior._moments[0], posterior), _flat(posterior._moments[1], posterior)
    order = np.argsort(-np.abs(mean) / np.where(sd > 0, sd, np.inf), kind="stable")[:MAX_PANELS]
    return [names[i] for i in sorted(order)]


def _flat(values, posterior: Posterior) -> np.ndarray:
    return np.concatenate([np.ravel(values[leaf.name]) for leaf in posterior.target.structure.leaves])


def _answer(posteriors: Mapping[str, Posterior], table) -> str:
    reference = table.attrs.get("reference")
    if reference is None:
        return "<b>No method here can be vouched for.</b> The verdicts below say what to try next."
    evidence = evidence_cell(table.loc[reference])
    lead = f"<b>Trust {html.escape(reference)}</b>: its verdict is pass."
    others = [
        f"{html.escape(str(name))} is off by {row['mean_distance']:.2f} sd in its worst mean"
        for name, row in table.iterrows()
        if name != reference and np.isfinite(row["mean_distance"])
    ]
    tail = f" Log evidence {evidence}." if evidence != "–" else ""
    return lead + tail + (" " + "; ".join(others) + "." if others else "")


def _table(table) -> str:
    """A column a method and a row a figure, as in the terminal: the verdict first."""
    rows = [row for _, row in table.iterrows()]
    lines = [("verdict", [f'<td class="status {row["verdict"]}">{row["verdict"]}</td>' for row in rows])]
    lines.append(("log evidence", [f"<td>{evidence_cell(row)}</td>" for row in rows]))
    for column in shown_columns(table):
        heading, form = COLUMNS[column]
        lines.append((heading, [f"<td>{cell(row[column], form)}</td>" for row in rows]))
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in table.index)
    body = "".join(f"<tr><td>{html.escape(heading)}</td>{''.join(cells)}</tr>" for heading, cells in lines)
    return f"<table><tr><th></th>{head}</tr>{body}</table>"


def _note(table) -> str:
    reference = table.attrs.get("reference")
    text = "Scores are on held-out rows; higher log score is better, lower Brier, ECE and CRPS are."
    if reference:
        text += f" Distances are of the worst parameter, against {reference}, in its sds."
    return f'<p class="soft">{html.escape(text)}</p>'


def _verdicts(posteriors: Mapping[str, Posterior]) -> str:
    items = []
    for name, posterior in posteriors.items():
        status = posterior.verdict.status
        sentences = " ".join(map(html.escape, posterior.verdict.sentences)) or "Every figure is within its bound."
        items.append(f'<p><b>{html.escape(name)}</b> <span class="status {status}">{status}</span> {sentences}</p>')
    return "".join(items)


def _which(posteriors: Mapping[str, Posterior], shown: Sequence[str]) -> str:
    total = len(next(iter(posteriors.values())).target.structure.scalar_names())
    if total <= len(shown):
        return "All parameters."
    return f"The {len(shown)} of {total} parameters that lie farthest from zero in their own sds."


def _calibration(posteriors: Mapping[str, Posterior], held_out) -> list[str]:
    x, y = held_out
    head = next(iter(posteriors.values())).target.head
    if head is None or head.name != "bernoulli":
        return []
    probs = {name: np.asarray(p.predict(x).mean) for name, p in posteriors.items()}
    return ["<h2>Calibration on held-out rows</h2>", figures.to_svg(figures.reliability(probs, np.asarray(y)))]


def _settings(settings: Mapping[str, str]) -> str:
    packages = {name: version(name) for name in ("jax", "numpyro", "numpy")}
    everything = {**settings, "credo": __version__, **packages, "python": platform.python_version()}
    rows = "".join(
        f"<tr><td>{html.escape(k)}</td><td><code>{html.escape(str(v))}</code></td></tr>" for k, v in everything.items()
    )
    return f'<div class="scroll"><table>{rows}</table></div>'
