"""Is it another function than plain attention: attention with pieces, or one that is none of the list?"""

from collections.abc import Sequence
from dataclasses import replace

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.diagnosis import own_output
from attnmath._examine.diagnosis.mechanisms import without_name
from attnmath._examine.diagnosis.read_pieces import gives_output, read_pieces
from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.families import cases
from attnmath._examine.report.report import Finding
from attnmath.rounding.formats import unit_roundoff


def unlisted(
    candidate: Candidate, means: Conventions, seed: int, trials: Sequence[Failure], pieces: bool = True
) -> Conventions | Finding | None:
    """What it means, if it is attention with pieces; else whether its gradients are those of its output.

    None for attention, and where nothing can be said. What is another function over fewer ranks is wrong.
    """
    off = (f.case for f in trials if "O" in f.wrong and "gaussian" in f.case.traits)
    if elsewhere := next((candidate.elsewhere(case, means) for case in off), ""):
        unnamed = without_name(trials)
        return replace(unnamed, title=f"{unnamed.title}; {elsewhere}")
    some, others = own_output.chosen(candidate, candidate.dtype, seed)
    other = own_output.reference(candidate, means, some)
    short = unit_roundoff(candidate.dtype) > unit_roundoff("float32")
    one = candidate.again("float32") if short and other else candidate
    count = own_output.other_function(one, means, cases((), one.dtype, seed, one.taken))
    if count is None:
        return None
    where = f"its output is not that of attention in {count}"
    if candidate.forward_only or other is None:
        title = f"its gradients in {candidate.dtype}, which it takes alone, were not judged"
        title = "no gradient was judged" if candidate.forward_only else title
        return Finding("unlisted", "not compared", title, where, cure=own_output.MORE)
    pieces = pieces and other.dtype == "float64"
    if pieces and (told := read_pieces(other, means, gives_output(other, means, seed))):
        return told
    found = own_output.compared_gradients(candidate, other, means, some, others)
    if found is None:
        return None
    return own_output.own_gradients(found, where + own_output.known_multiple(one, means, some))
