"""Limit the time and memory used to render a chat template.

A template runs inside this process and cannot be killed. Every operation that can take a long time
or create large values therefore spends from a `Budget` before it runs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2.utils import Namespace

# The cost of a container item and of a call, in units. A character costs one unit.
ITEM = 16
CALL = 16
_MIN_UNITS = 1 << 23
# Number of units to add to the budget for each unit of input. Templates copy each message a few
# times, for example once for each `+`.
_UNITS_PER_INPUT = 32
TIME_LIMIT_S = 1.0
# The maximum number of bits in a product or a power.
_MAX_BITS = 1 << 12
_MAX_PRECISION = 100
_TOO_MANY = 1 << 62
_CONTAINERS: tuple[type[Collection[Any]], ...] = (
    *(list, tuple, set, frozenset),
    *(type({}.keys()), type({}.values()), type({}.items())),
)
_LARGE_WIDTH = re.compile(r"\d{5,}")


class TemplateLimitError(jinja2.TemplateError):
    """Raised if a template takes too long, or creates too much text or too many values."""


class Budget:
    """The CPU time and units left to render one template in this thread."""

    def __init__(self) -> None:
        self.restart(())

    def restart(self, inputs: Any) -> None:
        """Reset the budget before a template is rendered with the variables `inputs`."""
        self._deadline_s = time.monotonic() + TIME_LIMIT_S
        self._cpu_deadline_s = time.thread_time() + TIME_LIMIT_S
        self._units = _MIN_UNITS + _UNITS_PER_INPUT * measure(inputs)

    def spend(self, units: int) -> bool:
        """Spend `units`. Return True, so that a template can use the call as a condition.

        Raise `TemplateLimitError` if the time or the units are used up.
        """
        self._units -= units
        if self._units < 0:
            raise TemplateLimitError("the template creates too much text or too many values")
        self._check_time()
        return True

    def spend_deeply(self, value: Any) -> None:
        """Spend the size of `value`, including the values that it contains."""
        if isinstance(value, str):
            self.spend(len(value))
        else:
            self.spend(measure(value, self._units, self._check_time))

    def _check_time(self) -> None:
        # On a busy machine, a thread can wait for seconds, so the CPU time decides. Reading it is a
        # system call, so look at the other clock first.
        if time.monotonic() > self._deadline_s and time.thread_time() > self._cpu_deadline_s:
            raise TemplateLimitError(
                f"rendering the template took more than {TIME_LIMIT_S:g} s of CPU time"
            )


def measure(
    value: Any, limit: int = _TOO_MANY, check_time: Callable[[], None] = lambda: None
) -> int:
    """Return the size of `value`, including all values that it contains.

    A value that occurs several times is counted each time, because the rendered text repeats it.
    The number of occurrences can grow exponentially, so counting stops above `limit`. `check_time`
    is called once for every 1,024 values.
    """
    total = num_values = 0
    stack = [value]
    while stack and total <= limit:
        item = stack.pop()
        num_values += 1
        if num_values % 1024 == 0:
            check_time()
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, int):
            total += item.bit_length() // 3
        elif isinstance(item, Namespace):
            stack.append(item._Namespace__attrs)
        elif isinstance(item, dict):
            total += 2 * len(item) * ITEM
            if total <= limit:
                stack.extend(item)
                stack.extend(item.values())
        elif isinstance(item, range):
            total += len(item) * ITEM
        elif isinstance(item, _CONTAINERS):
            total += len(item) * ITEM
            if total <= limit:
                stack.extend(item)
        total += ITEM
    return total


def measure_shallow(value: Any) -> int:
    """Return the size of a shallow copy of `value`."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict | range):
        return len(value) * ITEM
    return len(value) * ITEM if isinstance(value, _CONTAINERS) else 0


