"""Identities collected by somebody who had not read the prover: no false one is proved, no true one refuted."""

import sys
import warnings
from pathlib import Path

import pytest

from false_identities import CASES as FALSE
from true_identities import CASES as TRUE

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from identities import OF_THE_PROCESS, verdict  # noqa: E402

sys.path.pop(0)

MANY = "hundreds of points for the signs of its roots; tools/identities.py runs it"
SLOW = dict.fromkeys(["root of one minus sine squared", "root of x squared", "absolute value cubed"], MANY)


@pytest.mark.parametrize("part", range(8))
def test_no_false_identity_is_proved(part):
    for k, case in enumerate(FALSE[part::8]):
        if case.name not in OF_THE_PROCESS:
            word, said = verdict(*case.make(), case, seed=k % 100)
            assert word != "proved", f"{case.kind}: {case.name}"
            assert said, f"{case.kind}: {case.name} is refused without a word"


@pytest.mark.parametrize("part", range(8))
def test_no_true_identity_is_refuted(part):
    found = {case.name: verdict(case.left, case.right, case)[0] for case in TRUE[part::8] if case.name not in SLOW}
    assert not [name for name, word in found.items() if word == "refuted"]
    assert sum(word == "proved" for word in found.values()) > len(found) / 2


def test_the_collections_are_large():
    assert len({case.kind for case in FALSE}) >= 40 and len(FALSE) >= 800 and len(TRUE) >= 500
    assert {*OF_THE_PROCESS, *SLOW} <= {case.name for case in (*FALSE, *TRUE)}


@pytest.mark.parametrize("seed", range(2))
def test_a_false_proof_and_a_refutation_are_seen(seed):
    """A true statement among the false ones is proved; a false one among the true ones is refuted."""
    case = TRUE[0]
    assert verdict(case.left, case.right, case, seed)[0] == "proved"
    assert verdict(lambda *x: 2 * case.left(*x), case.right, case, seed)[0] == "refuted"


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
