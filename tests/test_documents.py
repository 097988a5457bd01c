"""The commands in the documents exist, with the options that they name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from itertools import dropwhile, groupby
from pathlib import Path

import click
import pytest
import typer

from trtllm_serve_cli.cli.main import app

APP = typer.main.get_command(app)
CHECKOUT = Path(__file__).parents[1]
PAGES = sorted(
    {*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *CHECKOUT.glob("examples/*.md")}
)
BLOCK = re.compile(r"^```(sh|console|text)\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`(tllm [a-z][^`\n]*)`")
# What stands for something that a reader fills in, or that is left out.
PLACEHOLDERS = re.compile(r"…|\.\.\.|NAME\|FILE|WORKLOAD")


def find_commands(text: str) -> Iterator[str]:
    """Yield each `tllm` command in the blocks of a page, without the rest of its shell line."""
    for language, block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if language != "sh" and not line.startswith("$ "):
                continue
            for command in split_line(line.removeprefix("$ ")):
                if command[0] == "tllm" and not PLACEHOLDERS.search(shlex.join(command)):
                    yield shlex.join(command)


def split_line(line: str) -> Iterator[list[str]]:
    """Yield the commands of a shell line, without settings of variables and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for is_operator, words in groupby(lexer, lambda word: set(word) <= set("&|;()<>")):
        command = list(dropwhile(re.compile(r"[A-Z_]+=").match, words))
        if command and not is_operator:
            yield command


def find_mentions(text: str) -> Iterator[str]:
    """Yield each `tllm` command in a sentence; it may lack arguments."""
    found = INLINE.findall(BLOCK.sub("", text))
    yield from (each for each in found if not PLACEHOLDERS.search(each))


def parse(command: str) -> None:
    """Parse a command line without running it. Raise `click.UsageError` if it is not valid."""
    current, args = find_command(shlex.split(command)[1:])
    if not isinstance(current, click.Group):
        with click.Context(current) as context:
            current.parse_args(context, args)


def find_command(args: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the arguments name, and the arguments after its name."""
    current: click.Command = APP
    while isinstance(current, click.Group) and args and not args[0].startswith("-"):
        _, found, args = current.resolve_command(click.Context(current), args)
        assert found is not None
        current = found
    return current, args


def check_mention(command: str) -> None:
    """Raise `click.UsageError` if the command or one of its options does not exist."""
    current, args = find_command(command.split()[1:])
    known = {name for each in current.params for name in (*each.opts, *each.secondary_opts)}
    known |= {"--help", "-h", "--"}
    for each in args:
        option = each.partition("=")[0]
        if option == "--":
            break
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known:
            raise click.NoSuchOption(option)


def find_mistakes(commands: Iterator[str], check: Callable[[str], None]) -> dict[str, str]:
    wrong = {}
    for command in commands:
        try:
            check(command)
        except click.UsageError as error:
            if "does not exist" not in error.message:
                wrong[command] = error.message
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_commands_of_a_page_are_valid(page: Path) -> None:
    text = page.read_text("utf-8")
    assert find_mistakes(find_commands(text), parse) == {}
    if page.name != "CHANGELOG.md":
        assert find_mistakes(find_mentions(text), check_mention) == {}


def test_commands_are_found() -> None:
    assert sum(len(list(find_commands(page.read_text("utf-8")))) for page in PAGES) > 100


@pytest.mark.parametrize("command", ["tllm startt", "tllm start --mod local", "tllm set"])
def test_a_wrong_command_is_refused(command: str) -> None:
    with pytest.raises(click.UsageError):
        parse(command)


def test_security_page_names_existing_tests() -> None:
    page = (CHECKOUT / "docs" / "concepts" / "security.md").read_text()
    names = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    assert len(names) > 15
    missing = [
        f"{file}::{name}"
        for file, name in names
        if f"def {name}(" not in (CHECKOUT / file).read_text()
    ]
    assert missing == []
