"""Test that arguments are adapted to the classes of each version of TensorRT-LLM."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fakes.stand_in_engines import installed_classes
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.pytorch.llm_arguments import plan_llm_arguments
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.engines.engine_arguments import merge_arguments
from trtllm_serve_cli.runtime.engines.pytorch.installed import AdaptedArguments, adapt_arguments

VERSIONS = ("1.0.0", "1.1.0", "1.2.0rc5", "1.2.1", "1.3.0rc5", "1.3.0rc25", "1.3.0rc26")


def adapt(version: str, **arguments: Any) -> AdaptedArguments:
    """Adapt arguments, and check that `LLM` accepts the result."""
    installed = installed_classes(version)
    adapted = adapt_arguments({"model": "/m", **arguments}, installed.TorchLlmArgs, version)
    values = installed.update({}, deepcopy(adapted.values))
    if adapted.decoding is not None:
        cls, options = adapted.decoding
        values["speculative_config"] = cls(**options)
    installed.TorchLlmArgs(**values)
    return adapted


def decoding(version: str, **config: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of the class for speculative decoding."""
    adapted = adapt(version, speculative_config=config)
    assert adapted.decoding is not None
    cls, options = adapted.decoding
    return cls.__name__.removesuffix("DecodingConfig"), options


@pytest.mark.parametrize("tag", ["DraftTarget", "Draft_Target", "drafttarget"])
@pytest.mark.parametrize("field", ["speculative_model", "speculative_model_dir"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_draft_model_is_accepted_by_all_its_names(version: str, tag: str, field: str) -> None:
    name, options = decoding(version, decoding_type=tag, max_draft_len=4, **{field: "/d"})
    assert name == "DraftTarget"
    model = options.pop("speculative_model", None) or options.pop("speculative_model_dir", None)
    assert (model, options) == ("/d", {"max_draft_len": 4})


@pytest.mark.parametrize("tag", ["Eagle", "Eagle3"])
@pytest.mark.parametrize(
    ("version", "name"), [("1.0.0", "Eagle"), ("1.2.1", "Eagle"), ("1.3.0rc5", "Eagle3")]
)
def test_eagle_uses_the_newest_class(version: str, name: str, tag: str) -> None:
    assert decoding(version, decoding_type=tag, max_draft_len=3, speculative_model="/e")[0] == name


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("1.2.1", {"num_nextn_predict_layers": 2}),
        ("1.3.0rc5", {"num_nextn_predict_layers": 2}),
        ("1.3.0rc25", {"max_draft_len": 2}),
    ],
)
def test_the_length_of_mtp_drafts_has_the_installed_name(
    version: str, options: dict[str, Any]
) -> None:
    assert decoding(version, decoding_type="MTP", num_nextn_predict_layers=2) == ("MTP", options)


def test_both_names_of_a_length_keep_the_installed_one() -> None:
    config = {"decoding_type": "MTP", "num_nextn_predict_layers": 2, "max_draft_len": 3}
    assert decoding("1.3.0rc25", **config) == ("MTP", {"max_draft_len": 3})


def test_an_unknown_type_of_speculative_decoding_is_rejected() -> None:
    with pytest.raises(
        ValueError, match="decoding_type is 'Lookbehind', which is not supported; use"
    ):
        adapt("1.3.0rc5", speculative_config={"decoding_type": "Lookbehind"})


@pytest.mark.parametrize(
    ("version", "arguments", "expected"),
    [
        ("1.0.0", {"sampler_type": "TRTLLMSampler"}, {"enable_trtllm_sampler": True}),
        ("1.0.0", {"sampler_type": "TorchSampler"}, {"enable_trtllm_sampler": False}),
        ("1.2.1", {"enable_trtllm_sampler": True}, {"sampler_type": "TRTLLMSampler"}),
        ("1.2.1", {"enable_trtllm_sampler": False}, {}),
        ("1.2.1", {"sampler_type": "auto"}, {"sampler_type": "auto"}),
        ("1.3.0rc26", {"sampler_type": "TRTLLMSampler"}, {}),
    ],
)
def test_the_sampler_has_the_installed_name(
    version: str, arguments: dict[str, Any], expected: dict[str, Any]
) -> None:
    adapted = adapt(version, **arguments)
    assert adapted.values == {"model": "/m", **expected}
    assert bool(adapted.ignored) == (version == "1.3.0rc26")


