"""Encode text with a tokenizer's OpenVINO model, `openvino_tokenizer.xml`.

`openvino_genai.Tokenizer.encode` holds the GIL, so a long text would block all other threads of
the process, possibly for several seconds. It may also silently truncate texts: GenAI's GGUF
conversion limits each text to the model's context length, so a longer text appears to fill the
context exactly. `OpenVinoEncoder` therefore removes the limit from the model and runs the model
with OpenVINO's own API, which releases the GIL.
"""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import numpy as np

from .text_limits import LONG_TEXT

# OpenVINO Tokenizers uses the same value for "no limit".
_NO_LIMIT = 2**31 - 65
# The number of words whose tokens are cached. With the cache, a text of 4,000 characters takes less
# than half the time. A word of a short text takes at most 20 kB in the cache.
_CACHED_WORDS = 4000


class OpenVinoEncoder:
    """An encoder that converts text to token ids, including the special tokens.

    `encode` is thread-safe. Long texts use a separate copy of the model, so that short texts do not
    wait for them. That copy is compiled for the first long text. It caches no words: a word can be
    as long as the text, and the cache of OpenVINO Tokenizers is limited by the number of words
    only.
    """

    def __init__(self, directory: Path) -> None:
        import openvino

        # Keep the reference, because the models use the core's extension.
        self._core = core = openvino.Core()
        core.add_extension(find_extension())
        model = core.read_model(directory / "openvino_tokenizer.xml")
        _accept_bytes(model)
        _remove_limits(model)
        _limit_cache(model, _CACHED_WORDS)
        self._short = _CompiledModel(core, model)
        self._model = model
        self._long: _CompiledModel | None = None
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`."""
        compiled = self._short if len(text) <= LONG_TEXT else self._compile_long()
        return compiled.encode(text)

    def _compile_long(self) -> _CompiledModel:
        with self._lock:
            if self._long is None:
                _limit_cache(self._model, 0)
                self._long = _CompiledModel(self._core, self._model)
            return self._long


class _CompiledModel:
    """A compiled copy of the model, which encodes one text at a time."""

    def __init__(self, core: Any, model: Any) -> None:
        # Use one thread, because texts are too short to parallelize and idle threads would spin.
        compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1})
        self._request: Any = compiled.create_infer_request()
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        data = np.frombuffer(text.encode(), np.uint8)
        begin, end = np.zeros(1, np.int32), np.array([len(data)], np.int32)
        with self._lock:
            self._request.infer([begin, end, data], share_inputs=True)
            ids, mask = (
                self._request.get_tensor(name).data for name in ("input_ids", "attention_mask")
            )
            # The mask excludes padding, which some tokenizers add to reach a fixed length.
            unpadded: list[int] = ids[mask != 0].tolist()
        return unpadded


def find_extension() -> str:
    """Return the path to the extension library of OpenVINO Tokenizers.

    Raise `ImportError` if `openvino_tokenizers` is not installed.
    """
    package = importlib.util.find_spec("openvino_tokenizers")
    if package is None or package.origin is None:
        raise ImportError("openvino_tokenizers is not installed", name="openvino_tokenizers")
    return str(Path(package.origin).parent / "lib" / "libopenvino_tokenizers.so")


def _accept_bytes(model: Any) -> None:
    """Replace the model's string input with three inputs: start offsets, end offsets and bytes.

    In Python, OpenVINO's string tensors drop trailing NUL characters.
    """
    from openvino import opset13

    (strings,) = model.get_parameters()
    (unpack,) = (each for each in model.get_ops() if each.get_type_name() == "StringTensorUnpack")
    parts = [opset13.parameter([-1], each) for each in (np.int32, np.int32, np.uint8)]
    for output, part in zip(unpack.outputs(), parts, strict=True):
        _replace_output(output, part)
    # The model also reads the number of texts from its input.
    _replace_output(strings.output(0), parts[0])
    model.add_parameters(parts)
    model.remove_parameter(strings)


def _replace_output(output: Any, node: Any) -> None:
    for each in output.get_target_inputs():
        if each.get_node().get_type_name() != "StringTensorUnpack":
            each.replace_source_output(node.output(0))


def _limit_cache(model: Any, num_words: int) -> None:
    """Set the number of words whose tokens the model caches, if it has a cache."""
    for each in model.get_ops():
        if "cache_capacity" in each.get_attributes():
            each.set_attribute("cache_capacity", num_words)


def _remove_limits(model: Any) -> None:
    """Remove the limits on the number of tokens, which are constants in the model."""
    for each in model.get_ops():
        if each.get_type_name() in ("Minimum", "Truncate"):
            _remove_limit(each)


def _remove_limit(node: Any) -> None:
    import openvino
    from openvino import opset13

    for each in node.inputs():
        source = each.get_source_output().get_node()
        if source.get_type_name() == "Select":
            # The model selects a limit if truncation is enabled.
            _remove_limit(source)
        elif source.get_type_name() == "Constant" and each.get_element_type() == openvino.Type.i32:
            each.replace_source_output(opset13.constant(np.int32(_NO_LIMIT)).output(0))
