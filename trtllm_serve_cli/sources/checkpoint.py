"""Inspect checkpoints on disk.

A valid checkpoint names its architecture, and its safetensors or GGUF files are complete according
to their headers. Loading a valid checkpoint neither unpickles data nor runs the checkpoint's Python
code, unless the user allows it with `--allow-pickle` or `--trust-remote-code`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtllm_serve_cli.errors import SourceError, UnsafeCheckpoint
from trtllm_serve_cli.sources.formats.gguf import read_gguf
from trtllm_serve_cli.sources.formats.json_file import broken_json, read_object
from trtllm_serve_cli.sources.formats.safetensors import check_safetensors
from trtllm_serve_cli.sources.formats.sentence_transformers import (
    MODULES_FILE,
    is_embedding_model,
    read_embedding,
)

WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
# The files that may contain `auto_map`, a key that makes Transformers import Python code from the
# checkpoint.
FILES_WITH_AUTO_MAP = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)
# The file in which NVIDIA's ModelOpt records the format of quantized weights.
QUANTIZATION_FILE = "hf_quant_config.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")
_TOKENIZERS = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
    "sentencepiece.bpe.vocab",
)
_TOKENIZER_SUFFIXES = (".model", ".tiktoken")
# Matches the names of Transformers model classes that cannot generate text.
_OTHER_HEAD = re.compile(
    r"For(\w*(Classification|Detection|Segmentation|Prediction|Retrieval|Regression|XVector)"
    r"|MaskedLM|PreTraining|QuestionAnswering|MultipleChoice|CTC)$"
)
_ENCODERS = frozenset(
    (
        *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra"),
        *("modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta"),
        *("clip", "siglip", "vit", "hubert", "wav2vec2"),
    )
)
_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The options for fetching a checkpoint.

    `revision` is the branch, tag or commit to fetch, or None to use the revision in the source.
    `trust_remote_code` allows configs that refer to Python code, and `allow_pickle` allows
    pickled weights. If `needs_weights` is not set, weight files are neither downloaded nor checked.
    """

    revision: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    needs_weights: bool = True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk.

    - `path`: a folder if `format` is "hf", or a file if `format` is "gguf".
    - `source`: the source, pinned to a commit if the checkpoint was fetched from the hub.
    - `revision`: the commit, or `None` if `source` is not pinned to a commit.
    - `architecture`: the name in config.json, for example `LlamaForCausalLM`, or in the GGUF
      header, for example `llama`.
    - `size_bytes`: the total size of the weight files, or 0 if only the configs were inspected.
    - `modified_ns`: the time of the last change to local files, in nanoseconds since the epoch, or
      0 for a source that cannot change or whose weights are missing.
    - `config`: the config.json values from the model catalog, or `None`. Plans use the catalog if
      config.json is not available, for example because the hub denies access. In this case,
      `source` is not pinned, and the checkpoint's files may be missing.
    """

    path: Path
    format: Literal["hf", "gguf"]
    source: str
    revision: str | None
    architecture: str
    size_bytes: int
    modified_ns: int = 0
    config: Mapping[str, Any] | None = None

    @property
    def is_embedding_model(self) -> bool:
        """True if the checkpoint is an embedding model."""
        return self.format == "hf" and is_embedding_model(self.path)


def inspect_gguf(path: Path, *, source: str) -> Checkpoint:
    """Return the checkpoint in a GGUF file.

    Raise `SourceError` if the file cannot be read, is incomplete, contains only a part of a split
    model, or does not contain a model.
    """
    facts = read_gguf(path)
    if facts.num_parts > 1:
        raise SourceError(
            f"{path} is one of {facts.num_parts} parts of a split model.",
            why="split GGUF models are not supported",
            next_step=f"merge the parts with `llama-gguf-split --merge {shlex.quote(str(path))} "
            "MERGED.gguf`, then pass `-s gguf:MERGED.gguf`",
        )
    if facts.architecture is None or facts.num_tensors == 0:
        raise SourceError(
            f"{path} does not contain a model.",
            why="the file contains no tensors or does not specify an architecture",
            next_step="pass `-s gguf:FILE` with a file that contains a complete model",
        )
    return Checkpoint(path, "gguf", source, None, facts.architecture, facts.size_bytes)


def inspect_hf_directory(
    path: Path, *, source: str, revision: str | None = None, options: FetchOptions
) -> Checkpoint:
    """Return the Hugging Face checkpoint in a folder.

    Raise `SourceError` if the checkpoint is not valid. Raise `UnsafeCheckpoint` if a config refers
    to Python code, or if the weights are pickled, unless the options allow this.
    """
    names = {entry.name for entry in path.iterdir() if entry.is_file()}
    check_has_config(source, names)
    if not options.trust_remote_code:
        check_runs_no_code(path)
    architecture = read_architecture(path)
    weights = _check_weights(path, source, names, options) if options.needs_weights else ()
    check_has_tokenizer(source, names)
    size_bytes = sum((path / name).stat().st_size for name in weights)
    return Checkpoint(path, "hf", source, revision, architecture, size_bytes)


def _check_weights(
    path: Path, source: str, names: Collection[str], options: FetchOptions
) -> tuple[str, ...]:
    """Return the weight file names.

    Raise `SourceError` if a weight file is missing, if a safetensors file is incomplete, or if the
    index is not valid.
    Raise `UnsafeCheckpoint` if the weights are pickled and the options do not allow pickles.
    """
    index = read_index(path / WEIGHTS_INDEX) if WEIGHTS_INDEX in names else {}
    weights = choose_weights(source, names, lambda: index, options)
    for name in weights:
        if name.endswith(".safetensors"):
            _check_tensors(path / name, index.get(name, set()))
    return weights


def inspect_config(
    path: Path, *, source: str, revision: str | None = None, options: FetchOptions
) -> Checkpoint:
    """Return the Hugging Face checkpoint in a folder without inspecting the weights.

    Raise `SourceError` if a config is not valid or names an unsupported architecture. Raise
    `UnsafeCheckpoint` if a config refers to Python code that the options do not allow.
    """
    if not options.trust_remote_code:
        check_runs_no_code(path)
    return Checkpoint(path, "hf", source, revision, read_architecture(path), 0)


def read_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the values of config.json.

    If `checkpoint.config` is set, return a copy of it. Otherwise, read the file on disk.
    """
    if checkpoint.config is not None:
        return dict(checkpoint.config)
    return read_object(checkpoint.path / "config.json")


