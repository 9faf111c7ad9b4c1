"""A trained torch module as a network of JAX, and weights of its posterior back into the module.

The module is exported to ATen's core operators, which are run in jax.numpy (export.py, aten). What a module does in
training alone stays as in evaluation: dropout is off, batch normalisation keeps the statistics of training.
"""

import contextlib
import copy
import operator
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.adapters.export import Program, array, exported
from credo.adapters.network import (
    TOLERANCE,
    Network,
    as_rows,
    check_apart,
    check_dtypes,
    check_rows,
    check_slopes,
    difference,
    fitting,
    library,
    listed,
    made_up,
    named,
    nested,
    told,
)
from credo.arguments import of_tensor
from credo.precision import double
from credo.status import CredoError


def from_torch(module, x: Any = None) -> Network:
    """A ``torch.nn.Module`` for ``credo.nn.BayesianNetwork(network.apply, network.params, head=…)``.

    ``x``: example inputs, a few rows as NumPy arrays or tensors (M, …), a tuple of arguments or a dict of keyword
    arguments; without them the module is read when first applied, from the shapes it then meets, and tried on made-up
    numbers. The weights keep torch's names and layout (``params["conv"]["weight"]`` is (out, in, …)); tied ones stand
    once. The module itself is not changed. Buffers and weights without ``requires_grad`` are constants, and so is what
    an embedding gives for its ``padding_idx``; dropout is off and batch normalisation keeps the statistics of training:
    a warning says so, and ``notes`` keeps it.
    Raises CredoError for an operator that JAX code is lacking for, for weights of mixed precision, for a module whose
    rows lean on one another, and where the outputs of the two differ at the example.

    >>> import numpy as np, torch, credo
    >>> module, x, y = torch.nn.Linear(3, 2), np.eye(3, dtype=np.float32), np.array([0, 1, 1])
    >>> network = credo.adapters.from_torch(module)
    >>> model = credo.nn.BayesianNetwork(network.apply, network.params, head=credo.nn.Categorical())
    >>> posterior = credo.fit(model.given(x, y), credo.MAP())
    >>> trained = credo.adapters.to_torch(module, posterior.mean()["weights"])
    """
    torch = library("torch", "torch")
    frozen = _frozen(torch, module)
    trainable = {name: p for name, p in frozen.named_parameters() if p.requires_grad}
    dtype = check_dtypes({n: str(p.dtype).removeprefix("torch.") for n, p in trainable.items()}, "module.float() say")
    params = nested({name: array(p).astype(dtype) for name, p in trainable.items()})
    apply = TorchNetwork(frozen, params, dtype, _padding(torch, frozen))
    if x is not None:
        apply.read(as_rows(jax.tree.map(of_tensor, x)))
    return told(apply, params, [*_notes(torch, module, frozen), *apply.notes])


def to_torch(module, weights: Any) -> Any:
    """A copy of ``module`` with ``weights`` in it: ``posterior.mean()["weights"]``, those of a MAP, or one draw.

    ``weights``: as ``from_torch(module).params``, or a dict by torch's names. Buffers, constants, the mode, the device
    and the precision are the module's own.
    Raises CredoError where names or shapes are not the module's.
    """
    torch = library("torch", "torch")
    if not isinstance(module, torch.nn.Module):
        raise CredoError(f"to_torch takes the torch module that the weights belong to; got {type(module).__name__}.")
    result = _copied(module)
    trainable = {name: p for name, p in _unwrapped(result).named_parameters() if p.requires_grad}
    arrays = fitting(weights, {name: tuple(p.shape) for name, p in trainable.items()})
    with torch.no_grad():
        held = _padding(torch, _unwrapped(result))
        for name, parameter in trainable.items():
            parameter.copy_(torch.from_numpy(np.array(arrays[name])))
        for name, (row, values) in held.items():
            trainable[name][row] = torch.from_numpy(values)
    return result


HALF = "float16", "bfloat16"
ENDS = slice(1), slice(-1, None)  # a layer along another axis may carry something on from the first row to the last


