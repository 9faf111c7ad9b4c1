"""The tables and bars that ``uci.py`` prints, from its lines."""

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from uci_data import DROPOUT_RMSE, PUBLISHED, TABLES, num_splits

BEST = {name: max(row[name] for row in PUBLISHED.values()) for name in TABLES}
CHOSEN = "chosen by validation"
HEADS = "HMC, noise by input, head by validation"
BY_INPUT = "HMC, noise by input", "HMC, t noise by input"
ROUNDING = 0.005  # of a published figure
QUICK = "Some lines are of a quick run: chains of an eighth, and 400 epochs of dropout on power and protein."
Scores = dict[str, dict[str, dict[int, dict]]]  # method -> table -> split -> line
NOTE = (
    "Mean ± standard error over the splits run (their number in brackets). Published rows are means over all splits as "
    "their authors report them; they did not share our tuning, networks or budget. Noise by a t, and the ensemble with "
    "it, were added after test scores of other methods had been seen: validation chooses among candidates of which "
    "some are there for that reason."
)


def gather(lines: list[dict]) -> Scores:
    scores: Scores = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        if "error" not in line:
            scores[line["method"]][line["table"]][line["split"]] = line
    heads = {name: scores[name] for name in BY_INPUT if name in scores}
    rows = {HEADS: heads, CHOSEN: scores}
    return scores | {row: found for row, among in rows.items() if len(among) > 1 and (found := chosen(among))}


def chosen(scores: Scores) -> dict[str, dict[int, dict]]:
    """For each split the method with the best log likelihood on validation rows of that split, on whose rows all were
    judged; splits that a method lacks, though it was run on the table, are left out, and tables of one method."""
    found: dict[str, dict[int, dict]] = defaultdict(dict)
    for table in TABLES:
        candidates = [judged(tables[table]) for tables in scores.values() if tables.get(table)]
        for split in set.intersection(*map(set, candidates)) if len(candidates) > 1 else ():
            found[table][split] = max((each[split] for each in candidates), key=lambda line: line["validation"])
    return found


def judged(by_split: dict[int, dict]) -> dict[int, dict]:
    """Splits whose validation rows were not skipped."""
    return {split: line for split, line in by_split.items() if line["validation"] is not None}


def values(by_split: dict[int, dict], name: str) -> np.ndarray:
    return np.array([by_split[i][name] for i in sorted(by_split)])


def mean_and_error(found: np.ndarray) -> tuple[float, float]:
    """NaN for the error of a single split."""
    error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else math.nan
    return float(found.mean()), float(error)


def cell(by_split: dict[int, dict] | None, name: str, digits: int) -> str:
    if not by_split:
        return "–"
    mean, error = mean_and_error(values(by_split, name))
    return f"{mean:.{digits}f} ± {error:.{digits}f} ({len(by_split)})".replace("nan", "–")


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [columns, ["---"] * len(columns), *rows])


def score_table(scores: Scores, name: str, digits: int, published: Mapping[str, Mapping[str, float]]) -> str:
    rows = [[m, *(cell(tables.get(t), name, digits) for t in TABLES)] for m, tables in scores.items()]
    rows += [[f"*{m}*", *(f"{row[t]:.2f}" for t in TABLES)] for m, row in published.items()]
    return markdown(["method", *TABLES], rows)


def wins(tables: dict[str, dict[int, dict]]) -> tuple[list[str], list[str]]:
    """Tables above the best published log likelihood, and those above it by more than one standard error."""
    above, beyond = [], []
    for table in TABLES:
        if tables.get(table):
            mean, error = mean_and_error(values(tables[table], "log_likelihood"))
            above += [table] if mean > BEST[table] else []
            beyond += [table] if mean - error > BEST[table] else []
    return above, beyond


def win_table(scores: Scores) -> str:
    rows = []
    for method, tables in scores.items():
        above, beyond = wins(tables)
        num_run = sum(1 for table in TABLES if tables.get(table))
        rows.append([method, str(num_run), f"{len(above)}: {', '.join(above)}", f"{len(beyond)}: {', '.join(beyond)}"])
    return markdown(["method", "tables run", "above the best published", "by more than one standard error"], rows)


