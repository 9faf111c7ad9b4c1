"""The compiled unit of the loop: as many steps as it is told, written into buffers of fixed length.

One program serves warm-up and sampling, any number of draws, new data and new keys. What step i of a chain draws
follows from (key, i) alone: neither the size of the chunks nor the layout changes which random numbers it sees.

*One chain*: steps one after the other. *Many chains*: all of them advance together, one piece of a step at a time
(``Stages``), so that every turn of the loop evaluates one gradient a chain; a chain whose step is over records it and
begins the next one while the others are under way. Each chain stops at its own count of steps, never on a budget of
gradients, which would favour short steps. Steps without stages have one length, and go on abreast.

Steps that take ``Noise`` are given it, drawn before (noise.py), where that is not None.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex

from credo.algorithm import Program, Stages, as_key
from credo.compiling import LONG, NATIVE
from credo.native import jit
from credo.noise import Noise, row
from credo.ordered import plain


class Work(NamedTuple):
    """Turns of the loop times chains, and how many of them belong to steps that were recorded."""

    executed: jax.Array
    useful: jax.Array


def _one_chain(target, tuning, key, noise, state, start, stop, *, program: Program, length: int):
    """Steps ``start`` to ``stop`` of one chain, ``length`` at most -> (state, records of each step, None)."""
    algorithm = program.algorithm(plain(target), tuning)

    def step(i, state):
        state, info = algorithm.step(_source(key, noise, i, start), state)
        return state, (program.record(state), info)

    # The user's density is traced here, once; the loop repeats the equations that came of it.
    equations, shapes = jax.make_jaxpr(step, return_shape=True)(start, state)

    def body(carry):
        i, state, buffers = carry
        leaves = jex.jaxpr_as_fun(equations)(i, *jax.tree.leaves(state))
        state, record = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
        put = functools.partial(lax.dynamic_update_index_in_dim, index=i - start, axis=0)
        return i + 1, state, jax.tree.map(put, buffers, record)

    buffers = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes[1])
    state, buffers = lax.while_loop(lambda carry: carry[0] < stop, body, (start, state, buffers))[1:]
    return state, buffers, None


def _source(key, noise: Noise | None, i, start):
    """What step i takes its random numbers from."""
    return jax.random.fold_in(as_key(key), i) if noise is None else row(noise, i, start)


def _many_chains(target, tuning, keys, noise, states, start, stop, *, program: Program, length: int):
    """The same of chains along the first axis of ``keys``, ``noise`` and ``states`` -> (states, records, Work)."""
    stages = program.algorithm(plain(target), tuning).stages
    if stages is not None:
        return _by_stages(stages, keys, noise, states, start, stop, program, length)

    def one(key, noise, state):
        return _one_chain(target, tuning, key, noise, state, start, stop, program=program, length=length)

    return jax.vmap(one)(keys, noise, states)


def _by_stages(stages: Stages, keys, noise, states, start, stop, program: Program, length: int):
    chains = jnp.arange(len(keys), dtype=jnp.int32)

    def begin(i, key, noise, state, previous):
        return stages.begin(_source(key, noise, i, start), state, previous)

    def end(unfinished):
        state, info = stages.end(unfinished)
        return state, (program.record(state), info)

    i = jnp.full(len(keys), start)
    unfinished = jax.vmap(begin, in_axes=(0, 0, 0, 0, None))(i, keys, noise, states, None)
    equations, shapes = jax.make_jaxpr(jax.vmap(stages.advance), return_shape=True)(unfinished)
    records = jax.eval_shape(jax.vmap(end), unfinished)[1]
    buffers = jax.tree.map(lambda s: jnp.zeros((s.shape[0], length, *s.shape[1:]), s.dtype), records)

    def turn(carry):
        i, states, unfinished, buffers, pieces, work = carry
        leaves = jex.jaxpr_as_fun(equations)(*jax.tree.leaves(unfinished))
        unfinished = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
        work = Work(work.executed + len(keys), work.useful)
        is_done = jax.vmap(stages.is_done)(unfinished)
        carry = i, states, unfinished, buffers, pieces + 1, work
        return lax.cond(jnp.any(is_done), lambda c: record(is_done, *c), lambda c: c, carry)

    def record(is_done, i, states, unfinished, buffers, pieces, work):
        new, rows = jax.vmap(end)(unfinished)
        is_new = is_done & (i < stop)
        place = jnp.where(is_new, i - start, length)  # behind the end: dropped
        buffers = jax.tree.map(lambda b, row: b.at[chains, place].set(row, mode="drop"), buffers, rows)
        states = _where(is_new, new, states)
        work = Work(work.executed, work.useful + jnp.sum(jnp.where(is_new, pieces, 0), dtype=jnp.int32))
        i = i + is_new.astype(i.dtype)
        next_step = jax.vmap(begin)(i, keys, noise, states, unfinished)
        return i, states, _where(is_done, next_step, unfinished), buffers, jnp.where(is_done, 0, pieces), work

    none = jnp.zeros((), jnp.int32)
    carry = i, states, unfinished, buffers, jnp.zeros_like(i), Work(none, none)
    _, states, _, buffers, _, work = lax.while_loop(lambda carry: jnp.any(carry[0] < stop), turn, carry)
    return states, buffers, work


def _where(condition, x, y):
    """Chain by chain."""

    def choose(x, y):
        return jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(choose, x, y)


def _loop(function, options) -> jit:
    return jit(function, static_argnames=("program", "length"), options=options)


one_chain, many_chains = _loop(_one_chain, NATIVE), _loop(_many_chains, NATIVE)
one_long, many_long = _loop(_one_chain, LONG), _loop(_many_chains, LONG)


def steps(is_vectorized: bool):
    """What ``loop`` compiles."""
    return _many_chains if is_vectorized else _one_chain


def loop(program: Program, is_vectorized: bool) -> jit:
    """The compiled unit that suits ``program``."""
    one, many = (one_long, many_long) if getattr(program, "is_long", False) else (one_chain, many_chains)
    return many if is_vectorized else one
