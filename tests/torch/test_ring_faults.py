"""What a ring costs, and what each rank is told when one of them dies, hangs or comes with something else."""

import pytest
import torch

from attnmath.torch import ring_attention
from ranks import ranks
from ring_faults import (
    SIZES,
    backward_or_forward,
    call,
    computed,
    die,
    die_between,
    formula,
    held,
    named,
    of_another_group,
    order,
    sent,
    sleep,
)

SECONDS = 6  # the time limit of the group


@pytest.fixture(scope="module")
def three():
    with ranks(3, seconds=SECONDS) as some:
        yield some


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_the_bytes_that_are_sent_are_those_of_the_formula(three, layout, dtype):
    for size in (2, 3):
        for found in three.run(size, sent, layout, dtype):
            assert found == {name: formula(name, size, itemsize=dtype.itemsize, **SIZES) for name in found}


def test_a_group_of_one_sends_nothing(three):
    assert set(three.run(1, sent)[0].values()) == {0}


def test_under_zigzag_all_ranks_have_about_as_many_tiles(three):
    n, size = 96, 4
    found = three.run(3, computed, "zigzag", n, size)
    assert max(found) - min(found) <= n // size
    found = three.run(3, computed, "contiguous", n, size)
    assert max(found) - min(found) > 4 * n // size


def test_a_block_is_sent_on_before_the_work_and_sums_during_the_next(three):
    first, last = ["block posted", "tiles", "sums posted", "block awaited"], ["tiles", "sums awaited", "sums posted"]
    middle = ["block posted", "tiles", "sums awaited", "sums posted", "block awaited"]
    assert three.run(3, order) == [[*first, *middle, *last, "sums awaited"]] * 3


def test_the_memory_of_a_rank_grows_with_its_own_tokens(three):
    less, more = (max(three.run(2, held, n)) for n in (400, 800))
    assert less < 4 * 400 * 400 / 2 and more < 2.2 * less


DIFFERENT = {
    "another dtype": (dict(dtype=torch.float32), "it has another dtype"),
    "other leading axes": (dict(h=3), "it has other leading axes"),
    "another d_k": (dict(d_k=5), "it has another d_k"),
    "another d_v": (dict(d_v=5), "it has another d_v"),
    "another layout": (dict(layout="zigzag"), "it has another layout"),
    "causal": (dict(is_causal=True), "it has other options (mask, dropout, causal, scale, groups, cap, sinks or window)"),
    "leading axes in another order": (dict(h=1), "it has other leading axes"),
    "a scale that is no float": (dict(scale=10**400), "its arguments were refused there"),
    "another scale": (dict(scale=0.3), "it has other options (mask, dropout, causal, scale, groups, cap, sinks or window)"),
    "a mask": (dict(attn_mask=torch.ones(8, 18, dtype=torch.bool)), "it has other options (mask, dropout, causal, scale, groups, cap, sinks or window)"),
    "sinks": (dict(sinks=torch.zeros(2).double()), "it has other options (mask, dropout, causal, scale, groups, cap, sinks or window)"),
    "what is refused": (dict(scale="0.3"), "its arguments were refused there"),
    "no such layout": (dict(layout=3), "its arguments were refused there"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_do_not_fit_are_told_so(three, name):
    options, words = DIFFERENT[name]
    answers = three.try_each((call, {}), (call, options), (call, {}))
    assert [ok for ok, _ in answers] == [False] * 3
    for rank, (_, (error, message, _)) in enumerate(answers):
        if rank != 1:
            assert error is RuntimeError and message.startswith("ring_attention: rank 1 does not fit to rank")
            assert message.endswith(words)
        elif "refused" in words:
            assert error in (TypeError, OverflowError) and (name == "no such layout") == ("layout is a int" in message)
        else:
            assert message == f"ring_attention: rank 0 does not fit to rank 1: {words}"
    assert three.run(3, call, {})  # the group is as good as before


def test_a_rank_at_another_derivative(three):
    answers = three.try_each((backward_or_forward, True), (backward_or_forward, False), (backward_or_forward, True))
    assert [ok for ok, _ in answers] == [False] * 3
    assert {error[1][-27:] for _, error in answers} == {": it computes something else"[-27:]}


@pytest.mark.parametrize("fault", [die, die_between, sleep])
def test_a_rank_that_dies_or_hangs_stops_the_others(fault):
    with ranks(3, seconds=SECONDS) as some:
        some.run(3, call, {})  # connected
        answers = some.try_each((call, {}), (fault,), (call, {}), limit=2 * SECONDS)
        assert answers[1] is None
        for rank in (0, 2):
            ok, (error, message, _) = answers[rank]
            assert not ok and error is RuntimeError
            assert message.startswith(f"ring_attention: rank {rank} waits for") and " in vain: " in message


LENGTHS = [
    ("contiguous", (8, 8, 8), (6, 7, 5), "rank 1 has 7 of 18 keys; it needs 6 in the layout 'contiguous'"),
    ("zigzag", (8, 9, 8), (6, 6, 6), "rank 0 has 8 of 25 queries; it needs 9 in the layout 'zigzag'"),
    ([[0, 1], [2, 3], [4, 4]], (2, 2, 2), (2, 2, 2), "layout leaves places out, or has some twice; it needs"),
]


@pytest.mark.parametrize("layout, queries, keys, words", LENGTHS)
def test_lengths_and_places_that_do_not_fit(three, layout, queries, keys, words):
    for _, (error, message, _) in three.try_each(*((named, layout, n, m) for n, m in zip(queries, keys))):
        assert error is ValueError and message.startswith(f"ring_attention: {words}")


def test_a_group_that_is_none(three):
    for rank, (ok, found) in enumerate(three.try_each(*[(of_another_group,)] * 3)):
        error, message, _ = found
        assert not ok and (error, message) == (
            (TypeError, "ring_attention: group is a str; it needs to be a ProcessGroup") if rank else
            (ValueError, "ring_attention: group is one without this process; it needs to be one that has it")
        )


def test_without_a_group():
    x = torch.zeros(2, 3)
    with pytest.raises(RuntimeError, match="there is no process group; call torch.distributed.init_process_group"):
        ring_attention(x, x, x)