class TorchNetwork:
    """``(params, x) -> outputs`` of a torch module, read once for each shape of a row."""

    def __init__(self, module, params: Any, dtype: str, held: dict[str, tuple[int, np.ndarray]]):
        self.module, self.params, self.dtype, self.held = module, params, dtype, held
        self.programs: dict[Any, Program] = {}
        self.notes: list[str] = []

    def __call__(self, params: Any, x: Any) -> Any:
        x = jax.tree.map(of_tensor, x)
        kind = _kind(x)
        if kind not in self.programs:
            for note in self.read(made_up(x)):
                warnings.warn(note, stacklevel=2)
        program, weights = self.programs[kind], named(params)
        for name, (row, values) in self.held.items():
            table = jnp.asarray(weights[name])
            weights[name] = jnp.concatenate([table[:row], np.asarray(values, table.dtype)[None], table[row + 1 :]])
        leaves = jax.tree.leaves(_ordered(x))
        with jax.enable_x64(True):  # torch's whole numbers have 64 bits, of which JAX leaves 32 outside of a fit
            return program.run(weights, [jnp.asarray(x, int) if x.dtype == np.int32 else x for x in leaves])

    def read(self, x: Any) -> list[str]:
        """Export the module at rows ``x`` (M, …), and compare its outputs and gradients with JAX's; what is to be said.

        As in training, with gradients: what torch does without, its fast path of attention, is other outputs.
        """
        torch = library("torch", "torch")
        with _without_fast_path(torch), torch.enable_grad():
            notes = [note for note in self._read(torch, x) if note not in self.notes]
        self.notes += notes
        return notes

    def _read(self, torch, x: Any) -> list[str]:
        float_type = getattr(torch, self.dtype)

        def tensor(leaf):
            values = torch.from_numpy(np.array(leaf))
            return values.to(float_type) if values.is_floating_point() else values

        rows = _ordered(x)
        given = jax.tree.map(tensor, rows)
        kwargs = given if isinstance(given, dict) else {}
        args = () if kwargs else given if isinstance(given, tuple) else (given,)
        try:
            expected = _in_order(self.module(*args, **kwargs))
        except Exception as error:  # the user's code
            shapes = [np.shape(leaf) for leaf in jax.tree.leaves(rows)]
            raise CredoError(
                f"The module fails on inputs of shape {shapes} ({str(error).strip().splitlines()[0][:200]}): give x in "
                "the shape and kind that it was made for, rows first, as from_torch(module, x)."
            ) from error
        if odd := [type(leaf).__name__ for leaf in expected if not isinstance(leaf, torch.Tensor)]:
            raise CredoError(
                f"The module returns an object of type {odd[0]}, and outputs are tensors, alone or in a tuple, list or "
                "dict: let it return those."
            )
        trainable = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        along, scale, slopes = _slopes(torch, expected, trainable)
        program, changed = exported(torch, self.module, args, kwargs, {id(p): name for name, p in trainable.items()})
        if changed:
            raise CredoError(
                f"Calling the module changes its buffers {listed(changed)} even in evaluation mode: statistics must be "
                "frozen, so let it update them in training alone."
            )
        together = [of_tensor(leaf) for leaf in expected]
        self._check_ends(torch, args, kwargs, together)
        self.programs[_kind(x)] = program
        try:
            least = max({*program.floats, self.dtype} & TOLERANCE.keys(), key=TOLERANCE.__getitem__)
            with double():
                check_rows(self, self.params, rows, self.dtype, together, "torch", least)
                of_slopes = check_slopes(self, self.params, rows, self.dtype, along, scale, slopes) if slopes else ""
        except Exception as error:
            del self.programs[_kind(x)]
            if isinstance(error, CredoError):
                raise
            reason = str(error).strip().split("\n")[0][:200]
            raise CredoError(
                f"The module cannot be run in JAX ({type(error).__name__}: {reason}): leave out of it what is no usual "
                "layer (indices of a pooling, say), or write apply by hand."
            ) from error
        notes = [_of_detached(program), of_slopes]
        if least in HALF:
            notes += [f"What torch computes in {least} is computed in the precision of the weights here."]
        notes += [_of_fast_path(torch, self.module, args, kwargs, together)]
        return [note for note in notes if note]

    def _check_ends(self, torch, args, kwargs, together: list[np.ndarray]) -> None:
        """CredoError where torch's own outputs of the first or the last row are others when it is alone.

        Of a module that takes no single row, or has no finite output a row, the network in JAX is checked alone.
        """
        for end in ENDS:
            own, by_name = jax.tree.map(operator.itemgetter(end), (args, kwargs))
            try:
                with torch.no_grad():
                    alone = _in_order(self.module(*own, **by_name))
                pairs = zip(alone, together, strict=True)
                found = [of_tensor(leaf).reshape(among[end].shape) for leaf, among in pairs]  # squeezed, perhaps
            except Exception:  # the user's code
                return
            if not all(np.all(np.isfinite(leaf)) for leaf in together):
                return
            check_apart(found, together, end, self.dtype)


