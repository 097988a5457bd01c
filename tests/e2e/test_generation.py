"""Generation options of requests to `tensorrt_llm` and the text models."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.e2e.conftest import Tllm
from tests.e2e.core import infer, tokens
from tests.e2e.shallow import REPETITION_PENALTY, find_last_word
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest

PROMPT = [1, 4093, 198, 1780, 314, 17933, 47, 2, 198, 1, 520, 9531, 198]
END_ID = 2
# Runs OpenVINO GenAI directly, in its own process. argv: the engine and the prompts.
RUN_GENAI = """
import json, sys
import numpy, openvino, openvino_genai as genai
scheduler = genai.SchedulerConfig()
scheduler.num_kv_blocks, scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 1024, 64, 256
scheduler.enable_prefix_caching = True
pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU")
config = genai.GenerationConfig()
config.max_new_tokens, config.eos_token_id, config.stop_token_ids = 40, 2, {2}
answers = []
for ids in json.loads(sys.argv[2]):
    tensor = openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
    answers.append(pipeline.generate([tensor], [config])[0].m_generation_ids[0])
print(json.dumps(answers))
"""


def test_greedy_tokens_equal_those_of_openvino_genai(served: Tllm, endpoint: Endpoint) -> None:
    prompts = [PROMPT, [504, 3575, 282, 4649, 314], list(range(1000, 1100))]
    engine = str(served.engine("demo"))
    command = (sys.executable, "-c", RUN_GENAI, engine, json.dumps(prompts))
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    direct = [
        [token for token in ids if token != END_ID] for ids in json.loads(output.splitlines()[-1])
    ]
    assert [tokens(infer(endpoint, ids, 40, end_id=END_ID)) for ids in prompts] == direct


def test_without_an_end_id_generation_runs_to_its_length(endpoint: Endpoint) -> None:
    assert len(tokens(infer(endpoint, PROMPT, 60))) == 60


def test_end_token_ends_the_sequence_and_is_not_returned(endpoint: Endpoint) -> None:
    free = tokens(infer(endpoint, PROMPT, 12))
    assert tokens(infer(endpoint, PROMPT, 12, end_id=free[5])) == free[: free.index(free[5])]


def test_min_tokens_delays_the_end(endpoint: Endpoint) -> None:
    first = tokens(infer(endpoint, PROMPT, 1))[0]
    assert len(tokens(infer(endpoint, PROMPT, 12, end_id=first, min_tokens=5))) >= 5


def test_streamed_tokens_equal_those_of_a_whole_response(endpoint: Endpoint) -> None:
    streamed = infer(endpoint, PROMPT, 20, streaming=True)
    assert 1 < len(streamed) <= 20
    assert tokens(streamed) == tokens(infer(endpoint, PROMPT, 20))


def test_the_same_seed_gives_the_same_tokens(endpoint: Endpoint) -> None:
    def sample(seed: int) -> list[int]:
        return tokens(infer(endpoint, PROMPT, 20, runtime_top_p=0.95, seed=np.uint64(seed)))

    assert sample(7) == sample(7) != sample(8)


def test_top_k_of_one_is_greedy(endpoint: Endpoint) -> None:
    greedy = tokens(infer(endpoint, PROMPT, 10))
    assert tokens(infer(endpoint, PROMPT, 10, runtime_top_k=1, temperature=5.0)) == greedy


def test_temperature_alone_stays_greedy_as_upstream(endpoint: Endpoint) -> None:
    assert tokens(infer(endpoint, PROMPT, 10, temperature=5.0)) == tokens(
        infer(endpoint, PROMPT, 10)
    )


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.8}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}],
    ids=lambda penalty: next(iter(penalty)),
)
def test_penalties_reduce_repetition(endpoint: Endpoint, penalty: dict[str, float]) -> None:
    plain = tokens(infer(endpoint, [504, 504, 504], 30))
    penalized = tokens(infer(endpoint, [504, 504, 504], 30, **penalty))
    assert len(set(penalized)) > len(set(plain))


def test_beams_come_together_best_first(endpoint: Endpoint) -> None:
    (answer,) = infer(endpoint, PROMPT, 8, beam_width=3, return_log_probs=True)
    assert answer["output_ids"].shape == (1, 3, 8)
    best, *others = answer["cum_log_probs"][0].tolist()
    assert all(best >= other for other in others)


def test_several_samples_have_an_index_each(endpoint: Endpoint) -> None:
    answers = infer(endpoint, PROMPT, 8, num_return_sequences=3, runtime_top_p=0.9)
    assert sorted(int(each["sequence_index"][0, 0]) for each in answers) == [0, 1, 2]


def test_log_probs_add_up(endpoint: Endpoint) -> None:
    (answer,) = infer(endpoint, PROMPT, 10, return_log_probs=True)
    each = answer["output_log_probs"][0, 0]
    assert (each <= 0).all() and len(each) == 10
    assert answer["cum_log_probs"][0, 0] == pytest.approx(each.sum(), rel=1e-4)


def generate_text(endpoint: Endpoint, text: str, **options: object) -> str:
    request = GenerateRequest(text, stream=False, **options)  # type: ignore[arg-type]
    return generate(endpoint, "demo", request).text


def generate_words(endpoint: Endpoint, **options: object) -> str:
    """Generate text whose words differ."""
    options |= {"max_tokens": 30, "repetition_penalty": REPETITION_PENALTY}
    return generate_text(endpoint, "One, two, three,", **options)


def test_a_stop_word_ends_the_text(endpoint: Endpoint) -> None:
    free = generate_words(endpoint)
    word = find_last_word(free)
    text = generate_words(endpoint, stop_words=(word,))
    assert text == free[: free.index(word) + len(word)]


def test_bad_word_is_not_generated(endpoint: Endpoint) -> None:
    free = generate_words(endpoint)
    word = find_last_word(free)
    banned = generate_words(endpoint, bad_words=(word,))
    assert word not in banned and banned.startswith(free[: free.index(word)].rstrip())


PROMPTS_OF_MANY_SCRIPTS = {
    "English": "The quick brown fox",
    "Chinese": "请把这句话翻译成中文：你好，世界！我们",
    "Japanese": "こんにちは。日本語で続けてください。私は",
    "emoji": "Repeat: 🙂👩‍👩‍👧‍👦🇩🇪🙂👩‍👩‍👧‍👦🇩🇪🙂👩‍👩‍👧‍👦🇩🇪🙂",
    "combining characters": "Repeat: " + "e\u0301 a\u0308 o\u0302 " * 3,
    "spaces": "a  b   c\n\n    d\t\te  f   g\n\n    h\t\t",
}


@pytest.mark.parametrize("prompt", PROMPTS_OF_MANY_SCRIPTS.values(), ids=PROMPTS_OF_MANY_SCRIPTS)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_streamed_text_equals_the_whole_text(
    endpoint: Endpoint, prompt: str, seed: int | None
) -> None:
    sampling = {} if seed is None else {"seed": seed, "top_p": 0.98, "temperature": 1.5}
    request = GenerateRequest(prompt, max_tokens=24, **sampling)  # type: ignore[arg-type]
    pieces = "".join(piece.text for piece in stream(endpoint, "demo", request))
    assert pieces == generate_text(endpoint, prompt, max_tokens=24, **sampling)


def test_concurrent_requests_get_correct_responses(endpoint: Endpoint) -> None:
    def generate_one(index: int) -> tuple[int | None, int | None]:
        request = GenerateRequest("word " * (index + 1), max_tokens=10 + index % 5, min_tokens=10)
        answer = generate(endpoint, ("demo", "ensemble")[index % 2], request)
        assert answer.text
        return answer.num_input_tokens, answer.num_output_tokens

    with ThreadPoolExecutor(32) as threads:
        counts = list(threads.map(generate_one, range(32)))
    inputs = [num_input or 0 for num_input, _ in counts]
    assert inputs == sorted(set(inputs))
    assert all(10 <= (num or 0) <= 10 + index % 5 for index, (_, num) in enumerate(counts))
