"""corpus.py: what is asked, that nothing is in two splits, and that it is the same every time."""

import json
from pathlib import Path

import pytest

from swift_diloco.tools.quickstart.data import corpus
from swift_diloco.tools.quickstart.data.corpus import (
    Corpus,
    Example,
    build_corpus,
    examples_of_source,
    read_examples,
    split,
)
from swift_diloco.tools.quickstart.errors import QuickstartError

SOURCE = '''"""A module that says what it is for.

This second paragraph is not part of the answer.
"""

def shout(text):
    """Return the text in upper case
    letters, on one line."""

def short():
    """Too short."""

def _private():
    """Nobody asks about private things like this."""

class Voice:
    """Something that can speak or be silent."""

    def speak(self):
        """Say one sentence to everybody around."""

    class Inner:
        """A voice inside of another voice."""
'''


def example(name: str) -> Example:
    return Example("m", name, f"What does m.{name} do?", f"It does what {name} does, and nothing else.")


def test_answers_are_first_paragraphs_on_one_line() -> None:
    answers = {found.name: found.answer for found in examples_of_source("noise", SOURCE)}
    assert answers == {
        "": "A module that says what it is for.",
        "shout": "Return the text in upper case letters, on one line.",
        "Voice": "Something that can speak or be silent.",
        "Voice.speak": "Say one sentence to everybody around.",
        "Voice.Inner": "A voice inside of another voice.",
    }


def test_questions_name_the_thing_in_a_form_for_its_kind() -> None:
    questions = {found.name: found.question for found in examples_of_source("noise", SOURCE)}
    assert questions[""] in [form.format("noise") for form in corpus.MODULE_FORMS]
    assert questions["Voice"] in [form.format("noise.Voice") for form in corpus.CLASS_FORMS]
    assert questions["Voice.speak"] in [form.format("noise.Voice.speak") for form in corpus.FUNCTION_FORMS]


def test_foreign_private_and_broken_files_are_passed_over(tmp_path: Path) -> None:
    for name in ("noise.py", "_hidden.py", "site-packages/other.py", "test/support.py", "pack/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'"""The documented module that lies at {name}."""\n')
    (tmp_path / "broken.py").write_text("def (:\n")
    assert [found.module for found in read_examples(tmp_path)] == ["noise", "pack"]


def test_an_answer_that_two_modules_share_is_used_once(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text('def join():\n    """Join two paths with the right separator."""\n')
    assert [found.source for found in read_examples(tmp_path)] == [("first", "join")]


def test_splits_are_disjoint_complete_and_even() -> None:
    examples = [example(f"f{i}") for i in range(23)]
    parts = split(examples, islands=3, held_out=5)
    assert [len(parts.held_out), *map(len, parts.shards)] == [5, 6, 6, 6]
    everything = [one for part in (parts.held_out, *parts.shards) for one in part]
    assert sorted(one.name for one in everything) == sorted(one.name for one in examples)


def test_split_does_not_depend_on_the_order_of_the_examples() -> None:
    examples = [example(f"f{i}") for i in range(23)]
    assert split(examples, 2, 5) == split(examples[::-1], 2, 5)


@pytest.mark.parametrize("field", ["source", "question", "answer"])
def test_validate_finds_what_is_in_two_splits(field: str) -> None:
    one, other = example("f"), example("g")
    twins = {
        "source": Example(one.module, one.name, other.question, other.answer),
        "question": Example("n", "h", one.question, other.answer),
        "answer": Example("n", "h", other.question, one.answer),
    }
    with pytest.raises(AssertionError, match=f"one {field}"):
        Corpus((one,), ((twins[field],),)).validate()


def test_too_few_examples_for_the_islands_is_told() -> None:
    with pytest.raises(QuickstartError, match="6 examples: too few for 5 held out and 2 islands"):
        split([example(f"f{i}") for i in range(6)], islands=2, held_out=5)


def test_a_library_without_sources_is_told(tmp_path: Path) -> None:
    with pytest.raises(QuickstartError, match=r"found 0 documented names .* expected at least 2000"):
        build_corpus(2, 10, tmp_path)


def test_files_are_in_the_messages_format(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    corpus.write_jsonl(path, [example("f")])
    assert json.loads(path.read_text()) == {
        "messages": [
            {"role": "user", "content": "What does m.f do?"},
            {"role": "assistant", "content": "It does what f does, and nothing else."},
        ]
    }
    assert corpus.read_jsonl(path) == [("What does m.f do?", "It does what f does, and nothing else.")]


@pytest.mark.slow
def test_the_real_standard_library_gives_thousands_of_examples_the_same_each_time() -> None:
    first = build_corpus(islands=2, held_out=256)
    assert first.size >= corpus.EXAMPLES_MIN
    assert len(first.held_out) == 256
    assert abs(len(first.shards[0]) - len(first.shards[1])) <= 1
    assert "json.dumps" in " ".join(one.question for part in (first.held_out, *first.shards) for one in part)
    assert build_corpus(islands=2, held_out=256) == first
