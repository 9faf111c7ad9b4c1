"""Pictures: what is drawn equals what was computed."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import approximations
import credo
from approximations import LABELS, MEAN, SCALE, table
from credo import CredoError, plots
from credo.reporting.plots.chains import count_sd, rank_counts
from credo.reporting.plots.parameters import density
from credo.reporting.plots.plane import ellipses
from credo.reporting.plots.scores import cost_threshold, net_benefit, quantile_curve, reliability_curve

SD = np.sqrt(np.diag(SCALE @ SCALE.T))


@pytest.fixture(scope="module")
def posteriors():
    return approximations.approximations()


def lines(panel) -> dict:
    return {line.get_label(): line.get_data() for line in panel.get_lines()}


def test_marginals_are_the_densities(posteriors):
    """Of a Gaussian: the normal density, to 2 % of the peak for the kernel's width and three errors of 4 %."""
    figure = plots.marginals(posteriors, ["w[1]", "w[2]"], labels=LABELS)
    assert [panel.get_title() for panel in figure.axes] == ["dose <mg>", "age & sex"]
    for panel, k in zip(figure.axes, (1, 2), strict=True):
        drawn = lines(panel)
        for name in ("advi", "nuts"):
            points, heights = drawn[name]
            exact = stats.norm.pdf(points, MEAN[k], SD[k])
            np.testing.assert_allclose(heights, exact, atol=0.15 * exact.max())
        assert drawn["map"][0][0] == MEAN[k]


def test_pairs_enclose_their_mass(posteriors):
    """The line of 90 % of a Gaussian is the ellipse with χ²₂ = 4.6: its mean radius squared, to the kernel's error."""
    figure = plots.pairs({"advi": posteriors["advi"], "map": posteriors["map"]}, ["w[0]", "w[1]"])
    below = figure.axes[2]
    outer = below.collections[0].get_paths()[0].vertices
    covariance = (SCALE @ SCALE.T)[:2, :2]
    squared = np.einsum("ni,ij,nj->n", outer - MEAN[:2], np.linalg.inv(covariance), outer - MEAN[:2])
    assert np.mean(squared) == pytest.approx(stats.chi2.ppf(0.9, 2), rel=0.2)
    assert [tuple(map(float, np.ravel(line.get_data()))) for line in below.get_lines()] == [tuple(MEAN[:2])]


def test_approximations_over_each_other(posteriors):
    """A Gaussian's lines are its ellipses, exactly; draws are points, and a point is a cross."""
    figure = plots.approximations(posteriors, x="w[0]", y="w[1]", labels=LABELS)
    (panel,) = figure.axes
    precision = np.linalg.inv((SCALE @ SCALE.T)[:2, :2])
    curves = [np.stack(line.get_data()) for line in panel.get_lines() if len(line.get_xdata()) == 181]
    gaussians = [p for p in posteriors.values() if type(p.kind).__name__ == "Gaussian"]
    assert len(curves) == 2 * len(gaussians)
    y = curves[0] - MEAN[:2, None]
    np.testing.assert_allclose(np.einsum("in,ij,jn->n", y, precision, y), stats.chi2.ppf(0.9, 2), rtol=1e-9)
    points = [line for line in panel.get_lines() if line.get_marker() == "." and len(line.get_xdata())]
    assert {x for line in points for x in line.get_xdata()} <= set(posteriors["nuts"].draws["w"][..., 0].ravel())
    assert tuple(MEAN[:2]) in [tuple(np.ravel(line.get_data())) for line in panel.get_lines()]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == list(posteriors)
    assert panel.get_ylabel() == "dose <mg>"


def test_the_ellipse_of_a_constrained_parameter_holds_its_mass():
    """Of a lognormal and a normal, correlated: the line of 90 % holds 0.9 of 4,000 draws, to four errors of 0.5 %."""
    from matplotlib.path import Path

    from credo.linalg.dense import Dense
    from credo.posterior.kinds import Gaussian, Mixture
    from credo.precision import double

    target = credo.Model({"a": dist.Normal(0.0, 1.0), "s": dist.Gamma(2.0, 1.0)}, None).given()
    with double():
        kind = Gaussian(np.array([0.5, -1.0]), Dense.from_covariance(np.array([[1.0, 0.3], [0.3, 0.25]])))
        mixture = Mixture(np.zeros(1), (kind,))
    posterior = credo.Posterior(kind, target, verdict=credo.Verdict("pass"))
    (across, up), _ = ellipses(posterior, "a", "s")
    draws = posterior.sample(0, 4_000)
    inside = Path(np.column_stack([across, np.log(up)])).contains_points(
        np.column_stack([draws["a"], np.log(draws["s"])])
    )
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
    other = credo.Posterior(mixture, target, verdict=credo.Verdict("pass"))
    assert ellipses(other, "a", "s") is None
    assert len(plots.approximations({"mixture": other}, "a", "s").axes[0].collections) == 1


