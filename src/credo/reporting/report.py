"""The comparison as one self-contained HTML page: no network, no script."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from credo.checkpoint import write_text_atomically
from credo.posterior.posterior import Posterior
from credo.predict import Predictive
from credo.reporting.comparison import answering, check_alike, tabulate
from credo.reporting.page import pictures, tables
from credo.reporting.page.answer import first_screen
from credo.reporting.page.markup import Raw, Section, join, paragraph, tag, text
from credo.reporting.page.story import Story, effects_of
from credo.reporting.plots.panels import as_posteriors, leading_scalars, scalars_of
from credo.reporting.scores import pair, predict_held_out
from credo.reporting.words import priors_in_words


def report(
    posteriors: Mapping[str, Posterior],
    held_out=None,
    *,
    path: str | Path = "report.html",
    title: str = "Several approximations of one posterior",
    labels: Mapping[str, str] | None = None,
    effects: Sequence[str] | None = None,
    outcome: str = "",
    reproduce: str = "",
) -> Path:
    """Write one HTML page that says which of ``posteriors`` to trust and what it says, and return where it is.

    ``posteriors``: name -> posterior, approximations of one posterior. ``held_out``: (x, y) that no fit has seen, for
    scores and calibration. ``labels``: words for scalars such as ``{"w[0]": "age"}``. ``effects``: the scalars that
    answer the question, shown first (default: those farthest from zero in their sds), and ``outcome`` what they act
    on. ``reproduce``: a command or program to print. The page needs no network and runs no script.
    Raises CredoError where the posteriors are of different models or the page cannot be written.

    >>> import numpy as np, numpyro.distributions as dist, credo, tempfile
    >>> model = credo.Model({"mu": dist.Normal(0.0, 5.0)}, lambda params, x: dist.Normal(params["mu"], 1.0))
    >>> posterior = credo.fit(model.given(y=np.array([0.3, 1.1, 0.7])), credo.Laplace())
    >>> folder = tempfile.mkdtemp()
    >>> credo.report({"laplace": posterior}, path=f"{folder}/report.html").name
    'report.html'
    """
    posteriors = as_posteriors(posteriors)
    effects = None if effects is None else scalars_of(posteriors, effects)
    story = Story(
        title=title,
        labels=labels or {},
        effects=effects,
        outcome=outcome,
        priors=_priors(next(iter(posteriors.values()))),
        reproduce=reproduce,
    )
    check_alike(posteriors)
    x, y = pair(held_out)
    predictives = {} if held_out is None else {name: predict_held_out(p, x, y) for name, p in posteriors.items()}
    write_report(path, posteriors, tabulate(posteriors, predictives, y), story, predictives, y)
    return Path(path)


def write_report(
    path: str | Path,
    posteriors: Mapping[str, Posterior],
    compared,
    story: Story,
    predictives: Mapping[str, Predictive],
    y,
) -> None:
    """The page, whole or not at all. ``compared``: a table by ``tabulate``; ``predictives`` as there, maybe empty."""
    best = answering(posteriors)
    sections: list[Section | None] = [
        tables.comparison(compared),
        pictures.marginals(posteriors, _shown(posteriors, best, story), story),
        pictures.traces(posteriors, story),
        pictures.calibration(posteriors, predictives, y) if predictives else None,
        pictures.paths(posteriors),
        tables.parameters(posteriors[best], best, story) if best is not None else None,
        tables.verdicts(posteriors),
        tables.priors(story.priors),
        tables.settings(story),
    ]
    shown = [section for section in sections if section is not None]
    links = join(tag("a", section.heading, {"href": f"#{section.name}"}) for section in shown)
    body = join(
        [
            tag("header", join([tag("h1", story.title), paragraph(story.subtitle, "soft") if story.subtitle else ""])),
            tag("main", join([first_screen(posteriors, best, compared, story), tag("nav", links), *_html(shown)])),
        ]
    )
    write_text_atomically(path, _page(story.title, body))


def _priors(posterior: Posterior) -> list[str]:
    """In words; none of a posterior read from a file without its model, which knows the shapes alone."""
    is_known = posterior.target.y is not None or not posterior.target.prior.improper_names()
    return priors_in_words(posterior.target.prior) if is_known else []


def _html(sections: Sequence[Section]) -> list[Raw]:
    return [section.as_html() for section in sections]


def _page(title: str, body: Raw) -> str:
    style = files("credo.reporting.page").joinpath("style.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{style}</style></head><body>{body}</body></html>\n'
    )


def _shown(posteriors: Mapping[str, Posterior], best: str | None, story: Story) -> list[str]:
    """The scalars whose marginals are worth a picture: the leading effects, or what lies farthest from zero."""
    if best is None or story.effects is None:
        return leading_scalars(posteriors, pictures.MAX_MARGINALS)
    return [*(effect.scalar for effect in effects_of(posteriors[best], story)), *story.others]