def estimate_operator(operator: str, left: Any, right: Any) -> int:
    """Return an upper bound on the result size of a binary operator."""
    if operator == "+":
        return measure_shallow(left) + measure_shallow(right)
    if operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            return _check_bits(left.bit_length() + right.bit_length())
        number, other = (left, right) if isinstance(left, int) else (right, left)
        return max(number, 0) * measure_shallow(other) if isinstance(number, int) else 0
    if operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            return _check_bits(left.bit_length() * abs(right))
        return 0
    if operator == "%" and isinstance(left, str | bytes):
        return estimate_printf(left, right)
    return 0


def _check_bits(num_bits: int) -> int:
    return num_bits if num_bits <= _MAX_BITS else _TOO_MANY


def estimate_printf(pattern: str | bytes, values: Any) -> int:
    """Return an upper bound on the size of `pattern % values`."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    if _LARGE_WIDTH.search(text) or "*" in text:
        return _TOO_MANY
    width = 10**4 if re.search(r"\d", text) else 0
    return len(text) + text.count("%") * (width + measure(values))


def estimate_field(value: Any, spec: str) -> int:
    """Return an upper bound on the size of a field inserted by `str.format`."""
    if _LARGE_WIDTH.search(spec):
        return _TOO_MANY
    return (10**4 if re.search(r"\d", spec) else 0) + measure(value)


def estimate_call(
    name: str, value: Any, arguments: Sequence[Any], options: Mapping[str, Any]
) -> int:
    """Return an upper bound on the result size of a filter or a method.

    The bound excludes the size of `value` and of the arguments.
    """
    operands = [*arguments, *options.values()]
    texts = [len(each) for each in operands if isinstance(each, str | bytes)]
    longest = max(texts, default=0)
    number = max((abs(each) for each in operands if isinstance(each, int)), default=0)
    size = measure_shallow(value)
    match name:
        case "center" | "ljust" | "rjust" | "zfill" | "to_bytes":
            return number
        case "batch":
            return number * ITEM
        case "round":
            return 0 if number <= _MAX_PRECISION else _TOO_MANY
        case "expandtabs":
            return size * (number or 8)
        case "indent" if isinstance(value, str):
            num_lines = len(value.splitlines()) + 1
            return num_lines * max(number, longest, 4)
        case "replace" if isinstance(value, str | bytes):
            return _count(value, arguments) * longest
        case "translate" if operands and isinstance(operands[0], Mapping):
            replacements = operands[0].values()
            return size * max(
                (len(each) for each in replacements if isinstance(each, str)), default=1
            )
        case "join":
            # The filter joins the items of `value`, but the method joins the items of its argument.
            items = value if not isinstance(value, str | bytes) else operands[0] if operands else ()
            separator = longest if items is value else len(value)
            return separator * len(items) if hasattr(items, "__len__") else 0
        case "tojson":
            # Each item is on a separate line, which is indented once for each level.
            separators = sum(measure(each) for each in operands if isinstance(each, tuple))
            per_item = max(number, longest) * _depth(value) + separators
            return per_item * measure(value) // ITEM if per_item else 0
        case "sum":
            is_number = all(isinstance(each, int | float | str) for each in operands)
            return 0 if is_number else measure(value) * (size // ITEM)
    return 0


def _count(value: str | bytes, arguments: Sequence[Any]) -> int:
    old = arguments[0] if arguments else None
    if isinstance(value, str) and isinstance(old, str):
        return value.count(old)
    return len(value) + 1


def _depth(value: Any) -> int:
    """Return the nesting depth of a JSON value, but at most 1000."""
    level, depth = [value], 0
    while level and depth < 1000:
        containers = [each for each in level if isinstance(each, dict | list | tuple)]
        level = [
            item
            for each in containers
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list | tuple)
        ]
        depth += 1
    return depth


def read_iterator(value: Any) -> Any:
    """Convert an iterator to a list, so that it can be measured. Return other values unchanged."""
    return list(value) if isinstance(value, Iterator) else value
