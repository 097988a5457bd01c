"""The documents name existing commands, options, models, scripts and pages."""

from __future__ import annotations

import re
import shlex
import signal
import unicodedata
from collections.abc import Callable, Iterator
from itertools import dropwhile, groupby
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from trtllm_serve_cli.catalog.entries import load_catalog
from trtllm_serve_cli.cli.command_groups import UsageError
from trtllm_serve_cli.cli.main import app
from trtllm_serve_cli.cli.shared import exits

APP = typer.main.get_command(app)
CHECKOUT = Path(__file__).parents[1]
PAGES = sorted(
    {*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *CHECKOUT.glob("examples/*.md")}
)
BLOCK = re.compile(r"^```(sh|console|text)\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`(tllm [a-z][^`\n]*)`")
# What stands for something that a reader fills in, or that is left out.
PLACEHOLDERS = re.compile(r"…|\.\.\.|NAME\|FILE|WORKLOAD")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
MAKE = re.compile(r"^(?:\$ )?make ([a-z][a-z0-9-]*)", re.M)
SCRIPT = re.compile(r"\b(benchmarks/\w+\.py)([^`\n]*)")
# What a guide needs, and whether it was run: a paragraph in italics before the first section.
NEEDS = re.compile(r"^\*[^*]+\*$", re.M)
GUIDES = {
    each.stem: each
    for each in PAGES
    if each.parent.name == "guides" and not each.stem.startswith(("from-", "index", "extending"))
}
# Options that select the checkpoint of an import, so that the model may have any name.
SOURCES = ("-s", "--source", "-f", "--file")
MAX_LINES = {"README.md": 150, "docs/architecture.md": 120}


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
    """Parse a command line without running it. Raise `UsageError` if it is not valid."""
    current, args = find_command(shlex.split(command)[1:])
    if not isinstance(current, TyperGroup):
        with current.context_class(current) as context:
            current.parse_args(context, args)


def find_command(args: list[str]) -> tuple[Any, list[str]]:
    """Return the command that the arguments name, and the arguments after its name."""
    current: Any = APP
    while isinstance(current, TyperGroup) and args and not args[0].startswith("-"):
        _, current, args = current.resolve_command(current.context_class(current), args)
    return current, args


def check_mention(command: str) -> None:
    """Raise `UsageError` if the command or one of its options does not exist."""
    current, args = find_command(command.split()[1:])
    known = {name for each in current.params for name in (*each.opts, *each.secondary_opts)}
    known |= {"--help", "-h", "--"}
    for each in args:
        option = each.partition("=")[0]
        if option == "--":
            break
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known:
            raise UsageError(f"No such option: {option}")


def find_mistakes(commands: Iterator[str], check: Callable[[str], None]) -> dict[str, str]:
    wrong = {}
    for command in commands:
        try:
            check(command)
        except UsageError as error:
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
    with pytest.raises(UsageError):
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


def test_exit_codes_are_listed() -> None:
    page = (CHECKOUT / "docs" / "reference" / "exit-codes.md").read_text("utf-8")
    cells = re.findall(r"^\| ([\d, ]+) \|", page, re.M)
    listed = {int(code) for cell in cells for code in cell.split(",")}
    own = {value for value in vars(exits).values() if isinstance(value, int)}
    of_signals = {128 + signal.SIGHUP, 128 + signal.SIGTERM}
    assert listed == {0, 1, 2} | own | of_signals


def find_model(command: str) -> str | None:
    """Return the model that a command imports from the catalog, or None."""
    words = shlex.split(command)[1:]
    if words[0] not in ("import", "plan", "run") or set(words) & set(SOURCES):
        return None
    if "-m" in words:
        return words[words.index("-m") + 1]
    return words[1] if len(words) > 1 and not words[1].startswith("-") else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_models_of_a_page_are_in_the_catalog(page: Path) -> None:
    models = {find_model(each) for each in find_commands(page.read_text("utf-8"))} - {None}
    assert models - set(load_catalog()) == set()


def find_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs and GitHub make them."""
    anchors = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text("utf-8"))):
        text = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        anchors.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower()))
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_of_a_page_exist(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in find_anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_scripts_and_targets_of_a_page_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    code = "\n".join((*re.findall(r"`([^`\n]+)`", FENCE.sub("", text)), *FENCE.findall(text)))
    makefile = (CHECKOUT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.M))
    assert set(MAKE.findall(code)) - targets == set()
    for script, arguments in SCRIPT.findall(code):
        source = (CHECKOUT / script).read_text("utf-8")
        options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", arguments))
        assert {each for each in options if f'"{each}"' not in source} == set(), script


@pytest.mark.parametrize("page", GUIDES.values(), ids=GUIDES)
def test_guide_states_its_needs_and_leads_on(page: Path) -> None:
    text = page.read_text("utf-8")
    assert NEEDS.search(text.partition("\n## ")[0])
    assert LINK.search(text)


@pytest.mark.parametrize("name", MAX_LINES)
def test_page_is_short(name: str) -> None:
    assert len((CHECKOUT / name).read_text("utf-8").splitlines()) <= MAX_LINES[name]