def _kind(x: Any):
    """Structure, shapes of a row, and which arrays hold whole numbers."""
    leaves, structure = jax.tree.flatten(_ordered(x))
    types = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]
    return structure, tuple(
        (tuple(jnp.shape(leaf)[1:]), is_float) for leaf, is_float in zip(leaves, types, strict=True)
    )


def _slopes(torch, outputs: list, weights: Mapping[str, Any]) -> tuple[list[np.ndarray], float, dict[str, np.ndarray]]:
    """(a direction for each output, Σ |outputs · directions|, torch's gradient of their sum by each weight).

    No gradient where torch itself cannot have it, as of what was changed in place.
    """
    random = np.random.default_rng(0)
    along = [random.normal(size=leaf.shape) for leaf in outputs]
    products = [leaf * torch.from_numpy(d).to(leaf) for leaf, d in zip(outputs, along, strict=True)]
    if not any(each.requires_grad for each in products):
        raise CredoError(
            "No output of the module has a gradient by its weights in torch: its forward runs under torch.no_grad(), "
            "detaches them, or ends in whole numbers (argmax, round). Let it return what it is trained by."
        )
    scale = sum(float(each.detach().abs().sum()) for each in products)
    try:
        total = sum(each.sum() for each in products)
        found = torch.autograd.grad(total, list(weights.values()), allow_unused=True, materialize_grads=True)
    except RuntimeError:
        return along, scale, {}
    return along, scale, {name: array(g.to_dense()) for name, g in zip(weights, found, strict=True)}


def _of_detached(program: Program) -> str:
    if not program.detached:
        return ""
    return (
        f"What the module detaches of its weights{program.detached} has no derivative here either: gradients are "
        "torch's, as in training, and not those of the density, which samplers and variational methods follow. For "
        "weights that are to stay as they are say requires_grad_(False)."
    )


@contextlib.contextmanager
def _without_fast_path(torch):
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


def _of_fast_path(torch, module, args, kwargs, together: list[np.ndarray]) -> str:
    """A sentence where torch's fast path of attention gives other outputs than ``together``, those of training."""
    kinds = torch.nn.TransformerEncoder | torch.nn.TransformerEncoderLayer | torch.nn.MultiheadAttention
    if not any(isinstance(part, kinds) for part in module.modules()):
        return ""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own insides
        torch.backends.mha.set_fastpath_enabled(True)  # put back by the caller
        quick = [leaf.numpy() for leaf in _in_order(module(*args, **kwargs))]
    error = difference(quick, together)
    if error <= TOLERANCE["float32"]:
        return ""
    return (
        f"Without gradients, in evaluation, torch's fast path of attention gives other outputs here than it has in "
        f"training (by {error:.2g} of the largest): zeros at the places that a padding mask hides. The network in JAX "
        "is as in training; torch is too after torch.backends.mha.set_fastpath_enabled(False)."
    )


def _in_order(outputs: Any) -> list:
    """Tensors in the order in which JAX lists them: torch leaves the keys of a dict as they were set."""
    return jax.tree.leaves(outputs)


def _ordered(x: Any) -> Any:
    """A dict of arguments in the order in which JAX lists it."""
    return {key: x[key] for key in sorted(x)} if isinstance(x, Mapping) else tuple(x) if isinstance(x, list) else x


def _unwrapped(module):
    return getattr(module, "_orig_mod", module)  # what torch.compile wraps


