"""The embedded engine alone: it applies the options of requests.

Tests of the tokens use the demo model. Tests of the scheduling use a model of one layer.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.openvino_engine import load, run, tokens
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.engine import (
    GenerationRequest,
    InvalidRequest,
    PerfMetrics,
    SequenceUpdate,
)
from trtllm_serve_cli.runtime.engines.openvino import grammar_check, step_guard

pytestmark = pytest.mark.usefixtures("time_to_compile")

PROMPT = (1, 4093, 198, 1780, 314, 17933, 47, 2, 198, 1, 520, 9531, 198)
OTHERS = ((504, 3575, 282, 4649, 314), tuple(range(1000, 1100)))


@pytest.fixture(scope="module")
def engine(engine_dir: Path) -> Iterator[Any]:
    engine = load(engine_dir)
    yield engine
    engine.close()


def are_equal_but_for_ties(one: list[SequenceUpdate], other: list[SequenceUpdate]) -> bool:
    """Return whether the tokens are equal up to a difference between equally likely tokens.

    A step of several tokens rounds differently: on some processors, log probabilities of the same
    token differed by up to 0.2.
    """
    log_probs = [
        [number for each in updates for number in each.log_probs] for updates in (one, other)
    ]
    pairs = zip(tokens(one), tokens(other), *log_probs, strict=True)
    differing = next(((a, b) for token, other_token, a, b in pairs if token != other_token), None)
    return differing is None or abs(differing[0] - differing[1]) < 0.5


def text(engine_dir: Path, updates: list[SequenceUpdate]) -> str:
    import openvino_genai

    return str(openvino_genai.Tokenizer(str(engine_dir)).decode(tokens(updates)))


def request(number: int = 1, prompt: tuple[int, ...] = PROMPT, **fields: Any) -> GenerationRequest:
    return GenerationRequest(number, prompt, **{"max_new_tokens": 24, **fields})


@pytest.mark.parametrize(
    "config",
    [{"num_draft_tokens": 4}, {"num_draft_tokens": 3, "draft_model_dir": "the same"}],
    ids=["looked up", "of a model"],
)
def test_drafts_are_verified_and_counted(
    engine: Any, engine_dir: Path, config: dict[str, Any]
) -> None:
    if "draft_model_dir" in config:
        config = {**config, "draft_model_dir": str(engine_dir)}
    drafting = load(engine_dir, **config)
    requests = [
        request(1, return_perf_metrics=True, return_log_probs=True),
        *(
            request(number, prompt, return_log_probs=True)
            for number, prompt in enumerate(OTHERS, 2)
        ),
    ]
    drafted, *_ = answers = run(drafting, *requests)
    for answer, expected in zip(answers, run(engine, *requests), strict=True):
        assert are_equal_but_for_ties(answer, expected)
    perf = drafted[-1].perf
    assert perf is not None and perf.total_draft_tokens == config["num_draft_tokens"] * len(drafted)
    assert perf.total_accepted_draft_tokens == len(tokens(drafted)) - len(drafted)


def test_sampling_works_with_a_draft_model(quick_engine: Path) -> None:
    drafting = load(quick_engine, num_draft_tokens=3, draft_model_dir=str(quick_engine))
    requests = [request(number, top_p=0.9, temperature=1.5, seed=number) for number in (1, 2, 3)]
    for _ in range(2):
        assert [len(tokens(each)) for each in run(drafting, *requests)] == [24] * 3


# In a text that this grammar can split in many ways, each token costs more than the previous one.
AMBIGUOUS = "root ::= x x\nx ::= [a-z]* | x x | x x x"

ENDLESS = {"max_new_tokens": 400, "min_tokens": 400, "temperature": 2.0, "top_p": 1.0, "seed": 1}

GUIDES = {
    "regex": ("regex", "[0-9]{3}-[a-c]{4}", "[0-9]{3}-[a-c]{4}"),
    "grammar": ("ebnf_grammar", 'root ::= "yes" | "no" [0-9]', "yes|no[0-9]"),
    "tags": (
        "structural_tag",
        json.dumps(
            {
                "type": "structural_tag",
                "format": {
                    "type": "sequence",
                    "elements": [
                        {"type": "const_string", "value": "A: "},
                        {"type": "regex", "pattern": "[0-9]{2}"},
                    ],
                },
            }
        ),
        "A: [0-9]{2}",
    ),
}


@pytest.mark.parametrize(("kind", "guide", "pattern"), GUIDES.values(), ids=GUIDES)
def test_text_follows_its_guide(
    engine: Any, engine_dir: Path, kind: str, guide: str, pattern: str
) -> None:
    (answer,) = run(engine, request(end_id=2, guide_type=kind, guide=guide))
    assert re.fullmatch(pattern, text(engine_dir, answer))


def test_json_follows_its_schema(engine: Any, engine_dir: Path) -> None:
    guide = json.dumps({"enum": [{"name": "a"}, ["b", True]]})
    (answer,) = run(engine, request(end_id=2, guide_type="json_schema", guide=guide))
    assert json.loads(text(engine_dir, answer)) in ({"name": "a"}, ["b", True])


@pytest.mark.parametrize(
    ("kind", "guide", "why"),
    [
        ("regex", "[0-9", "Unclosed '['"),
        ("json_schema", '{"type": "nope"}', "Unsupported type"),
        ("ebnf_grammar", "root ::= missing", "missing"),
        ("structural_tag", "{}", "must have a format field"),
        ("regex", "([a-z]{1,1000}){1,1000}", "takes more than 2 s"),
        # Some of the random tokens exceed the memory limit before the time limit.
        ("ebnf_grammar", AMBIGUOUS, "to generate 32 tokens"),
    ],
)
def test_invalid_guide_does_not_affect_other_requests(
    engine: Any, kind: str, guide: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "2 s" in why:
        monkeypatch.setattr(grammar_check, "CHECK_LIMIT_S", 2.0)
    plain = [request(number, prompt) for number, prompt in enumerate((PROMPT, *OTHERS), 2)]
    alone = run(engine, *plain)
    refused, *answers = run(engine, request(1, guide_type=kind, guide=guide), *plain)
    (update,) = refused
    assert update.error is not None and why in update.error
    assert [tokens(each) for each in answers] == [tokens(each) for each in alone]


def test_guide_that_becomes_slow_does_not_stall_other_requests(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_guard, "LIMIT_S", 0.2)
    prefix = " ".join(str(number) for number in range(20))
    slow = AMBIGUOUS.replace("x x", f'"{prefix}" x x', 1)
    guided = request(2, OTHERS[0], end_id=2, guide_type="regex", guide="[a-z ]+", min_tokens=24)
    plain = request(3, OTHERS[1], max_new_tokens=150, end_id=None)
    alone = [run(engine, each)[0] for each in (guided, plain)]
    attack = request(1, end_id=2, guide_type="ebnf_grammar", guide=slow, **ENDLESS)
    refused, *answers = run(engine, attack, guided, plain)
    assert len(tokens(refused)) > 32, "the check of the guide ends before it becomes slow"
    assert refused[-1].error is not None and refused[-1].rejected
    assert "guided_decoding_guide takes too long to evaluate" in refused[-1].error
    assert [tokens(each) for each in answers] == [tokens(each) for each in alone]


def test_check_of_a_wrong_guide_logs_no_error(
    engine_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check = grammar_check.GrammarCheck(engine_dir, 49152)
    assert check.check("regex", "(").problem
    assert not check.check("regex", "[a-z]+").problem
    check.close()
    assert "[ERROR]" not in "".join(capfd.readouterr())


def test_checks_of_guides_leave_no_files(
    engine_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLLM_SCRATCH", str(tmp_path))
    check = grammar_check.GrammarCheck(engine_dir, 49152)
    assert not check.check("regex", "[a-z]+").problem
    assert list(tmp_path.iterdir()) != []
    monkeypatch.setattr(grammar_check, "CHECK_LIMIT_S", 0.5)
    assert "takes more than 0.5 s" in check.check("ebnf_grammar", AMBIGUOUS).problem
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(grammar_check, "CHECK_LIMIT_S", 60.0)
    assert not check.check("regex", "[0-9]+").problem
    check.close()
    assert list(tmp_path.iterdir()) == []


def test_the_guide_of_a_cancelled_request_is_not_checked(
    quick_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    may_continue, is_cancelled = threading.Event(), threading.Event()
    cancel = Future.cancel

    def check(
        self: grammar_check.GrammarCheck, kind: str, guide: str
    ) -> grammar_check.CheckedGuide:
        checked.append(guide)
        assert may_continue.wait(60)
        return grammar_check.CheckedGuide()

    def record_cancel(future: Future[Any]) -> bool:
        has_ended = cancel(future)
        is_cancelled.set()
        return has_ended

    monkeypatch.setattr(grammar_check.GrammarCheck, "check", check)
    engine = load(quick_engine)
    requests = [request(number, guide_type="regex", guide=str(number)) for number in range(1, 6)]
    for each in requests[:2]:
        engine.submit(each)
    wait_until(lambda: checked)
    engine.cancel(1)
    engine.cancel(2)
    may_continue.set()
    run(engine, requests[2])
    assert checked == ["1", "3"]
    may_continue.clear()
    for each in requests[3:]:
        engine.submit(each)
    wait_until(lambda: "4" in checked)
    monkeypatch.setattr(Future, "cancel", record_cancel)
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert is_cancelled.wait(60)
    may_continue.set()
    closing.join(60)
    assert checked == ["1", "3", "4"]


def test_diverse_beams_differ_from_the_first_token(engine: Any) -> None:
    beams = {"beam_width": 3, "num_return_sequences": 3, "max_new_tokens": 6}
    (diverse,) = run(engine, request(beam_search_diversity_rate=5.0, **beams))
    assert len({tokens(diverse, sequence)[0] for sequence in range(3)}) == 3


def test_perf_metrics_count_allocated_and_reused_blocks(engine: Any) -> None:
    prompt = tuple(range(2000, 2100))
    figures: list[PerfMetrics] = []
    for _ in range(2):
        (answer,) = run(engine, request(prompt=prompt, return_perf_metrics=True))
        assert answer[-1].perf is not None
        figures.append(answer[-1].perf)
    blocks = [
        (each.kv_cache_alloc_total_blocks, each.kv_cache_alloc_new_blocks) for each in figures
    ]
    assert blocks == [(4, 4), (4, 1)]
    assert [each.kv_cache_reused_blocks for each in figures] == [0, 3]
    for each in figures:
        assert each.first_scheduled_time_ns < each.first_token_time_ns < each.last_token_time_ns


def test_prompt_is_scheduled_in_a_later_step_if_the_first_is_full(engine: Any) -> None:
    """The prompts exceed one step, so the last one is scheduled in a later step."""
    for number in (1, 2, 3):
        prompt = tuple(range(3000 + 200 * number, 3200 + 200 * number))
        engine.submit(request(number, prompt, max_new_tokens=2, return_perf_metrics=True))
    updates = engine.step()
    first_step_end_ns = time.monotonic_ns()
    while engine.has_work():
        updates += engine.step()
    perf = {each.request_id: each.perf for each in updates}
    assert perf[1].first_scheduled_time_ns < first_step_end_ns < perf[3].first_scheduled_time_ns


def test_at_most_max_num_seqs_sequences_are_in_the_pipeline(quick_engine: Path) -> None:
    engine = load(quick_engine, max_batch_size=4)
    for number in range(1, 11):
        engine.submit(request(number, end_id=None, num_return_sequences=1 + number % 2, seed=1))
    ended: set[int] = set()
    for step in range(1000):
        if step == 3:
            running = engine.stats()
            engine.cancel(1)  # is running
            engine.cancel(9)  # is waiting
        ended |= {each.request_id for each in engine.step() if each.finish_reason}
        stats = engine.stats()
        assert stats.scheduled_requests <= 4
        if not engine.has_work():
            break
    assert (running.active_requests, running.scheduled_requests) == (10, 2)
    assert running.waiting_requests == 8
    assert ended == set(range(1, 11)) - {1, 9}
    assert (stats.active_requests, stats.waiting_requests, stats.kv_blocks_used) == (0, 0, 0)
    engine.close()


def test_request_with_more_sequences_than_max_num_seqs_is_rejected(quick_engine: Path) -> None:
    engine = load(quick_engine, max_batch_size=1)
    with pytest.raises(InvalidRequest, match=r"has 2 sequences, .* at most 1 .*max_num_seqs"):
        engine.submit(request(num_return_sequences=2))
    engine.close()


def test_request_that_loses_its_kv_blocks_counts_as_preempted(quick_engine: Path) -> None:
    """Two requests fit into the KV cache alone but not together; both finish."""
    prompts = tuple(range(1000, 1060)), tuple(range(2000, 2060))
    requests = [
        request(number, prompt, max_new_tokens=120) for number, prompt in enumerate(prompts, 1)
    ]
    tight, roomy = (load(quick_engine, max_tokens_in_paged_kv_cache=size) for size in (256, 8192))
    assert [len(tokens(updates)) for updates in run(tight, *requests)] == [120, 120]
    stats = tight.stats()
    tight.close()
    assert stats.preemptions >= 1
    assert stats.paused_requests == 0
    run(roomy, *requests)
    assert roomy.stats().preemptions == 0
    roomy.close()


def test_scores_of_a_prompt_are_those_of_its_generation(engine: Any) -> None:
    """The second copy of the model rounds differently, as in `are_equal_but_for_ties`."""
    (generated,) = run(engine, request(return_log_probs=True, max_new_tokens=6))
    whole = (*PROMPT, *tokens(generated))
    fields = {"max_new_tokens": 1, "num_top_log_probs": 2, "return_prompt_log_probs": True}
    log_probs = [number for each in generated for number in each.log_probs]
    for number in (1, 2):  # the second time, the pipeline could reuse the prompt
        ((scored,),) = run(engine, request(number, whole, **fields))
        assert scored.prompt is not None
        assert len(scored.prompt.log_probs) == len(whole) - 1
        assert scored.prompt.log_probs[-6:] == pytest.approx(log_probs, abs=0.5)
        best = [row[0][1] for row in scored.prompt.top_log_probs[-6:]]
        assert best == pytest.approx(log_probs, abs=0.5)


def test_min_p_of_1_selects_the_most_likely_token(engine: Any) -> None:
    (greedy,) = run(engine, request(return_log_probs=True))
    (sampled,) = run(engine, request(return_log_probs=True, top_p=1.0, min_p=1.0, seed=7))
    assert are_equal_but_for_ties(greedy, sampled)
