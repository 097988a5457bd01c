#!/usr/bin/env bash
# Import and serve a model, and send two prompts. Expected output on stdout: quickstart.expected
set -euo pipefail

tllm import -m demo
tllm start -m demo "$@"
trap 'tllm stop' EXIT
tllm infer --raw --max-tokens 2 "The capital of France is"
tllm infer --raw --max-tokens 2 --interface http "The capital of Japan is"
