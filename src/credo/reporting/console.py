"""The comparison as a person reads it in a terminal."""

from collections.abc import Mapping

import numpy as np

from credo.posterior.posterior import Posterior

COLORS = {"pass": "green", "doubtful": "yellow", "failed": "red"}
COLUMNS = {  # column -> (heading, format)
    "max_r_hat": ("R̂", ".3f"),
    "min_ess_bulk": ("ESS", ".0f"),
    "pareto_k": ("k̂", ".2f"),
    "log_score": ("log score", ".3f"),
    "brier": ("Brier", ".4f"),
    "ece": ("ECE", ".3f"),
    "crps": ("CRPS", ".3g"),
    "coverage_90": ("cover 90 %", ".2f"),
    "mean_distance": ("Δmean/sd", ".2f"),
    "sd_ratio": ("sd ratio", ".2f"),
    "compile_s": ("compile s", ".1f"),
    "run_s": ("run s", ".2f"),
}


def show_comparison(table, posteriors: Mapping[str, Posterior]) -> None:
    """Print the table, then each verdict's sentences."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    columns = [c for c in COLUMNS if c in table.columns and not table[c].isna().all()]
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("method")
    grid.add_column("log evidence", justify="right")
    for column in columns:
        grid.add_column(COLUMNS[column][0], justify="right")
    grid.add_column("verdict")
    for name, row in table.iterrows():
        cells = [_cell(row[column], COLUMNS[column][1]) for column in columns]
        color = COLORS[row["verdict"]]
        grid.add_row(str(name), evidence_cell(row), *cells, f"[{color}]{row['verdict']}[/{color}]")
    console.print(grid, soft_wrap=False)
    if table.attrs.get("reference"):
        console.print(f"Δmean/sd and sd ratio: worst parameter against {table.attrs['reference']}.")
    for name, posterior in posteriors.items():
        for sentence in posterior.verdict.sentences:
            console.print(f"[bold]{name}[/bold]: {sentence}", soft_wrap=True)


def evidence_cell(row) -> str:
    """``-101.3 (laplace)``, ``≥ -104.2``, ``-101.1 ± 0.02``."""
    value, error, kind = row["log_evidence"], row["log_evidence_error"], row["log_evidence_kind"]
    if not kind or not np.isfinite(value):
        return "–"
    bound = {"lower bound": "≥ ", "upper bound": "≤ "}.get(kind, "")
    spread = f" ± {error:.2g}" if np.isfinite(error) and error > 0 else ""
    return f"{bound}{value:.2f}{spread}" + (" (laplace)" if kind == "laplace" else "")


def _cell(value, form: str) -> str:
    return "–" if value is None or (isinstance(value, float) and not np.isfinite(value)) else format(value, form)