def test_prior_against_posterior(posteriors):
    figure = plots.prior_posterior(posteriors["advi"], ["w[1]"])
    (panel,) = figure.axes
    points, heights = lines(panel)["prior"]
    np.testing.assert_allclose(heights, stats.norm.pdf(points, 0.0, 2.5), atol=0.15 * stats.norm.pdf(0) / 2.5)
    ratio = float(panel.get_title().removeprefix("w[1] (sd × ").removesuffix(")"))
    assert ratio == pytest.approx(SD[1] / 2.5, rel=0.1)  # two digits, and 4,000 draws of each


def test_traces_and_ranks_show_every_chain(posteriors):
    draws = posteriors["nuts"].draws["w"][:, :, 0]
    (panel,) = plots.traces(posteriors["nuts"], ["w[0]"]).axes
    for chain, line in enumerate(panel.get_lines()):
        steps, values = line.get_data()
        np.testing.assert_array_equal(values, draws[chain][np.asarray(steps, int)])
    counts, edges = rank_counts(draws)
    assert counts.sum(axis=1).tolist() == [500] * 4
    assert counts.sum(axis=0).tolist() == [100] * 20  # every bin holds its share of all draws
    shifted, _ = rank_counts(draws + np.arange(4)[:, None] * 100.0)
    assert shifted[0, :5].sum() == 500
    assert edges[0] == 0.5
    assert len(plots.ranks(posteriors["nuts"]).axes) == 3


def test_the_band_of_ranks_is_that_of_independent_draws():
    """1,600 counts of independent draws: their sd to three errors of 1 / √3,200."""
    draws = np.random.default_rng(5).normal(size=(20, 4, 400))
    counts = np.concatenate([rank_counts(each)[0].ravel() for each in draws])
    assert count_sd(4, 400, 20) == pytest.approx(np.std(counts), rel=3 / np.sqrt(2 * counts.size))
    assert count_sd(1, 400, 20) == 0.0


def test_the_path_of_the_elbo(posteriors):
    (panel,) = plots.elbo_path(posteriors).axes
    np.testing.assert_array_equal(panel.get_lines()[0].get_data(), posteriors["advi"].info["elbo_path"])


def test_bands_hold_their_mass():
    """A known line with known noise: the 90 % band is ± 1.645 sd about the mean."""
    model = credo.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["a"] * x, 0.5))
    x = np.array([2.0, 0.0, 1.0])
    posterior = credo.Posterior(credo_point(1.5), model.given(x, x), verdict=credo.Verdict("pass"))
    (panel,) = plots.predictive_bands(posterior.predict(x), x, 1.5 * x, masses=(0.9,)).axes
    points, mean = lines(panel)["mean"]
    np.testing.assert_allclose(points, [0.0, 1.0, 2.0])
    np.testing.assert_allclose(mean, 1.5 * np.array([0.0, 1.0, 2.0]))
    ends = panel.collections[0].get_paths()[0].get_extents()
    assert (ends.y0, ends.y1) == pytest.approx((-1.645 * 0.5, 3.0 + 1.645 * 0.5), abs=1e-3)


def credo_point(value: float):
    from credo.posterior.kinds import Point

    return Point(np.array([value]))


def test_the_boundary_lies_where_the_costs_say(posteriors):
    """Of a point: logit p = w·x, so that the boundary at t is the line w·x = logit t."""
    figure = plots.decision_boundary(
        posteriors["map"], table()[0][:, 1:], table()[1], threshold=0.2,
        inputs=lambda points: np.column_stack([np.ones(len(points)), points]),
    )  # fmt: skip
    panel = figure.axes[0]
    (boundary,) = [c for c in panel.collections if c.get_array() is None or c.get_array().size == 1]
    points = boundary.get_paths()[0].vertices
    np.testing.assert_allclose(MEAN[0] + points @ MEAN[1:], np.log(0.2 / 0.8), atol=0.02)
    epistemic = figure.axes[1].collections[0].get_array()
    np.testing.assert_allclose(epistemic, 0.0, atol=1e-9)


def test_calibration_of_classes(posteriors):
    x, y = table()
    (panel,) = plots.calibration({"map": posteriors["map"]}, (x, y)).axes
    p = 1 / (1 + np.exp(-x @ MEAN))
    order = np.argsort(p, kind="stable").reshape(10, 20)
    np.testing.assert_allclose(lines(panel)["map"], (p[order].mean(axis=1), y[order].mean(axis=1)), rtol=1e-6)


