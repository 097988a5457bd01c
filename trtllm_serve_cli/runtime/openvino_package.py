"""Import OpenVINO without its tools for model conversion."""

from __future__ import annotations

import sys

_TOOLS = "openvino.tools.ovc"


def import_openvino() -> None:
    """Import `openvino` without `openvino.tools.ovc`, unless the tools have been imported.

    Call this function before the first import of a package that imports `openvino`. The tools are
    only needed for `openvino.convert_model`, take almost half of the import's time, and import a
    telemetry client. `openvino` ignores an error of their import.
    """
    if _TOOLS in sys.modules:
        return
    sys.modules[_TOOLS] = None  # type: ignore[assignment]  # raises ImportError in `openvino`
    try:
        import openvino  # noqa: F401
    finally:
        del sys.modules[_TOOLS]