def test_a_missing_field_is_omitted_if_its_value_is_how_the_version_behaves() -> None:
    config = {"onboard_blocks": True, "enable_block_reuse": True}
    adapted = adapt("1.3.0rc25", kv_cache_config=config)
    assert adapted.values["kv_cache_config"] == {"enable_block_reuse": True}
    assert adapted.ignored == (
        "kv_cache_config.onboard_blocks (the kv_cache_onboard_blocks parameter) is omitted, "
        "because TensorRT-LLM 1.3.0rc25 always uses the value true",
    )
    assert adapt("1.2.1", kv_cache_config=config).ignored == ()


def test_missing_fields_are_rejected_together() -> None:
    with pytest.raises(ValueError) as raised:
        adapt(
            "1.3.0rc25",
            kv_cache_config={"onboard_blocks": False, "other": 1},
            kv_cache_dtype="fp8",
        )
    assert str(raised.value) == (
        "TensorRT-LLM 1.3.0rc25 does not support the arguments kv_cache_config.onboard_blocks (the "
        "kv_cache_onboard_blocks parameter), kv_cache_config.other, kv_cache_dtype; remove these "
        "arguments, or serve the model with a version that supports them"
    )


@pytest.mark.parametrize(("version", "is_ignored"), [("1.2.1", False), ("1.3.0rc25", True)])
def test_a_deprecated_field_is_passed_and_reported(version: str, is_ignored: bool) -> None:
    adapted = adapt(version, kv_cache_config={"sink_token_length": 4})
    assert adapted.values["kv_cache_config"] == {"sink_token_length": 4}
    what = (
        "kv_cache_config.sink_token_length (the sink_token_length parameter) has no effect in "
        "TensorRT-LLM 1.3.0rc25"
    )
    assert adapted.ignored == ((what,) if is_ignored else ())


LENGTHS = st.integers(1, 8)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "tp": st.sampled_from([1, 2]),
        "max_batch_size": LENGTHS,
        "max_beam_width": st.sampled_from([1, 2]),
        "tokens_per_block": st.just(64),
        "kv_cache_dtype": st.just("fp8"),
        "lora_target_modules": st.just(("attn_q",)),
        "speculative_decoding_mode": st.sampled_from(
            ["eagle", "mtp", "ngram", "draft_tokens_external"]
        ),
        "speculative_model": st.just("/d"),
        "max_draft_len": LENGTHS,
    },
)
EXTRA = st.fixed_dictionaries(
    {},
    optional={
        "kv_cache_config": st.fixed_dictionaries(
            {},
            optional={
                "onboard_blocks": st.booleans(),
                "sink_token_length": LENGTHS,
                "max_tokens": LENGTHS,
                "unknown": LENGTHS,
            },
        ),
        "backend": st.just("pytorch"),
        "enable_trtllm_sampler": st.booleans(),
        "speculative_config": st.fixed_dictionaries(
            {}, optional={"enable_penalty": st.booleans(), "allow_advanced_sampling": st.booleans()}
        ),
        "attn_backend": st.just("FLASHINFER"),
        "unknown": LENGTHS,
    },
)


def planned(version: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an import for this version."""
    try:
        return plan_llm_arguments(EngineOptions(**options), version)
    except BadInput:
        assume(False)
        raise


@given(st.sampled_from(VERSIONS), OPTIONS)
def test_the_version_of_the_import_accepts_all_planned_arguments(
    version: str, options: dict[str, Any]
) -> None:
    assert adapt(version, **planned(version, options)).ignored == ()


@given(st.sampled_from(VERSIONS), st.sampled_from(VERSIONS), OPTIONS, EXTRA)
def test_each_argument_is_accepted_reported_or_rejected(
    imported: str, installed: str, options: dict[str, Any], extra: dict[str, Any]
) -> None:
    arguments = planned(imported, options)
    if "speculative_config" not in arguments:
        extra = {name: each for name, each in extra.items() if name != "speculative_config"}
    arguments = merge_arguments(arguments, extra)
    before = deepcopy(arguments)
    try:
        adapted = adapt(installed, **arguments)
    except ValueError as error:
        named = [name for group in (arguments, *arguments.values()) if isinstance(group, dict)
                 for name in group if name in str(error)]  # fmt: skip
        assert "does not support the arguments" in str(error) and named
        return
    finally:
        assert arguments == before
    kept = set(adapted.values) | ({"speculative_config"} if adapted.decoding else set())
    samplers = {"sampler_type", "enable_trtllm_sampler"}
    omitted = set(arguments) - kept - samplers
    assert all(any(name in each for each in adapted.ignored) for name in omitted)
    assert "unknown" not in arguments