def test_calibration_of_numbers_and_counts():
    """PIT values of the right model are uniform: within Kolmogorov's band (false alarms 1 in 1,000 at 1.95/√n)."""
    rng = np.random.default_rng(2)
    for likelihood, y in (
        (lambda params, x: dist.Normal(params["a"] * x, 0.5), lambda x: rng.normal(x, 0.5)),
        (lambda params, x: dist.Poisson(params["a"] * x**2), lambda x: rng.poisson(x**2)),
    ):
        x = rng.uniform(0.5, 2.0, 400)
        model = credo.Model({"a": dist.Normal(0.0, 1.0)}, likelihood)
        posterior = credo.Posterior(credo_point(1.0), model.given(x, y(x)), verdict=credo.Verdict("pass"))
        (panel,) = plots.calibration({"it": posterior}, (x, posterior.target.y)).axes
        levels, shares = lines(panel)["it"]
        assert np.max(np.abs(levels - shares)) < 1.95 / np.sqrt(400)
    overconfident = quantile_curve(stats.norm.cdf(rng.normal(size=400), scale=0.5))
    assert np.max(np.abs(overconfident[0] - overconfident[1])) > 1.95 / np.sqrt(400)


def test_reliability_of_ties_and_few_rows():
    """Rows of one probability are one point, whatever their order."""
    for happened in ([0, 0, 1], [0, 1, 0]):
        predicted, observed = reliability_curve(np.array([0.1, 0.9, 0.9]), np.array(happened))
        assert predicted.tolist() == [0.1, 0.9]
        assert observed.tolist() == [0.0, 0.5]


def test_the_decision_curve_is_net_benefit(posteriors):
    x, y = table()
    predictive = posteriors["map"].predict(x)
    costs = [[0.0, 4.0], [1.0, 0.0]]
    (panel,) = plots.decision_curve(predictive, y, costs).axes
    levels, benefit = lines(panel)["act by the prediction"]
    p = predictive.probs
    for t, value in zip(levels, benefit, strict=True):
        true, false = np.sum((p >= t) & (y == 1)), np.sum((p >= t) & (y == 0))
        assert value == pytest.approx(true / 200 - false / 200 * t / (1 - t))
    assert lines(panel)["these costs: t* = 0.2"][0][0] == pytest.approx(0.2)  # 1 / (1 + 4)
    always = net_benefit(np.ones(200), y, np.array([0.5]))
    assert always[0] == pytest.approx(y.mean() - (1 - y.mean()))


def test_the_threshold_minimises_the_expected_cost():
    costs = np.array([[1.0, 9.0], [3.0, 2.0]])
    t = cost_threshold(costs)
    expected = [costs @ [1 - p, p] for p in (t - 1e-6, t + 1e-6)]
    assert [int(np.argmin(each)) for each in expected] == [0, 1]


def test_a_check_shows_the_data(posteriors):
    check = posteriors["map"].check(np.mean, num_draws=200)
    (panel,) = plots.predictive_check(check).axes
    assert panel.get_lines()[0].get_xdata()[0] == table()[1].mean()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda p: plots.marginals(p, ["v"]), "no scalar 'v'; there are w\\[0\\]"),
        (lambda p: plots.marginals({}), "one at least"),
        (lambda p: plots.marginals({"a": 3}), "'a' is a int"),
        (lambda p: plots.marginals(p, []), "scalars is empty"),
        (lambda p: plots.pairs(p, ["w[0]"]), "2 to 8 scalars; got 1"),
        (lambda p: plots.approximations(p, "w[0]", "w[0]"), "both 'w\\[0\\]': name two"),
        (lambda p: plots.approximations(p, "w[0]", "v"), "no scalar 'v'"),
        (lambda p: plots.traces(p["advi"]), "Gaussian posterior has no chains"),
        (lambda p: plots.elbo_path(p["map"]), "no path"),
        (lambda p: plots.decision_boundary(p["map"], np.ones((3, 3))), "plane of two inputs"),
        (lambda p: plots.decision_boundary(p["map"], np.ones((3, 2)), threshold=1.0), "strictly between"),
        (lambda p: plots.predictive_bands(p["map"].predict(table()[0]), table()[0]), "along one input"),
        (lambda p: plots.decision_curve(p["map"].predict(table()[0]), np.ones(3)), "binary outcome"),
        (lambda p: plots.predictive_check(3), "posterior.check"),
        (lambda p: cost_threshold([[0.0, 1.0], [0.0, 0.0]]), "nothing to decide"),
        (lambda p: cost_threshold([1.0]), "matrix"),
    ],
)
def test_refuses_with_a_sentence(posteriors, call, sentence):
    with pytest.raises(CredoError, match=sentence):
        call(posteriors)


@pytest.mark.slow
def test_arviz_draws_what_credo_exports(posteriors):
    import arviz_plots

    tree = posteriors["nuts"].to_arviz()
    for plot in (arviz_plots.plot_trace, arviz_plots.plot_dist):
        drawn = plot(tree, var_names=["w"], backend="none")
        assert drawn.viz is not None


def test_a_heavy_tail_does_not_flatten_the_density():
    """Of 4,000 Cauchy draws, some beyond 1,000: the peak to 15 %, and an axis on which it is seen."""
    points, heights = density(np.random.default_rng(3).standard_cauchy(4_000))
    assert points.min() >= -20.0
    assert points.max() <= 20.0
    np.testing.assert_allclose(heights, stats.cauchy.pdf(points), atol=0.15 / np.pi)
