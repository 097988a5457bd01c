"""Format the results of the GPU check, compared with the reference and the objectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpu_text
from gpu_gateway import table


def report(found: dict[str, Any]) -> str:
    """Return the table of measurements, references and objectives."""
    seen = [row for row in _rows(found) if row[1] != "-"]
    rows = [("metric", "measured", "reference", "objective"), *seen]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    for title, cores in (
        ("CPU cores in use, burst", _get(found, "served.burst.cores")),
        ("CPU cores in use, streaming", _get(found, "served.streaming.cores")),
    ):
        if cores:
            lines += ["", title, *(f"  {name:<28} {used:6.2f}" for name, used in cores.items())]
    for part, servers in (("gateway", ""), ("engines", " of several engines")):
        if medians := _get(found, f"{part}.medians"):
            lines += ["", f"chat streams{servers}, medians of the rounds", *table(medians)]
    if medians := _get(found, "text.medians"):
        lines += ["", "text streams, medians of the rounds", *gpu_text.table(medians)]
    if first_tokens := _get(found, "text.first_tokens"):
        lines += ["", "single text streams", *gpu_text.first_token_table(first_tokens)]
    if clocks := [line for part in found for line in _clocks(found, part)]:
        lines += ["", "busy GPUs (min / median / max)", *clocks]
    failed = list(_errors(found))
    return "\n".join([*lines, *(["", "failed or skipped:", *failed] if failed else [])])


def _clocks(found: dict[str, Any], part: str) -> Iterator[str]:
    """Yield a line with the clocks and the power of the GPUs during a part."""
    gpu = _get(found, f"{part}.gpu")
    if gpu and gpu["num_busy"]:
        clock, power = (
            " / ".join(f"{gpu[name][rank]:.0f}" for rank in ("min", "p50", "max"))
            for name in ("sm_clock_mhz", "power_w")
        )
        yield f"  {part:12} {clock} MHz, {power} W in {gpu['num_busy']} samples"


def _errors(found: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, each in found.items():
        if isinstance(each, dict):
            yield from _errors(each, f"{path}{name}.")
        elif name in ("error", "left_out"):
            yield f"{path.rstrip('.')}: {each}"


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    def row(what: str, seen: str, other: str = "", objective: str = "", form: str = ".1f") -> Any:
        values = [_get(found, path) for path in (seen, other) if path]
        shown = [f"{value:{form}}" if isinstance(value, (int, float)) else "-" for value in values]
        ratio = ""
        if len(values) == 2 and all(isinstance(each, (int, float)) and each for each in values):
            ratio = f" ({values[0] / values[1]:.3f})"
        return what, shown[0], (shown[1] + ratio if other else ""), objective

    yield row("burst, requests/s", "served.burst.requests_per_s", "raw.requests_per_s",
              "> 188.09, >= 0.95 of vLLM's")  # fmt: skip
    yield row("burst, output tokens/s", "served.burst.tokens_per_s", "raw.tokens_per_s",
              "> 3857.66")  # fmt: skip
    yield row("one stream (BLS), tokens/s", "served.alone.tokens_per_s", "raw.alone.tokens_per_s",
              ">= 0.95 of vLLM's")  # fmt: skip
    yield row("one stream (BLS), first token, ms", "served.alone.ttft_ms", "raw.alone.ttft_ms",
              "<= 3 ms above", ".2f")  # fmt: skip
    yield row("200 tokens in, 100 out, ms", "served.latency.p50_ms", "raw.latency_ms", "< 1630")
    yield row("streams of ids, lost tokens", "served.streaming.num_lost", "", "0", "d")
    yield row("streams of ids, output tokens/s", "served.streaming.tokens_per_s")
    yield row("streams of ids, ITL p50, ms", "served.streaming.itl.p50_ms")
    yield row("streams of ids, ITL p99, ms", "served.streaming.itl.p99_ms")
    yield row("streams of ids, tokens per response", "served.streaming.tokens_per_response",
              form=".2f")  # fmt: skip
    yield row("equal greedy responses", "greedy.num_equal", "greedy.num_prompts", "all",
              "d")  # fmt: skip
    yield row("equal greedy responses, in a batch", "greedy.together.num_equal",
              "greedy.vllm_together.num_equal", "", "d")  # fmt: skip
    yield row("changed by another early token", "greedy.num_changed", "greedy.num_prompts", "all",
              "d")  # fmt: skip
    for adapter in ("known", "late"):
        yield row(f"changed by adapter {adapter}", f"lora.num_changed.{adapter}",
                  "lora.triton.num_prompts", "all", "d")  # fmt: skip
    yield row("equal with adapter known, Triton", "lora.triton.num_equal",
              "lora.triton.num_prompts", "all", "d")  # fmt: skip
    for model in ("gpu-check", "known", "late"):
        for way, name in (("gateway", "one by one"), ("together", "together")):
            yield row(f"equal with {model}, gateway, {name}", f"lora.{way}.{model}.num_equal",
                      f"lora.{way}.{model}.num_prompts", "all", "d")  # fmt: skip
    yield row("TP 2: equal greedy responses", "tp2.greedy.num_equal",
              "tp2.greedy.num_prompts", "all", "d")  # fmt: skip
    yield row("TP 2: burst, requests/s", "tp2.burst.requests_per_s",
              "served.burst.requests_per_s")  # fmt: skip
    yield row("embeddings, smallest cosine", "embeddings.min_cosine", "", "> 0.999", ".6f")
    yield row("embeddings, texts/s", "embeddings.texts_per_s", "embeddings.raw_texts_per_s")
    yield row("ready after, cold cache, s", "ready.cold_s")
    yield row("ready after, warm cache, s", "ready.warm_s")


def _get(found: dict[str, Any], path: str) -> Any:
    value: Any = found
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
