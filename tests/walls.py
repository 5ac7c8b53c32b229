"""Reads who imports whom from a source tree, and finds what a rule forbids. Knows the syntax of imports, and no rule.

An import counts wherever it stands: at the top, in a function, under TYPE_CHECKING, relative, or made of a text by
`import_module` and its like. `import a.b` binds `a`, so it imports both. What is reached without an import is found by
`doors`.

A pattern is a dotted name in which `*` stands for any one part. It matches the module or folder of that name and all
that lies inside: `swift_diloco.tools.*` is each single tool.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

OUTSIDE = "outside"
"""As a pattern: whatever belongs to none of the packages that were read."""

TAKES_A_NAME = {"import_module", "__import__", "resolve_name", "run_module"}
"""Functions that import the module named by their first argument."""

TAKES_CODE = {"run_path", "exec_module", "exec", "eval"}
"""Functions that run code which no reader of imports can see."""

DOORS = set(
    "__builtins__ __closure__ __code__ __dict__ __globals__ __import__ __loader__ __spec__ __subclasses__ "
    "f_back f_builtins f_globals gi_frame globals locals modules tb_frame vars".split()
)
"""Names through which every module that is loaded can be reached."""

MODULE_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)+(?=:\w+$|$)")
"""A text that may name a module, or something in one: `a.b` or `a.b:c`."""


@dataclass(frozen=True)
class Module:
    """What one source file is and imports."""

    name: str
    folder: str
    """The package it lies in: itself for an `__init__.py`."""
    imports: frozenset[str]
    """Modules of the packages that were read."""
    outside: frozenset[str]
    """The outermost names of all others."""
    dynamic: bool
    """It imports something whose name stands nowhere. Then each text in it that names a module counts as an import."""
    calls: frozenset[str]
    """What it calls while it is imported."""


Table = Mapping[str, Module]


def read_tree(root: Path, *packages: str) -> dict[str, Module]:
    """All modules of the packages that lie in `root`, by name."""
    paths = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    known = {name_of(path, root) for path in paths}
    return {name_of(path, root): read_module(path, root, known) for path in paths}


def name_of(path: Path, root: Path) -> str:
    """`a/b/c.py` is `a.b.c`, `a/b/__init__.py` is `a.b`."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def read_module(path: Path, root: Path, known: Collection[str]) -> Module:
    """One source file beside modules that are `known` by name."""
    folder = ".".join(path.parent.relative_to(root).parts)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    found = {imported for node in nodes for imported in _written(node, folder)}
    texts = {_text(node, folder) for node in nodes if isinstance(node, ast.Call) and _imports(node)}
    found |= {text for text in texts if text is not None}
    dynamic = None in texts or _hidden(nodes)
    found |= _named(nodes, known) if dynamic else set()
    reached = {_reached_by(name, known) for name in found}
    ours = frozenset(reached & set(known))
    calls = frozenset(map(ast.unparse, _called_at_import(tree)))
    return Module(name_of(path, root), folder, ours, frozenset(reached - ours), dynamic, calls)


def _reached_by(name: str, known: Collection[str]) -> str:
    """The module that an import of `name` reaches: itself or where it is defined; of a foreign one, the outermost."""
    while "." in name and name not in known:
        name = name.rpartition(".")[0]
    return name


def _written(node: ast.AST, folder: str) -> Iterator[str]:
    """What an import statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        yield from (alias.name.partition(".")[0] for alias in node.names if not alias.asname)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node.level, node.module or "", folder)
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _absolute(level: int, name: str, folder: str) -> str:
    """The full name behind a relative one of so many dots."""
    parts = folder.split(".")
    above = parts[: len(parts) + 1 - level] if level else []
    return ".".join([*above, *([name] if name else [])])


def _imports(call: ast.Call) -> bool:
    """Whether a call may import."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in (TAKES_A_NAME | TAKES_CODE) - {"exec", "eval"}
    return isinstance(call.func, ast.Name) and call.func.id in TAKES_A_NAME | TAKES_CODE


def _hidden(nodes: Iterable[ast.AST]) -> bool:
    """Whether a function that imports gets another name, so that its calls are not known for what they are."""
    nodes = list(nodes)
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    renamed = [node for node in nodes if isinstance(node, ast.alias) and node.asname and node.name in TAKES_A_NAME]
    values = [node for node in nodes if isinstance(node, ast.Attribute | ast.Name) and id(node) not in functions]
    return bool(renamed) or any(ast.unparse(each).rpartition(".")[2] in TAKES_A_NAME for each in values)


def _text(call: ast.Call, folder: str) -> str | None:
    """The module that a call imports, if its name stands there."""
    takes_code = ast.unparse(call.func).rpartition(".")[2] in TAKES_CODE
    named = [word.value for word in call.keywords if word.arg in ("name", "mod_name")]
    first = (*call.args, *named, None)[0]
    if takes_code or not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return None
    text = first.value.partition(":")[0]
    return _absolute(len(text) - len(text.lstrip(".")), text.lstrip("."), folder)


def _named(nodes: Iterable[ast.AST], known: Collection[str]) -> set[str]:
    """Names of known modules, or of something in them, that stand anywhere as texts."""
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    names = {match[0] for match in map(MODULE_NAME.match, texts) if match}
    return {name for name in names if _reached_by(name, known) in known}


