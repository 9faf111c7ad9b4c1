"""A torch module as a program of core operators (torch.export), and its interpreter in jax.numpy.

The module is exported with a dynamic number of rows; where its code fixes that number, with one row, and mapped over
the rows. Arrays of floating point are in the precision of the weights that ``run`` is given, whatever the module says:
a fit computes in double precision.
"""

import contextlib
import io
import logging
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.adapters.aten import BY_BATCH, WHOLE, find
from credo.status import CredoError

DROPPED = ("device", "layout", "pin_memory", "memory_format", "non_blocking")  # where an array lies
CHECKS = (
    "_assert_scalar",
    "_assert_async",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
)


class Ref(NamedTuple):
    """The value of another node."""

    name: str


class Kind(NamedTuple):
    """A dtype of torch."""

    name: str

    def resolve(self, working):
        if "complex" in self.name:
            return jnp.result_type(working, np.complex64)
        return working if "float" in self.name else jax.dtypes.canonicalize_dtype(self.name)


class Step(NamedTuple):
    name: str
    function: Callable
    args: tuple
    kwargs: dict[str, Any]


class Program(NamedTuple):
    """``steps`` in order; ``weights``: (node, name of the weight); ``constants``: NumPy arrays by node."""

    steps: tuple[Step, ...]
    weights: tuple[tuple[str, str], ...]
    constants: Mapping[str, np.ndarray]
    inputs: tuple[str, ...]
    outputs: tuple[Any, ...]
    assemble: Callable[[list], Any]  # the flat outputs in the module's own structure
    is_one_row: bool
    detached: str  # where something that comes of weights has no derivative, "" for nowhere

    def run(self, weights: Mapping[str, Any], inputs: list) -> Any:
        """The outputs at ``inputs``, arrays (M, …)."""
        working = jnp.asarray(next(iter(weights.values()))).dtype

        def rows(*inputs):
            return self.assemble(self._interpret(weights, inputs, working))

        if not self.is_one_row:
            return rows(*inputs)
        z = jax.vmap(rows)(*(leaf[:, None] for leaf in inputs))
        return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], *leaf.shape[2:]), z)

    @property
    def floats(self) -> set[str]:
        """The kinds of floating point that the module casts to."""
        given = (each for step in self.steps for each in (*step.args, *step.kwargs.values()))
        return {each.name for each in given if isinstance(each, Kind) and "float" in each.name}

    def _interpret(self, weights, inputs, working) -> list:
        values: dict[str, Any] = {node: weights[name] for node, name in self.weights}
        values |= {node: _working(value, working) for node, value in self.constants.items()}
        values |= {node: _working(value, working) for node, value in zip(self.inputs, inputs, strict=True)}

        def read(given):
            if isinstance(given, Ref):
                return values[given.name]
            if isinstance(given, Kind):
                return given.resolve(working)
            if isinstance(given, list):
                return [read(each) for each in given]
            return given

        for step in self.steps:
            arguments = [read(each) for each in step.args]
            found = step.function(*arguments, **{key: read(each) for key, each in step.kwargs.items()})
            values[step.name] = jax.tree.map(lambda x: _working(x, working) if isinstance(x, jax.Array) else x, found)
        return [read(each) for each in self.outputs]


def _working(value, dtype):
    return jnp.asarray(value, dtype if jnp.issubdtype(jnp.result_type(value), jnp.floating) else None)


def exported(torch, module, args: tuple, kwargs: dict[str, Any], names: Mapping[int, str]) -> tuple[Program, list[str]]:
    """The program of ``module`` and the names of the buffers that calling it would change.

    ``names``: the weights by the id of their tensor; what is not among them is a constant.
    """
    try:
        program, is_one_row = _export(torch, module, args, kwargs, is_dynamic=True), False
    except Exception:  # torch.export raises of many kinds, and the second try tells the user
        try:
            one = torch.utils._pytree.tree_map(lambda leaf: leaf[:1], (args, kwargs))
            program, is_one_row = _export(torch, module, *one, is_dynamic=False), True
        except Exception as error:
            reason = str(error).strip().split("\n")[0][:200]
            raise CredoError(
                f"torch.export cannot read the module ({type(error).__name__}: {reason}). Its forward must take any "
                "number of rows, or one, not branch on the values of tensors nor take .data of them (say .detach()); "
                "else write apply by hand."
            ) from error
    return _program(program, module, names, is_one_row)


