"""Check guides in a separate process before the engine receives them.

    python3 -m tllm_runtime.engines.openvino.grammar_check ENGINE_DIR VOCAB_SIZE FOLDER

OpenVINO GenAI (2026.4) compiles a guide in the step that samples the first token. If compilation
fails, this step and all later steps raise an error, so all requests fail. Compiling nested
repetitions such as `([a-z]{1,1000}){1,1000}` takes minutes and exhausts the memory. Guides with an
ambiguous grammar compile quickly, but take seconds per token. To protect the engine, `GrammarCheck`
first sends each guide to a process that it can kill. The process compiles the guide and samples
random tokens that the guide allows. It uses the engine's tokenizer and a one-layer model, which it
writes to FOLDER.

The process writes the line "ready" (with quotes) when it has started. It then reads requests and
writes responses, both as one JSON object per line. A request is {"type": ..., "guide": ...}. A
response contains the fields of a `CheckedGuide`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...openvino_package import import_openvino
from ...scratch import make_temporary_folder

# The time limit for checking a guide, in seconds, excluding the time to start the process.
CHECK_LIMIT_S = 2.0
# The maximum CPU time in seconds for sampling all tokens after the first one. Common guides need up
# to 0.05 s, and regular expressions such as `(\w+ ?)+` up to 0.7 s.
_SAMPLING_LIMIT_S = 1.0
_NUM_SAMPLED = 32
_START_LIMIT_S = 60.0
_LIMIT_BYTES = 4 * 1024**3
_NUM_REMEMBERED = 256
_WIDTH = 16


@dataclass(frozen=True, slots=True)
class CheckedGuide:
    """The result of a check.

    - `problem`: the reason why the guide cannot be used, or an empty string if the guide is valid.
    - `compile_s`: the CPU time for compiling the guide and sampling the first token.
    - `sampling_s`: the CPU time for sampling all other tokens.

    Both times are 0 if the guide cannot be used.
    """

    problem: str = ""
    compile_s: float = 0.0
    sampling_s: float = 0.0


class GrammarCheck:
    """A checker that compiles guides and samples tokens in a separate process.

    The process starts when the first guide is checked. This class is not thread-safe.
    """

    def __init__(self, engine_dir: Path, vocab_size: int) -> None:
        self._arguments = (str(engine_dir), str(vocab_size))
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        # LRU cache of check results, keyed by guide type and guide.
        self._results: OrderedDict[tuple[str, str], CheckedGuide] = OrderedDict()

    def check(self, guide_type: str, guide: str) -> CheckedGuide:
        """Check a guide, or return the cached result of an earlier check.

        The check is limited to `CHECK_LIMIT_S` seconds, plus the time to start the process. Raise
        `OSError` or `RuntimeError` if the process cannot be started.
        """
        key = (guide_type, guide)
        if key not in self._results:
            result = self._query({"type": guide_type, "guide": guide})
            if result is None:
                # Do not cache this result, because the same guide may compile in time when the
                # machine is less busy.
                return CheckedGuide(
                    f"takes more than {CHECK_LIMIT_S:g} s to compile and to generate "
                    f"{_NUM_SAMPLED} tokens, or requires too much memory; simplify the guide"
                )
            self._results[key] = result
        self._results.move_to_end(key)
        if len(self._results) > _NUM_REMEMBERED:
            self._results.popitem(last=False)
        return self._results[key]

    def close(self) -> None:
        """Stop the process if it is running. The next guide starts a new process."""
        if self._process is not None:
            self._stop()

    def _query(self, request: dict[str, str]) -> CheckedGuide | None:
        """Send a guide to the process and return the result.

        Return None if the process times out or exits. Raise `OSError` or `RuntimeError` if the
        process cannot be started.
        """
        process = self._start_if_needed()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            response = self._read_line(CHECK_LIMIT_S)
        except BrokenPipeError:
            response = None
        if response is None:
            self._stop()
            return None
        return CheckedGuide(**json.loads(response))

    def _start_if_needed(self) -> subprocess.Popen[str]:
        if self._process is None:
            # The process cannot remove its folder, because it is always killed.
            self._folder = make_temporary_folder("tllm-guides-")
            module = f"{__package__}.grammar_check"
            self._process = subprocess.Popen(
                (sys.executable, "-m", module, *self._arguments, self._folder.name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            if self._read_line(_START_LIMIT_S) is None:
                self._stop()
                raise RuntimeError(
                    "the process that validates guided-decoding guides failed to start; see the "
                    "server's log"
                )
        return self._process

    def _stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        # Ignore `BrokenPipeError`: closing the pipe flushes unsent input, but the process has been
        # killed.
        with contextlib.suppress(BrokenPipeError), self._process:
            pass
        self._process = None
        if self._folder is not None:
            self._folder.cleanup()

    def _read_line(self, limit_s: float) -> str | None:
        """Return the next line from the process, or None if it times out or has exited."""
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        return (self._process.stdout.readline() or None) if ready else None


def structured_output(guide_type: str, guide: str) -> Any:
    """Return OpenVINO GenAI's `StructuredOutputConfig` for a guide."""
    import openvino_genai

    config = openvino_genai.StructuredOutputConfig()
    match guide_type:
        case "json":
            config.json_schema = "{}"
        case "json_schema":
            config.json_schema = guide
        case "regex":
            config.regex = guide
        case "ebnf_grammar":
            config.grammar = guide
        case "structural_tag":
            config.structural_tags_config = guide
    return config


