"""Integrators are reversible, keep volume, and have the order they claim, at one gradient place in the program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc.integrators import LEAPFROG, MINIMUM_ERROR, SPLIT, Integrator, Point, Reference
from credo.precision import double
from credo.status import CredoError

pytestmark = pytest.mark.usefixtures("strict")

INTEGRATORS = {"leapfrog": LEAPFROG, "minimum error": MINIMUM_ERROR}
CENTRE = np.array([0.2, 0.5, -0.3])
REFERENCES = {
    "": None,
    "rotating": Reference(CENTRE, np.bool_(True), np.asarray(np.inf), np.bool_(False)),
    "straight": Reference(CENTRE, np.bool_(False), np.asarray(np.inf), np.bool_(False)),
}
METRICS = {
    "diagonal": Diagonal(np.array([0.7, 1.3, 1.0])),
    "dense": Dense(np.array([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.2, 0.1, 1.2]])),
}
evaluate = jax.value_and_grad(lambda u: jnp.sum(-u - jnp.exp(-u)) - 0.1 * jnp.sum(u**4))


class Flow:
    """An integrator under a metric, round a reference, from a fixed start."""

    def __init__(self, integrator, metric, reference=None, evaluate=evaluate):
        self.metric, self.reference, self.evaluate = metric, reference, evaluate
        self.step = jax.jit(lambda point, h: integrator.step(evaluate, metric, point, h, reference))
        self.run = jax.jit(lambda point, h, n: jax.lax.fori_loop(0, n, lambda _, p: self.step(p, h)[0], point))

    def point(self, position=(0.3, -0.4, 1.1), momentum=(0.5, -1.0, 0.2)):
        position = jnp.asarray(position)
        log_density, gradient = self.evaluate(position)
        white = None if self.reference is None else self.reference.white(self.metric, position)
        return Point(position, jnp.asarray(momentum), self.metric.transpose_matvec(gradient), log_density, white)


@pytest.fixture(params=[(i, m, r) for i in INTEGRATORS for m in METRICS for r in REFERENCES], ids=str)
def flow(request):
    integrator, metric, reference = request.param
    with double():
        yield Flow(INTEGRATORS[integrator], METRICS[metric], REFERENCES[reference])


def energy(point):
    return 0.5 * jnp.sum(point.momentum**2) - point.log_density


def test_reversible(flow):
    start = flow.point()
    there = flow.run(start, 0.1, 20)
    back = flow.run(there, -0.1, 20)
    np.testing.assert_allclose(back.position, start.position, rtol=1e-10)
    np.testing.assert_allclose(back.momentum, start.momentum, rtol=1e-10)
    turned = flow.run(there._replace(momentum=-there.momentum), 0.1, 20)
    np.testing.assert_allclose(turned.position, start.position, rtol=1e-10)


def test_keeps_volume(flow):
    def moved(z):
        end = flow.run(flow.point(z[:3], z[3:]), 0.3, 3)
        return jnp.concatenate([end.position, end.momentum])

    jacobian = jax.jacfwd(moved)(jnp.concatenate(flow.point()[:2]))
    np.testing.assert_allclose(np.abs(np.linalg.det(jacobian)), 1.0, rtol=1e-10)


def test_error_is_of_second_order(flow):
    steps = np.array([0.08, 0.04, 0.02, 0.01])
    exact = flow.run(flow.point(), 0.8 / 4_000, 4_000).position
    errors = [np.linalg.norm(flow.run(flow.point(), h, round(0.8 / h)).position - exact) for h in steps]
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert slope == pytest.approx(2, abs=0.1)


def test_the_point_carries_what_belongs_to_it(flow):
    end, seen = flow.step(flow.point(), 0.2)
    log_density, gradient = evaluate(end.position)
    np.testing.assert_allclose(seen, gradient, rtol=1e-12)
    np.testing.assert_allclose(end.force, flow.metric.transpose_matvec(gradient), rtol=1e-12)
    np.testing.assert_allclose(end.log_density, log_density, rtol=1e-12)


@pytest.mark.parametrize("metric", list(METRICS))
def test_where_nothing_rotates_it_is_the_plain_one(metric):
    with double():
        plain, straight = (Flow(SPLIT, METRICS[metric], REFERENCES[name]) for name in ("", "straight"))
        ends = plain.run(plain.point(), 0.3, 7), straight.run(straight.point(), 0.3, 7)
    np.testing.assert_allclose(ends[0].position, ends[1].position, rtol=1e-12)
    np.testing.assert_allclose(ends[0].momentum, ends[1].momentum, rtol=1e-12)


@pytest.mark.parametrize("step_size", [0.1, 1.0, np.pi / 2])
def test_of_a_gaussian_it_solves_the_equations(step_size):
    """q(t) = q cos t + r sin t, by steps of any size, in the coordinates of the Gaussian's own scale."""
    metric = METRICS["dense"]
    reference = Reference(CENTRE, np.bool_(True), np.asarray(np.inf), np.bool_(True))
    with double():
        solve = jnp.linalg.inv(metric.lower)
        gaussian = jax.value_and_grad(lambda u: -0.5 * jnp.sum(jnp.square(solve @ (u - CENTRE))))
        flow = Flow(SPLIT, metric, reference, gaussian)
        start = flow.point()
        end, t = flow.run(start, step_size, 5), 5 * step_size
        np.testing.assert_allclose(end.white, start.white * np.cos(t) + start.momentum * np.sin(t), atol=1e-12)
        np.testing.assert_allclose(end.position, CENTRE + metric.lower @ end.white, atol=1e-12)
        assert float(energy(end)) == pytest.approx(float(energy(start)), abs=1e-12)


def test_two_stages_err_less_at_equal_cost():
    def error(integrator, step_size, num_steps):
        flow = Flow(integrator, METRICS["diagonal"])
        return abs(float(energy(flow.run(flow.point(), step_size, num_steps)) - energy(flow.point())))

    with double():
        assert error(MINIMUM_ERROR, 0.1, 8) < 0.5 * error(LEAPFROG, 0.05, 16)


@pytest.mark.parametrize("name", list(INTEGRATORS))
def test_coefficients(name):
    integrator = INTEGRATORS[name]
    assert sum(integrator.kicks) == pytest.approx(1)
    assert sum(integrator.drifts) == pytest.approx(1)
    assert integrator.kicks == integrator.kicks[::-1]
    assert integrator.drifts == integrator.drifts[::-1]
    assert len(integrator.kicks) == integrator.num_gradients + 1


@pytest.mark.parametrize("name", list(INTEGRATORS))
def test_one_place_evaluates_the_gradient(name):
    count = []

    def counted(u):
        count.append(u)
        return evaluate(u)

    with double():
        start = Flow(INTEGRATORS[name], METRICS["dense"]).point()
        jax.make_jaxpr(lambda p: INTEGRATORS[name].step(counted, METRICS["dense"], p, 0.1))(start)
    assert len(count) == 1


@pytest.mark.parametrize(
    ("kicks", "drifts"),
    [((0.0, 1.0), (1.0,)), ((0.25, 0.5, 0.25), (0.3, 0.7)), ((0.5, 0.5), (2.0,)), ((0.5, 0.5), (0.5, 0.5)), ((), ())],
)
def test_what_is_no_palindrome_of_sum_one_is_refused(kicks, drifts):
    with pytest.raises(CredoError, match="palindrome|one kick more"):
        Integrator(kicks, drifts)