def paired_table(scores: Scores, reference: str) -> str:
    """Log likelihood of the method less that of ``reference``, over the splits that both have."""
    rows = []
    for method, tables in scores.items():
        if method == reference:
            continue
        cells = []
        for table in TABLES:
            own, other = tables.get(table, {}), scores[reference].get(table, {})
            common = sorted(set(own) & set(other))
            gap = np.array([own[i]["log_likelihood"] - other[i]["log_likelihood"] for i in common])
            cells.append("{:+.3f} ± {:.3f}".format(*mean_and_error(gap)).replace("nan", "–") if common else "–")
        rows.append([method, *cells])
    return markdown([f"less {reference}", *TABLES], rows)


def dropout_bar(scores: Scores) -> str:
    """Our dropout beside the published row, in its own standard errors."""
    name = next((m for m in scores if "dropout" in m.lower()), None)
    if name is None:
        return "Dropout was not run: its bar is open."
    cells = []
    for figure, row in (("log_likelihood", PUBLISHED["dropout, tuned"]), ("rmse", DROPOUT_RMSE)):
        for table in TABLES:
            if len(scores[name].get(table, {})) > 1:
                mean, error = mean_and_error(values(scores[name][table], figure))
                off = np.copysign(max(abs(mean - row[table]) - ROUNDING, 0.0), mean - row[table]) / error
                number = str(len(scores[name][table]))
                ours = f"{mean:.4f} ± {error:.4f}"
                cells.append([figure, table, number, ours, f"{row[table]:.2f}", f"{off:+.1f}", str(abs(off) <= 2)])
    columns = [
        "figure",
        "table",
        "splits",
        "ours",
        "published",
        "off by (standard errors, beyond rounding)",
        "within two",
    ]
    return markdown(columns, cells)


def best_method(scores: Scores) -> str:
    return max((m for m in scores if m not in (HEADS, CHOSEN)), key=lambda m: len(wins(scores[m])[0]))


def bars(scores: Scores) -> str:
    best = best_method(scores)
    lines = [bar(f"one method for all tables, named after its test scores ({best})", scores[best], 5)]
    if scores.get(HEADS):
        lines.append(
            bar(f"one method for all tables, its head by validation in each split ({HEADS})", scores[HEADS], 5)
        )
    if scores.get(CHOSEN):
        lines.append(bar("the method chosen on validation rows of each split", scores[CHOSEN], 7))
    return "\n".join(lines)


def bar(what: str, tables: dict[str, dict[int, dict]], wanted: int) -> str:
    number, beyond = (len(found) for found in wins(tables))
    short = [table for table in TABLES if len(tables.get(table, {})) < num_splits(table)]
    so_far = f" {', '.join(short)} have fewer than the standard splits." if short else ""
    verdict = ("so far " if short else "") + ("reached" if number >= wanted else "NOT reached")
    counts = f"above on {number} of 9, {wanted} asked; by more than one standard error on {beyond}."
    return f"- {verdict}: {what}: {counts}{so_far}"


def report(lines: list[dict]) -> str:
    scores = gather(lines)
    if not scores:
        return "No results yet."
    errors = [f"- {r['method']}, {r['table']}, split {r['split']}: {r['error']}" for r in lines if "error" in r]
    parts = [
        "## Test log likelihood\n",
        score_table(scores, "log_likelihood", 3, PUBLISHED),
        "\n" + NOTE,
        *(["\n" + QUICK] if any(r.get("quick") for r in lines) else []),
        "\n## RMSE\n",
        score_table(scores, "rmse", 4, {"dropout, tuned": DROPOUT_RMSE}),
        "\n## Above the best of the three published log likelihoods\n",
        win_table(scores),
        f"\n## Paired differences in log likelihood to {best_method(scores)}\n",
        paired_table(scores, best_method(scores)),
        "\n## Bars\n",
        bars(scores),
        "\n" + dropout_bar(scores),
    ]
    return "\n".join(parts + (["\n## Failed\n", *errors] if errors else []))
