"""Reads and changes of values in a config.pbtxt."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from trtllm_serve_cli.repository.pbtxt import (
    PbtxtError,
    Unfilled,
    change,
    fill,
    find_values,
    line_of,
    list_unfilled,
    parse_config,
)

TEMPLATE = """\
# name: "${not_this}"
name: "tensorrt_llm"   # the engine
backend: "${triton_backend}"
max_batch_size: ${triton_max_batch_size}
model_transaction_policy { decoupled: ${decoupled_mode} }
dynamic_batching {
    preferred_batch_size: [ ${triton_max_batch_size} ]
    default_queue_policy: { max_queue_size: ${max_queue_size} }
}
input [
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] },
  {
    name: 'draft_logits',  # {not a brace
    data_type: ${logits_datatype};
    dims: [ -1, -1 ]
  }
]
instance_group [ { count: ${n} kind : KIND_CPU } ]
parameters: {
  key: "gpt_model_path"
  value: {
    string_value: "/a" # split
                  " \\"b\\""
  }
}
parameters < key: "x.y" value < string_value: "1" > >
"""
ENSEMBLE = """\
name: "ensemble"
ensemble_scheduling { step [
  { model_name: "pre" input_map { key: "A" value: "a" } },
  { model_name: "a.llm" input_map { key: "A", value: "b" }, }
] }
"""


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("name", ["tensorrt_llm"]),
        ("max_batch_size", ["${triton_max_batch_size}"]),
        ("dynamic_batching.preferred_batch_size", ["${triton_max_batch_size}"]),
        ("dynamic_batching.default_queue_policy.max_queue_size", ["${max_queue_size}"]),
        ("input.draft_logits.data_type", ["${logits_datatype}"]),
        ("input.other.data_type", []),
        ("instance_group.count", ["${n}"]),
        ("parameters.gpt_model_path", ['/a "b"']),
        ("parameters.x.y", ["1"]),
        ("parameters.y", []),
    ],
)
def test_finds_values_in_an_unfilled_template(place: str, values: list[str]) -> None:
    assert find_values(TEMPLATE, place) == values


def test_finds_the_line_of_a_value() -> None:
    assert (line_of(TEMPLATE, "input.draft_logits.data_type"), line_of(TEMPLATE, "x")) == (14, None)


@pytest.mark.parametrize(
    ("place", "value", "old", "new"),
    [
        ("max_batch_size", "8", "max_batch_size: ${triton_max_batch_size}", "max_batch_size: 8"),
        ("dynamic_batching.preferred_batch_size", "8", "[ ${triton_max_batch_size} ]", "[ 8 ]"),
        ("backend", "python", '"${triton_backend}"', '"python"'),
        ("input.draft_logits.data_type", "TYPE_FP16", "${logits_datatype}", "TYPE_FP16"),
        ("parameters.x.y", 'é"\n', '"1"', '"\\303\\251\\"\\n"'),
        (
            "parameters.gpt_model_path", "/b",
            '"/a" # split\n                  " \\"b\\""', '"/b"',
        ),
        (
            "model_transaction_policy.decoupled", "true",
            "decoupled: ${decoupled_mode}", "decoupled: true",
        ),
    ],
)  # fmt: skip
def test_change_replaces_only_the_value(place: str, value: str, old: str, new: str) -> None:
    assert TEMPLATE.count(old) == 1
    assert change(TEMPLATE, place, value) == TEMPLATE.replace(old, new)


@pytest.mark.parametrize(
    ("text", "place", "new"),
    [
        ('name: "a"', "parameters.k",
         'name: "a"\nparameters { key: "k" value { string_value: "1" } }\n'),
        ("", "max_batch_size", "max_batch_size: 1\n"),
        ("dynamic_batching {}", "dynamic_batching.default_queue_policy.max_queue_size",
         "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"),
        ("dynamic_batching {\n  # busy }\n}\n", "dynamic_batching.max_queue_delay_microseconds",
         "dynamic_batching {\n  # busy }\n  max_queue_delay_microseconds: 1\n}\n"),
        ("instance_group [ { kind: KIND_CPU } ]", "instance_group.count",
         "instance_group [ { kind: KIND_CPU  count: 1 } ]"),
        ('parameters { key: "k" }', "parameters.k",
         'parameters { key: "k"  value { string_value: "1" } }'),
    ],
)  # fmt: skip
def test_change_adds_a_missing_value(text: str, place: str, new: str) -> None:
    assert change(text, place, "1") == new
    parse_config(new)


def test_change_does_not_add_a_missing_tensor() -> None:
    with pytest.raises(KeyError):
        change(TEMPLATE, "output.context_logits.data_type", "TYPE_FP32")


def test_change_replaces_a_list_with_one_value() -> None:
    text = "dynamic_batching { preferred_batch_size: [ 4, 8 ] }"
    assert change(text, "dynamic_batching.preferred_batch_size", "2") == text.replace("4, 8", "2")


def test_change_renames_a_step_of_an_ensemble() -> None:
    changed = change(ENSEMBLE, "ensemble_scheduling.step.a.llm.model_name", "b.llm")
    assert changed == ENSEMBLE.replace("a.llm", "b.llm")
    assert [step.model_name for step in parse_config(changed).ensemble_scheduling.step] == [
        "pre",
        "b.llm",
    ]


def test_lists_unfilled_variables_with_their_lines() -> None:
    assert list_unfilled(TEMPLATE)[:3] == [
        Unfilled("triton_backend", 3, True),
        Unfilled("triton_max_batch_size", 4, False),
        Unfilled("decoupled_mode", 5, False),
    ]


def test_triton_can_read_a_filled_template() -> None:
    values = {
        "triton_backend": 'a"', "triton_max_batch_size": "8", "decoupled_mode": "True",
        "max_queue_size": "0", "logits_datatype": "TYPE_FP32", "n": "1", "not_this": "x",
    }  # fmt: skip
    filled = fill(TEMPLATE, values)
    config = parse_config(filled)
    assert filled.startswith('# name: "${not_this}"')
    assert (config.backend, config.max_batch_size, config.instance_group[0].count) == ('a"', 8, 1)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (TEMPLATE, 4, "Couldn't parse integer"),
        ('name: "a"\nmax_batchsize: 8', 2, 'no field named "max_batchsize"'),
        ('name: "a"\nmax_batch_size: "8"', 2, "Couldn't parse integer"),
        ('name: "a"\nname: "b"', 2, 'should not have multiple "name" fields'),
        ("input [\n", 2, "Expected"),
    ],
)
def test_parse_error_has_its_line(text: str, line: int, what: str) -> None:
    with pytest.raises(PbtxtError) as raised:
        parse_config(text)
    assert what in raised.value.what
    assert raised.value.line == line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name: "a', "line 1: unterminated string: '\"a'"),
        ("a {\n", "line 2: unexpected end of file, expected a field"),
        ("a: ]", "line 1: unexpected ']', expected a value"),
        ("\na: [ 1 2 ]", "line 2: unexpected '2', expected ',' or ']'"),
        ("}", "line 1: unexpected '}', expected a field"),
        ("a", "line 1: unexpected end of file, expected a value"),
    ],
)
def test_rejects_text_that_is_not_pbtxt(text: str, message: str) -> None:
    with pytest.raises(PbtxtError) as raised:
        change(text, "name", "x")
    assert str(raised.value) == message


NAMES = st.text(min_size=1, max_size=6)
TENSORS = st.lists(st.tuples(NAMES, st.integers(1, 13)), max_size=3, unique_by=lambda each: each[0])


@st.composite
def configs(draw: st.DrawFn) -> Any:
    config = model_config_pb2.ModelConfig()
    config.name, config.max_batch_size = draw(NAMES), draw(st.integers(0, 9))
    for key, value in draw(st.dictionaries(NAMES, NAMES, max_size=4)).items():
        config.parameters[key].string_value = value
    for name, data_type in draw(TENSORS):
        config.input.add(name=name, data_type=data_type, dims=[-1, 2])
    if draw(st.booleans()):
        config.dynamic_batching.preferred_batch_size.append(draw(st.integers(1, 9)))
    if draw(st.booleans()):
        config.instance_group.add(count=draw(st.integers(1, 9)))
    return config


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw a configuration in one of many layouts, with comments between its lines."""
    text = text_format.MessageToString(
        draw(configs()),
        as_one_line=draw(st.booleans()),
        pointy_brackets=draw(st.booleans()),
        use_short_repeated_primitives=draw(st.booleans()),
    )
    chance = random.Random(draw(st.integers(0, 99)))
    comments = ("\n", "  # a comment: { \"'\n", "\r\n", "\t\n\n")
    return "".join(line + chance.choice(comments) for line in text.split("\n"))


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, str, str]:
    text = draw(texts())
    config = parse_config(text)
    strings = st.sampled_from(
        ["name", "backend", *(f"parameters.{key}" for key in config.parameters)]
    )
    strings |= NAMES.map("parameters.{}".format)
    numbers = st.sampled_from(
        [
            "max_batch_size",
            "instance_group.count",
            "dynamic_batching.preferred_batch_size",
            "dynamic_batching.default_queue_policy.max_queue_size",
        ]
    )
    if draw(st.booleans()):
        return text, draw(strings), draw(NAMES)
    return text, draw(numbers), str(draw(st.integers(1, 9)))


