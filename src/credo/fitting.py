"""Fit, resume and load: dispatch only."""

import inspect
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from credo.algorithm import LAYOUTS, Options
from credo.arguments import THREEFRY, as_key, as_path, check_limit
from credo.collector import collecting_rarely
from credo.cores import begin_work
from credo.diagnose.angles import angle_sentence
from credo.diagnose.derived import derived_sentence
from credo.diagnose.rules import RULES
from credo.diagnose.scales import (
    column_sentence,
    escape_sentence,
    outcome_sentence,
    parameter_sentence,
    rounded_sentence,
    size_sentence,
    tail_sentence,
)
from credo.journal import read_identity, request_kept
from credo.linalg.blas import threads_for
from credo.lowered import let_go, make_room
from credo.memory import limited
from credo.methods.mcmc.start import knows_widths
from credo.methods.particles.elsewhere import PLACE
from credo.methods.settings import check_settings, from_json, to_json
from credo.model.blocks import in_blocks
from credo.model.fingerprint import check, fingerprint, probe
from credo.model.target import Target
from credo.notes import notes
from credo.posterior.files import load
from credo.posterior.posterior import Posterior
from credo.precision import abstract, double, to_numpy
from credo.starting import start_position
from credo.status import CredoError, Verdict
from credo.timing import stopwatch

__all__ = ["fit", "load", "resume"]

LEAST_MEMORY = 1_000_000  # bytes: below it no fit does anything useful, and the number was meant in other units


@runtime_checkable
class Method(Protocol):
    """A way to infer: a frozen dataclass of settings."""

    def fit(self, target: Target, *, key, start: Any, options: Options) -> Posterior: ...


def fit(
    target: Target,
    method: Method,
    *,
    key=0,
    start=None,
    checkpoint: str | Path | None = None,
    precision: str | None = None,
    layout: str | None = None,
    time_limit: float | None = None,
    max_memory: int | None = None,
    progress: bool = True,
) -> Posterior:
    """The posterior of ``target`` by ``method``.

    ``key``: int or JAX key; the same key gives the same answer. ``start``: a posterior, parameters (a dict), or a flat
    unconstrained position (dim,) or (chains, dim). ``checkpoint``: a folder from which ``resume`` continues (fits of
    few steps, such as Laplace() and DADVI(), keep what was asked for alone, and are done again).
    ``precision``: "float64" (default) or "float32", the precision of the work, of the approximation and of its draws;
    means, sds, quantiles, predictions, evidence and verdict are computed from those in float64, for every method.
    ``layout``: "threads" (chains on threads; the rule on a CPU) or "vectorized" (all chains in one program; the rule on
    an accelerator). ``time_limit``: seconds after which the run stops cleanly with what it has (beside a checkpoint,
    once its start is found, so that ``resume`` goes on from the same); a program that is being compiled is waited for,
    and the verdict follows. ``max_memory``: bytes of work and of draws in
    memory; more draws lie in a file without a name, in the folder of the checkpoint or in TMPDIR, as long as the
    posterior lives (left out, a quarter of the free memory decides about draws). Draws of a network's weights that do
    not fit, by which a verdict looks at predictions, are others, and its figures differ within their error.
    ``progress``: show a bar.

    Raises CredoError, a sentence with cause, value and remedy, where the request cannot be answered.
    """
    _check_target(target, "fit()")
    if isinstance(method, type) or not hasattr(method, "fit"):
        raise CredoError(f"fit() takes a method such as Laplace() or NUTS(), with its brackets; got {method!r}.")
    if not _takes_options(method):
        name = type(method).__name__
        raise CredoError(
            f"{name} is a model with a fit of its own, and no method for others: call {name}(…).fit(data), or give "
            "fit() a method such as Laplace() or NUTS()."
        )
    check_settings(method)
    if target.dim == 0:
        raise CredoError("The model has no parameter, so there is nothing to infer: give it a prior, or a latent site.")
    _check_discrete(target, method)
    _check_source(target, method)
    _check_start(start, method)
    if precision not in (None, "float64", "float32"):
        raise CredoError(f"precision is 'float64' or 'float32'; got {precision!r}.")
    options = _options(checkpoint, layout, time_limit, max_memory, progress)
    if isinstance(key, Tracer):
        raise CredoError("The key is being traced, by jax.jit or vmap: call fit() outside, once a key.")
    return _fit(target, method, as_key(key), start, precision, options)


