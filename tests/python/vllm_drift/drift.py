"""Whether classes that are written against one version of vLLM fit another: what they import,
override, read and call, and what is called on them. A complaint is a text, and says where."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from parsed import (
    Function,
    Member,
    Module,
    Scope,
    Symbol,
    Tree,
    Value,
    decorators,
    own_members,
    signature,
)

KV = "vllm.distributed.kv_transfer.kv_connector"
BASE = f"{KV}.v1.base"

CALLERS = (
    "vllm.config.vllm",
    "vllm.distributed.aux_output_connector.connector",
    f"{KV}.factory",
    f"{KV}.utils",
    f"{KV}.v1.metrics",
    "vllm.model_executor.layers.attention.kv_transfer_utils",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu.kv_connector",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.kv_connector_model_runner_mixin",
)
"""Where vLLM calls a connector, or its class."""

_CONNECTORS = {
    "KVConnectorFactory.get_connector_class()",
    "cls.get_connector_class()",
    "get_kv_transfer_group()",
    "self.connector",
    "self.connector_cls",
    "self.kv_connector",
    "self.scheduler.get_kv_connector()",
}
"""As what, but for names that one of these is given."""

_NOT_FETCHED = "is not among what is fetched: fetch.py pin"
_IN_PLACES = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


@dataclass(frozen=True)
class Use:
    """Something of vLLM's that an expression names or calls; not there, without a ``target``."""

    text: str
    target: str | None
    passes: tuple[tuple[str, str], ...] = ()
    """Of a call: parameters, and what is passed for them."""
    fits: bool = True


@dataclass(frozen=True)
class OnConnector:
    where: str
    name: str
    node: ast.expr
    """A call, or what is read."""


class Pair:
    def __init__(self, old: Tree, new: Tree, own: Sequence[str]) -> None:
        """``own``: the modules that are written against ``old``, which both trees have."""
        self.old = old
        self.new = new
        self._own = own

    def imports(self) -> list[str]:
        complaints = []
        for name in self._own:
            for source, alias, line in _module(self.new, name).imports:
                theirs = self.new.module(source)
                if source.partition(".")[0] != "vllm":
                    continue
                if theirs is None:
                    complaints.append(f"{name}:{line}: {source} is not there, or {_NOT_FETCHED}")
                elif alias.name not in theirs.exported:
                    complaints.append(f"{name}:{line}: {source} has no {alias.name}")
        return complaints

    def abstract(self) -> list[str]:
        return [
            f"{symbol.text} lacks {name} of {member.owner.text}"
            for symbol in self._classes
            for name, member in self.new.members(symbol).named.items()
            if "abstractmethod" in decorators(member.node)
        ]

    def overrides(self) -> list[str]:
        complaints = []
        for symbol in self._classes:
            for name, own in own_members(symbol).items():
                before = _first(theirs(self.old, symbol), name)
                now = _first(theirs(self.new, symbol), name)
                where = f"{symbol.text}.{name}"
                if before is not None and now is None:
                    complaints.append(f"{where}: vLLM has it no more")
                elif before is None and now is not None and name.startswith("_"):
                    complaints.append(f"{where}: vLLM has one of its own now")
                elif now is not None:
                    complaints += [f"{where}: {why}" for why in _differs(now, own)]
        return complaints

    def uses(self) -> list[str]:
        """Attributes and calls of what annotations say is vLLM's."""
        before, now = self.uses_in(self.old), self.uses_in(self.new)
        complaints = []
        for where, was in before.items():
            use = now.get(where)
            if was.target is None or not was.fits:
                complaints.append(f"{where}: {was.text}: the old version has no such thing either")
            elif use is None:
                complaints.append(f"{where}: {was.text} ({was.target}) {_NOT_FETCHED}")
            elif use.target is None:
                complaints.append(f"{where}: {was.text} ({was.target}) is not there")
            elif not use.fits:
                complaints.append(f"{where}: {was.text}: {use.target} takes other arguments")
            elif use.passes != was.passes:
                complaints.append(f"{where}: {was.text}: {was.passes} became {use.passes}")
        return complaints

    def calls(self, connector: Symbol) -> list[str]:
        """What vLLM reads and calls on a connector."""
        has = self.new.members(connector).named
        complaints = []
        modules = [_module(self.new, name) for name in CALLERS]
        for call in (each for module in modules for each in _calls_on_connector(module)):
            member = has.get(call.name)
            if member is None:
                complaints.append(f"{call.where} needs {connector.text}.{call.name}")
            elif not _fits(call.node, member.node):
                text = ast.unparse(call.node)
                complaints.append(f"{call.where}: {text} does not fit {connector.text}")
        return complaints

    def changes(self, module: str, name: str) -> set[str]:
        """Of a class of vLLM's: "+member" that it had not, "-member" that it has no more, "~member"
        that is, or says of itself, something else."""
        before, now = (
            {
                each: ast.unparse(member.node)
                for each, member in own_members(tree.class_named(module, name)).items()
                if member.value is None
            }
            for tree in (self.old, self.new)
        )
        found = {f"+{each}" for each in now.keys() - before.keys()}
        found |= {f"-{each}" for each in before.keys() - now.keys()}
        return found | {
            f"~{each}" for each in now.keys() & before.keys() if now[each] != before[each]
        }

    def changed_callers(self) -> set[str]:
        """Functions of vLLM that call other methods of a connector, or otherwise, or in another
        order than they did."""
        before, now = _calls_by_function(self.old), _calls_by_function(self.new)
        return {where for where in before | now if before.get(where) != now.get(where)}

    @cached_property
    def _classes(self) -> list[Symbol]:
        """Those of our own that are of a class of vLLM's."""
        symbols = [
            Symbol(name, node)
            for name in self._own
            for node in _module(self.new, name).defined.values()
            if isinstance(node, ast.ClassDef)
        ]
        return [symbol for symbol in symbols if theirs(self.new, symbol)]

    def uses_in(self, tree: Tree) -> dict[str, Use]:
        """By the place in our own modules."""
        found = {}
        for name in self._own:
            for node, owner in _parts(_module(tree, name)):
                scope = Scope(tree, name, node, Symbol(name, owner) if owner else None)
                for inner in ast.walk(node):
                    for what, use in _uses(tree, scope, inner):
                        line, column = (
                            getattr(inner, "lineno", 0),
                            getattr(inner, "end_col_offset", 0),
                        )
                        found[f"{name}:{line}:{column} {what}"] = use
        return found