def _export(torch, module, args, kwargs, *, is_dynamic: bool):
    decompositions = torch.export.default_decompositions()
    for op in list(decompositions):
        if getattr(op, "_schema", None) and op._schema.name.removeprefix("aten::") in WHOLE:
            decompositions.pop(op)
    shapes = None
    if is_dynamic:
        rows = torch.export.Dim("rows", min=1)
        shapes = {key: {0: rows} for key in kwargs} or tuple({0: rows} for _ in args)
    # with gradients, as in training: without them torch takes other roads, and no part of a module is known as detached
    with warnings.catch_warnings(), _silent(), torch.enable_grad():
        warnings.simplefilter("ignore")  # of torch's own insides
        program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
        _keep_detached(torch, program.graph_module)
        return program.run_decompositions(decompositions)


@contextlib.contextmanager
def _silent():
    """Without the pages that torch logs and prints where it fails: the error says what matters."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)


def _keep_detached(torch, graph_module) -> None:
    """Mark what has no derivative in torch, ``.detach()`` and all under ``no_grad``, by an operator that stays.

    Decompositions make an alias of the one, and a part like any other of what is under the other.
    """
    mark, scope = torch.ops.aten.detach_copy.default, torch.ops.higher_order.wrap_with_set_grad_enabled
    parts = [part for part in graph_module.modules() if hasattr(part, "graph")]
    for part in parts:
        for node in part.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
            node.target = mark
    for part in parts:
        for node in part.graph.find_nodes(op="call_function", target=scope):
            is_enabled, inner = node.args[:2]
            if not is_enabled:
                _mark_outputs(getattr(part, inner.target).graph, mark)


def _mark_outputs(graph, mark) -> None:
    end = graph.output_node()
    with graph.inserting_before(end):
        end.args = ([graph.call_function(mark, (each,)) for each in end.args[0]],)


def _program(program, module, names: Mapping[int, str], is_one_row: bool) -> tuple[Program, list[str]]:
    tensors = {**dict(module.named_buffers(remove_duplicate=False)), **program.constants}
    tensors |= dict(module.named_parameters(remove_duplicate=False))
    weights, constants, inputs = [], {}, []
    for spec in program.graph_signature.input_specs:
        node, kind = spec.arg.name, spec.kind.name
        if kind == "USER_INPUT":
            inputs.append(node)
        elif kind == "TOKEN":  # it orders effects, each of which is a node that has its sentence
            continue
        elif spec.target not in tensors or not hasattr(tensors[spec.target], "detach"):
            raise CredoError(f"The module's {spec.target!r} is no tensor ({kind.lower()}): write apply by hand.")
        elif id(tensors[spec.target]) in names:
            weights.append((node, names[id(tensors[spec.target])]))
        else:
            constants[node] = array(tensors[spec.target])
    steps, outputs = [], ()
    kinds = [spec.kind.name for spec in program.graph_signature.output_specs]
    for node in program.graph.nodes:
        if node.op == "call_function":
            step = _step(node)
            steps += [] if step is None else [step]
        elif node.op == "output":
            outputs = tuple(
                _plain(each) for each, kind in zip(node.args[0], kinds, strict=True) if kind == "USER_OUTPUT"
            )
        elif node.op != "placeholder":
            raise CredoError(
                f"The module has control flow in its graph ({node.target}){_place(node)}: write apply by hand."
            )
    changed = [spec.target for spec in program.graph_signature.output_specs if spec.kind.name == "BUFFER_MUTATION"]
    assemble = program.call_spec.out_spec.unflatten
    detached = _detached(program.graph, {node for node, _ in weights})
    found = Program(tuple(steps), tuple(weights), constants, tuple(inputs), outputs, assemble, is_one_row, detached)
    return found, changed


def _detached(graph, of_weights: set[str]) -> str:
    """Where the module first detaches what comes of ``of_weights``, nodes by name."""
    reached = set(of_weights)
    for node in graph.nodes:
        if reached.isdisjoint(each.name for each in node.all_input_nodes):
            continue
        if getattr(node.target, "__name__", "") == "detach_copy.default":
            place = _place(node)
            return " under torch.no_grad()" if "detach_copy" in place else place or " somewhere"  # code of torch's own
        reached.add(node.name)
    return ""


def _step(node) -> Step | None:
    target = node.target
    if not hasattr(target, "_schema"):  # arithmetic on sizes
        return Step(node.name, _of_sizes(node), tuple(map(_plain, node.args)), {})
    space, name = target._schema.name.split("::")
    if name in CHECKS:
        return None
    function = find(name, target._overloadname) if space == "aten" else None
    if function is None and any(tag.name == "nondeterministic_seeded" for tag in target.tags):
        raise CredoError(
            f"The module draws random numbers ({name}){_place(node)}, even in evaluation mode: let its randomness rest "
            "there (dropout with training=self.training), since a likelihood needs one output for one input."
        )
    if function is None and name in BY_BATCH:
        raise CredoError(
            f"A batch normalisation{_place(node)} uses the statistics of its batch, so that the output of a row "
            "changes with the rows beside it: let it track them in training (track_running_stats=True), and call it "
            "with training=self.training."
        )
    if function is None:
        raise CredoError(
            f"The operator {target}{_place(node)} is none of those that Credo brings to JAX: replace "
            "it in the module, or write apply by hand."
        )
    kwargs = {key: _plain(value) for key, value in node.kwargs.items() if key not in DROPPED}
    args = (_plain(node.args[0]), _ones(node)) if name == "squeeze" else tuple(map(_plain, node.args))
    return Step(node.name, function, args, kwargs)


def _ones(node) -> list[int]:
    """The axes that torch squeezes: a single row is no reason to lose the axis of rows."""
    shape = node.args[0].meta["val"].shape
    dims = node.args[1] if len(node.args) > 1 else list(range(len(shape)))
    return [d for d in ([dims] if isinstance(dims, int) else dims) if isinstance(shape[d], int) and shape[d] == 1]


def _of_sizes(node) -> Callable:
    target = node.target
    if getattr(target, "__module__", "") in ("_operator", "math", "builtins") or target in vars(operator).values():
        return target
    name = getattr(target, "__name__", str(target))
    simple = {"sym_max": max, "sym_min": min, "sym_float": float, "sym_int": int, "sym_not": operator.not_}
    if name not in simple:
        raise CredoError(
            f"The module calls {name}{_place(node)}, which Credo cannot bring to JAX: write apply by hand."
        )
    return simple[name]


def _plain(given: Any) -> Any:
    """Arguments of a node without torch: references, dtypes and plain values."""
    if isinstance(given, list | tuple):
        return [_plain(each) for each in given]
    if hasattr(given, "op") and hasattr(given, "target"):
        return Ref(given.name)
    kind = str(given).removeprefix("torch.")
    return Kind(kind) if type(given).__name__ == "dtype" else given


def _place(node) -> str:
    """Where in the module a node stands."""
    stack = node.meta.get("nn_module_stack")
    path = list(stack.values())[-1][0] if stack else ""
    path = path.removeprefix("L['self'].").removeprefix("L['self']")
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    code = f", at `{lines[-1]}`" if lines else ""
    return (f" in {path!r}" if path else "") + code


def array(tensor) -> np.ndarray:
    """A copy; floats of any width in double precision, so that no constant is rounded on its way into a fit."""
    values = tensor.detach().cpu()
    return values.double().numpy().copy() if values.is_floating_point() else values.numpy().copy()
