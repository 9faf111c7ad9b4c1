"""What a term of a formula may compute: functions of columns, and nothing that reaches the machine.

formulaic evaluates a term as Python, so ``{open('f', 'w')}`` would write a file; and the file beside a comparison holds
its formula as text. Hence a term is looked at before it is evaluated: names of columns, numbers, texts, operators, the
functions of formulaic, and those of NumPy that work value by value.
"""

import ast
from collections.abc import Collection, Iterator

import numpy as np

from credo.status import CredoError

NUMPY = ("where", "clip", "round", "abs", "nan_to_num", "digitize", "isin", "interp", "pi", "e")  # besides ufuncs
ALLOWED = (
    ast.Expression,
    ast.Name,
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.keyword,
    ast.Attribute,
    ast.List,
    ast.Tuple,
    ast.Dict,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)  # fmt: skip; no subscripts: x[0] is another number where the rows are others


def check_term(expression: str) -> None:
    """CredoError, naming ``expression``, unless it is a function of columns that may be evaluated."""
    from formulaic.transforms import TRANSFORMS

    tree, _ = _parsed(expression)
    if any(isinstance(node, ast.BitXor) for node in ast.walk(tree)):
        raise CredoError(
            f"The formula's part {expression!r} has ^, which is no power in a function or in braces: write **, as in "
            "{x**2}."
        )
    for piece in _refused(tree, TRANSFORMS.keys() - {"lag"}):  # which reads another row, whatever the rows are
        raise CredoError(
            f"The formula's part {expression!r} cannot be used, for {piece!r}: a term is made of columns, numbers and "
            "functions such as log(x), np.sqrt(x), poly(x, 2) or C(g), with names that hold dots or spaces in "
            "`backticks`. Compute anything else as a column of the table."
        )


def names_in(expression: str) -> set[str]:
    """The names that a term gives to its values: columns, and contrasts such as Sum, but no functions.

    formulaic's own answer lacks the arguments of ``poly`` and its like.
    """
    tree, quoted = _parsed(expression)
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    others = {
        *(id(call.func) for call in calls),
        *(id(node.value) for node in nodes if isinstance(node, ast.Attribute)),
    }
    names = {quoted.get(node.id, node.id) for node in nodes if isinstance(node, ast.Name) and id(node) not in others}
    texts = [call.args for call in calls if ast.unparse(call.func) == "Q" and call.args]  # Q('a name')
    return names | {str(first.value) for first, *_ in texts if isinstance(first, ast.Constant)}


def _parsed(expression: str) -> tuple[ast.AST, dict[str, str]]:
    """As formulaic reads it, where names in backticks become identifiers unlike others: with the names behind them."""
    from formulaic.utils.code import sanitize_variable_names

    quoted: dict[str, str] = {}
    text = sanitize_variable_names(expression, {}, quoted, template="_quoted_{}")
    return ast.parse(text, mode="eval"), quoted


def _refused(tree: ast.AST, functions: Collection[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in functions:
            yield node.func.id
        if (
            not isinstance(node, ALLOWED)
            or (isinstance(node, ast.Name) and node.id.startswith("__"))
            or (isinstance(node, ast.Attribute) and not _is_known_attribute(node))
            or (isinstance(node, ast.Call) and not isinstance(node.func, ast.Name | ast.Attribute))
        ):
            yield ast.unparse(node)


def _is_known_attribute(node: ast.Attribute) -> bool:
    if not isinstance(node.value, ast.Name):
        return False
    if node.value.id == "contr":
        return not node.attr.startswith("_")
    found = getattr(np, node.attr, None)
    is_by_value = isinstance(found, np.ufunc) and found.signature is None  # unlike matmul, which mixes rows
    return node.value.id == "np" and (node.attr in NUMPY or is_by_value)