def theirs(tree: Tree, symbol: Symbol) -> list[Symbol]:
    """The class, if it is vLLM's, and those of vLLM's that it is of."""
    return [each for each in tree.ancestors(symbol) if _is_theirs(each)]


def _is_theirs(symbol: Symbol) -> bool:
    return symbol.module.partition(".")[0] == "vllm"


def _module(tree: Tree, name: str) -> Module:
    found = tree.module(name)
    assert found is not None, f"{name} is not there, or {_NOT_FETCHED}"
    return found


def _uses(tree: Tree, scope: Scope, node: ast.AST) -> Iterator[tuple[str, Use]]:
    match node:
        case ast.Attribute(value=of, attr=name):
            yield from _named(tree, scope.values(of), name, node)
        case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=str(name)), *_]):
            yield from _named(tree, scope.values(of), name, node)
        case ast.Call(func=function):
            for value in scope.values(function):
                takes = tree.signature(value)
                if takes is not None and _is_theirs(value.symbol):
                    passes = _bind(takes, node)
                    text, target = ast.unparse(node), value.symbol.text
                    yield "call", Use(text, target, passes or (), passes is not None)


def _named(tree: Tree, of: list[Value], name: str, node: ast.expr) -> Iterator[tuple[str, Use]]:
    """Only what is vLLM's own, or should be."""
    known = [
        value
        for value in of
        if value.kind in ("instance", "class")
        and tree.members(value.symbol).whole
        and theirs(tree, value.symbol)
    ]
    owners = [member.owner for value in known if (member := tree.member(value, name))]
    if known and not owners and not name.startswith("__"):
        yield name, Use(ast.unparse(node), None)
    elif owners and _is_theirs(owners[0]):
        yield name, Use(ast.unparse(node), owners[0].text)


def _differs(expected: Member, own: Member) -> list[str]:
    """Why our own cannot stand where that of vLLM's is expected."""
    if expected.kind != own.kind:
        return [f"should be {expected.kind}, is {own.kind}"]
    if own.kind in ("an attribute", "a property"):
        return []
    assert isinstance(expected.node, Function)
    assert isinstance(own.node, Function)
    passed, takes = signature(expected.node, bound=True), signature(own.node, bound=True)
    return [
        f"({', '.join([*args, *keywords])}) of {passed} does not fit {takes}"
        for args, keywords in _ways_to_call(passed)
        if not _takes(takes, args, keywords)
    ]