def check_has_config(where: str, names: Collection[str]) -> None:
    """Raise `SourceError` if `names` (the checkpoint's file names) does not include config.json."""
    if "config.json" not in names:
        raise explain_no_config(where, names)


def explain_no_config(where: str, names: Collection[str] = ()) -> SourceError:
    """Return the error for a source that contains the files `names` but no config.json."""
    if ggufs := sorted(name for name in names if name.endswith(".gguf")):
        why = f"the source contains GGUF files: {', '.join(ggufs[:5])}"
        next_step = "download a GGUF file, then pass `-s gguf:FILE`"
    else:
        why = "config.json is missing"
        next_step = (
            "pass `-s hf:ORG/NAME` or `-s local:DIR` with a model that Transformers can load"
        )
    return SourceError(f"{where} is not a Hugging Face checkpoint.", why=why, next_step=next_step)


def has_tokenizer(names: Collection[str]) -> bool:
    """Return whether `names` contains a tokenizer file that Transformers can load."""
    return any(name in _TOKENIZERS or name.endswith(_TOKENIZER_SUFFIXES) for name in names)


def check_has_tokenizer(where: str, names: Collection[str]) -> None:
    """Raise `SourceError` if `names` does not contain a tokenizer file."""
    if has_tokenizer(names):
        return
    raise SourceError(
        f"{where} has no tokenizer.",
        why="the checkpoint contains neither tokenizer.json nor another supported tokenizer file",
        next_step="add the tokenizer files of the base model to a local copy of the checkpoint, "
        "then pass the copy with `-s local:DIR`",
    )


def check_runs_no_code(folder: Path) -> None:
    """Raise `UnsafeCheckpoint` if a config in `folder` refers to Python code.

    Raise `SourceError` if a config is not valid.
    """
    for name in FILES_WITH_AUTO_MAP:
        path = folder / name
        if path.exists() and (auto_map := read_object(path).get("auto_map")):
            raise UnsafeCheckpoint(
                "Loading this checkpoint would run Python code from the checkpoint.",
                why=f"auto_map in {name} refers to {_show_auto_map(auto_map)}",
                next_step="review the code, then add --trust-remote-code if you trust it",
            )


def choose_weights(
    where: str,
    names: Collection[str],
    load_index: Callable[[], Collection[str]],
    options: FetchOptions,
) -> tuple[str, ...]:
    """Return the weight files that Transformers would load.

    Transformers prefers safetensors to pickles. `load_index` returns the shards listed in the
    WEIGHTS_INDEX file. It is called only if the index is needed. Raise `SourceError` if weights are
    missing, or `UnsafeCheckpoint` if the weights are pickled and the options do not allow pickles.
    """
    if WEIGHTS_FILE in names:
        return (WEIGHTS_FILE,)
    if WEIGHTS_INDEX in names:
        return _check_shards(where, names, load_index(), WEIGHTS_INDEX)
    if safetensors := [name for name in sorted(names) if _is_safetensors(name)]:
        return _check_numbers(where, safetensors)
    pickles = [name for name in sorted(names) if _is_pickle(name)]
    if not pickles:
        raise SourceError(
            f"{where} has no weights.",
            why="the checkpoint contains neither *.safetensors files nor pickled weights",
            next_step="pass `-s hf:ORG/NAME` or `-s local:DIR` with a checkpoint that has weights",
        )
    if not options.allow_pickle:
        raise UnsafeCheckpoint(
            f"The weights of {where} are pickled, and unpickling can run arbitrary code.",
            why=f"the checkpoint contains {pickles[0]}, but no *.safetensors files",
            next_step="use a revision or a copy with safetensors files, or add --allow-pickle if "
            "you trust the publisher",
        )
    return _check_numbers(where, pickles)