def _takes_options(method: Method) -> bool:
    parameters = inspect.signature(method.fit).parameters.values()
    return any(each.name == "options" or each.kind is each.VAR_KEYWORD for each in parameters)


def resume(
    path: str | Path,
    target: Target,
    *,
    layout: str | None = None,
    time_limit: float | None = None,
    max_memory: int | None = None,
    progress: bool = True,
) -> Posterior:
    """Continue the run in the folder ``path``, which ``fit(..., checkpoint=path)`` began, to its end.

    Method, key and precision are those of the run, and so is ``layout`` where it is left out. The draws are bit for bit
    those of an uninterrupted run on the same kind of machine and versions. CredoError where the folder is damaged or
    ``target`` is not the one that was fitted.
    """
    _check_target(target, "resume()")
    identity = read_identity(as_path(path, "the folder of a checkpoint"))
    target = replace(target, model=target.model.as_of_now())  # what its functions read may have changed since the fit
    with double():
        check(identity["target"], target)
    layout = layout or identity.get("layout")
    options = _options(path, layout, time_limit, max_memory, progress)._replace(identity=identity, resume=True)
    key = jax.random.wrap_key_data(jnp.asarray(identity["key"], jnp.uint32), impl=identity.get("key_impl", THREEFRY))
    start = identity.get("start")
    return _fit(target, from_json(identity["settings"]), key, start, identity["precision"], options)


def _check_target(target, who: str) -> None:
    if not isinstance(target, Target):
        raise CredoError(f"{who} takes a Target, made by model.given(x, y); got {type(target).__name__}.")


def _check_discrete(target: Target, method: Method) -> None:
    """The one place that keeps discrete parameters from methods that cannot move them."""
    names = target.structure.discrete_names
    if names and not getattr(method, "takes_discrete", False):
        raise CredoError(
            f"Parameter {names[0]!r} is discrete, and {type(method).__name__}() moves continuous parameters only: fit "
            f"Gibbs(), such as Gibbs({{{names[0]!r}: Enumerated(), …}}), approximate it by "
            "ADVI(gradient=ScoreFunction()), or sum it out of the likelihood (adapters.from_numpyro does so for "
            "NumPyro programs)."
        )


def _check_source(target: Target, method: Method) -> None:
    """The one place that keeps data outside of memory from methods that ask for all rows at once."""
    if target.source is not None and not getattr(method, "takes_source", False):
        raise CredoError(
            f"These data come in a Loader, and {type(method).__name__}() reads arrays alone: fit by "
            "MAP(batch_size=128), Laplace(), DeepEnsemble(), SWAG(), VBLL(), MCDropout(), SGLD(), SGHMC() or "
            "ADVI(batch_size=128), which read data that lie outside of memory, or give arrays."
        )


def _check_start(start, method: Method) -> None:
    """The one place that keeps a start from methods that choose their own. That of a model is no order to them."""
    own_start = getattr(method, "own_start", None)
    if start is None or own_start is None:
        return
    if not isinstance(start, Posterior) or not getattr(method, "takes_posterior", False):
        raise CredoError(f"{type(method).__name__}() {own_start}: leave start out.")


def _options(checkpoint: str | Path | None, layout, time_limit, max_memory, progress: bool) -> Options:
    """What is passed on to every method, checked."""
    folder = None if checkpoint is None else as_path(checkpoint, "the folder of a checkpoint")
    if layout not in (None, *LAYOUTS):
        raise CredoError(f"layout={layout!r} does not exist: leave it out, or say {' or '.join(map(repr, LAYOUTS))}.")
    of_machine = "a share of what the machine has free"
    check_limit("time_limit", time_limit, "seconds", "no limit")
    check_limit("max_memory", max_memory, "bytes", of_machine)
    if max_memory is not None and max_memory < LEAST_MEMORY:
        raise CredoError(
            f"max_memory={max_memory!r} bytes is less than any fit needs ({LEAST_MEMORY:,} at least): it counts bytes, "
            f"so that 2 GB are 2e9. Leave it out for {of_machine}."
        )
    max_memory = None if max_memory is None or max_memory == np.inf else int(max_memory)
    return Options(folder, layout, time_limit, max_memory, progress)


