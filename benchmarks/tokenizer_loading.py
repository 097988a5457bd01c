"""Measure what a process needs to load a tokenizer, with and without Transformers.

    python benchmarks/tokenizer_loading.py [--tokenizer DIR] [--rounds 7]

Each round loads the tokenizer in two new processes: one with `JsonTokenizer`, which reads
`tokenizer.json` only, and one with `TransformersTokenizer`. The output contains the medians of the
CPU time and of the growth in resident memory, both without the import of NumPy, which each process
of a text model needs. Without --tokenizer, the script creates a byte-level tokenizer without
merges.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_LOAD = """
import json, sys, time
from pathlib import Path
import numpy, psutil
from trtllm_serve_cli.runtime.text import tokenizer

def used():
    memory = psutil.Process().memory_info()
    return time.process_time(), memory.rss - memory.shared

load = {"json": tokenizer.load_json_tokenizer, "transformers": tokenizer.TransformersTokenizer}
before = used()
assert load[sys.argv[1]](Path(sys.argv[2])), "the tokenizer requires Transformers"
after = used()
print(json.dumps({"cpu_s": after[0] - before[0], "memory_bytes": after[1] - before[1]}))
"""


def make_tokenizer(folder: Path) -> None:
    """Write a tokenizer of Transformers' generic class."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


def measure(library: str, folder: Path) -> dict[str, float]:
    """Return the CPU time in seconds and the memory in bytes of one new process."""
    command = (sys.executable, "-c", _LOAD, library, str(folder))
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(run.stdout.splitlines()[-1]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.tokenizer is None:
            make_tokenizer(Path(folder))
        rounds = [
            {
                library: measure(library, arguments.tokenizer or Path(folder))
                for library in ("json", "transformers")
            }
            for _ in range(arguments.rounds)
        ]
    for library in ("json", "transformers"):
        cpu_s = statistics.median(each[library]["cpu_s"] for each in rounds)
        memory = statistics.median(each[library]["memory_bytes"] for each in rounds)
        print(f"{library:13} {cpu_s:6.3f} s of CPU time  {memory / 2**20:6.1f} MiB")


if __name__ == "__main__":
    main()
