"""Measure the cost of numbered frames between an engine worker and its clients.

    python benchmarks/frames.py [--rounds 20] [--frames 2000]

Encodes, sends and reads `step` frames of 1, 64 and 256 sequences, with and without numbers in
turn. Prints the median time per frame, and the median ratio of the rounds.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time

from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.worker.protocol import FrameNumbers, encode_frame, read_frame


def measure_s(num_sequences: int, num_frames: int, *, is_numbered: bool) -> float:
    """Return the time per frame."""
    updates = [SequenceUpdate(each, 0, (each,)) for each in range(num_sequences)]
    sent, received = FrameNumbers(), FrameNumbers()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        started_s = time.perf_counter()
        for _ in range(num_frames):
            message = {"is": "step", "updates": [each.to_wire() for each in updates]}
            ours.sendall(sent.encode(message) if is_numbered else encode_frame(message))
            frame = read_frame(theirs, received if is_numbered else None)
            assert frame is not None
            for entry in frame["updates"]:
                SequenceUpdate.from_wire(entry)
        return (time.perf_counter() - started_s) / num_frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--frames", type=int, default=2000)
    arguments = parser.parse_args()
    for num_sequences in (1, 64, 256):
        num_frames = max(arguments.frames // num_sequences, 50)
        plain: list[float] = []
        numbered: list[float] = []
        for _ in range(arguments.rounds):
            plain.append(measure_s(num_sequences, num_frames, is_numbered=False))
            numbered.append(measure_s(num_sequences, num_frames, is_numbered=True))
        ratio = statistics.median(b / a for a, b in zip(plain, numbered, strict=True))
        print(
            f"{num_sequences:4} sequences: {statistics.median(plain) * 1e6:8.1f} us plain, "
            f"{statistics.median(numbered) * 1e6:8.1f} us numbered, ratio {ratio:.3f}"
        )


if __name__ == "__main__":
    main()
