"""`tllm logs`: print a server's log."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import served_models
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.options import ServedModelOption
from trtllm_serve_cli.cli.shared.target import ServerOption, parse_url
from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.launch.logs.log_lines import LogLine, LogReader

# Maximum number of bytes to read at the end of a log.
_MAX_BYTES = 8 * 1024 * 1024


@accepts_name(complete=served_models)
def logs(
    model: ServedModelOption = None,
    url: ServerOption = None,
    follow: Annotated[
        bool,
        typer.Option(
            "-f",
            "--follow",
            help="Print new lines as they are logged. Press Ctrl-C to stop.",
        ),
    ] = False,
    lines: Annotated[
        int,
        typer.Option(
            "-n", "--lines", min=0, help="Number of lines to print from the end of the log."
        ),
    ] = 100,
    level: Annotated[
        Literal["error", "warning", "info"],
        typer.Option(help="Minimum severity of the lines to print."),
    ] = "info",
    gateway: Annotated[
        bool,
        typer.Option(
            "--gateway",
            help="Print the log of the OpenAI-compatible API, which has one line per request.",
        ),
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Print only the log lines of this Triton model, as shown by `tllm status`. "
            "Default: all lines.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print each line as a JSON object with the keys text, level and model."
        ),
    ] = False,
) -> None:
    """Print the end of a server's log, even if the server has died.

    If all matching servers were stopped, print the log of the server that was stopped last.

    On a terminal, the rows of Triton's tables are truncated to the terminal's width. To print
    complete rows, pipe the output to another program.

    The --level and --source filters treat a traceback as part of the preceding line.

    Example:  tllm logs -f --level warning
    """
    from trtllm_serve_cli import processes
    from trtllm_serve_cli.launch.logs.log_lines import LogReader
    from trtllm_serve_cli.launch.servers.running import find_logged
    from trtllm_serve_cli.paths import find_home

    server = find_logged(find_home(), model, parse_url(url))
    if source is not None and source not in server.plan.every_model:
        raise BadInput(
            f"The server does not have a model named {source!r}.",
            why=f"the server's models are {', '.join(server.plan.every_model)}",
            next_step="pass the name of one of these models, for example `tllm logs --source "
            f"{server.plan.every_model[0]}`",
        )
    if gateway and server.plan.gateway is None:
        raise BadInput(
            "The server does not serve the OpenAI-compatible API.",
            why="the server was started without the API, or its Slurm job has not started the API",
            next_step="omit --gateway, or run `tllm stop`, then `tllm start --openai`",
        )
    if gateway and (source is not None or level != "info"):
        raise BadInput(
            "--gateway cannot be used with --source or --level.",
            why="the gateway's log contains neither Triton model names nor log levels",
            next_step="omit --source and --level, or omit --gateway",
        )
    log = server.plan.gateway_log if gateway else server.plan.log
    reader = LogReader(server.plan.every_model)
    output.notify(f"{log}:")
    # With --follow, read up to the last complete line. `follow_lines` continues at the next line,
    # so that each line is printed exactly once.
    end = processes.end_of_lines(log) if follow else None
    read = processes.last_lines(log, _MAX_BYTES, until=end, max_bytes=_MAX_BYTES)
    chosen = list(_choose(reader, read, level, source))
    for line in chosen[-lines:] if lines else ():
        _show(line, as_json=as_json)
    if end is not None:
        for line in _choose(reader, processes.follow_lines(log, end), level, source):
            _show(line, as_json=as_json)


def _show(line: LogLine, *, as_json: bool) -> None:
    if as_json:
        output.show_json_line({"text": line.text, "level": line.level, "model": line.model})
    else:
        print(_fit_row(line) if sys.stdout.isatty() else line.text, flush=True)


def _fit_row(line: LogLine) -> str:
    """Return the text of `line`, truncated to the terminal's width if it is a row of a table.

    A terminal would wrap the rows of wide tables, which makes the tables unreadable.
    """
    columns = shutil.get_terminal_size().columns
    if not line.is_in_table or len(line.text) <= columns:
        return line.text
    return f"{line.text[: columns - 1]}…"


def _choose(
    reader: LogReader,
    lines: Iterable[str],
    level: Literal["error", "warning", "info"],
    source: str | None,
) -> Iterator[LogLine]:
    for line in reader.read_all(lines):
        if line.is_at_least(level) and source in (None, line.model):
            yield line