def _called_at_import(node: ast.AST) -> Iterator[ast.expr]:
    """What is called when a module is imported: nothing of a function but its decorators and defaults."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        kept = [*node.args.defaults, *node.args.kw_defaults, *getattr(node, "decorator_list", [])]
        children: Iterable[ast.AST] = [each for each in kept if each is not None]
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
        children = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    if isinstance(node, ast.Call):
        yield node.func
    for child in children:
        yield from _called_at_import(child)


# -- Doors ------------------------------------------------------------------------------------------------------------


def doors(tree: ast.AST, folder: str) -> set[str]:
    """What of a source leads to modules that it does not import: names of `DOORS`, modules that foreign ones hold as
    their attributes, and modules that it hands about as values. Loads what the source imports.
    """
    nodes = list(ast.walk(tree))
    bound = {name: resolve_name(whole) for node in nodes for name, whole in _bound(node, folder)}
    taken = {whole for node in nodes if isinstance(node, ast.ImportFrom) for _, whole in _bound(node, folder)}
    named = {each for node in nodes for each in names_in(node)}
    roots = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    values = {ast.unparse(node) for node in nodes if id(node) not in roots and _is_module(_held(node, bound))}
    foreign = {ast.unparse(node) for node in nodes if _is_foreign(node, bound)}
    return named & DOORS | values | foreign | {name for name in taken if _is_module(resolve_name(name), but=name)}


def _bound(node: ast.AST, folder: str) -> Iterator[tuple[str, str]]:
    """The names that an import statement binds, and what to."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node.level, node.module or "", folder)
        yield from ((alias.asname or alias.name, f"{base}.{alias.name}") for alias in node.names if alias.name != "*")


def names_in(node: ast.AST) -> Iterator[str]:
    """The names that stand in a node; a text may be one for `getattr`."""
    yield from (getattr(node, field) for field in ("id", "attr") if hasattr(node, field))
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("__"):
        yield node.value


def _held(node: ast.AST, bound: Mapping[str, object]) -> object:
    """What a name, or an attribute of one, is before the program has run."""
    if isinstance(node, ast.Attribute):
        return getattr(_held(node.value, bound), node.attr, None)
    return bound.get(node.id) if isinstance(node, ast.Name) else None


def _is_foreign(node: ast.AST, bound: Mapping[str, object]) -> bool:
    """Whether a node is a module that another one holds, and no part of that."""
    holder = _held(node.value, bound) if isinstance(node, ast.Attribute) else None
    return isinstance(holder, ModuleType) and _is_module(_held(node, bound), but=holder.__name__)


def _is_module(value: object, but: str = "") -> bool:
    """Whether a value is a module other than this one and those in it."""
    return isinstance(value, ModuleType) and not matched(but, value.__name__)


# -- Rules ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """`who` imports none of `never`, `but` for some of it. Patterns with blanks between.

    What `who` matches may import from itself, unless `never` names a part of it: if both are `a.*`, then `a.b` may
    import `a.b.c` and not `a.d`; if they are `a` and `a.b`, then nobody in `a` may import `a.b`, but it itself may.
    """

    who: str
    never: str
    but: str = ""
    unless: str = ""
    """Importers that the rule is not for."""


@dataclass(frozen=True, order=True)
class Arrow:
    """One module imports another."""

    importer: str
    imported: str


def matched(pattern: str, name: str) -> str:
    """The part of a name that a pattern matches; nothing where it does not."""
    words, parts = pattern.split("."), name.split(".")[: pattern.count(".") + 1]
    fits = len(words) == len(parts) and all(word in ("*", part) for word, part in zip(words, parts, strict=True))
    return ".".join(parts) if fits else ""


def matches(patterns: str, name: str) -> bool:
    """Whether one of several patterns matches a name."""
    return any(matched(pattern, name) for pattern in patterns.split())


def offences(rule: Rule, modules: Iterable[Module]) -> list[Arrow]:
    """What a rule forbids and modules do."""
    return sorted(
        Arrow(module.name, imported)
        for module in modules
        for pattern in rule.who.split()
        if (own := matched(pattern, module.name)) and not matches(rule.unless, module.name)
        for imported in module.imports | module.outside
        if not matches(rule.but, imported)
        if (OUTSIDE in rule.never.split() and imported in module.outside)
        or any(forbids(each, own, module.name, imported) for each in rule.never.split())
    )


def forbids(never: str, own: str, importer: str, imported: str) -> bool:
    """Whether a pattern that is forbidden to `own` parts an importer, one of its modules, from what it imports."""
    part = matched(never, imported)
    if not matched(own, imported):
        return bool(part)
    return len(part) > len(own) and not matched(part, importer)


def circles(table: Table) -> list[list[str]]:
    """Sets of modules that import each other, one way or another."""
    reached = {name: reached_from(name, table) for name in table}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in table}
    return sorted(sorted(each) for each in found if each)


def reached_from(start: str, table: Table) -> set[str]:
    """Where the imports of a module lead, in one step or several."""
    reached: set[str] = set()
    ahead = list(table[start].imports)
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead.extend(table[name].imports)
    return reached


def concrete(patterns: str, names: Iterable[str]) -> list[str]:
    """Those parts of names that a pattern matches, each once."""
    found = (matched(pattern, name) for name in names for pattern in patterns.split())
    return sorted({part for part in found if part})
