"""Networks of other libraries: what every adapter gives back, and what it checks on the way."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import TINY, brief, sound
from credo.model.visit import leaf_name
from credo.status import CredoError


class Network(NamedTuple):
    """A trained network for ``credo.nn.BayesianNetwork(network.apply, network.params, head=…)``.

    ``apply(params, x)``: the outputs at rows x, in jax.numpy. ``params``: its weights, a pytree of NumPy arrays with
    the names of the library that it comes from. ``notes``: what was frozen on the way, in sentences.
    """

    apply: Callable[[Any, Any], Any]
    params: Any
    notes: tuple[str, ...]


def library(name: str, package: str):
    """The module ``name``, with a sentence where it is not installed."""
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.split(".")[0]:
            raise
        raise CredoError(f"This network needs {name}, which is not installed: pip install {package}.") from error


def told(apply: Callable, params: Any, notes: list[str]) -> Network:
    """The network, with its notes in one warning."""
    if notes:
        warnings.warn(" ".join(notes), stacklevel=3)
    return Network(apply, params, tuple(notes))


def listed(names) -> str:
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# weights by name ----------------------------------------------------------------------------------------------------


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.w": …}`` -> ``{"a": {"w": …}}``."""
    tree: dict[str, Any] = {}
    for name, value in arrays.items():
        *folders, last = name.split(".")
        place: Any = tree
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict) or last in place:
            raise CredoError(
                f"The weights have two names of which one stands within the other, beside {name!r} (a name with a dot "
                "in it?): rename one of them."
            )
        place[last] = value
    return tree


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their dotted names; a dict of dotted names is its own."""
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def fitting(weights: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """``weights`` by name; CredoError where they are not those of a network with leaves of these shapes."""
    found = named(weights)
    missing, extra = [n for n in shapes if n not in found], [n for n in found if n not in shapes]
    if missing or extra:
        parts = [f"lack {listed(missing)}"] if missing else []
        parts += [f"have {listed(extra)}, which the network has not"] if extra else []
        hint = (
            ' (posterior.mean()["weights"], not posterior.mean())'
            if any(n.startswith("weights.") for n in extra)
            else ""
        )
        raise CredoError(f"The weights {' and '.join(parts)}: give those of a fit of this same network{hint}.")
    arrays = {name: np.asarray(leaf) for name, leaf in found.items()}
    for name, shape in shapes.items():
        value = arrays[name]
        if value.shape != tuple(shape):
            hint = (
                "one draw of them, not all"
                if value.shape[value.ndim - len(shape) :] == tuple(shape)
                else "those of this network"
            )
            raise CredoError(
                f"The weight {name!r} has shape {value.shape}, and the network's is {tuple(shape)}: give {hint}."
            )
        if not np.issubdtype(value.dtype, np.floating):
            raise CredoError(f"The weight {name!r} is {value.dtype}, and a weight is a floating-point array.")
        if not np.all(np.isfinite(value)):
            raise CredoError(f"The weight {name!r} is not finite: the network would give no numbers.")
    return arrays


def check_dtypes(dtypes: Mapping[str, str], remedy: str) -> str:
    """The one dtype of the weights, float32 or float64; CredoError else."""
    if not dtypes:
        raise CredoError("The network has no weights to be uncertain of: none is trainable.")
    if len(set(dtypes.values())) > 1:
        first: dict[str, str] = {}
        for name, dtype in dtypes.items():
            first.setdefault(dtype, name)
        shown = ", ".join(f"{name} is {dtype}" for dtype, name in first.items())
        raise CredoError(f"The weights are of mixed precision ({shown}): cast them to one first, {remedy}.")
    dtype = next(iter(dtypes.values()))
    if dtype not in ("float32", "float64"):
        raise CredoError(f"The weights are {dtype}, in which no posterior can be told: cast them first, {remedy}.")
    return dtype


ENDS = slice(1), slice(-1, None)  # what goes from earlier rows to later ones leaves the first alone


# does the conversion say what the network says? ---------------------------------------------------------------------


def check_rows(
    apply: Callable, params: Any, x: Any, dtype: str, expected: Any = None, said: str = "", least: str | None = None
) -> None:
    """CredoError where ``apply`` differs from the outputs ``expected``, or where a row's output leans on its batch.

    ``dtype``: of the weights. ``least``: the precision of the outputs expected, where it is another one.
    """
    num_rows = len(jax.tree.leaves(x)[0])

    def together_and_alone(params, x):  # one program: compiling is what takes the time
        ends = (jax.tree.map(lambda leaf, end=end: leaf[end], x) for end in ENDS)
        return apply(params, x), *(apply(params, end) for end in ends)

    with jax.ensure_compile_time_eval(), jax.default_matmul_precision("highest"):
        found = sound(together_and_alone)(params, x)
    z, *alone = ([np.asarray(leaf) for leaf in jax.tree.leaves(part)] for part in found)
    if any(leaf.shape[:1] != (num_rows,) for leaf in z):
        shapes = [leaf.shape for leaf in z]
        raise CredoError(f"The network gives outputs of shape {shapes} for {num_rows} rows: one a row are needed.")
    if not all(np.all(np.isfinite(leaf)) for leaf in z):
        raise CredoError(
            "The network's outputs are no finite numbers at the example rows (a row that is all padding, or rows made "
            "up of zeros and normal numbers where none were given?): give rows that it is made for, as x."
        )
    if expected is not None:
        error, tolerance = difference(z, [np.asarray(leaf) for leaf in expected]), TOLERANCE[least or dtype]
        if not error <= tolerance:
            raise CredoError(
                f"The network in JAX differs from the one in {said} by {error:.2g} of the largest output, beyond "
                f"rounding ({tolerance:g}): please report the module; until then, write apply by hand."
            )
    for each, end in zip(alone, ENDS, strict=True):
        check_apart(each, z, end, dtype)


def check_apart(alone: list[np.ndarray], together: list[np.ndarray], row: slice, dtype: str) -> None:
    """CredoError where the outputs of a row by itself are not those that it has among others."""
    error = difference(alone, [leaf[row] for leaf in together])
    if not error <= TOLERANCE[dtype]:
        raise CredoError(
            f"The output of a row changes with the rows beside it (by {error:.2g} of the largest output): a batch "
            "normalisation without statistics of training, a mean over the batch, or a layer whose rows stand on "
            "another axis than the first (torch's batch_first=True). A likelihood needs each row's output to be its "
            "own: freeze the statistics, put rows first."
        )


def check_slopes(
    apply: Callable, params: Any, x: Any, dtype: str, along: list, scale: float, expected: Mapping[str, Any]
) -> str:
    """A sentence where the derivatives of outputs · ``along`` by the weights are not those ``expected``, by name.

    ``scale``: of outputs · ``along``.
    """

    def slopes(params, x, along):
        z, pull = jax.vjp(lambda params: apply(params, x), params)
        leaves, structure = jax.tree.flatten(z)
        pairs = zip(along, leaves, strict=True)
        return pull(jax.tree.unflatten(structure, [jnp.asarray(d, leaf.dtype) for d, leaf in pairs]))[0]

    with jax.ensure_compile_time_eval(), jax.default_matmul_precision("highest"):
        found = {name: np.asarray(g) for name, g in named(brief(slopes, options=TINY)(params, x, along)).items()}
    undefined = [name for name, value in expected.items() if not np.all(np.isfinite(found[name] - value))]
    if undefined:
        return (
            f"The outputs have no finite derivative by {listed(undefined)} at these rows, here or in torch: a root, a "
            "power or a norm at 0? Keep what goes into it away from there, as in (z + 1e-6).sqrt()."
        )
    size = {name: float(np.linalg.norm(value)) for name, value in expected.items()}
    weights = named(params)
    for name, value in expected.items():
        error = float(np.linalg.norm(found[name] - value))
        largest = max(size[name], float(np.linalg.norm(found[name])))
        rounding = TOLERANCE[dtype] * scale / max(float(np.linalg.norm(weights[name])), 1e-30)
        if not error <= SLOPE_TOLERANCE * largest + NOT_OF_ROUNDING * max(size.values()) + rounding:
            return (
                f"The gradient that torch has by {name!r} is not the derivative of the outputs (it is off by "
                f"{error / largest:.0%}): a torch.autograd.Function with a backward of its own, a hook, or "
                "scale_grad_by_freq? Credo differentiates the outputs. A straight-through estimate written as "
                "x + (f(x) - x).detach() is kept."
            )
    return ""


SLOPE_TOLERANCE, NOT_OF_ROUNDING = 0.02, 1e-3  # of a weight's gradient, where a kink may turn; of the largest one
# of the largest output: rounding of a deep network, and no formula
TOLERANCE = {"float64": 1e-9, "float32": 2e-4, "float16": 1e-2, "bfloat16": 8e-2}


def difference(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    if [a.shape for a in found] != [b.shape for b in expected]:
        return np.inf
    largest = max((float(np.max(np.abs(b), initial=0.0)) for b in expected), default=0.0)
    return max(
        (float(np.max(np.abs(a - b), initial=0.0)) for a, b in zip(found, expected, strict=True)), default=0.0
    ) / max(largest, 1e-6)


def as_rows(x: Any) -> Any:
    """Example inputs as NumPy arrays, two rows at least."""
    rows = jax.tree.map(np.asarray, x)
    leaves = jax.tree.leaves(rows)
    if not leaves or any(not leaf.ndim or not len(leaf) for leaf in leaves):
        raise CredoError("Example inputs are rows: an array (M, …), or a dict or tuple of such, with a row at least.")
    rows = jax.tree.map(lambda leaf: leaf[:4], rows)
    return jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), rows) if len(leaves[0]) == 1 else rows


def made_up(x: Any) -> Any:
    """Rows in the shapes of ``x``, arrays or tracers: normal numbers, and zeros where they are whole."""
    random = np.random.default_rng(0)

    def rows(leaf):
        shape = (3, *jnp.shape(leaf)[1:])
        is_float = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return random.normal(size=shape) if is_float else np.zeros(shape, jnp.result_type(leaf))

    return jax.tree.map(rows, x)
