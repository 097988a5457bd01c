from __future__ import annotations

from trtllm_serve_cli.client.generate import Completion, Piece, summarize_pieces


def test_joins_pieces_per_sequence_in_order() -> None:
    pieces = [
        Piece("b", 2.0, 1, num_output_tokens=1, cum_log_prob=-1.0, output_log_probs=(-1.0,)),
        Piece("a", 2.5, 0, num_input_tokens=7, num_output_tokens=1, cum_log_prob=-0.5),
        Piece("B", 3.0, 1, num_output_tokens=2, cum_log_prob=-2.0, output_log_probs=(-1.0,)),
    ]
    assert summarize_pieces(pieces, 1.0, 5.0) == Completion(
        texts=("a", "bB"),
        latency_s=4.0,
        ttft_s=1.0,
        num_input_tokens=7,
        num_output_tokens=4,
        cum_log_probs=(-0.5, -2.0),
        output_log_probs=((-1.0, -1.0),),
    )


def test_finish_reason_of_each_sequence_is_known_or_none() -> None:
    pieces = [
        Piece("b", 1.0, 1, finish_reason="length"),
        Piece("a", 1.0, 0),
        Piece("", 2.0, 1),
        Piece("c", 2.0, 2, finish_reason="stop"),
    ]
    assert summarize_pieces(pieces, 1.0, 2.0).finish_reasons == (None, "length", "stop")
    assert summarize_pieces(pieces[1:3], 1.0, 2.0).finish_reasons == ()


def test_rate_is_tokens_divided_by_latency() -> None:
    assert Completion(("x",), latency_s=2.0, num_output_tokens=10).tokens_per_s == 5.0


def test_no_pieces_give_an_empty_completion() -> None:
    nothing = summarize_pieces([], 1.0, 2.0)
    assert (nothing, nothing.text, nothing.tokens_per_s) == (Completion((), 1.0), "", None)
