"""How a file knows its model: names, shapes, supports, N, a hash of the data, the log density at a recorded position.

Never by source text, so that a renamed variable or a moved file is no obstacle and a changed prior is.
"""

import hashlib
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro.distributions import ImproperUniform, constraints

from credo.compiling import sound
from credo.model.distributions import bounds_of, is_moved
from credo.model.made_up import check_saying
from credo.model.model import Model
from credo.model.prior import Prior
from credo.model.target import Target
from credo.status import CredoError

_TEMPLATES = {
    type(template).__name__: template
    for template in (
        constraints.real,
        constraints.positive,
        constraints.nonnegative,
        constraints.unit_interval,
        constraints.greater_than(0.0),
        constraints.greater_than_eq(0.0),
        constraints.less_than(0.0),
        constraints.interval(0.0, 1.0),
        constraints.open_interval(0.0, 1.0),
        constraints.simplex,
        constraints.ordered_vector,
        constraints.positive_ordered_vector,
        constraints.corr_cholesky,
        constraints.corr_matrix,
        constraints.lower_cholesky,
        constraints.scaled_unit_lower_cholesky,
        constraints.positive_definite,
        constraints.softplus_positive,
        constraints.softplus_lower_cholesky,
        constraints.l1_ball,
        constraints.sphere,
        constraints.real_vector,
        constraints.real_matrix,
        constraints.circular,
        constraints.boolean,
        constraints.integer_interval(0, 1),
        constraints.nonnegative_integer,
        constraints.positive_integer,
    )
}


def fingerprint(target: Target, position) -> dict:
    """What identifies ``target``, ready for JSON. ``position``: (dim,), where the log density is recorded."""
    position = np.asarray(position, np.float64)  # as it is read again, whatever the precision of the fit
    return {
        "parameters": [
            {"name": leaf.name, "shape": list(leaf.shape), "support": support}
            for leaf, support in zip(target.structure.leaves, _supports(target), strict=True)
        ],
        "num_rows": target.size,
        "data": _hash(target),
        "position": position.tolist(),
        "log_prior": float(_log_prior(target.model.prior, target.structure.unravel(jnp.asarray(position)))),
        "log_density": log_density_at(target, position),
        **({"is_released": True} if target.is_released else {}),
    }


def probe(target: Target) -> np.ndarray:
    """A position (dim,) at which a change of the model shows: no coordinate is zero, where slopes say nothing.

    The origin, where the density is not finite there.
    """
    random = np.random.default_rng(0)
    position = random.choice([-1.0, 1.0], target.dim) * np.round(random.uniform(0.05, 0.3, target.dim), 2)
    is_finite = np.isfinite(log_density_at(target, position))
    return position if is_finite else np.zeros(target.dim)


def log_density_at(target: Target, position) -> float:
    """Of a target at (dim,)."""
    return float(_log_density(target.flat(), jnp.asarray(position)))


def check(recorded: Mapping, model: Target | Model, x=None) -> None:
    """CredoError, naming the first difference, where ``model`` is not the one that ``recorded`` describes.

    ``x``: inputs of the shapes of those that were fitted, for a model without data.
    """
    target = model if isinstance(model, Target) else None
    structure = model.structure
    wanted = [(p["name"], tuple(p["shape"])) for p in recorded["parameters"]]
    found = [(leaf.name, leaf.shape) for leaf in structure.leaves]
    if wanted != found:
        only = [f"{n}{list(s)}" for n, s in wanted if (n, s) not in found] or ["the same in another order"]
        raise CredoError(
            f"The file holds another model: its parameters are {_names(wanted)} (here missing: {', '.join(only)}), "
            f"this model's are {_names(found)}. Give the model that was fitted."
        )
    supports = _supports(model)
    for parameter, support in zip(recorded["parameters"], supports, strict=True):
        if parameter["support"] not in (None, support):  # earlier versions wrote None for some that are fixed
            raise CredoError(
                f"The file holds another model: {parameter['name']!r} had support {_shown(parameter['support'])} and "
                f"has {_shown(support)} here. Give the model that was fitted."
            )
    if target is not None and recorded.get("is_released"):  # its data lay outside of memory, and are not known
        target, model = None, target.model
    if target is None:
        if isinstance(model.prior, Prior):  # an adapter's may need the data
            u = model.structure.unravel(jnp.asarray(recorded["position"]))
            _check_value("log prior", recorded["log_prior"], float(_log_prior(model.prior, u)))
            assert isinstance(model, Model)
            check_saying(recorded.get("saying"), model, np.asarray(recorded["position"]), x)
        return
    if recorded["num_rows"] != target.size:
        raise CredoError(f"The file was made with {recorded['num_rows']} rows of data; these have {target.size}.")
    if recorded["data"] != _hash(target):
        raise CredoError("The file was made with other data of the same length: give the data that were fitted.")
    now = float(_log_density(target.flat(), jnp.asarray(recorded["position"])))
    _check_value("log density", recorded["log_density"], now)