def _ways_to_call(expected: inspect.Signature) -> Iterator[tuple[list[str], list[str]]]:
    """Arguments, each the name of its parameter: as few as can be, all by position, all by keyword,
    and more than are named."""
    kind = inspect.Parameter
    several = expected.parameters.values()
    places = [p.name for p in several if p.kind in _IN_PLACES]
    only_places = [p.name for p in several if p.kind == kind.POSITIONAL_ONLY]
    only_named = [p.name for p in several if p.kind == kind.KEYWORD_ONLY]
    must = {p.name for p in several if p.default is kind.empty}
    yield [n for n in places if n in must], [n for n in only_named if n in must]
    yield places, only_named
    yield only_places, [n for n in places if n not in only_places] + only_named
    if any(p.kind == kind.VAR_POSITIONAL for p in several):
        yield [*places, "one_more"], only_named
    if any(p.kind == kind.VAR_KEYWORD for p in several):
        yield places, [*only_named, "one_more"]


def _takes(takes: inspect.Signature, args: list[str], keywords: list[str]) -> bool:
    """And each where it belongs."""
    try:
        bound = takes.bind(*args, **{name: name for name in keywords})
    except TypeError:
        return False
    return all(name == value for name, value in bound.arguments.items() if isinstance(value, str))


def _bind(takes: inspect.Signature, call: ast.Call) -> tuple[tuple[str, str], ...] | None:
    """None: it cannot be called so. What is unpacked is taken to fit, whatever it is."""
    args = [ast.unparse(a) for a in call.args if not isinstance(a, ast.Starred)]
    keywords = {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg is not None}
    is_whole = len(args) == len(call.args) and len(keywords) == len(call.keywords)
    try:
        bound = (takes.bind if is_whole else takes.bind_partial)(*args, **keywords)
    except TypeError:
        return None
    return tuple((name, str(value)) for name, value in bound.arguments.items())


def _fits(call: ast.expr, method: ast.stmt) -> bool:
    if not isinstance(call, ast.Call) or not isinstance(method, Function):
        return True
    return _bind(signature(method, bound=True), call) is not None


@cache
def _calls_on_connector(module: Module) -> list[OnConnector]:
    """In the order of the text."""
    found = []
    for node, owner in _parts(module):
        names = [each.name for each in (owner, node) if isinstance(each, ast.ClassDef | Function)]
        where = ".".join([module.name, *names])
        connectors = _CONNECTORS | set(_named_connectors(node))
        called = {id(each.func): each for each in ast.walk(node) if isinstance(each, ast.Call)}
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and _short(each.value) in connectors:
                if not each.attr.startswith("__"):
                    found.append(OnConnector(where, each.attr, called.get(id(each), each)))
            elif isinstance(each, ast.Call) and _short(each.func) in connectors:
                found.append(OnConnector(where, "__init__", each))
    return sorted(found, key=lambda each: (each.node.lineno, each.node.end_col_offset or 0))


def _named_connectors(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=of) if _short(of) in _CONNECTORS:
                yield name
            case ast.arg(arg=name, annotation=ast.expr() as annotation):
                if "KVConnectorBase" in ast.unparse(annotation):
                    yield name


def _short(node: ast.expr) -> str:
    """A call without what it passes."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=of, attr=name):
            return f"{_short(of)}.{name}"
        case ast.Call(func=function):
            return f"{_short(function)}()"
    return "?"


def _calls_by_function(tree: Tree) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for module in CALLERS:
        read = tree.module(module)
        for call in _calls_on_connector(read) if read else ():
            found.setdefault(call.where, []).append(ast.unparse(call.node))
    return found


def _parts(module: Module) -> Iterator[tuple[ast.stmt, ast.ClassDef | None]]:
    """Its statements and, in place of its classes, theirs; what is in a function is of it."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ((each, node) for each in node.body)
        else:
            yield node, None


def _first(classes: list[Symbol], name: str) -> Member | None:
    members = (own_members(each).get(name) for each in classes)
    return next((member for member in members if member is not None), None)
