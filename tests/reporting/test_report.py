"""The page: it stands alone, is well formed, and its first screen answers the question."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from approximations import LABELS, approximations, table
from credo import CredoError
from credo.diagnose.verdict import judge
from credo.posterior.kinds import Draws, Point
from credo.reporting.comparison import answering
from credo.reporting.page.answer import cause_and_remedy
from credo.reporting.words import priors_in_words

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a reader's program meets: open elements, ids, links, headings, pictures without words."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.ids, self.addresses, self.headings, self.problems = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.addresses += [given[key] for key in ("src", "href", "xlink:href", "action", "data") if key in given]
        if tag == "svg" and not given.get("aria-label"):
            self.problems.append("a picture without words")
        if tag == "script":
            self.problems.append("a script")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("a folder") / "report.html"
    made = credo.report(
        approximations(), table(), path=path, title="Doses & <answers>", labels=LABELS, effects=list(LABELS)[1:],
        outcome="illness", reproduce="credo compare 'my table.csv'",
    )  # fmt: skip
    assert made == path
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_stands_alone(page):
    parsed = Page(page)
    outside = [a for a in parsed.addresses if not a.startswith(("#", "data:"))]
    assert not outside
    assert "url(http" not in page
    assert "@import" not in page
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)


def test_is_well_formed(page):
    parsed = Page(page)
    assert not parsed.problems
    assert not parsed.open
    twice = {name for name in parsed.ids if parsed.ids.count(name) > 1}
    assert not twice
    inside = [address[1:] for address in parsed.addresses if address.startswith("#")]
    assert not set(inside) - set(parsed.ids)
    assert not set(re.findall(r"url\(#([^)]+)\)", page)) - set(parsed.ids)


def test_has_every_section(page):
    wanted = {
        "comparison",
        "marginals",
        "chains",
        "calibration",
        "elbo",
        "parameters",
        "verdicts",
        "priors",
        "settings",
    }
    assert wanted <= set(Page(page).ids)
    assert page.count("<caption>") == page.count("<table")
    for text in ("Every figure side by side", "Vehtari", "jax", "credo compare &#x27;my table.csv&#x27;"):
        assert text in page
    assert "w: Normal(loc 0, scale 2.5), 3 of them." in page
    assert len(page) < 600_000


def test_the_first_screen_answers(page):
    """Which method, what it says in the user's words, and every method's verdict, before the first section."""
    first = page[: page.index('<section id="comparison"')]
    assert "Trust <b>nuts</b>." in first
    assert "It says: illness rises most surely with dose &lt;mg&gt; and falls with age &amp; sex." in first
    for status in ("pass", "doubtful"):
        assert f'<span class="badge {status}">' in first
    assert "The Pareto k-hat of the importance weights is 0.86 (0.7 passes)." in first
    assert "Doses &amp; &lt;answers&gt;" in first
    assert "<answers>" not in page


def test_shows_the_numbers_of_the_posterior(page):
    posterior = approximations()["nuts"]
    mean = posterior.mean()["w"][1]
    low, high = posterior.quantile([0.05, 0.95])["w"][:, 1]
    assert f"<td>+{mean:.2f}</td><td>+{low:.2f} to +{high:.2f}</td>" in page


def test_nothing_to_trust_says_so(tmp_path):
    good = approximations()["advi"]
    failed = credo.Posterior(good.kind, good.target, verdict=judge({"pareto_k": 1.4}))
    page = credo.report({"laplace": failed}, path=tmp_path / "r.html").read_text(encoding="utf-8")
    assert "No method here can be trusted." in page
    assert "What to try next" in page
    assert "Use NUTS()" in page


def test_what_cannot_be_drawn_is_left_out(tmp_path):
    """A posterior that is nowhere finite beside a good one; a point alone; one from a file, whose prior is unknown."""
    good, point = approximations()["advi"], approximations()["map"]
    nowhere = credo.Posterior(Draws(np.full((4, 50, 3), np.nan)), good.target, verdict=judge({"max_r_hat": 2.0}))
    page = credo.report({"nuts": nowhere, "advi": good}, path=tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<b>advi</b> is the nearest" in page
    page = credo.report({"map": point}, path=tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<b>map</b> gives one best value, and no uncertainty" in page
    good.save(tmp_path / "p.credo")
    loaded = credo.load(tmp_path / "p.credo")
    page = credo.report({"advi": loaded}, path=tmp_path / "r.html").read_text(encoding="utf-8")
    assert "ImproperUniform" not in page


def test_who_answers():
    """A pass before a doubt, exact before draws before Gaussians before a point; nobody among failures."""
    known = approximations()
    exact = credo.Posterior(
        known["advi"].kind, known["advi"].target, verdict=judge({}), log_evidence=credo.Estimate(-1.0, 0.0, "exact")
    )
    assert answering(known) == "nuts"
    assert answering({**known, "exact": exact}) == "exact"
    assert answering({"map": known["map"], "advi": known["advi"]}) == "advi"
    failed = credo.Posterior(known["nuts"].kind, known["nuts"].target, verdict=judge({"max_r_hat": 2.0}))
    assert answering({"nuts": failed, "map": known["map"]}) == "map"
    point = credo.Posterior(known["map"].kind, known["map"].target, verdict=judge({}))
    assert answering({"map": point, "advi": known["advi"]}) == "advi"
    assert answering({"nuts": failed}) is None


@pytest.mark.parametrize("figure", ["pareto_k", "elbo_drift", "min_ess_bulk", "gradient_norm", "min_curvature"])
def test_a_sentence_falls_into_cause_and_remedy(figure):
    value = {"min_ess_bulk": 389.0, "min_curvature": -0.5}.get(figure, 0.9)
    cause, remedy = cause_and_remedy(judge({figure: value}).sentences)
    assert cause.endswith(".")
    assert re.match(r"(Use|Allow|Draw|Give)", remedy)
    assert cause_and_remedy(()) == ("", "")


def test_priors_in_words():
    model = credo.Model(
        {
            "tau": dist.HalfCauchy(np.array(5.0)),
            "theta": lambda tau: dist.Normal(0.0, tau).expand([8]),
            "each": dist.Normal(np.zeros(2), np.array([1.0, 3.0])),
        },
        None,
    )
    assert priors_in_words(model.given().prior) == [
        "tau: HalfCauchy(scale 5).",
        "theta: Normal(loc 0, scale by other parameters), 8 of them.",
        "each: Normal(loc 0, scale 1 to 3), 2 of them.",
    ]


def test_refuses_with_a_sentence(tmp_path):
    with pytest.raises(CredoError, match="cannot be written"):
        credo.report({"map": approximations()["map"]}, path=tmp_path / "no" / "r.html")
    with pytest.raises(CredoError, match="one at least"):
        credo.report({})
    other = credo.fit(credo.Model({"v": dist.Normal(0.0, 1.0)}, None).given(), credo.MAP())
    with pytest.raises(CredoError, match="approximations of one posterior"):
        credo.report({"map": approximations()["map"], "other": other}, path=tmp_path / "r.html")
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_verdict_and_summary():
    shown = approximations()["advi"]._repr_html_()
    assert "doubtful" in shown
    assert "Pareto k-hat" in shown
    assert "<td>0.4</td>" in shown
    assert not Page(shown).problems
    many = credo.Model({"w": dist.Normal(0.0, 1.0).expand([300])}, None).given()
    shown = credo.Posterior(Point(np.zeros(300)), many, verdict=judge({}))._repr_html_()
    assert shown.count("<tr>") == 21
    assert "… and 280 scalars more" in shown


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_has_nothing_to_complain_of(page, tmp_path):
    """The page fits 400 pixels without scrolling sideways, asks for nothing and reports no error."""
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        '<iframe id="f" width="400" height="800" src="report.html" onload="'
        "const d = document.getElementById('f').contentDocument.documentElement;"
        "document.title = 'too wide by ' + (d.scrollWidth - d.clientWidth)\"></iframe>"
    )
    options = "--headless --no-sandbox --disable-gpu --allow-file-access-from-files --enable-logging=stderr --dump-dom"
    command = ["chromium", *options.split(), f"--user-data-dir={tmp_path / 'profile'}", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "<title>too wide by 0</title>" in done.stdout
    assert "CONSOLE" not in done.stderr


def test_labels_of_ticks_keep_their_digits(tmp_path):
    """0.0038 stood beside ticks of 0.00, 0.00 and 0.00."""
    rng = np.random.default_rng(0)
    x = 300 * rng.normal(size=200)
    model = credo.Model({"rate": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["rate"] * x, 1.0))
    posterior = credo.fit(model.given(x, 0.004 * x + rng.normal(size=200)), credo.Laplace(), progress=False)
    page = credo.report({"laplace": posterior}, path=tmp_path / "r.html").read_text(encoding="utf-8")
    ticks = re.findall(r"<text[^>]*>([-−]?0\.\d+)</text>", page)
    assert any(float(tick.replace("−", "-")) not in (0.0, 1.0) and len(tick.split(".")[1]) > 2 for tick in ticks)


def test_effects_that_are_not_there_are_named(tmp_path):
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"], 1.0))
    posteriors = {"map": credo.fit(model.given(y=np.ones(9)), credo.Laplace(), progress=False)}
    for effects, said in ((["typo"], "There is no scalar 'typo'"), ([], "empty")):
        with pytest.raises(CredoError, match=said):
            credo.report(posteriors, path=tmp_path / "r.html", effects=effects)


def test_models_of_other_priors_or_likelihoods_are_not_compared():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 20))

    def fitted(sd, likelihood):
        return credo.fit(credo.Model({"w": dist.Normal(0.0, sd)}, likelihood).given(x, y), credo.MAP(), progress=False)

    def line(params, x):
        return dist.Normal(params["w"] * x, 1.0)

    first = fitted(1.0, line)
    for other in (fitted(0.01, line), fitted(1.0, lambda params, x: dist.Normal(params["w"] ** 2 * x, 5.0))):
        with pytest.raises(CredoError, match="different log densities at one position"):
            credo.compare({"first": first, "other": other}, show=False)
    same = fitted(1.0, lambda params, x: dist.Normal(params["w"] * x, 1.0))
    assert len(credo.compare({"first": first, "same": same}, show=False)) == 2
