"""Python source as its text has it: what a module defines, what a class has with what it inherits,
what a function takes, and of which class an expression is as far as annotations say. Nothing is
imported.

What cannot be told is None or empty, never a guess; of two things that a name may be it is both."""

from __future__ import annotations

import ast
import builtins
import enum
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

_BASES_OUTSIDE = dict.fromkeys(("ABC", "Generic", "Protocol"), object) | {
    name: getattr(enum, name) for name in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
}
_CONTAINERS = {"list", "tuple", "set", "frozenset", "deque", "Sequence", "Iterable", "Iterator"}
_MAX_IMPORTS = 20


@dataclass(frozen=True)
class Symbol:
    """A class, a function or another statement, and the module it is in."""

    module: str
    node: ast.stmt

    @property
    def text(self) -> str:
        return f"{self.module}.{getattr(self.node, 'name', '?')}"

    @property
    def bases(self) -> list[ast.expr]:
        return self.node.bases if isinstance(self.node, ast.ClassDef) else []


_OUTSIDE = Symbol("", ast.Pass())


@dataclass(frozen=True)
class Value:
    """What an expression may be: "instance" of a class, the "class" itself, a "function", or a
    "container" whose elements have an annotation."""

    kind: str
    symbol: Symbol
    owner: Symbol | None = None
    """The class that a method is of."""
    elements: ast.expr | None = None


@dataclass(frozen=True)
class Member:
    owner: Symbol
    node: ast.stmt
    value: ast.expr | None = None
    """What is assigned to it in the method ``node``."""

    @property
    def kind(self) -> str:
        if not isinstance(self.node, Function) or self.value is not None:
            return "an attribute"
        names = {name.removeprefix("cached_") for name in decorators(self.node)}
        kinds = names & {"classmethod", "staticmethod", "property"}
        return f"a {kinds.pop()}" if kinds else "a method"


@dataclass(frozen=True)
class Members:
    named: Mapping[str, Member]
    whole: bool
    """Every base is known."""


