"""Write the pages and tables that are generated from the code.

    python docs/generate.py [--check]

With `--check`, write nothing, and exit with 1 if a page is not up to date.
"""

from __future__ import annotations

import sys

from generators.api_parameters import render_api_parameters
from generators.benchmark_metrics import render_metrics, render_result_schema
from generators.commands import render_commands
from generators.declaration import (
    DECLARATION_SCHEMA,
    render_declaration_page,
    render_declaration_schema,
)
from generators.engine_kinds import render_engines
from generators.exit_codes import render_exit_codes
from generators.markdown import DOCS
from generators.modules import render_modules
from generators.parameters import render_parameters
from generators.server_metrics import render_families
from generators.tensors import render_tensors

from trtllm_serve_cli.bench.report.result_json import SCHEMA_FILE

PAGES = {
    DOCS / "reference" / "commands.md": render_commands,
    DOCS / "reference" / "tllm-yaml.md": render_declaration_page,
    DOCS / "reference" / "capabilities.md": render_engines,
    DOCS / "reference" / "benchmark-metrics.md": render_metrics,
    DOCS / "reference" / "exit-codes.md": render_exit_codes,
    DOCS / "reference" / "modules.md": render_modules,
    DOCS / "reference" / "openai-parameters.md": render_api_parameters,
    DOCS / "reference" / "parameters.md": render_parameters,
    DOCS / "reference" / "server-metrics.md": render_families,
    DOCS / "reference" / "tensors.md": render_tensors,
    DECLARATION_SCHEMA: render_declaration_schema,
    SCHEMA_FILE: render_result_schema,
}


def main() -> None:
    """Write the pages, or check them."""
    for target, render in PAGES.items():
        page = render()
        if "--check" not in sys.argv:
            target.write_text(page, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != page:
            sys.exit(f"{target} is out of date: run `make docs`")


if __name__ == "__main__":
    main()
