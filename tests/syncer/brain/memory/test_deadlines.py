"""Deadlines against a plain dictionary, and their cost when they only move later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syncer.brain.memory.deadlines import Deadlines, Key

KEYS = st.tuples(st.just("lease"), st.sampled_from("abcd"))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 20)),
        st.tuples(st.just("clear"), KEYS, st.just(0)),
        st.tuples(st.just("expire"), st.just(("", "")), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(STEPS)
def test_deadlines_behave_like_a_dictionary_that_is_searched(steps: list[tuple[str, Key, int]]) -> None:
    deadlines, model = Deadlines(), dict[Key, float]()
    for what, key, at in steps:
        if what == "set":
            deadlines.set(key, at)
            model[key] = at
        elif what == "clear":
            deadlines.clear(key)
            model.pop(key, None)
        else:
            over = sorted((due, key) for key, due in model.items() if due <= at)
            assert deadlines.take_expired(at) == [key for _, key in over]
            for _, key in over:
                del model[key]
        assert deadlines.next() == min(model.values(), default=None)
        assert len(deadlines) == len(model)


def test_moving_a_deadline_later_adds_nothing_to_the_heap() -> None:
    deadlines = Deadlines()
    for due in range(1000):
        deadlines.set(("lease", "a"), due)
    assert len(deadlines._heap) == 1
    assert deadlines.take_expired(998) == []
    assert deadlines.take_expired(999) == [("lease", "a")]