class Module:
    def __init__(self, name: str, text: str, is_package: bool) -> None:
        self.name = name
        self.text = text
        self.tree = ast.parse(text)
        self._parts = [*name.split("."), "__init__"] if is_package else name.split(".")

    @cached_property
    def defined(self) -> dict[str, ast.stmt]:
        found: dict[str, ast.stmt] = {}
        for node in _statements(self.tree.body):
            for name in _names_given_by(node):
                found.setdefault(name, node)
        return found

    @cached_property
    def imports(self) -> list[tuple[str, ast.alias, int]]:
        """``from module import alias``, in functions too, and the line."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                above = self._parts[: -node.level] if node.level else []
                module = ".".join([*above, node.module] if node.module else above)
                found += [(module, alias, node.lineno) for alias in node.names]
        return found

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        return {alias.asname or alias.name: (where, alias.name) for where, alias, _ in self.imports}

    @cached_property
    def exported(self) -> set[str]:
        """What another module can import from this one."""
        imports = [
            n for n in _statements(self.tree.body) if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        return {a.asname or a.name for n in imports for a in n.names} | set(self.defined)


class Tree:
    """The modules below folders, a folder for each top-level package, as they are there or as
    ``texts`` has them."""

    def __init__(self, folders: Mapping[str, Path], texts: Mapping[str, str] | None = None) -> None:
        self._folders = folders
        self._texts = dict(texts or {})
        self._modules: dict[str, Module | None] = {}
        self._members: dict[Symbol, Members] = {}

    def with_text(self, name: str, text: str) -> Tree:
        tree = Tree(self._folders, {**self._texts, name: text})
        tree._modules = {each: read for each, read in self._modules.items() if each != name}
        return tree

    def module(self, name: str) -> Module | None:
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        parts = name.split(".")
        path = self._folders.get(parts[0], Path("/nowhere")).joinpath(*parts)
        init, file = path / "__init__.py", path.with_suffix(".py")
        if name in self._texts:
            return Module(name, self._texts[name], init.exists())
        if init.exists():
            return Module(name, init.read_text(), is_package=True)
        return Module(name, file.read_text(), is_package=False) if file.exists() else None

    # --- names and classes ---

    def find(self, module: str, name: str) -> Symbol | None:
        """What a name stands for in a module, through imports as far as they can be read."""
        for _ in range(_MAX_IMPORTS):
            read = self.module(module)
            if read is None:
                return None
            if name in read.defined:
                return Symbol(module, read.defined[name])
            if name not in read.imported:
                return None
            module, name = read.imported[name]
        return None

    def class_named(self, module: str, name: str) -> Symbol:
        found = self.find(module, name)
        assert found is not None, f"{module} has no {name}"
        assert isinstance(found.node, ast.ClassDef), f"{module}.{name} is no class"
        return found

    def _bases(self, symbol: Symbol) -> Iterator[Symbol | str]:
        """A base that cannot be read: its name."""
        for base in symbol.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            found = self.find(symbol.module, named.id) if isinstance(named, ast.Name) else None
            if found is not None and isinstance(found.node, ast.ClassDef):
                yield found
            else:
                yield ast.unparse(named).rpartition(".")[2]

    def ancestors(self, symbol: Symbol) -> list[Symbol]:
        """The class itself first, then in the order in which a name is looked for, near enough."""
        found = [symbol]
        for base in self._bases(symbol):
            if isinstance(base, Symbol):
                found += [each for each in self.ancestors(base) if each not in found]
        return found

    def members(self, symbol: Symbol) -> Members:
        if symbol not in self._members:
            ancestors = self.ancestors(symbol)
            named: dict[str, Member] = {}
            for each in reversed(ancestors):
                named |= own_members(each)
            is_whole = "__getattr__" not in named
            for base in (b for each in ancestors for b in self._bases(each) if isinstance(b, str)):
                outside = _BASES_OUTSIDE.get(base, getattr(builtins, base, None))
                is_whole = is_whole and outside is not None
                for name in (n for each in getattr(outside, "__mro__", ()) for n in vars(each)):
                    named.setdefault(name, Member(_OUTSIDE, _OUTSIDE.node))
            self._members[symbol] = Members(named, is_whole)
        return self._members[symbol]

    # --- what expressions are ---

    def annotated(self, module: str, node: ast.expr | None) -> list[Value]:
        match node:
            case ast.Constant(value=str(text)):
                return self.annotated(module, ast.parse(text, mode="eval").body)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.annotated(module, left) + self.annotated(module, right)
            case ast.Name(id=name):
                found = self.find(module, name)
                if found is not None and isinstance(found.node, ast.ClassDef):
                    return [Value("instance", found)]
            case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
                return self.annotated(module, inner)
            case ast.Subscript(value=ast.Name(id="type"), slice=inner):
                return [Value("class", value.symbol) for value in self.annotated(module, inner)]
            case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _CONTAINERS:
                first = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
                return [Value("container", Symbol(module, ast.Pass()), elements=first)]
        return []

    def member(self, value: Value, name: str) -> Member | None:
        is_of_class = value.kind in ("instance", "class")
        return self.members(value.symbol).named.get(name) if is_of_class else None

    def attribute(self, value: Value, name: str) -> list[Value]:
        member = self.member(value, name)
        if member is None:
            return []
        module = member.owner.module
        match member.node:
            case ast.AnnAssign(annotation=annotation):
                return self.annotated(module, annotation)
            case method if member.value is not None:
                return Scope(self, module, method, member.owner).values(member.value)
            case ast.FunctionDef(returns=returns) if member.kind == "a property":
                return self.annotated(module, returns)
            case ast.FunctionDef() | ast.AsyncFunctionDef() as method:
                return [Value("function", Symbol(module, method), member.owner)]
        return []

    def result(self, value: Value) -> list[Value]:
        """Of a call."""
        if value.kind == "class":
            return [Value("instance", value.symbol)]
        if isinstance(value.symbol.node, Function):
            return self.annotated(value.symbol.module, value.symbol.node.returns)
        return []

    def signature(self, value: Value) -> inspect.Signature | None:
        """What a call of it may pass, without self. None: it cannot be told."""
        if isinstance(value.symbol.node, Function):
            return signature(value.symbol.node, bound=value.owner is not None)
        if value.kind != "class":
            return None
        members = self.members(value.symbol)
        init = members.named.get("__init__")
        if init is not None and isinstance(init.node, Function):
            return signature(init.node, bound=True)
        fields: dict[str, inspect.Parameter] = {}
        for each in reversed(self.ancestors(value.symbol)):
            if "dataclass" in decorators(each.node):
                fields |= _fields(each)
        return inspect.Signature(list(fields.values())) if members.whole else None


class Scope:
    """The names of one statement, as a function is, with those in it. A name that is used for
    several things is all of them; ``isinstance`` of it makes it that class as well."""

    def __init__(self, tree: Tree, module: str, node: ast.stmt, owner: Symbol | None) -> None:
        """``owner``: the class whose body it is in."""
        self._tree = tree
        self._module = module
        self._node = node
        self._owner = owner
        self._asked: set[str] = set()

    def values(self, node: ast.expr | None) -> list[Value]:
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=inner, attr=name):
                return _joined(self._tree.attribute(value, name) for value in self.values(inner))
            case ast.Call(func=ast.Name(id="super")) if self._owner is not None:
                return _joined(self._tree.annotated(self._module, b) for b in self._owner.bases)
            case ast.Call(func=function):
                return _joined(self._tree.result(value) for value in self.values(function))
            case ast.Subscript(value=inner):
                return self._elements(inner)
            case ast.IfExp(body=body, orelse=other):
                return self.values(body) + self.values(other)
            case ast.BoolOp(values=several):
                return _joined(self.values(each) for each in several)
        return []

    def _elements(self, node: ast.expr) -> list[Value]:
        return _joined(
            self._tree.annotated(value.symbol.module, value.elements)
            for value in self.values(node)
            if value.kind == "container"
        )

    def _named(self, name: str) -> list[Value]:
        if name not in self._sources:
            return self._outside(name)
        if name in self._asked:
            return []  # it is made of itself
        self._asked.add(name)
        found = _joined(self._said(source) for source in self._sources[name])
        self._asked.remove(name)
        return found

    @cached_property
    def _sources(self) -> dict[str, list[ast.AST]]:
        """By name, the nodes that say what it is."""
        found: dict[str, list[ast.AST]] = {}
        for node in ast.walk(self._node):
            for target in _targets(node):
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node)
            match node:
                case ast.arg(arg=name):
                    found.setdefault(name, []).append(node)
                case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=name), kind]):
                    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
                    found.setdefault(name, []).extend(kinds)
        return found

    def _said(self, source: ast.AST) -> list[Value]:
        match source:
            case ast.arg(annotation=None) if self._owner and source is _first_of(self._node):
                is_class = "classmethod" in decorators(self._node)
                return [Value("class" if is_class else "instance", self._owner)]
            case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation):
                return self._tree.annotated(self._module, annotation)
            case ast.Assign(value=value) | ast.NamedExpr(value=value):
                return self.values(value)
            case ast.For(iter=several) | ast.comprehension(iter=several):
                return self._elements(several)
            case ast.expr() as kind:
                return self._tree.annotated(self._module, kind)
        return []

    def _outside(self, name: str) -> list[Value]:
        found = self._tree.find(self._module, name)
        match found and found.node:
            case ast.ClassDef():
                return [Value("class", found)] if found else []
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return [Value("function", found)] if found else []
            case ast.AnnAssign(annotation=annotation):
                return self._tree.annotated(found.module, annotation) if found else []
        return []


def own_members(symbol: Symbol) -> dict[str, Member]:
    """What a class has of its own: its body, and what its methods assign to self."""
    body = symbol.node.body if isinstance(symbol.node, ast.ClassDef) else []
    found: dict[str, Member] = {}
    for node in _statements(body):
        for name in _names_given_by(node):
            found.setdefault(name, Member(symbol, node))
    for method in body:
        for inner in ast.walk(method) if isinstance(method, Function) else ():
            for target in _targets(inner):
                match target:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name):
                        value = getattr(inner, "value", None) or ast.Constant(None)
                        how = inner if isinstance(inner, ast.AnnAssign) else method
                        found.setdefault(name, Member(symbol, how, value))
    return found


def decorators(node: ast.AST) -> set[str]:
    """By their last names."""
    return {
        ast.unparse(each.func if isinstance(each, ast.Call) else each).rpartition(".")[2]
        for each in getattr(node, "decorator_list", [])
    }


def signature(node: Function, *, bound: bool) -> inspect.Signature:
    takes, kind = node.args, inspect.Parameter
    positional = [*takes.posonlyargs, *takes.args]
    required = len(positional) - len(takes.defaults)
    found = [
        kind(
            each.arg,
            kind.POSITIONAL_OR_KEYWORD if each in takes.args else kind.POSITIONAL_ONLY,
            default=None if place >= required else kind.empty,
        )
        for place, each in enumerate(positional)
    ]
    if bound and "staticmethod" not in decorators(node):
        del found[0]
    if takes.vararg is not None:
        found.append(kind(takes.vararg.arg, kind.VAR_POSITIONAL))
    for each, default in zip(takes.kwonlyargs, takes.kw_defaults, strict=True):
        found.append(kind(each.arg, kind.KEYWORD_ONLY, default=None if default else kind.empty))
    if takes.kwarg is not None:
        found.append(kind(takes.kwarg.arg, kind.VAR_KEYWORD))
    return inspect.Signature(found)


def _fields(symbol: Symbol) -> dict[str, inspect.Parameter]:
    """Of a dataclass, in their order."""
    kind = inspect.Parameter
    return {
        name: kind(
            name, kind.POSITIONAL_OR_KEYWORD, default=None if member.node.value else kind.empty
        )
        for name, member in own_members(symbol).items()
        if isinstance(member.node, ast.AnnAssign)
        and member.value is None
        and "ClassVar" not in ast.unparse(member.node.annotation)
    }


def _first_of(node: ast.stmt) -> ast.arg | None:
    """What a method that is not static has itself, or its class, as."""
    if not isinstance(node, Function) or "staticmethod" in decorators(node):
        return None
    return next(iter([*node.args.posonlyargs, *node.args.args]), None)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """With what is under ``if`` and ``try``."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            handlers = getattr(node, "handlers", [])
            for inner in (node.body, node.orelse, *(handler.body for handler in handlers)):
                yield from _statements(inner)


def _names_given_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | Function):
        return [node.name]
    return [target.id for target in _targets(node) if isinstance(target, ast.Name)]


def _targets(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            several = [each.elts if isinstance(each, ast.Tuple) else [each] for each in targets]
            return [each for inner in several for each in inner]
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            return [target]
        case ast.For(target=target) | ast.comprehension(target=target):
            return [target]
    return []


def _joined(several: Iterable[list[Value]]) -> list[Value]:
    return [value for values in several for value in values]
