"""A converter that writes a TensorRT-LLM checkpoint without weights.

It fails if it could change the model, and counts its runs in the folder HF_HUB_CACHE.
"""

import argparse
import errno
import json
import os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--model_dir", type=Path, required=True)
parser.add_argument("--output_dir", type=Path, required=True)
parser.add_argument("--dtype", default="auto")
arguments = parser.parse_args()

try:
    (arguments.model_dir / "written").touch()
    raise SystemExit("the model is writable")
except OSError as error:
    assert error.errno == errno.EROFS, error
with Path(os.environ["HF_HUB_CACHE"], "conversions").open("a") as runs:
    runs.write(f"{os.environ.get('HF_TOKEN')}\n")
model = json.loads((arguments.model_dir / "config.json").read_text())
arguments.output_dir.mkdir(exist_ok=True)
(arguments.output_dir / "config.json").write_text(json.dumps(model))
(arguments.output_dir / "rank0.safetensors").write_bytes(b"weights")
print("converted")
