"""The examples in docstrings: they can be pasted as they are, and print what they say."""

import doctest
import inspect
from functools import reduce

import pytest

import attnmath

MAIN = ("attention", "attention_vjp", "softmax_vjp", "multihead_vjp", "self_attention_vjp", "bias", "causal_mask",
        "check_vjp", "prove", "complex_step", "examine", "examine_layer", "torch.scaled_dot_product_attention",
        "rounding.attention")
MODULES = "", "adapters.", "rounding.", "testing.", "torch."
PUBLIC = [module + name for module in MODULES for name in reduce(getattr, module.split(".")[:-1], attnmath).__all__]


def examples(function, name):
    return doctest.DocTestParser().get_doctest(inspect.getdoc(function) or "", {}, name, None, 0)


def failures(test):
    """What is printed and is not what stands there, in an interpreter that has imported nothing."""
    said = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    return "".join(said)


def found(name):
    return reduce(getattr, name.split("."), attnmath)


@pytest.mark.parametrize("name", [name for name in PUBLIC if examples(found(name), name).examples])
def test_an_example_prints_what_it_says(name):
    assert failures(examples(found(name), name)) == ""


@pytest.mark.parametrize("name", MAIN)
def test_each_main_function_has_a_short_example_that_calls_it(name):
    lines = examples(found(name), name).examples
    own = name.rpartition(".")[2]
    assert any(f"{own}(" in line.source for line in lines[1:]) and "import" in lines[0].source
    assert sum(line.source.count("\n") + line.want.count("\n") for line in lines) <= 16


def test_an_example_that_says_something_else_is_seen():
    for slip in (">>> 1 + 1\n3", ">>> attention", ">>> import attnmath\n>>> attnmath.softmx"):
        test = doctest.DocTestParser().get_doctest(slip, {}, "planted", None, 0)
        assert failures(test)
