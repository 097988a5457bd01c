"""OpenVINO without its tools for model conversion."""

from __future__ import annotations

import json
import subprocess
import sys

_IMPORT = """
import json, sys
from trtllm_serve_cli.runtime.openvino_package import import_openvino
import_openvino()
import openvino_genai
names = ("openvino", "openvino.tools.ovc", "openvino_telemetry")
print(json.dumps([name in sys.modules for name in names]))
import_openvino()
from openvino.tools.ovc import convert_model
"""


def test_conversion_tools_are_imported_only_by_name() -> None:
    done = subprocess.run((sys.executable, "-c", _IMPORT), capture_output=True, text=True)
    assert (done.returncode, json.loads(done.stdout)) == (0, [True, False, False]), done.stderr
