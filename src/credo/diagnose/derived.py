"""Whether draws know what is derived of them: a ratio may have no mean, and a logarithm no value, where parameters do.

A derived quantity is judged as a parameter is (sd_error.py), by the same bounds, whatever the method: by the stored
draws, or those by which its mean and sd are found.
"""

import numpy as np
from jaxtyping import Float

from credo.arguments import as_key
from credo.diagnose.angles import MOST, cut
from credo.diagnose.rules import RULES
from credo.diagnose.sd_error import HEAVY, kurtoses_of, tail_shape
from credo.methods.particles.scalars import DISTINCT
from credo.model.structure import scalar_names
from credo.posterior.kinds import Draws, Point
from credo.posterior.marginals import AT_ONCE, NUM_DRAWS, report_positions
from credo.posterior.posterior import Posterior
from credo.precision import abstract, in_double
from credo.storage import is_stored

FEW = 400  # draws: by fewer no tail is judged


def derived_sentence(posterior: Posterior) -> str | None:
    """Of the quantity that is known worst, where it does not pass."""
    worst, sentence, ess = 1.0, None, _effective(posterior)
    for name, draws in _values(posterior).items():
        flat = np.asarray(draws, float).reshape(len(draws), -1)
        names = scalar_names(name, draws.shape[1:])
        if not np.all(np.isfinite(flat)):
            undefined = np.mean(~np.isfinite(flat), axis=0)
            i = int(np.argmax(undefined))
            return (
                f"At {undefined[i]:.2g} of the draws the derived quantity {names[i]!r} is no finite number, and so are "
                "its mean and sd: derive what is defined wherever the parameters may be."
            )
        for excess, i, said in _faults(flat, min(ess, len(flat))) if flat.size else ():
            if excess > worst:
                worst, sentence = excess, f"The derived quantity {names[i]!r} {said}"
    return sentence


def _faults(flat: Float[np.ndarray, "n k"], ess: float) -> list[tuple[float, int, str]]:
    """(times its bound, which column, what to say) of the largest error of a log sd, the heaviest tail, a cut angle."""
    kurtoses = kurtoses_of(flat[None])
    for j in np.flatnonzero(kurtoses > HEAVY):
        if len(np.unique(flat[:, j])) < DISTINCT:
            kurtoses[j] = 0.0
    errors = np.sqrt(np.maximum(kurtoses - 1, 0) / (4 * ess))
    i, bound = int(np.argmax(np.nan_to_num(errors))), RULES["sd_error"].passes
    found = [
        (
            float(errors[i]) / bound,
            i,
            f"has an sd that is known to within {errors[i]:.0%} only ({bound:.0%} passes): its tail is heavy, and its "
            "sd, or even its mean, may not exist. Report its median and quantiles, or draw longer.",
        )
    ]
    shares = cut(flat)
    i = int(np.argmax(shares))
    if shares[i] > MOST and len(np.unique(flat[:, i])) >= DISTINCT:
        found.append(
            (
                shares[i] / MOST,
                i,
                f"goes from −π to π as an angle does, and {shares[i]:.0%} of its mass lies next to ±π, where the "
                "circle is cut: its mean, sd and quantiles are those of numbers on a line. Derive its cosine and sine.",
            )
        )
    heavy = np.flatnonzero(kurtoses > HEAVY)
    if heavy.size:
        shapes = [tail_shape(flat[None, :, j], ess) for j in heavy]  # NaN: of a value that is repeated
        shapes = np.nan_to_num(shapes, posinf=np.inf)
        worst, bound = int(np.argmax(shapes)), RULES["tail_shape"].passes
        is_known = np.isfinite(shapes[worst])
        shape = f"of the shape {shapes[worst]:.2f}" if is_known else "whose shape so few draws do not bound"
        found.append(
            (
                shapes[worst] / bound,
                int(heavy[worst]),
                f"has a tail {shape} ({bound:g} passes): from 0.5 on it has no variance, from 1 on no mean. Report its "
                "median and quantiles.",
            )
        )
    return found


def _effective(posterior: Posterior) -> float:
    """The effective number of the draws that are looked at."""
    if not isinstance(posterior.kind, Draws):
        return NUM_DRAWS
    figures = posterior.verdict.figures
    known = (figures[name] for name in ("min_ess_tail", "importance_ess", "island_ess") if name in figures)
    return max(float(next(known, np.inf)), 1.0)


@in_double
def _values(posterior: Posterior) -> dict[str, np.ndarray]:
    """Draws (n, *shape) of what is derived, all alike in weight; none where they would be too many numbers."""
    target, kind = posterior.target, posterior.kind
    names = [name for name, _ in target.model.derived_functions]
    if not names or isinstance(kind, Point):
        return {}
    number = kind.positions[..., 0].size if isinstance(kind, Draws) else NUM_DRAWS
    one = abstract((1, target.dim))
    width = sum(leaf.size for leaf in report_positions.eval_shape(target, one).values())
    few = min(number, AT_ONCE // width)
    if few < FEW:
        return {}
    if few < number or (isinstance(kind, Draws) and is_stored(kind.positions)):
        drawn = posterior._sampled(as_key(0), few)
    else:
        drawn, weights = posterior._drawn, posterior.weights
        if weights is not None:
            index = np.random.default_rng(0).choice(number, number, p=weights)
            drawn = {name: drawn[name][index] for name in names}
    return {name: np.asarray(drawn[name]) for name in names}
