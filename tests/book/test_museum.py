"""The bug museum: its data, its page, and a slice of its table measured again; the rules themselves."""

import copy
import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import museum  # noqa: E402
import museum_page  # noqa: E402
import museum_trials  # noqa: E402

from attnmath.book import rules as rules_module  # noqa: E402
from attnmath.book.rules import RULES, Probe  # noqa: E402

TABLE = json.loads(museum.TABLE.read_text("utf-8"))
EXHIBITS = museum.exhibits()
LABELS = {e["breaks"] for e in EXHIBITS}
ORDER = [*RULES, "bound"]
SLICE = "D_missing", "zeros", "gqa_last", "align_bwd", "lse_overflow"


def drawn(n=5, m=7, d=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    *x, dO = (torch.randn(s, generator=draw, dtype=torch.float64)
              for s in ((2, 4, n, d), (2, 4, m, d), (2, 4, m, d), (2, 4, n, d)))
    return Probe(tuple(x), dO)


right = museum_trials.right({"seen": torch.ones((), dtype=torch.bool)}, None)


def scaled(factor):
    """Attention whose gradients are too large by a factor; the output is right."""

    def attention(*x):
        O = right(*x)
        return O.detach() + factor * (O - O.detach())

    return attention


def test_the_data_have_no_fault_and_the_page_is_current():
    assert museum.stale() == []


def test_there_are_sixty_threads_for_forty_mistakes():
    assert len(EXHIBITS) >= 40
    assert len({(t["repo"], t["number"]) for e in EXHIBITS for t in e["threads"]}) >= 60


@pytest.mark.parametrize("name", SLICE)
def test_the_table_measured_again(name):
    shows = next(e for e in EXHIBITS if e["name"] == name).get("shows", [])
    assert museum.accepted(name, shows) == TABLE["mistakes"][name]["accepted"]


@pytest.mark.parametrize("name", ["D_missing", "gqa_last"])
def test_what_examine_says_again(name):
    row = TABLE["mistakes"][name]
    assert museum.examined(name) == (row["verdict"], row["named"]) == ("wrong", [name])


def test_examine_accepts_no_exhibit_and_names_nine_of_ten():
    rows = TABLE["mistakes"]
    assert {name for name, row in rows.items() if row["verdict"] != "wrong"} == {"detached", "wrong_number"}
    assert all(rows[name]["verdict"] == "not judged" for name in ("detached", "wrong_number"))
    named = [name for name, row in rows.items() if name.partition(",")[0] in row["named"]]
    assert len(named) >= 0.9 * len(rows)


def test_examine_accepts_no_exhibit_over_processes():
    rows = TABLE["ranks"]
    assert len(rows) == 11 and {row["ranks"] for row in rows.values()} == {2}
    assert {row["verdict"] for row in rows.values()} == {"wrong"}


def test_what_examine_says_again_over_processes():
    row = TABLE["ranks"]["reduced_gradient_lost"]
    assert museum.examined("reduced_gradient_lost", 2) == (row["verdict"], row["named"]) == ("wrong", ["zeros"])


def test_rules_accept_the_right_program():
    assert all(rule(right, right, drawn()) for rule in RULES.values())


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("mean, 1e-2", "llm.c", "KernelBench")])
def test_a_rule_refuses_twice_the_gradient(name):
    assert not RULES[name](scaled(2.0), right, drawn(20, 30))


@pytest.mark.parametrize(("name", "least"), [("mean, 1e-2", 30.0), ("llm.c", 3.0)])
def test_a_rule_of_small_gradients_refuses_large_errors_only(name, least):
    few = drawn()
    assert RULES[name](scaled(1.01), right, few) and not RULES[name](scaled(least), right, few)


def test_a_rule_of_the_output_sees_the_output_alone():
    rule = RULES["KernelBench"]
    assert rule(scaled(2.0), right, drawn()) and not rule(lambda *x: 1.01 * right(*x), right, drawn())


def test_continuous_integration_allows_three_tenths():
    def off(*x):  # by a tenth in every gradient of the first argument
        O = right(*x)
        return O + (x[0] - x[0].detach()).sum() * 0.1 / O.numel()

    trial = drawn()._replace(dO=torch.ones_like(drawn().dO))
    assert rules_module.fla_ci_rule(off, right, trial) and not rules_module.fla_rule(off, right, trial)


def test_nothing_is_accepted_where_there_is_nan():
    nan = scaled(float("nan"))
    rules = [rule for name, rule in RULES.items() if name != "KernelBench"]
    assert not any(rule(nan, right, drawn()) for rule in rules)


@pytest.mark.parametrize("name", ["sum, 1e-4", "mean, 1e-2"])
def test_a_rule_brings_its_own_gradient(name):
    trial = drawn()
    assert RULES[name](right, right, trial._replace(dO=torch.full_like(trial.dO, float("nan"))))


def faults(change):
    """The faults of the data after a change."""
    exhibits, table = copy.deepcopy(EXHIBITS), copy.deepcopy(TABLE)
    change(exhibits, table)
    return list(museum_page.faults(exhibits, table, LABELS, ORDER))


def test_the_data_as_they_are():
    assert faults(lambda exhibits, table: None) == []


@pytest.mark.parametrize(("change", "found"), [
    (lambda e, t: e.append(copy.deepcopy(e[-1])), "twice"),
    (lambda e, t: e[0].pop("looks"), "looks?"),
    (lambda e, t: e[0].update(breaks="eq:nothing"), "no display eq:nothing"),
    (lambda e, t: e[0].update(shows=["luck"]), "shows luck?"),
    (lambda e, t: e[0]["threads"][0].pop("says"), "says?"),
    (lambda e, t: e[0]["threads"][0].update(repo="nobody"), "nobody"),
    (lambda e, t: e.insert(0, e.pop()), "the family is not in one place"),
    (lambda e, t: t["mistakes"][e[0]["name"]].update(family="luck"), "another family"),
    (lambda e, t: e[0].update(title=e[1]["title"]), "two exhibits have this title"),
    (lambda e, t: t["mistakes"].pop(e[0]["name"]), "not measured"),
    (lambda e, t: e.pop(0), "not in the museum"),
    (lambda e, t: e[-1].update(ranks=3), "another number of processes"),
    (lambda e, t: t["mistakes"][e[0]["name"]]["accepted"].pop("fla"), "measured with other rules"),
])
def test_a_fault_of_the_data_is_found(change, found):
    assert any(found in fault for fault in faults(change))


def test_titles_have_no_mark_up_of_their_own_but_code():
    assert museum_page.escaped("a_b [c] `d_e` <f>") == "a\\_b \\[c\\] `d_e` \\<f\\>"
    assert museum_page.escaped("a `b") == "a \\`b"


def test_a_published_kernel_is_told_with_its_commit_and_what_is_wrong():
    row = dict(repository="a/b", commit="0" * 40, case="causal", dtype="float32", verdict="wrong", problems=7, patched="the driver",
               findings=[dict(kind="unnamed", title="O is wrong"), dict(kind="convention", title="takes n = 64")])
    assert museum_page.published_row(row) == (
        f"| [a/b](https://github.com/a/b/tree/{'0' * 40}) | causal, float32 | wrong, 7 problems: O is wrong | the driver |")
