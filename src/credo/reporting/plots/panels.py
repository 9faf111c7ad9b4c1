"""What every picture shares: figures with panels, one colour a method, and the scalars that are worth showing."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from credo.model.structure import scalar_names
from credo.posterior.kinds import Draws
from credo.posterior.posterior import Posterior
from credo.status import CredoError

# Of middling lightness, so that they read on white and on black alike.
COLORS = ("#3b7dd8", "#d1662c", "#2f9e44", "#9c5fc4", "#a3782f", "#d6458b", "#0f9aa8", "#808080")
SOFT = "#999999"
NUM_DRAWS = 4_000
MAX_PANELS = 24

Labels = Mapping[str, str]


def grid(num_panels: int, *, width: float = 3.1, height: float = 2.2, columns: int = 4):
    """(figure, panels): ``num_panels`` panels in rows of ``columns`` at most, each ``width`` × ``height`` inches."""
    from credo.reporting.plots.picture import Picture

    columns = max(1, min(columns, num_panels))
    rows = -(-num_panels // columns)
    figure = Picture(figsize=(width * columns, height * rows), layout="constrained")
    panels = list(np.ravel(figure.subplots(rows, columns, squeeze=False)))
    for panel in panels[num_panels:]:
        panel.remove()
    for panel in panels[:num_panels]:
        panel.spines[["right", "top"]].set_visible(False)
        panel.tick_params(labelsize=8)
    return figure, panels[:num_panels]


def single(*, width: float, height: float, has_scale: bool):
    """(figure, panel): one panel with fixed margins, in a third of the time that fitting them takes.

    ``has_scale``: room for numbers and a name left of the panel; below it there always is.
    """
    from credo.reporting.plots.picture import Picture

    figure = Picture(figsize=(width, height))
    left, right, bottom, top = (0.74 if has_scale else 0.12), 0.12, (0.42 if has_scale else 0.26), 0.08  # inches
    panel = figure.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height))
    panel.spines[["right", "top"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.locator_params(axis="x", nbins=5 if width < 4 else 9)
    return figure, panel


def hide_heights(panel) -> None:
    """Of a density: its height says nothing that its width does not."""
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)


def legend(figure, panel) -> None:
    """One legend above all panels, from the labelled lines of one of them."""
    handles, names = panel.get_legend_handles_labels()
    if names:
        figure.legend(handles, names, loc="outside upper left", ncols=min(len(names), 6), frameon=False, fontsize=9)


def colors(names: Iterable[str]) -> dict[str, str]:
    """One colour a method, in order."""
    return {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}


def as_posteriors(posteriors) -> dict[str, Posterior]:
    """A dict of posteriors, or one alone; CredoError for anything else."""
    if isinstance(posteriors, Posterior):
        return {type(posteriors.kind).__name__.lower(): posteriors}
    if not isinstance(posteriors, Mapping) or not posteriors:
        raise CredoError(f"Give a dict of name -> posterior, with one at least; got {type(posteriors).__name__}.")
    wrong = next((name for name, each in posteriors.items() if not isinstance(each, Posterior)), None)
    if wrong is not None:
        raise CredoError(f"Give posteriors; {wrong!r} is a {type(posteriors[wrong]).__name__}.")
    return dict(posteriors)


def scalars_of(posteriors: Mapping[str, Posterior], scalars: Sequence[str] | None) -> list[str]:
    """``scalars``, known to all posteriors; by default the leading ones."""
    if scalars is None:
        return leading_scalars(posteriors)
    if isinstance(scalars, str):
        scalars = [scalars]
    for posterior in posteriors.values():
        known = all_scalars(posterior)
        unknown = next((scalar for scalar in scalars if scalar not in known), None)
        if unknown is not None:
            raise CredoError(f"There is no scalar {unknown!r}; there are {', '.join(known[:12])}.")
    if not len(scalars):
        raise CredoError("scalars is empty: name one at least, such as 'theta[0]', or leave it out.")
    return list(scalars)


def all_scalars(posterior: Posterior) -> list[str]:
    """Every scalar, derived quantities last."""
    mean = posterior._moments[0]
    order = [leaf.name for leaf in posterior.target.structure.leaves]
    order += [name for name, _ in posterior.target.model.derived_functions if name not in order]
    return [scalar for name in order for scalar in scalar_names(name, np.shape(mean[name]))]


def leading_scalars(posteriors: Mapping[str, Posterior], number: int = MAX_PANELS) -> list[str]:
    """The scalars whose posterior lies farthest from zero in sds under the last posterior with a spread."""
    posterior = next((p for p in reversed(list(posteriors.values())) if np.any(_flat(p, 1) > 0)), None)
    if posterior is None:
        posterior = next(iter(posteriors.values()))
    names, mean, sd = posterior.target.structure.scalar_names(), _flat(posterior, 0), _flat(posterior, 1)
    order = np.argsort(-np.abs(mean) / np.where(sd > 0, sd, np.inf), kind="stable")[:number]
    return [names[i] for i in sorted(order)]


def scalar_draws(posterior: Posterior, scalars: Sequence[str], num_draws: int = NUM_DRAWS) -> dict[str, np.ndarray]:
    """Draws of the named scalars: arrays (num_draws,); of stored draws all, thinned evenly, and none twice."""
    if isinstance(posterior.kind, Draws) and posterior.kind.log_weights is None:
        stored = {name: values.ravel() for name, values in chain_draws(posterior, scalars).items()}
        return {name: values[:: -(-len(values) // num_draws)] for name, values in stored.items()}
    sampled = posterior.sample(0, num_draws)
    return by_scalar(named(posterior, sampled), scalars, 1)


def named(posterior: Posterior, params) -> dict[str, np.ndarray]:
    """Parameters in the structure of the prior, and derived quantities, by leaf name."""
    leaves = dict(posterior.target.model.prior.leaves(params))
    return leaves | {name: params[name] for name, _ in posterior.target.model.derived_functions}


def chain_draws(posterior: Posterior, scalars: Sequence[str]) -> dict[str, np.ndarray]:
    """The stored draws of the named scalars: arrays (chain, draw)."""
    return by_scalar(posterior.draws, scalars, 2)


def by_scalar(leaves: Mapping[str, np.ndarray], scalars: Sequence[str], num_leading: int) -> dict[str, np.ndarray]:
    """The draws of the named scalars, of leaves with ``num_leading`` axes of draws before those of the parameter."""
    wanted = set(scalars)
    found = {}
    for name, values in leaves.items():
        leading = values.shape[:num_leading]
        columns = np.moveaxis(values.reshape(*leading, -1), -1, 0)
        for scalar, column in zip(scalar_names(name, values.shape[num_leading:]), columns, strict=True):
            if scalar in wanted:
                found[scalar] = column
    return found


def _flat(posterior: Posterior, moment: int) -> np.ndarray:
    values = posterior._moments[moment]
    return np.concatenate([np.ravel(values[leaf.name]) for leaf in posterior.target.structure.leaves])