def make_model(vocab_size: int) -> Any:
    """Return a language model that assigns the same probability to all tokens.

    The model has a single attention layer.
    """
    import numpy as np
    import openvino
    from openvino import opset13 as ops
    from openvino.op import util

    names = ("input_ids", "attention_mask", "position_ids", "beam_idx")
    shapes_types = (([-1, -1], np.int64),) * 3 + (([-1], np.int32),)
    inputs = {}
    for name, (shape, dtype) in zip(names, shapes_types, strict=True):
        inputs[name] = ops.parameter(shape, dtype, name=name)
        inputs[name].output(0).set_names({name})
    table = ops.constant(np.zeros((vocab_size, _WIDTH), np.float16))
    embedded = ops.convert(ops.gather(table, inputs["input_ids"], ops.constant(0)), np.float32)
    head = ops.unsqueeze(embedded, ops.constant(1))
    batch = ops.gather(ops.shape_of(inputs["input_ids"]), ops.constant([0]), ops.constant(0))
    empty = ops.broadcast(
        ops.constant(np.float32(0)),
        ops.concat([batch, ops.constant(np.array([1, 0, _WIDTH], np.int64))], 0),
    )
    cached, assigned = [], []
    for kind in ("key", "value"):
        info = util.VariableInfo()
        info.data_shape = openvino.PartialShape([-1, 1, -1, _WIDTH])
        info.data_type = openvino.Type.f32
        info.variable_id = f"past_key_values.0.{kind}present.0.{kind}"
        variable = util.Variable(info)
        past = ops.gather(ops.read_value(empty, variable), inputs["beam_idx"], ops.constant(0))
        cached.append(ops.concat([past, head], 2))
        assigned.append(ops.assign(cached[-1], variable))
    mask = inputs["attention_mask"]
    for _ in range(2):
        mask = ops.unsqueeze(mask, ops.constant(1))
    attended = ops.scaled_dot_product_attention(head, *cached, ops.convert(mask, np.float32))
    hidden = ops.squeeze(attended, ops.constant(1))
    logits = ops.result(ops.matmul(hidden, ops.convert(table, np.float32), False, True))
    logits.output(0).set_names({"logits"})
    return openvino.Model([logits], assigned, list(inputs.values()), "grammar_check")


def main() -> None:
    """Check guides from standard input until it is closed."""
    import_openvino()
    import openvino

    engine_dir, vocab_size, folder = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (_LIMIT_BYTES, _LIMIT_BYTES))
    # Redirect the libraries' output to stderr; otherwise, the parent would read it as a response.
    responses = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for file in engine_dir.glob("openvino_*tokenizer.*"):
        (folder / file.name).symlink_to(file)
    openvino.save_model(make_model(vocab_size), folder / "openvino_model.xml")
    pipeline = _load(folder)
    responses.write('"ready"\n')
    for line in sys.stdin:
        request = json.loads(line)
        # Normally, the parent process kills this process at the time limit. Set an alarm in case
        # the parent has died.
        signal.alarm(int(CHECK_LIMIT_S) + 3)
        result = _check(pipeline, structured_output(request["type"], request["guide"]))
        signal.alarm(0)
        responses.write(json.dumps(asdict(result)) + "\n")
        if result.problem:
            # Create a new pipeline, because a pipeline cannot recover if a step has failed.
            # Deleting the old pipeline logs an error about the request's blocks, so discard the
            # output.
            with _discard_output():
                del pipeline
            pipeline = _load(folder)
    # The parent process has died. Otherwise, it kills this process and then removes the folder.
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _discard_output() -> Iterator[None]:
    """Discard all output to stdout and stderr in a `with` block, including library output."""
    saved = {number: os.dup(number) for number in (1, 2)}
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in saved:
            os.dup2(null, number)
        yield
    finally:
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(null)


def _load(folder: Path) -> Any:
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks, scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 4, 1, 32
    return openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", {})


def _check(pipeline: Any, config: Any) -> CheckedGuide:
    """Sample tokens with the guide in `config` and return the CPU times or the problem."""
    import numpy as np
    import openvino

    from ...engine import last_line

    prompt = openvino.Tensor(np.array([[1]], dtype=np.int64))
    started_s = time.process_time()
    compile_s = sampling_s = 0.0
    try:
        # Keep the handle, because the pipeline drops a request when its handle is deleted.
        handle = pipeline.add_request(0, prompt, _sample(config))
        while pipeline.has_non_finished_requests():
            pipeline.step()
            compile_s = compile_s or time.process_time() - started_s
            sampling_s = time.process_time() - started_s - compile_s
            if sampling_s > _SAMPLING_LIMIT_S:
                limit = f"{_SAMPLING_LIMIT_S:g} s of CPU time"
                return CheckedGuide(
                    f"takes more than {limit} to generate {_NUM_SAMPLED} tokens; simplify the guide"
                )
        del handle
    except Exception as error:  # the grammar compiler may raise any type of exception
        return CheckedGuide(f"cannot be used: {_strip_location(last_line(error))}")
    return CheckedGuide("", compile_s, sampling_s)


def _sample(config: Any) -> Any:
    """Return a generation config that samples random tokens, constrained by the guide.

    Tokens after the end of the guided text are not constrained.
    """
    import openvino_genai

    generation = openvino_genai.GenerationConfig()
    generation.structured_output_config = config
    generation.max_new_tokens = generation.min_new_tokens = _NUM_SAMPLED
    generation.do_sample, generation.rng_seed, generation.ignore_eos = True, 0, True
    return generation


def _strip_location(message: str) -> str:
    """Remove the time, the source location and the failed check from a compiler message."""
    return re.sub(r"^\[[\d:]+\] \S+:\d+: (Check failed: .* is false: )?", "", message)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
