"""Run chat templates in Jinja's sandbox, with limits on time and memory.

Jinja's sandbox protects the process's objects, but does not limit time or memory. `LimitedSandbox`
inserts checks into the template: each loop iteration, each macro call, and each operation that
creates values spends from a budget. A few Jinja filters are unavailable, because their cost cannot
be estimated. No known chat template uses them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinMethodType, GeneratorType, MethodType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer
from markupsafe import escape

from trtllm_serve_cli.client.templates.budget import (
    CALL,
    ITEM,
    Budget,
    estimate_call,
    estimate_field,
    estimate_operator,
    estimate_printf,
    measure_shallow,
    read_iterator,
)

_MISSING_FILTERS = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr", "forceescape")
# Filters that do not read the values inside the items of a container.
_SHALLOW_FILTERS = {
    *("length", "count", "first", "last", "default", "d", "list", "items", "reverse", "attr"),
    *("map", "select", "reject", "selectattr", "rejectattr", "batch", "slice", "random"),
}
_LAZY_FILTERS = {"map", "select", "reject", "selectattr", "rejectattr"}
# Names of the filters that implement the inserted checks. Templates cannot use these names.
_SPEND, _SPEND_VALUE, _SPEND_COPY, _CONCATENATE = "@spend", "@value", "@copy", "@concatenate"


class _Generation(Extension):
    """The `{% generation %}` block, which marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares `tags` as a plain set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for one thread, with the settings and functions of Transformers."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            optimized=False,
        )
        self._budget = Budget()
        self.finalize = self._spend_output
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.filters = {
            name: self._limit_filter(name, function)
            for name, function in {**self.filters, **_FILTERS}.items()
            if name not in _MISSING_FILTERS
        }
        self.filters[_SPEND] = self._budget.spend
        self.filters[_SPEND_VALUE] = self._spend_value
        self.filters[_SPEND_COPY] = self._spend_copy
        self.filters[_CONCATENATE] = self._concatenate
        tests: Mapping[str, Any] = self.tests
        self.tests = {name: self._limit_test(test) for name, test in tests.items()}

    def render(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """Render a template, or raise `TemplateLimitError` if it exceeds a limit."""
        self._budget.restart(variables)
        return template.render(variables)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _InsertChecks().visit(tree)
        tree.set_environment(self)
        return tree

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a macro or a method after spending its cost."""
        self._budget.spend(CALL)
        owner = getattr(function, "__self__", None)
        if owner is None or not isinstance(function, BuiltinMethodType | MethodType):
            return super().call(context, function, *args, **kwargs)
        if isinstance(owner, dict | LoopContext):
            self._budget.spend_deeply((args, kwargs))
        else:
            args = tuple(map(read_iterator, args))
            self._budget.spend_deeply((owner, args, kwargs))
            self._budget.spend(estimate_call(function.__name__, owner, args, kwargs))
        return self._spend_copy(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%":
            self._budget.spend_deeply((left, right))
        self._budget.spend(estimate_operator(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int):
            self._budget.spend_deeply(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a limited `str.format` or `str.format_map`, or None for other methods."""
        if super().wrap_str_format(value) is None:
            return None
        pattern: str = value.__self__
        formatter = _LimitedFormatter(self, self._budget)
        if value.__name__ == "format_map":
            return lambda values: formatter.vformat(pattern, (), values)
        return lambda *args, **kwargs: formatter.vformat(pattern, args, kwargs)

    @jinja2.pass_context
    def _spend_output(self, context: Context, value: Any) -> Any:
        self._budget.spend_deeply(value)
        return value

    def _spend_value(self, value: Any) -> Any:
        if not isinstance(value, str):
            self._budget.spend_deeply(value)
        return value

    def _spend_copy(self, value: Any) -> Any:
        self._budget.spend(measure_shallow(value))
        return value

    def _concatenate(self, values: list[Any]) -> str:
        self._budget.spend_deeply(values)
        return "".join(map(str, values))

    def _limit_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # Some filters receive the context or the environment as their first argument.
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            self._budget.spend(CALL)
            passed, value, rest = args[:first], args[first], args[first + 1 :]
            if name not in _LAZY_FILTERS:
                value = read_iterator(value)
            if name not in _SHALLOW_FILTERS:
                self._budget.spend_deeply((value, rest, kwargs))
            if name == "format":
                self._budget.spend(estimate_printf(str(value), kwargs or rest))
            self._budget.spend(estimate_call(name, value, rest, kwargs))
            result = function(*passed, value, *rest, **kwargs)
            if isinstance(result, GeneratorType):
                return self._spend_items(result)
            return self._spend_copy(result)

        return limited

    def _spend_items(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self._budget.spend(ITEM)
            yield item

    def _limit_test(self, test: Callable[..., Any]) -> Callable[..., Any]:
        first = 1 if hasattr(test, "jinja_pass_arg") else 0

        @functools.wraps(test)
        def limited(*args: Any) -> Any:
            if len(args) > first + 1:
                self._budget.spend_deeply(args[first:])
            return test(*args)

        return limited


class _LimitedFormatter(SandboxedFormatter):
    def __init__(self, environment: jinja2.Environment, budget: Budget) -> None:
        super().__init__(environment)
        self._budget = budget

    def format_field(self, value: Any, format_spec: str) -> Any:
        self._budget.spend_deeply(value)
        self._budget.spend(estimate_field(value, format_spec))
        return super().format_field(value, format_spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._budget.spend_deeply(value)
        return super().convert_field(value, conversion)


class _InsertChecks(NodeTransformer):
    """Insert checks where a template repeats statements, copies values or compares values."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _spend_statement(node))
        if node.test is not None:
            node.test = nodes.And(_spend_expression(node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _spend_statement(node))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _spend_statement(node))
        return node

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _spend_statement(node))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCATENATE)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, _SPEND_COPY) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Insert checks into comparisons of values that may be nested containers."""
        self.generic_visit(node)
        if isinstance(node.expr, nodes.Const) or all(
            isinstance(each.expr, nodes.Const) for each in node.ops
        ):
            return node
        node.expr = _filter(node.expr, _SPEND_VALUE)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, _SPEND_VALUE)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        """Insert checks into dictionary keys, because keys are hashed."""
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filter(node.key, _SPEND_VALUE)
        return node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _spend_expression(node: nodes.Node) -> nodes.Expr:
    """Return an expression that spends units for the text and the container literals in `node`."""
    num_characters = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
    num_literals = sum(1 for _ in node.find_all((nodes.List, nodes.Tuple, nodes.Dict)))
    units = 1 + num_characters + ITEM * num_literals
    return _filter(nodes.Const(units, lineno=node.lineno), _SPEND)


def _spend_statement(node: nodes.Node) -> nodes.Stmt:
    return nodes.ExprStmt(_spend_expression(node), lineno=node.lineno)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `value` as JSON. Unlike Jinja's filter, do not escape HTML characters such as `<`."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _escape(value: Any) -> str:
    return str(escape(value))


# These filters return plain strings instead of `Markup`, because the output of chat templates is
# not HTML.
_FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": _to_json,
    "safe": str,
    "escape": _escape,
    "e": _escape,
}
