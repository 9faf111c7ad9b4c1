"""The comparison as a person reads it in a terminal."""

from collections.abc import Mapping, Sequence

import numpy as np

from credo.posterior.posterior import Posterior

COLORS = {"pass": "green", "doubtful": "yellow", "failed": "red"}
GAP = 2  # spaces between columns
MAX_LINES = 6
HUGE = 1e7  # a column of so many digits leaves no room for others
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


class Terminal:
    """Lines of a run as it goes. On a terminal, what is being worked at stands there until it has ended."""

    def __init__(self):
        from rich.console import Console

        self.console = Console(highlight=False, markup=False)
        self.is_open = False

    def say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)

    def say_some(self, lead: str, lines: Sequence[str], number: int = MAX_LINES) -> None:
        """The first of many lines, and how many more there are."""
        for line in lines[:number]:
            self.say(lead + line)
            lead = " " * len(lead)
        if len(lines) > number:
            self.say(f"{lead}… and {len(lines) - number} more, in the report.")

    def begin(self, line: str) -> None:
        """``line`` stays until ``end``. The loop's own bar, on standard error, may write over it."""
        if self.console.is_terminal:
            self.console.print(line, end="\r", soft_wrap=True)
            self.console.file.flush()

    def end(self, line: str) -> None:
        self.console.print(line + " " * max(0, 12 - len(line)), soft_wrap=True)


def show_comparison(table, posteriors: Mapping[str, Posterior]) -> None:
    """Print a column a method and a row a figure, in as many blocks as the width asks for, then the sentences."""
    from rich.console import Console

    console = Console(highlight=False)
    rows = {str(name): _column(row, shown_columns(table)) for name, row in table.iterrows()}
    headings = ["", "verdict", "log evidence", *(COLUMNS[column][0] for column in shown_columns(table))]
    for names in blocks(rows, headings, console.width):
        console.print(_grid({name: rows[name] for name in names}, headings))
    if table.attrs.get("reference"):
        console.print(f"(mean and sd of the worst parameter, against {table.attrs['reference']})")
    for sentence, names in by_sentence(posteriors).items():
        console.print(f"[bold]{escape(', '.join(names))}[/bold]: {escape(sentence)}", soft_wrap=True)


def blocks(rows: Mapping[str, Sequence[str]], headings: Sequence[str], width: int) -> list[list[str]]:
    """The methods side by side as far as ``width`` characters allow, the rest below; no cell is ever cut."""
    first = max(map(len, headings))
    found, used = [], width + 1
    for name, cells in rows.items():
        needed = GAP + max(len(name), *map(len, cells))
        if used + needed > width:
            found.append([])
            used = first
        found[-1].append(name)
        used += needed
    return found


def _column(row, columns: Sequence[str]) -> list[str]:
    return [row["verdict"], evidence_cell(row), *(cell(row[column], COLUMNS[column][1]) for column in columns)]


def _grid(rows: Mapping[str, Sequence[str]], headings: Sequence[str]):
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    grid.add_column(headings[0], no_wrap=True)
    for name in rows:
        grid.add_column(escape(name), justify="right", no_wrap=True)
    verdicts, *others = zip(*rows.values(), strict=True)
    grid.add_row(headings[1], *(f"[{COLORS[verdict]}]{verdict}[/]" for verdict in verdicts))
    for heading, cells in zip(headings[2:], others, strict=True):
        grid.add_row(heading, *cells)
    return grid


def escape(text: str) -> str:
    """Square brackets as they are, not as rich's colours."""
    return text.replace("[", "\\[")


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
    return format(value, form if abs(value) < HUGE else ".3g") if np.isfinite(value) else "–"
