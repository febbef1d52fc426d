"""What is said beside a verdict: what was read off a wrong program is said where its output bears it out."""

import pytest

from attnmath._examine.diagnosis.extent import unusual
from attnmath._examine.problems.case import Conventions
from attnmath._examine.report.found import TriedProblem


def problem(ratio, *traits):
    return TriedProblem("one", frozenset({"gaussian", *traits}), {"O": ratio, "dQ": 9.0}, False)


@pytest.mark.parametrize("means, name, telling, other", [
    (Conventions(scale="1"), "unusual_scale", (), ("scale",)),
    (Conventions(groups="interleaved"), "interleaved_groups", ("groups",), ())])
def test_a_hazard_is_told_where_the_output_bears_it_out(means, name, telling, other):
    for some, said in (([problem(0.5, *telling)], [name]), ([problem(3.0, *telling), problem(0.5, *other)], []),
                       ([], [name])):
        assert [x.name for x in unusual(means, Conventions(), some)] == said