def _fit(target: Target, method: Method, key, start, precision: str | None, options: Options) -> Posterior:
    begin_work()
    let_go()
    is_double = precision != "float32"
    target = replace(target, model=target.model.as_of_now())
    if not is_double:
        _check_whole_numbers((target.x, target.y))
    with double(is_double), collecting_rarely(), stopwatch() as seconds, threads_for(target.dim), notes() as noted:
        given, target = target, in_blocks(target.cast(np.float64 if is_double else np.float32), options.max_memory)
        start = start_position(target, start)
        if options.checkpoint is not None and not options.resume:
            identity = _identity(given, method, key, precision, start, options.layout)
            options = options._replace(identity=identity, is_repeatable=not isinstance(start, Posterior))
        with _in_a_sentence(target, method), request_kept(options), limited(options.max_memory):
            posterior = method.fit(target, key=key, start=start, options=options)
        posterior.kind = _in_precision(to_numpy(posterior.kind), np.float64 if is_double else np.float32)
        place = _elsewhere(posterior, noted)
    if seconds["compile"]:
        make_room()
    posterior.info = info_of(posterior.info, seconds) | place
    posterior.verdict = _with_remarks(posterior, target)
    posterior.target = posterior.target.released()
    return posterior


def _elsewhere(posterior: Posterior, noted: Mapping[str, Any]) -> dict[str, Any]:
    """The mode with most of what was left out, as ``start`` takes it, where the verdict speaks of one."""
    share = posterior.verdict.figures.get("mode_share", 0.0)
    if PLACE not in noted or not share > RULES["mode_share"].passes:
        return {}
    position = np.asarray(noted[PLACE], float)
    params = to_numpy(posterior.target.flat().constrain(position))
    return {PLACE: params if isinstance(params, Mapping) else position}


def _check_whole_numbers(data) -> None:
    """CredoError for numbers of 64 bits, of which JAX would keep the last 32."""
    for leaf in jax.tree.leaves(data):
        kept = {"int64": np.int32, "uint64": np.uint32}.get(str(getattr(leaf, "dtype", "")))
        if kept is None or not np.size(leaf):
            continue
        low, high = int(np.min(leaf)), int(np.max(leaf))
        if low < np.iinfo(kept).min or high > np.iinfo(kept).max:
            raise CredoError(
                f"The data hold whole numbers up to {max(high, -low):,}, and with precision='float32' these have "
                "32 bits: give them as floats, counted from the first of them, or fit in float64."
            )


@contextmanager
def _in_a_sentence(target: Target, method: Method):
    """What JAX alone can say of the user's program, as a CredoError."""
    try:
        yield
    except CredoError:
        raise
    except (TypeError, ValueError) as error:
        said = _explained(str(error), target, method)
        if said is None:
            raise
        raise CredoError(said) from error


def _explained(error: str, target: Target, method: Method) -> str | None:
    if "Reverse-mode differentiation" in error:
        return (
            "The log density holds a loop whose number of steps is known only as it runs (lax.while_loop, or "
            "lax.fori_loop with such bounds), which JAX cannot differentiate: write it as lax.scan or a fori_loop of "
            "fixed length, or use Slice() or RandomWalkMetropolis(), which need no gradients."
        )
    if "forward-mode autodiff (jvp) to a custom_vjp" in error:
        return (
            "The model holds a function with jax.custom_vjp, which has derivatives backward alone, and this method's "
            "curvature takes them forward too: define it by jax.custom_jvp, or use a method that takes gradients "
            "alone, such as Laplace(structure=Kronecker()) or DeepEnsemble() of a network, ADVI() or NUTS()."
        )
    if _needs_all_rows(target):
        return (
            f"{type(method).__name__}() evaluates some rows without the others, and the likelihood only knows all "
            f"{target.size} of them at once, as a graph's network does that holds its edges, or a parameter of one "
            f"entry a row ({error.splitlines()[0][:120].rstrip('.')}): give what a row reads of others, or its place "
            "among them, as columns of x, or use MAP(), Laplace(structure=Diagonal()), ADVI(), DADVI() or NUTS()."
        )
    return None


def _needs_all_rows(target: Target) -> bool:
    """Whether the likelihood can be had at all inputs and not at the first alone."""
    if target.model.likelihood is None or target.size < 2 or not jax.tree.leaves(target.x):
        return False
    flat, u = target.flat(), abstract((target.dim,))

    def can(x) -> bool:
        try:
            jax.eval_shape(lambda u: flat.likelihood_distribution(flat.constrain(u), x).batch_shape, u)
        except (TypeError, ValueError, IndexError):
            return False
        return True

    return can(target.x) and not can(jax.tree.map(lambda leaf: leaf[:1], target.x))


