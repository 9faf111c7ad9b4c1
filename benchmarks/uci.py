"""Nine regression tables: RMSE and test log likelihood of Bayesian networks, beside the published rows.

python benchmarks/uci.py --data DIR [--tables boston,yacht] [--splits 20] [--methods "MAP;ensemble"] [--json FILE]

50 ReLU units (100 for protein), the standard splits. Hyperparameters are chosen by the log likelihood of a fifth of the
training rows of the same split; the method with them is then fitted to all training rows and sees the test rows once.
Each result is a line of FILE as it comes: a run that was interrupted goes on where it was. ``--report``: tables alone.
``--quick``: chains of an eighth of the length. ``--skip-validation``: methods with nothing to choose are fitted once,
and do not stand for the choice among methods.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from processes import machine, say
from uci_data import HIDDEN, TABLES, Scaled, Split, inner, num_splits, read, splits
from uci_report import report


def measure(predictive, data: Scaled) -> dict[str, float]:
    """In the units of the table."""
    log_likelihood = np.mean(predictive.log_prob(data.y_new)) - np.log(data.unit)
    rmse = data.unit * np.sqrt(np.mean((predictive.mean - data.y_new) ** 2))
    return {"log_likelihood": float(log_likelihood), "rmse": float(rmse)}


def choose(entry, split: Split, index: int, request) -> tuple[dict[str, float], float]:
    """(the setting with the best log likelihood on the validation rows, that)."""
    data = Scaled.of(inner(split.train, index))
    best: tuple[dict[str, float], float] = ({}, -np.inf)
    for setting, predictive in entry.tried(request._replace(data=data)):
        found = measure(predictive, data)["log_likelihood"]
        if found > best[1]:
            best = setting, found
    return best


def run(name: str, table: str, index: int, split: Split, is_quick: bool, skips: bool) -> dict | None:
    """One method on one split; None where the table is too large for it."""
    from uci_methods import METHODS, Request

    entry = METHODS[name]
    if len(split.train.y) > entry.most_rows:
        return None
    begun = time.process_time()
    data = Scaled.of(split)
    request = Request(data, data.x.shape[1], HIDDEN.get(table, 50), {}, index, is_quick, table)
    if skips and not entry.has_choice:
        setting, validation = {}, None
    else:
        setting, validation = choose(entry, split, index, request)
    found = measure(entry.predict(request._replace(setting=setting)), data)
    seconds = time.process_time() - begun
    where = {"table": table, "split": index, "method": name, "quick": is_quick}
    return where | found | {"validation": validation, "setting": setting, "seconds": seconds}


def lines(path: Path) -> list[dict]:
    """The results so far; a line that was cut short is not among them."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def go_on(args, methods: list[str]) -> None:
    import jax

    done = {(r["table"], r["split"], r["method"]) for r in lines(args.json) if "error" not in r}
    for table in args.tables.split(","):
        jax.clear_caches()  # programs of other shapes
        for index, split in enumerate(splits(read(args.data, table), min(args.splits, num_splits(table)))):
            for name in methods:
                if (table, index, name) in done:
                    continue
                try:
                    found = run(name, table, index, split, args.quick, args.skip_validation)
                except Exception as error:  # a method that fails loses its own row alone
                    words = f"{type(error).__name__}: {error}"
                    found = {"table": table, "split": index, "method": name, "error": words}
                if found is not None:
                    with args.json.open("a") as file:
                        file.write(json.dumps(found) + "\n")
                    say(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--methods", help="names divided by semicolons; all where left out")
    parser.add_argument("--json", type=Path, default=Path("uci.jsonl"))
    for flag in ("--quick", "--skip-validation", "--report"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    if not args.report:
        from uci_methods import METHODS

        warnings.simplefilter("ignore")
        methods = [name.strip() for name in args.methods.split(";")] if args.methods else list(METHODS)
        say(machine())
        go_on(args, methods)
    print(report(lines(args.json)))


if __name__ == "__main__":
    main()