def bare_model(recorded: Mapping, derived: Iterable[str] = ()) -> Model:
    """A model of names, shapes and supports alone: it transforms, samples and summarises, and cannot predict.

    ``derived``: the names of quantities whose draws are known, if not the functions that gave them.
    """
    prior = {}
    for parameter in recorded["parameters"]:
        support, shape = _decode(parameter), tuple(parameter["shape"])
        event = len(shape) - support.event_dim
        prior[parameter["name"]] = ImproperUniform(support, shape[:event], shape[event:])
    return Model(Prior(prior), None, derived={name: None for name in derived})


def _check_value(what: str, then: float, now: float) -> None:
    if not np.isclose(now, then, rtol=1e-6, atol=1e-6):
        raise CredoError(
            f"The model has changed since the file was written: its {what} at the recorded position was {then:.6g} and "
            f"is {now:.6g}. Give the model that was fitted."
        )


@sound
def _log_prior(prior, u):
    return prior.joint(u)[1]


@sound
def _log_density(target: Target, u):
    return target.log_density(u)


def _supports(model: Target | Model) -> list[dict | None]:
    prior = model.model.prior if isinstance(model, Target) else model.prior
    supports = []

    def see(name, distribution, value):
        with jax.ensure_compile_time_eval():  # bounds that a transform computes from constants are constants
            supports.append(_encode(distribution))

    prior.survey(see)
    return supports


def _encode(distribution) -> dict | None:
    """The support; None for one that depends on other parameters."""
    support, leaves = distribution.support, bounds_of(distribution)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return None
    event_dim = support.event_dim
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return {
        "name": "transformed" if is_moved(distribution) else type(support).__name__,
        "arguments": [np.asarray(leaf, np.float64).tolist() for leaf in leaves],
        "event_dim": event_dim,
    }


def _decode(parameter: Mapping):
    encoded = parameter["support"]
    if encoded is None or encoded["name"] not in _TEMPLATES:
        cause = "depends on other parameters" if encoded is None else "is unusual"
        raise CredoError(
            f"The support of {parameter['name']!r} {cause}, and a file holds no code: load it with the model."
        )
    template = _TEMPLATES[encoded["name"]]
    arguments = [np.asarray(a) for a in encoded["arguments"]]
    support = jax.tree.unflatten(jax.tree.structure(template), arguments)
    extra = encoded["event_dim"] - support.event_dim
    return constraints.independent(support, extra) if extra else support


def _hash(target: Target) -> str:
    """Of the data, the same for rows in memory and in files."""
    digest = hashlib.sha256()
    if target.source is None:
        data = target.x, target.y, target.weights
        whole = data if target.missing is None else (*data, target.missing)
        for path, leaf in jax.tree_util.tree_leaves_with_path(whole):
            values = np.ascontiguousarray(leaf)
            digest.update(_heading(path, values.dtype, values.shape))
            digest.update(values.tobytes())
        return digest.hexdigest()
    files = target.source.files
    leaves = jax.tree_util.tree_leaves_with_path(tuple(files.rows))
    for number, ((path, leaf), dtype) in enumerate(zip(leaves, jax.tree.leaves(files.dtypes), strict=True)):
        digest.update(_heading(path, dtype, leaf.shape))
        for block in files.blocks():
            digest.update(np.ascontiguousarray(jax.tree.leaves(block)[number]).tobytes())
    return digest.hexdigest()


def _heading(path, dtype, shape) -> bytes:
    return f"{jax.tree_util.keystr(path)}{dtype}{shape}".encode()


def _names(parameters) -> str:
    return ", ".join(f"{name}{list(shape)}" for name, shape in parameters[:8])


def _shown(support) -> str:
    return "one that depends on others" if support is None else f"{support['name'].strip('_')}{support['arguments']}"