def expected(text: str, place: str, value: str) -> Any:
    """Return the old configuration with one value changed by protobuf."""
    config = parse_config(text)
    match place.split(".", 1):
        case ["parameters", key]:
            config.parameters[key].string_value = value
        case ["dynamic_batching", "preferred_batch_size"]:
            config.dynamic_batching.preferred_batch_size[:] = [int(value)]
        case ["dynamic_batching", _]:
            config.dynamic_batching.default_queue_policy.max_queue_size = int(value)
        case ["instance_group", _]:
            group = (
                config.instance_group[0] if config.instance_group else config.instance_group.add()
            )
            group.count = int(value)
        case _:
            setattr(config, place, int(value) if place == "max_batch_size" else value)
    return config


# With fewer examples, some of the places do not occur.
@settings(max_examples=3 * settings().max_examples)
@given(changes())
def test_change_keeps_every_other_byte(each: tuple[str, str, str]) -> None:
    text, place, value = each
    new = change(text, place, value)
    assert parse_config(new) == expected(text, place, value)
    assert find_values(new, place) == [value]
    before = find_values(text, place)
    if before:
        assert change(new, place, before[0]) == change(text, place, before[0])
    else:
        assert any(new == text[:i] + new[i : i + len(new) - len(text)] + text[i:]
                   for i in range(len(text) + 1))  # fmt: skip


@given(texts())
def test_reads_every_value_as_protobuf_does(text: str) -> None:
    config = parse_config(text)
    assert {key: find_values(text, f"parameters.{key}") for key in config.parameters} == {
        key: [value.string_value] for key, value in config.parameters.items()
    }
    for tensor in config.input:
        name = model_config_pb2.DataType.Name(tensor.data_type)
        assert find_values(text, f"input.{tensor.name}.data_type") == [name]
