"""The chat page in a headless browser, with a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Page, needs_chromium, open_page
from tests.e2e.conftest import Tllm
from tests.e2e.core import gauge
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint

pytestmark = needs_chromium


@pytest.fixture(params=[1000, 390], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, served: Tllm, tmp_path: Path) -> Iterator[Page]:
    with open_page(tmp_path) as page:
        page.open(str(served.status()["openai"]), width=request.param)
        page.wait_for("document.querySelector('#model').value === 'demo'")
        yield page
        assert page.problems == []


def send(page: Page, text: str) -> None:
    page.evaluate(
        f"(() => {{ document.querySelector('#prompt').value = {text!r}; "
        "document.querySelector('#form').requestSubmit(); })()"
    )


def test_conversation(page: Page, endpoint: Endpoint) -> None:
    send(page, "Count from 1 to 1000.")
    page.wait_for("document.querySelector('#send').hidden")
    page.wait_for("document.querySelector('article.assistant')?.textContent.length > 40")
    page.evaluate("document.querySelector('#stop').click()")
    page.wait_for("document.querySelector('.figures') !== null")
    assert "first token" in page.evaluate("document.querySelector('.figures').textContent")
    wait_until(lambda: gauge(endpoint, "active") == 0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.querySelector('#clear').click()")
    assert page.evaluate("document.querySelectorAll('article').length") == 0
    # The text of a model is never interpreted as HTML.
    page.evaluate("show(add('assistant'), '<b>x</b> ```py\\n<i>y</i>``` z', '')")
    assert page.evaluate("document.querySelectorAll('article b, article i').length") == 0
    assert page.evaluate("document.querySelector('article pre').textContent") == "<i>y</i>"


def test_error_is_shown(page: Page) -> None:
    page.evaluate("document.querySelector('#model').replaceChildren(new Option('x', 'x'))")
    page.problems.clear()
    send(page, "Hello")
    page.wait_for("document.querySelector('article.error') !== null")
    text = page.evaluate("document.querySelector('article.error').textContent")
    assert "The model 'x' does not exist" in text
    # The user can correct the text and send it again.
    page.wait_for("document.querySelector('#prompt').value === 'Hello'")
    assert page.evaluate("document.querySelector('article.user')") is None
    # The browser logs the status 404 of the request.
    assert all("404" in problem for problem in page.problems)
    page.problems.clear()


def test_new_chat_drops_the_response_in_flight(page: Page) -> None:
    send(page, "Count from 1 to 1000.")
    page.wait_for("document.querySelector('article.assistant')?.textContent.length > 10")
    page.evaluate("document.querySelector('#clear').click()")
    page.wait_for("running === null")
    assert page.evaluate("JSON.stringify(conversation)") == "[]"


def test_page_asks_for_the_api_key(page: Page) -> None:
    page.evaluate(
        "(async () => { window.answered = fetch; window.fetch = async () => "
        "new Response('{}', { status: 401 }); await loadModels(); })()"
    )
    assert page.evaluate("document.querySelector('article.error').textContent") == (
        "The server requires an API key. Enter your key at the top of this page."
    )
    assert page.evaluate("document.activeElement.id") == "key"
    page.evaluate("(async () => { window.fetch = window.answered; await loadModels(); })()")
    assert page.evaluate("document.querySelector('#messages').textContent") == (
        "Ask the model a question."
    )
    page.evaluate("window.fetch = async () => new Response('{}', { status: 401 })")
    send(page, "Hello")
    page.wait_for("document.querySelector('#prompt').value === 'Hello'")
    assert page.evaluate("document.activeElement.id") == "key"
