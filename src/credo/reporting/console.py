"""The comparison as a person reads it in a terminal."""

from collections.abc import Mapping

import numpy as np

from credo.posterior.posterior import Posterior

COLORS = {"pass": "green", "doubtful": "yellow", "failed": "red"}
COLUMNS = {  # column -> (heading, format)
    "max_r_hat": ("R̂, worst", ".3f"),
    "min_ess_bulk": ("ESS, worst", ".0f"),
    "pareto_k": ("Pareto k̂", ".2f"),
    "log_score": ("log score", ".3f"),
    "brier": ("Brier", ".4f"),
    "ece": ("ECE", ".3f"),
    "crps": ("CRPS", ".3g"),
    "coverage_90": ("90 % coverage", ".2f"),
    "mean_distance": ("mean off, sd", ".2f"),
    "sd_ratio": ("sd ratio", ".2f"),
    "compile_s": ("compile, s", ".1f"),
    "run_s": ("run, s", ".2f"),
}


def shown_columns(table) -> list[str]:
    """The columns that say something about at least one posterior."""
    return [c for c in COLUMNS if c in table.columns and not table[c].isna().all()]


def show_comparison(table, posteriors: Mapping[str, Posterior]) -> None:
    """Print a column a method and a row a figure, which fits any terminal, then each verdict's sentences."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2))
    grid.add_column("")
    for name in table.index:
        grid.add_column(str(name), justify="right", no_wrap=True)
    rows = [row for _, row in table.iterrows()]
    grid.add_row("verdict", *(f"[{COLORS[row['verdict']]}]{row['verdict']}[/]" for row in rows))
    grid.add_row("log evidence", *(evidence_cell(row) for row in rows))
    for column in shown_columns(table):
        heading, form = COLUMNS[column]
        grid.add_row(heading, *(cell(row[column], form) for row in rows))
    console.print(grid)
    if table.attrs.get("reference"):
        console.print(f"(mean and sd of the worst parameter, against {table.attrs['reference']})")
    for sentence, names in by_sentence(posteriors).items():
        console.print(f"[bold]{', '.join(names)}[/bold]: {sentence}", soft_wrap=True)


def by_sentence(posteriors: Mapping[str, Posterior]) -> dict[str, list[str]]:
    """Each sentence once, with the names of the posteriors that it is said of."""
    said: dict[str, list[str]] = {}
    for name, posterior in posteriors.items():
        for sentence in posterior.verdict.sentences:
            said.setdefault(sentence, []).append(name)
    return said


def evidence_cell(row) -> str:
    """``-101.3 (laplace)``, ``≥ -104.2``, ``-101.1 ± 0.02``."""
    value, error, kind = row["log_evidence"], row["log_evidence_error"], row["log_evidence_kind"]
    if not kind or not np.isfinite(value):
        return "–"
    bound = {"lower bound": "≥ ", "upper bound": "≤ "}.get(kind, "")
    spread = f" ± {error:.2g}" if np.isfinite(error) and error > 0 else ""
    return f"{bound}{value:.2f}{spread}" + (" (laplace)" if kind == "laplace" else "")


def cell(value, form: str) -> str:
    """A figure, or a dash where it does not apply."""
    return format(value, form) if np.isfinite(value) else "–"
