"""The judge, and the table of docs/verdict.md."""

import math
from pathlib import Path

import pytest

from credo.diagnose.verdict import RULES, as_table, judge
from credo.status import Verdict

DOCUMENT = Path(__file__).parents[2] / "docs" / "verdict.md"
JUDGED = [name for name, rule in RULES.items() if rule.direction != "information"]
WORST = {"at most": math.inf, "at least": -math.inf, "above": -math.inf}
BEST = {"at most": -1.0, "at least": 1e9, "above": 1e9}


def test_document_is_the_table():
    told = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert told == as_table().splitlines(), "docs/verdict.md differs from credo.diagnose.verdict.as_table()"


@pytest.mark.parametrize("name", JUDGED)
def test_every_rule_is_complete(name):
    """Best passes silently; the bound passes and a hair beyond does not; each side has a sentence with a next step."""
    rule = RULES[name]
    assert judge({name: BEST[rule.direction]}) == Verdict("pass", {name: BEST[rule.direction]}, ())
    inside, outside = (rule.passes, math.nextafter(rule.passes, WORST[rule.direction]))
    if rule.direction == "above":
        inside, outside = math.nextafter(rule.passes, math.inf), rule.passes
    assert judge({name: inside}).status == "pass"
    beyond = judge({name: outside})
    assert beyond.status == ("failed" if rule.doubtful == rule.passes else "doubtful")
    assert judge({name: WORST[rule.direction]}).status == ("doubtful" if math.isinf(rule.doubtful) else "failed")
    (sentence,) = beyond.sentences
    assert sentence.endswith(".")
    assert sentence.count(". ") + sentence.count(": ") >= 1  # a finding and a next step
    assert rule.source
    assert rule.meaning


@pytest.mark.parametrize("value", [None, math.nan])
@pytest.mark.parametrize("name", JUDGED)
def test_what_was_not_computed_never_passes(name, value):
    verdict = judge({name: value})
    assert verdict.status == "doubtful"
    assert "could not be computed" in verdict.sentences[0]
    assert math.isnan(verdict.figures[name])
    assert judge({name: -WORST[RULES[name].direction]}).status == "doubtful"  # infinitely good is not a number either


def test_worst_figure_decides_and_speaks_first():
    figures = {"max_r_hat": 1.02, "num_divergences": 0, "min_ess_bulk": 1000, "e_bfmi": 0.1, "step_size": math.nan}
    verdict = judge(figures, ["The model has a funnel."])
    assert verdict.status == "failed"
    assert list(verdict.figures) == list(figures)
    assert "E-BFMI is 0.10" in verdict.sentences[0]
    assert "R-hat is 1.020" in verdict.sentences[1]
    assert verdict.sentences[2:] == ("The model has a funnel.",)


def test_a_value_beyond_its_bound_does_not_read_like_it():
    """A k-hat of 0.704 was 0.70 (0.7 passes), and doubtful."""
    assert "k-hat of the importance weights is 0.704 (0.7 passes)" in judge({"pareto_k": 0.704}).sentences[0]
    assert "k-hat of the importance weights is 0.7002 (0.7 passes)" in judge({"pareto_k": 0.70015}).sentences[0]
    assert "k-hat of the importance weights is 0.91 (0.7 passes)" in judge({"pareto_k": 0.9111}).sentences[0]


def test_divergences():
    assert judge({"persistent_divergences": 1, "divergence_share": 0.001}).status == "doubtful"
    verdict = judge({"persistent_divergences": 500, "divergence_share": 0.125})
    assert verdict.status == "failed"
    assert "12% of the transitions diverged" in verdict.sentences[0]


def test_ceiling_and_nothing_to_judge():
    assert judge({}) == Verdict("pass", {}, ())  # a closed form has nothing to fear
    assert judge({"max_r_hat": 1.0}, ["Why."], at_best="doubtful") == Verdict("doubtful", {"max_r_hat": 1.0}, ("Why.",))
    assert judge({"max_r_hat": 2.0}, at_best="doubtful").status == "failed"


def test_unknown_figure_is_a_fault_of_the_program():
    with pytest.raises(KeyError, match="'max_rhat' is not in the table"):
        judge({"max_rhat": 1.0})