def read_index(path: Path) -> dict[str, set[str]]:
    """Return the tensor names in each shard. Raise `SourceError` if the index is not valid."""
    weight_map = read_object(path).get("weight_map")
    named = weight_map if isinstance(weight_map, dict) else {}
    if not named or not all(isinstance(s, str) and Path(s).name == s for s in named.values()):
        raise broken_json(path, "weight_map does not map tensors to file names")
    shards: dict[str, set[str]] = {}
    for tensor, shard in named.items():
        shards.setdefault(shard, set()).add(tensor)
    return shards


def _check_tensors(path: Path, expected: Set[str]) -> None:
    """Raise `SourceError` if the file is incomplete or lacks tensors that the index lists."""
    if missing := sorted(expected - check_safetensors(path)):
        raise SourceError(
            f"Tensors are missing from {path} ({len(missing)} of {len(expected)}).",
            why=f"according to {WEIGHTS_INDEX}, this weight file should contain "
            f"{_shorten(missing)}",
            next_step=f"download the weight file and {WEIGHTS_INDEX} again, both from the same "
            "revision",
        )


def _check_numbers(where: str, files: list[str]) -> tuple[str, ...]:
    """Return `files` if no numbered shard is missing.

    Raise `SourceError` if, for example, 00002-of-00005 is missing.
    """
    numbered = [found.groups() for name in files if (found := _NUMBERED.fullmatch(name))]
    expected = {
        f"{stem}-{number:05}-of-{total}{suffix}"
        for stem, _, total, suffix in numbered
        for number in range(1, int(total) + 1)
    }
    _check_shards(where, files, expected, "the numbers in the file names")
    return tuple(files)


def _check_shards(
    where: str, names: Collection[str], shards: Collection[str], named_by: str
) -> tuple[str, ...]:
    if missing := sorted(set(shards) - set(names)):
        raise SourceError(
            f"Weight files are missing from {where} ({len(missing)} of {len(shards)}).",
            why=f"according to {named_by}, the checkpoint should contain {_shorten(missing)}",
            next_step="download the missing weight files, or download the complete checkpoint "
            "again",
        )
    return tuple(sorted(shards))


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:5]) + " …" * (len(names) > 5)


def _is_safetensors(name: str) -> bool:
    return name.endswith(".safetensors") and not name.startswith(("adapter_", "consolidated"))


def _is_pickle(name: str) -> bool:
    return name.endswith(_PICKLES) and not name.startswith(_NOT_WEIGHTS)


def is_weights(name: str) -> bool:
    """Return whether a file with this name contains model weights."""
    return _is_safetensors(name) or _is_pickle(name)


def read_architecture(folder: Path) -> str:
    """Return the architecture in config.json or, if it is missing, the model type.

    Raise `SourceError` if config.json is not valid or contains neither. Also raise `SourceError` if
    models with this architecture cannot generate text, unless the checkpoint is a supported
    embedding model.
    """
    path = folder / "config.json"
    config = read_object(path)
    architectures, model_type = config.get("architectures"), config.get("model_type")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(model_type, str | None):
        raise broken_json(path, "model_type is not a string")
    architecture = named if isinstance(named, str) and named else model_type
    if not architecture:
        raise broken_json(path, "the file specifies neither architectures nor model_type")
    if is_embedding_model(folder):
        read_embedding(folder)
    elif _OTHER_HEAD.search(architecture) or model_type in _ENCODERS:
        raise SourceError(
            f"{architecture} is not a text-generation model.",
            why=f"{path} specifies this architecture, and the checkpoint lacks {MODULES_FILE}, "
            "which embedding models require",
            next_step="pass a text-generation model or a sentence-transformers embedding model "
            "with `-s hf:ORG/NAME`",
        )
    return architecture


def _show_auto_map(auto_map: object) -> str:
    named = auto_map.values() if isinstance(auto_map, dict) else [auto_map]
    flat = [item for value in named for item in (value if isinstance(value, list) else [value])]
    return ", ".join(str(item) for item in flat if item)
