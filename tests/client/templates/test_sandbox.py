from __future__ import annotations

import time
from datetime import datetime

import pytest

from trtllm_serve_cli.client.chat import render_chat
from trtllm_serve_cli.client.templates import budget
from trtllm_serve_cli.errors import BadInput

_DOUBLE = "{% set ns = namespace(a=['x']) %}{% for i in range(60) %}"
_NESTED = _DOUBLE + "{% set ns.a = [ns.a, ns.a] %}{% endfor %}"
_TWICE = (
    "{% set ns = namespace(a=['x'], b=['x']) %}{% for i in range(60) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
)
_TUPLES = (
    "{% set ns = namespace(a=('x',)) %}{% for i in range(60) %}"
    "{% set ns.a = (ns.a, ns.a) %}{% endfor %}"
)
_MANY = "{% for a in range(99999) %}{% for b in range(99999) %}"
_END = "{% endfor %}{% endfor %}"

HOSTILE = {
    "nested loops": _MANY + "{% for c in range(99999) %}{% endfor %}" + _END,
    "loop that outputs": _MANY + "xxxxxxxxxxxxxxxx" + _END,
    "loop with a condition": _MANY.replace("(99999) %}", "(99999) if false %}", 1)
    + _END
    + _MANY
    + "{% for c in range(99999) if false %}{% endfor %}"
    + _END,
    "loop in a block": "{% set x %}" + _MANY + "y" * 1000 + _END + "{% endset %}",
    "recursive loop": "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "recursive macro": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "wide recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "large macro": "{% macro f() %}" + "x" * 100_000 + "{% endmacro %}"
    "{% for i in range(99999) %}{% set x = f() %}{% endfor %}",
    "call block": "{% macro f() %}{% for i in range(99999) %}{{ caller() }}{% endfor %}"
    "{% endmacro %}{% call f() %}" + "x" * 100_000 + "{% endcall %}",
    "product of text": "{{ 'x' * 10000000000 }}",
    "product from the left": "{{ 10000000000 * 'x' }}",
    "product of bytes": "{{ 'x'.encode() * 10000000000 }}",
    "product of a list": "{{ [0] * 10000000000 }}",
    "product of numbers": "{% set ns = namespace(a=99) %}"
    "{% for i in range(60) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "doubled text": "{% set ns = namespace(a='x') %}"
    "{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "doubled with ~": "{% set ns = namespace(a='x') %}"
    "{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "doubled list": _DOUBLE + "{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "many copies": "{% set x = 'x' * 1000000 %}{% set ns = namespace(a=[]) %}"
    "{% for i in range(99999) %}{% set ns.a = ns.a + [x + 'y'] %}{% endfor %}",
    "many slices": "{% set x = 'x' * 1000000 %}{% set ns = namespace(a=[]) %}"
    "{% for i in range(99999) %}{% set ns.a = [ns.a, x[1:]] %}{% endfor %}",
    "large range": "{{ range(10000000000) | list }}",
    "many ranges": _MANY + "{% set x = range(99999) | list %}" + _END,
    "nested lists": _NESTED + "{{ ns.a }}",
    "nested lists as JSON": _NESTED + "{{ ns.a | tojson }}",
    "nested lists as text": _NESTED + "{{ ns.a | string | length }}",
    "nested lists in ~": _NESTED + "{% set x = ns.a ~ '' %}",
    "nested lists in join": _NESTED + "{{ ns.a | join }}",
    "nested lists in %": _NESTED + "{{ '%s' % ns.a }}",
    "nested lists in format": _NESTED + "{{ '{}'.format(ns.a) }}",
    "nested lists with a conversion": _NESTED + "{{ '{!r:.1}'.format(ns.a) }}",
    "nested namespaces": "{% set ns = namespace(a=1) %}{% for i in range(60) %}"
    "{% set ns.a = namespace(x=ns.a, y=ns.a) %}{% endfor %}{{ ns }}",
    "compared lists": _TWICE + "{{ ns.a == ns.b }}",
    "sorted lists": _TWICE + "{{ [ns.a, ns.b] | sort }}",
    "tested lists": _TWICE + "{{ ns.a is eq(ns.b) }}",
    "selected lists": _TWICE + "{{ [ns.a] | select('eq', ns.b) | list }}",
    "found list": _TWICE + "{{ [ns.a].index(ns.b) }}",
    "changed lists": _TWICE + "{% for x in [ns.a, ns.b] %}{{ loop.changed(x) }}{% endfor %}",
    "hashed tuples": _TUPLES + "{{ {ns.a: 1} }}",
    "looked up tuples": _TUPLES + "{{ {1: 1}[ns.a] }}",
    "fetched tuples": _TUPLES + "{{ {1: 1}.get(ns.a) }}",
    "unique tuples": _TUPLES + "{{ [ns.a] | unique | list }}",
    "center": "{{ 'x' | center(10000000000) }}",
    "center method": "{{ 'x'.center(10000000000) }}",
    "ljust": "{{ 'x'.ljust(10000000000) }}",
    "zfill": "{{ 'x'.zfill(width=10000000000) if false else 'x'.zfill(10000000000) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(10000000) }}",
    "replace": "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
    "replace of nothing": "{{ ('x' * 100000) | replace('', 'y' * 100000) }}",
    "translate": "{{ ('x' * 100000).translate({120: 'y' * 100000}) }}",
    "join": "{{ ('x' * 100000) | join('y' * 100000) }}",
    "join method": "{{ ('y' * 100000).join('x' * 100000) }}",
    "join of a generator": "{{ (range(99999) | map('string')) | join('y' * 100000) }}",
    "indent": "{{ ('x\n' * 100000) | indent(100000) }}",
    "JSON indent": "{{ range(9999) | list | tojson(indent=1000000) }}",
    "JSON separators": "{{ range(9999) | list | tojson(separators=('x' * 1000000, ':')) }}",
    "batch": "{{ [1] | batch(10000000000, 0) | list }}",
    "slice": "{{ [] | slice(10000000000) | list }}",
    "sum of lists": "{{ range(99999) | map('string') | map('list') | sum(start=[]) | length }}",
    "round": "{{ 5 | round(10000000000, 'floor') }}",
    "round to the left": "{{ 5 | round(-10000000000) }}",
    "width in %": "{{ '%9999999999d' % 1 }}",
    "width argument in %": "{{ '%*d' % (999999999, 1) }}",
    "many widths in %": "{{ ('%(a)9999d' * 100000) % {'a': 1} }}",
    "width in format": "{{ '{:>9999999999}'.format(1) }}",
    "width argument in format": "{{ '{:{}}'.format(1, 999999999) }}",
    "width in format_map": "{{ '{a:>9999999999}'.format_map({'a': 1}) }}",
    "many fields in format": "{{ ('{0}' * 100000).format('x' * 100000) }}",
    "format filter": "{{ '%9999999999d' | format(1) }}",
    "to_bytes": "{{ (1).to_bytes(10000000000, 'big') }}",
    "map of center": "{{ range(99999) | map('string') | map('center', 99999) | list }}",
    "lipsum": "{{ lipsum(n=10000000) }}",
    "striptags": "{{ ('<!---->' * 1000000) | striptags }}",
    "deep expression": "{{ " + "(" * 10000 + "1" + ")" * 10000 + " }}",
    "long expression": "{{ " + "1 + " * 10000 + "1 }}",
    "many nested blocks": "{% for i in [1] %}" * 100 + "{% endfor %}" * 100,
    "include": "{% include 'x' %}",
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE)
def test_hostile_template_ends_with_an_error(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "TIME_LIMIT_S", 0.1)
    with pytest.raises(BadInput, match="chat template cannot"):
        render_chat(template, [{"role": "user", "content": "Hi"}])


def test_time_of_waiting_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "TIME_LIMIT_S", 0.1)

    def now() -> datetime:
        time.sleep(0.2)
        return datetime(2026, 11, 26)

    assert render_chat("{{ strftime_now('%Y') }}{{ 'b' ~ 1 }}", [], now=now) == "2026b1"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{{ 'ab' * 2 + 'c' }}{{ 2 ** 10 }}{{ 7 % 4 }}", "ababc10243"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '%s' | format(1) }}", "a-0071"),
        ("{{ '{:>3}{x}'.format(1, x=2) }}{{ '{a}'.format_map({'a': 3}) }}", "  123"),
        ("{{ 'a,b'.split(',')[::-1] | join('-') }}", "b-a"),
        ("{{ [3, 1] | sort | map('string') | list }}", "['1', '3']"),
        (
            "{{ 'x' | center(3) }}|{{ 'a\nb' | indent(2) }}|{{ 'aa' | replace('a', 'b') }}",
            " x |a\n  b|bb",
        ),
        ("{{ [[1], [2]] | sum(start=[]) }}{{ 2.5 | round(0, 'floor') }}", "[1, 2]2.0"),
        ("{{ '<' | safe }}{{ '<' | e }}{{ '<' }}", "<&lt;<"),
        ("{% for x in range(9) if x % 2 %}{{ x }}{% endfor %}", "1357"),
        (
            "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
            "3210",
        ),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}", "A1"),
        ("{{ {'a': [1]} == {'a': [1]} }}{{ 'a' in messages[0].content }}", "TrueTrue"),
        ("{{ messages[0].get('x', 'y') }}{{ messages[0].items() | list | length }}", "y2"),
        ("{{ '{a.__class__}'.format_map({'a': 1}) }}", ""),
    ],
)
def test_limits_do_not_change_what_templates_render(template: str, text: str) -> None:
    assert render_chat(template, [{"role": "user", "content": "a"}]) == text


def test_limit_grows_with_the_messages() -> None:
    template = "{% for m in messages %}{{ '[' + m.content.strip() + ']' }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 1_000_000}] * 20
    assert len(render_chat(template, messages)) == 20 * 1_000_002
