"""Any network as a model: y ~ head(apply(weights, x)), weights ~ prior."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from credo.arguments import leaves_of
from credo.model.data import inputs, num_rows, outcomes
from credo.model.distributions import is_distribution
from credo.model.missing import check_request, observed_rows, select, whole
from credo.model.model import Model
from credo.model.prior import Prior
from credo.model.shared import first_of, shared
from credo.model.source import Loader
from credo.model.target import Target
from credo.model.visit import leaf_name
from credo.nn.endings import endings
from credo.nn.heads import Custom, Head
from credo.nn.priors import WEIGHTS, Isotropic, WeightPrior
from credo.nn.rows import check_alone
from credo.nn.user_head import head_or_none
from credo.precision import double
from credo.status import CredoError


class Outcome(eqx.Module):
    """(params, x) -> p(y | x, params): the network and then its head."""

    apply: Callable = eqx.field(static=True)
    head: Head = eqx.field(static=True)
    own: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, params, x) -> Distribution:
        z = _as_precise(self.apply(params[WEIGHTS], x), params[WEIGHTS])
        return self.head.outcome(z, {name: params[name] for name in self.own})


def _as_precise(outputs, weights):
    """Outputs of a network that computes in less than the precision of its weights, as a module's dtype= says: the head
    and sums over rows need all of it."""
    dtype = jnp.result_type(*jax.tree.leaves(weights))

    def widened(z):
        is_less = jnp.issubdtype(z.dtype, jnp.floating) and jnp.finfo(z.dtype).bits < jnp.finfo(dtype).bits
        return z.astype(dtype) if is_less else z

    return jax.tree.map(widened, outputs)


class BayesianNetwork(Model):
    """A network whose weights are believed and not known.

    ``apply(params, x)``: the outputs (M, K) or (M,) at inputs x (M, …), in jax.numpy. ``params``: a pytree of
    floating-point arrays, the trained weights or an initialisation: every fit starts there, and the other parameters
    where their unconstrained coordinate is zero. ``head``: what the outputs say of an outcome
    (``credo.nn.Categorical()``, …), or a function from outputs to a numpyro distribution. ``prior``: of the weights,
    ``credo.nn.Isotropic(1.0)`` where left out.
    The parameters of the model are ``weights`` and, where unknown, the head's own (``noise``) and ``precision``.
    Raises CredoError for leaves that are no floating-point arrays or differ in precision.

    >>> import jax.numpy as jnp, numpy as np, credo
    >>> params = {"in": np.full((1, 3), 0.1), "out": np.zeros(3)}
    >>> network = credo.nn.BayesianNetwork(
    ...     lambda params, x: jnp.tanh(x @ params["in"]) @ params["out"], params, head=credo.nn.Gaussian(0.1)
    ... )
    >>> network.given(np.zeros((5, 1)), np.zeros(5)).dim
    6
    """

    network: Outcome = eqx.field(static=True)
    weights_name: ClassVar[str | None] = WEIGHTS

    def __init__(
        self,
        apply: Callable,
        params: Any,
        *,
        head: Head | Callable,
        prior: WeightPrior | None = None,
    ):
        check_weights(params)
        chosen: Head = first_of(head if isinstance(head, Head) else _custom(head))
        rule = Isotropic() if prior is None else prior
        if not isinstance(rule, WeightPrior):
            got = f"{type(prior).__name__}(…), one distribution" if is_distribution(prior) else repr(prior)
            raise CredoError(
                f"The prior of a network is a rule for its weights, such as credo.nn.Isotropic(1.0); got {got}."
            )
        own, of_weights = chosen.priors(), dict(rule.of(params))
        if twice := [name for name in own if name in of_weights]:
            raise CredoError(
                f"The head has a parameter of its own called {twice[0]!r}, and so has the prior of the weights: give "
                "the head's another name."
            )
        self.network = Outcome(shared(apply), chosen, tuple(own))
        weights = of_weights.pop(WEIGHTS)
        # a user's head has parameters that stand beside the weights, behind what the evidence tunes
        others = {**of_weights, **own} if isinstance(chosen, Custom) else {**own, **of_weights}
        super().__init__({**others, WEIGHTS: weights}, self.network)
        start = Prior(others).at_origin() if others else {}
        # copies: JAX keeps what it made of a NumPy array in the user's precision by the array's identity
        self.start = jax.tree.map(np.array, {**start, WEIGHTS: rule.start(params)})

    def given(self, x=None, y=None, *, weights=None, missing=None) -> Target:
        if y is not None and not isinstance(x, Loader):
            check_request(self, missing)
            columns = inputs(x, self.groups, rows=self.group_rows)[0]
            seen = (columns, outcomes(y)) if missing is None else _observed(columns, y, missing)
            num_rows(*seen, None)
            with double():  # as fits are: JAX keeps a constant in the precision in which it first met it
                self._check_outputs(*seen)
        return super().given(x, y, weights=weights, missing=missing)

    def head_of(self, outcome, x):
        found = super().head_of(outcome, x)
        if found is not None:
            return found
        weights = jax.eval_shape(lambda: self.prior.at_origin())[WEIGHTS]
        return head_or_none(self.network.apply, self.network.head, weights, x)

    def _check_outputs(self, x, y) -> None:
        if isinstance(y, Mapping) and not isinstance(self.network.head, Custom):
            raise CredoError(
                f"{type(self.network.head).__name__}() takes one array of outcomes, and y is a dict of "
                f"{', '.join(map(repr, y))}: give head= a function from the outputs to a dict of distributions."
            )
        params = jax.eval_shape(self.prior.at_origin)
        try:
            program, z = jax.make_jaxpr(self.network.apply, return_shape=True)(params[WEIGHTS], x)
        except CredoError:
            raise
        except Exception as error:  # the user's code, and the errors of its library
            reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
            remedy = "Give x in the shape that it was made for, rows first."
            if isinstance(error, jax.errors.JAXTypeError):  # something of Python or NumPy saw a value that is traced
                remedy = "It must be written with jax.numpy: NumPy's functions, float() and `if` take no traced arrays."
            elif "same dtypes" in reason:
                remedy = (
                    "Fits compute in double precision: write what casts x with the weights' own, as in "
                    "x.astype(params['w'].dtype)."
                )
            elif "string indexing" in reason:
                remedy = "It is called as apply(params, x): are its arguments the other way round?"
            elif isinstance(x, dict):
                remedy = "A DataFrame reaches a network as a dict of columns, as a dict does: give x.to_numpy()."
            shapes = [str(np.shape(leaf)) for leaf in jax.tree.leaves(x)]
            shown = ", ".join(shapes[:4]) + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "")
            raise CredoError(f"The network cannot be applied to inputs of shape {shown}: {reason}. {remedy}") from error
        if isinstance(z, tuple | list) and any(isinstance(each, Mapping) for each in z):
            raise CredoError(
                "The network returns a state beside its outputs, so its statistics (of batch normalisation?) are not "
                "frozen: apply it as in evaluation, and return the outputs alone (credo.adapters.from_flax does)."
            )
        if isinstance(z, Mapping) and not isinstance(self.network.head, Custom):
            raise CredoError(
                f"The network returns a dict of {', '.join(map(repr, z))}, and a head takes an array of outputs: "
                "return one of them, or give head= a function of the dict."
            )
        if isinstance(z, tuple | list) and not self.network.head.takes_pairs:
            raise CredoError(
                f"{type(self.network.head).__name__}() takes one array of outputs, and the network returns {len(z)}: "
                "return one of them, or give head= a function of them all."
            )
        if not jax.tree.leaves(z):
            raise CredoError(
                f"The network returns {z}, and no outputs: it must return one row of outputs a row of x (is its "
                "return statement missing?)."
            )
        size = num_rows(None, y, None)
        for each in jax.tree.leaves(z):
            if not (isinstance(self.network.head, Custom) or jnp.issubdtype(each.dtype, jnp.floating)):
                raise CredoError(
                    f"The network gives outputs of type {each.dtype}, in which its weights have no derivative: return "
                    "real numbers, such as logits before any rounding."
                )
            if each.shape[:1] != (size,):
                raise CredoError(
                    f"The network gives outputs of shape {each.shape} for {size} outcomes: it must return one "
                    "row of outputs a row of x."
                )
        if not isinstance(y, Mapping):
            self.network.head.check(z, y)
        self.network.head.check_ending(endings(program)[-1])
        check_alone(self.network.apply, self.start[WEIGHTS], x, program, size)


def check_weights(params) -> None:
    """CredoError where a leaf cannot be a random weight."""
    leaves_of(params, "params")
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise CredoError("The network has no weights: params holds no array.")
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", np.asarray(leaf).dtype if np.isscalar(leaf) else None)
        if dtype is not None and str(dtype) == "bfloat16":  # no kind of NumPy's
            raise CredoError(f"The weight {leaf_name(path)!r} is bfloat16: cast the weights to float32.")
        if not isinstance(dtype, np.dtype) or not np.issubdtype(dtype, np.floating):  # a key's is no NumPy one
            kind = type(leaf).__name__ if dtype is None else dtype
            raise CredoError(
                f"The weight {leaf_name(path)!r} is {kind}, and only floating-point arrays can be random: keep it out "
                "of params, in the closure of apply (equinox.partition(module, equinox.is_inexact_array) splits them)."
            )
        if not np.all(np.isfinite(np.asarray(leaf, np.float64))):
            raise CredoError(f"The weight {leaf_name(path)!r} is not finite: train again, or start from other weights.")
    found = {np.dtype(leaf.dtype) for _, leaf in leaves if hasattr(leaf, "dtype")}  # Python's numbers suit any
    if len(found) > 1:
        names = ", ".join(sorted(map(str, found)))
        raise CredoError(f"The weights are of mixed precision ({names}): cast them to one dtype, float32 say.")


def _custom(head) -> Head:
    if not callable(head) or isinstance(head, type):
        raise CredoError(
            f"The head of a network is one of credo.nn's, with its brackets, or a function from outputs to a "
            f"distribution; got {head!r}."
        )
    return Custom(head)


def _observed(x, y, missing: str):
    """The rows that have an outcome."""
    y, is_observed = observed_rows(y, missing)
    num_rows(x, y, None)
    x, y = select((x, y), is_observed)
    return x, whole(y)