def _frozen(torch, module):
    """A copy in evaluation mode, on the CPU."""
    if not isinstance(module, torch.nn.Module):
        raise CredoError(f"from_torch takes a torch.nn.Module; got {type(module).__name__}.")
    lazy = [name for name, p in module.named_parameters() if isinstance(p, torch.nn.parameter.UninitializedParameter)]
    if lazy:
        raise CredoError(f"The weights {listed(lazy)} have no shape yet: call the module once, and train it.")
    if any(p.is_meta for p in (*module.parameters(), *module.buffers())):
        raise CredoError("The module lies on torch's device 'meta', which has shapes and no values: load its weights.")
    if isinstance(module, torch.jit.ScriptModule):
        raise CredoError(
            "The module is compiled by torch.jit, which torch.export does not read: give the one it is of."
        )
    bounded = [name for name, m in module.named_modules() if getattr(m, "max_norm", None) is not None]
    if bounded:
        raise CredoError(
            f"Calling the module changes its weights (max_norm of {listed(bounded)}), so that they are no parameters: "
            "set max_norm = None in the trained module, whose rows keep their lengths."
        )
    return _copied(_unwrapped(module)).cpu().eval()


def _copied(module):
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:
        raise CredoError(
            "The module holds a tensor that was computed from its weights, and torch cannot copy it: use "
            "torch.nn.utils.parametrizations.weight_norm in place of torch.nn.utils.weight_norm, end pruning with "
            "torch.nn.utils.prune.remove, and keep no outputs (without .detach()) in the module."
        ) from error


def _padding(torch, module) -> dict[str, tuple[int, np.ndarray]]:
    """The row of padding of each table that is an embedding's alone, which torch's training leaves as it is."""
    places = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    uses = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    found = {}
    for m in module.modules():
        is_table = isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag) and m.padding_idx is not None
        if is_table and id(m.weight) in places and uses[id(m.weight)] == 1:
            found[places[id(m.weight)]] = m.padding_idx, array(m.weight)[m.padding_idx].copy()
    return found


def _notes(torch, module, frozen) -> list[str]:
    module = _unwrapped(module)
    notes = []
    norms = {
        name: m
        for name, m in frozen.named_modules()
        if isinstance(m, torch.nn.modules.batchnorm._NormBase) and m.running_mean is not None
    }
    drops = [name for name, m in frozen.named_modules() if _rate(m) > 0]
    is_training = [name for name in (*norms, *drops) if module.get_submodule(name).training]
    if norms:
        notes.append(f"Batch normalisation ({listed(norms)}) keeps the means and variances of training, as constants.")
    fresh = [name for name, m in norms.items() if m.num_batches_tracked is not None and not m.num_batches_tracked]
    if fresh:
        notes.append(f"Those of {listed(fresh)} have met no data yet: train the module first.")
    if drops:
        notes.append(f"Dropout ({listed(drops)}) is off.")
    if is_training:
        notes.append("The module is in training mode, where its own outputs differ: call module.eval() to see these.")
    constants = [name for name, p in frozen.named_parameters() if not p.requires_grad]
    if constants:
        notes.append(f"The weights without requires_grad ({listed(constants)}) are constants.")
    hooked = [name for name, p in module.named_parameters() if getattr(p, "_backward_hooks", None)]
    if hooked:
        notes.append(f"What hooks make of the gradients of {listed(hooked)} is left out.")
    padding = _padding(torch, frozen)
    if padding:
        notes.append(
            f"The rows of padding_idx ({listed(padding)}) are constants, whatever the posterior of these weights."
        )
    everywhere: dict[int, list[str]] = {}
    for name, p in frozen.named_parameters(remove_duplicate=False):
        everywhere.setdefault(id(p), []).append(name)
    tied = [" = ".join(group) for group in everywhere.values() if len(group) > 1]
    if tied:
        notes.append(f"Tied weights stand once, under their first name: {listed(tied)}.")
    return notes


def _rate(module) -> float:
    """Of dropout, in a layer of its own or inside a recurrent or attention layer."""
    is_dropout = "dropout" in type(module).__name__.lower()
    rate = module.p if is_dropout and hasattr(module, "p") else getattr(module, "dropout", 0.0)
    return rate if isinstance(rate, float) else 0.0
