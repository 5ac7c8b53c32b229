"""A real-text SFT data set from the docstrings of the Python standard library: question -> first paragraph.

Sources are parsed (`ast`), never imported, so nothing of what is read is run. This module knows neither models nor
islands beyond their number. Invariants: the same sources give the same examples in the same order; a (module, name)
and an answer are used once in the whole corpus, so nothing of the held-out split was seen in training.
"""

import ast
import hashlib
import json
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swift_diloco.core.files.whole_files import write_whole
from swift_diloco.tools.quickstart.errors import QuickstartError

EXAMPLES_MIN = 2000
"""Below this the standard library is not what we think it is (a stripped or zipped one), and losses mean little."""

ANSWER_CHARS_MIN = 24
ANSWER_CHARS_MAX = 240
"""Longer first paragraphs are essays: one of them would pad its whole batch."""

SOURCE_BYTES_MAX = 2 * 2**20
"""No file of the library's own code comes near; a larger one is a generated table."""

FOREIGN_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__")
)
"""Installed packages, and parts of the library that are programs or fixtures (some deliberately do not parse)."""

MODULE_FORMS = ("What is the module {} for?", "What does the {} module provide?", "Describe the module {}.")
CLASS_FORMS = ("What is {}?", "What is the class {} for?", "Describe the class {}.")
FUNCTION_FORMS = ("What does {} do?", "What is {} for?", "Explain {}.", "Describe {} in one paragraph.")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Example:
    """One question and its answer, and where the answer is from."""

    module: str
    name: str
    question: str
    answer: str

    @property
    def source(self) -> tuple[str, str]:
        """What identifies an example: the docstring's owner."""
        return self.module, self.name

    def as_messages(self) -> dict[str, list[dict[str, str]]]:
        """The example in the messages format of ms-swift."""
        return {
            "messages": [
                {"role": "user", "content": self.question},
                {"role": "assistant", "content": self.answer},
            ]
        }


@dataclass(frozen=True)
class Corpus:
    """The held-out split and one shard per island, disjoint."""

    held_out: tuple[Example, ...]
    shards: tuple[tuple[Example, ...], ...]

    def validate(self) -> None:
        """Check that no docstring's owner, question or answer is in two places."""
        everything = [example for part in (self.held_out, *self.shards) for example in part]
        assert len({example.source for example in everything}) == len(everything), "one source in two places"
        assert len({example.question for example in everything}) == len(everything), "one question in two places"
        assert len({example.answer for example in everything}) == len(everything), "one answer in two places"

    @property
    def size(self) -> int:
        """How many examples there are in all."""
        return len(self.held_out) + sum(len(shard) for shard in self.shards)


def _rank(module: str, name: str) -> bytes:
    """A position that looks random and is the same everywhere (`hash()` is salted per process)."""
    return hashlib.blake2b(f"{module}:{name}".encode(), digest_size=8).digest()


def first_paragraph(docstring: str) -> str:
    """The docstring up to its first empty line, on one line."""
    paragraph = docstring.strip().split("\n\n", 1)[0]
    return " ".join(paragraph.split())


def _forms(node: Documented) -> tuple[str, ...]:
    if isinstance(node, ast.Module):
        return MODULE_FORMS
    return CLASS_FORMS if isinstance(node, ast.ClassDef) else FUNCTION_FORMS


def _example(module: str, name: str, node: Documented) -> Example | None:
    docstring = ast.get_docstring(node)
    answer = first_paragraph(docstring) if docstring else ""
    if not ANSWER_CHARS_MIN <= len(answer) <= ANSWER_CHARS_MAX or not answer.isprintable():
        return None
    forms = _forms(node)
    form = forms[_rank(module, name)[0] % len(forms)]
    return Example(module, name, form.format(f"{module}.{name}" if name else module), answer)


def _walk(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Documented]]:
    for child in node.body:
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or child.name.startswith("_"):
            continue
        yield prefix + child.name, child
        if isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{prefix}{child.name}.")


def examples_of_source(module: str, source: str) -> list[Example]:
    """Every public documented thing of one module, in the order of the source."""
    tree = ast.parse(source)
    found = [_example(module, "", tree)]
    found += [_example(module, name, node) for name, node in _walk(tree, "")]
    return [example for example in found if example is not None]


def _public_sources(stdlib: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(stdlib.rglob("*.py")):
        parts = path.relative_to(stdlib).with_suffix("").parts
        if FOREIGN_FOLDERS.intersection(parts):
            continue
        module = parts[:-1] if parts[-1] == "__init__" else parts
        if module and all(part.isidentifier() and not part.startswith("_") for part in module):
            yield ".".join(module), path


def read_examples(stdlib: Path | None = None) -> list[Example]:
    """All examples of a standard library (this interpreter's own by default), deterministic and distinct."""
    root = stdlib or Path(sysconfig.get_path("stdlib"))
    found: list[Example] = []
    for module, path in _public_sources(root):
        if path.stat().st_size > SOURCE_BYTES_MAX:
            continue
        with tokenize.open(path) as file:
            source = file.read()
        try:
            found += examples_of_source(module, source)
        except SyntaxError:
            continue  # distributions add files for other Python versions; the count below tells if too much is lost
    return _distinct(found)


def _distinct(examples: Iterable[Example]) -> list[Example]:
    """The first example of each owner, question and answer: `posixpath` and `ntpath` say the same of `join`."""
    seen: set[object] = set()
    kept = []
    for example in examples:
        keys = (example.source, example.question, example.answer)
        if seen.isdisjoint(keys):
            kept.append(example)
        seen.update(keys)
    return kept


def split(examples: Sequence[Example], islands: int, held_out: int) -> Corpus:
    """Deal the examples out: the first `held_out` of a fixed shuffle, the rest card by card to the islands."""
    if len(examples) - held_out < islands:
        raise QuickstartError(
            f"the corpus has {len(examples)} examples: too few for {held_out} held out and {islands} islands"
        )
    shuffled = sorted(examples, key=lambda example: _rank(example.module, example.name))
    train = shuffled[held_out:]
    corpus = Corpus(tuple(shuffled[:held_out]), tuple(tuple(train[i::islands]) for i in range(islands)))
    corpus.validate()
    return corpus


def build_corpus(islands: int, held_out: int, stdlib: Path | None = None) -> Corpus:
    """Read the standard library and split it; refuses a library with too few docstrings."""
    examples = read_examples(stdlib)
    if len(examples) < EXAMPLES_MIN:
        raise QuickstartError(
            f"found {len(examples)} documented names in {stdlib or sysconfig.get_path('stdlib')}, expected at least "
            f"{EXAMPLES_MIN}: this Python has no library sources; use a Python that was installed with its .py files"
        )
    return split(examples, islands, held_out)


def write_jsonl(path: Path, examples: Iterable[Example]) -> None:
    """Write examples in ms-swift's messages format, one a line."""
    lines = (json.dumps(example.as_messages(), ensure_ascii=False) + "\n" for example in examples)
    write_whole(path, (line.encode() for line in lines))


def read_jsonl(path: Path) -> list[tuple[str, str]]:
    """(question, answer) of every line of a file that `write_jsonl` wrote."""
    pairs = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            question, answer = json.loads(line)["messages"]
            pairs.append((question["content"], answer["content"]))
    return pairs