def info_of(found: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, Any]:
    """What every posterior's ``info`` holds, whatever the method, and what the method said beside it.

    ``num_gradients`` evaluated, and ``num_gradients_useful`` of them after warm-up (all, where there is none);
    ``layout``: "single", or "threads" or "vectorized" for chains; ``is_complete``: False where a time limit ended the
    fit; ``seconds``: total, of it compile, of variational fits, Laplace and networks verdict, and one entry a
    phase of an iterative method. Where the verdict found another mode, ``elsewhere`` has its parameters (a
    flat position, where the prior has no names).
    """
    num_gradients = found.get("num_gradients", 0)
    always = {
        "num_gradients": num_gradients,
        "num_gradients_useful": num_gradients,
        "layout": "single",
        "is_complete": True,
    }
    return always | dict(found) | {"seconds": dict(seconds) | dict(found.get("seconds", {}))}


def _in_precision(kind, dtype):
    """The approximation in the precision of the fit, whatever a method needed on its way there."""

    def convert(leaf):
        is_real = hasattr(leaf, "dtype") and np.issubdtype(leaf.dtype, np.floating)
        return np.asarray(leaf, dtype) if is_real else leaf

    return jax.tree.map(convert, kind)


def _identity(target: Target, method: Method, key, precision: str | None, start, layout: str | None) -> dict[str, Any]:
    """What a checkpoint is of. ``start``: a posterior, which is no text and left out, or positions, or None."""
    with double():
        known = fingerprint(target, probe(target))
    impl = str(jax.random.key_impl(key))
    return {
        "target": known,
        "settings": to_json(method),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        **({} if impl == THREEFRY else {"key_impl": impl}),
        **({} if layout is None else {"layout": layout}),
        "precision": precision,
        "start": None if start is None or isinstance(start, Posterior) else np.asarray(start).tolist(),
        **({"is_told": True} if start is not None else {}),
        **({"knows_widths": True} if knows_widths(start) else {}),
    }


def _with_remarks(posterior: Posterior, target: Target) -> Verdict:
    """The verdict with what the data and the scales of the answer say, whatever the method."""
    remarks, verdict = [], posterior.verdict
    num_rows = target.num_counted
    num_free = sum(leaf.size for leaf in target.structure.leaves if not leaf.is_discrete)
    in_a_row = 1 if target.y is None else sum(int(np.prod(np.shape(leaf)[1:])) for leaf in jax.tree.leaves(target.y))
    if target.y is not None and num_rows * in_a_row < num_free:  # a row may hold a whole series
        what = "rows" if in_a_row == 1 else "outcomes"
        remarks.append(
            f"There are fewer {what} ({num_rows * in_a_row}) than parameters ({num_free}): in the directions that the "
            "data leave free, the prior decides."
        )
    if target.missing is not None:
        remarks.append(target.missing.sentence(target.size))
    tail = tail_sentence(posterior.kind, verdict.figures, target.structure)
    if tail is not None:
        remarks.append(tail)
    if verdict.status != "pass" and target.source is None:
        said = outcome_sentence(target.y), size_sentence(target.x, target.y)
        remarks += [sentence for sentence in said if sentence]
    if posterior.log_evidence is None or posterior.log_evidence.kind != "exact":  # scales are nothing to a closed form
        is_found = verdict.status != "failed"  # else the widths of the answer say nothing
        is_found &= target.model.weights_name is None  # weights of units that nothing reaches decay to any size
        scales = column_sentence(target.x) or (is_found and parameter_sentence(posterior.kind, target.structure))
        remarks += [scales] if scales else []
    escape = escape_sentence(posterior.kind, target.structure, is_trained="failed_at" in posterior.info)
    if escape is not None:
        return replace(verdict, status="failed", sentences=(escape, *verdict.sentences, *remarks))
    doubts = [rounded_sentence(posterior.kind, target.structure), angle_sentence(posterior.kind, target.structure)]
    doubts += [None if verdict.status == "failed" else derived_sentence(posterior), _forgotten(target)]
    for doubt in doubts:
        if doubt is not None:
            status = "doubtful" if verdict.status == "pass" else verdict.status
            verdict = replace(verdict, status=status, sentences=(*verdict.sentences, doubt))
    return replace(verdict, sentences=(*verdict.sentences, *remarks))


def _forgotten(target: Target) -> str | None:
    """Of inputs without outcomes: the likelihood then says nothing."""
    if target.model.likelihood is None or target.y is not None or not target.size or not jax.tree.leaves(target.x):
        return None
    return (
        f"{target.size:,} rows of x were given and no outcomes, so that this is the prior: write given(x, y), or "
        "given() where the prior is meant."
    )
