"""What a comparison leaves in its folder: the table, a file a posterior, figures, verdicts and the report."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from credo.checkpoint import write_text_atomically
from credo.models.regression import Prepared
from credo.posterior.posterior import Posterior
from credo.predict import Predictive
from credo.reporting import recipe
from credo.reporting.comparison import answering
from credo.reporting.page.story import Story
from credo.reporting.report import write_report

FIGURES, VERDICTS, REPORT = "comparison.csv", "verdicts.json", "report.html"
SUBJECTS = {
    "gaussian": "{outcome}",
    "bernoulli": "the probability of {outcome}",
    "poisson": "the rate of {outcome}",
    "categorical": "",  # each effect names its class
}
UNITS = {
    "gaussian": "Change of {outcome}",
    "bernoulli": "Change of the log odds of {outcome}",
    "poisson": "Change of the log rate of {outcome}",
    "categorical": "Change of the log weight of a class against the average class",
}


class Results:
    """The folder ``out``; every file in it appears whole or not at all. ``command``: what to type to get it again."""

    def __init__(self, out: Path, prepared: Prepared, command: str):
        self.out, self.prepared, self.command = out, prepared, command

    def write_table(self, methods: Iterable[str], *, formula: str | None, exposure: str | None) -> list[str]:
        """What a comparison by ``methods`` left of another table is removed before: the names of its files."""
        path, fresh = self.out / recipe.FILE, self.out / f".{recipe.FILE}"
        recipe.save_recipe(fresh, self.prepared, formula=formula, exposure=exposure)
        stale = []
        if path.is_file() and path.read_bytes() != fresh.read_bytes():
            of_before = (self.out / name for name in (VERDICTS, FIGURES, REPORT, *map(_file, methods)))
            stale = [each for each in of_before if each.is_file()]
        for each in stale:
            each.unlink()
        fresh.replace(path)
        return [each.name for each in stale]

    def write_posterior(self, name: str, posterior: Posterior) -> None:
        posterior.save(self.out / _file(name))

    def kept(self, names: Sequence[str]) -> str:
        """What lies in the folder when a run is stopped: a sentence."""
        if not names:
            return "Stopped before any method had ended: there is no posterior yet."
        files = ", ".join(map(_file, names))
        return f"Stopped: {files} in {self.out} {'is' if len(names) == 1 else 'are'} whole; there is no report yet."

    def write(self, posteriors: Mapping[str, Posterior], compared, predictives: Mapping[str, Predictive], y) -> None:
        """comparison.csv, verdicts.json and report.html."""
        write_text_atomically(self.out / FIGURES, compared.to_csv(index_label="method"))
        best = answering(posteriors)
        verdicts = {
            name: {
                "status": posterior.verdict.status,
                "sentences": posterior.verdict.sentences,
                "is_answer": name == best,
            }
            for name, posterior in posteriors.items()
        }
        write_text_atomically(self.out / VERDICTS, json.dumps(verdicts, indent=2, ensure_ascii=False))
        story = story_of(self.prepared, self.command)
        write_report(self.out / REPORT, posteriors, compared, story, predictives, y)


def _file(method: str) -> str:
    return f"{method}.credo"


def story_of(prepared: Prepared, command: str) -> Story:
    """The table in words."""
    table = prepared.table
    outcome = event(prepared)
    labels = prepared.labels
    hidden = ("coefficients[",) if table.family == "categorical" else ()  # known up to a constant: contrasts say more
    effects = [scalar for scalar in labels if scalar.startswith("contrasts[" if hidden else "coefficients[")]
    others = [scalar for scalar in prepared.model.structure.scalar_names() if scalar not in labels]
    others += [s for s in labels if s not in effects and "_standardised[" not in s and not s.startswith(hidden)]
    rows = f"{len(prepared.rows):,} of {len(table.y):,} rows fitted."
    unit = UNITS[table.family].format(outcome=outcome)
    return Story(
        title=f"{table.target} in {table.name}",
        subtitle=" ".join((prepared.describe(), rows, *table.notes)),
        labels=labels,
        effects=effects or None,
        others=others,
        effects_note=f"{unit} per sd of the column, or between its two values.",
        outcome=SUBJECTS[table.family].format(outcome=outcome),
        priors=prepared.priors,
        settings={"table": table.name, "outcome": table.target, "family": table.family},
        reproduce=command,
    )


def event(prepared: Prepared) -> str:
    """What the model gives the probability, rate or size of."""
    table = prepared.table
    if table.family != "bernoulli" or table.classes[1] in ("1", "True", "yes", "true"):
        return table.target
    return f"{table.target} = {table.classes[1]}"
