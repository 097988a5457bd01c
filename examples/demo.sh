#!/usr/bin/env bash
# Run the whole workflow on this machine: import, start, infer, bench, metrics, stop.
# All files are in TLLM_HOME (default: .demo next to this project's Makefile).
set -euo pipefail

export TLLM_HOME="${TLLM_HOME:-$(cd "$(dirname "$0")/.." && pwd)/.demo}"
ports=(--http-port "${HTTP_PORT:-8000}" --grpc-port "${GRPC_PORT:-8001}"
       --metrics-port "${METRICS_PORT:-8002}" --openai-port "${OPENAI_PORT:-9000}")
results="$TLLM_HOME/results"
started=$SECONDS

run() {
    echo
    echo "\$ ${*@Q}" | sed "s/'\([A-Za-z0-9=:._/-]*\)'/\1/g"
    "$@"
}

# The server stops when this script ends, even if the script is killed.
setsid bash -c 'tail --pid="$1" -f /dev/null; exec tllm stop --all' watchdog $$ \
    >/dev/null 2>&1 </dev/null &
trap 'tllm stop --all >/dev/null 2>&1' EXIT

rm -rf "$results"
tllm stop --all >/dev/null 2>&1
run tllm import -m demo
run tllm start -m demo "${ports[@]}"
run tllm infer "What is ML?" --max-tokens 120
run tllm bench token-norm-dist --num-requests 32 --stream --output "$results"
run tllm metrics
run tllm status
run tllm stop

cat <<SUMMARY

Done in $((SECONDS - started)) s: a real model was imported, served, queried, measured and stopped.
  model repository  $TLLM_HOME/models/demo
  engine            $(echo "$TLLM_HOME"/engines/demo-*)
  benchmark         $results/summary.json
  server's log      $(ls -t "$TLLM_HOME"/servers/*/server.log | head -1)
Try it yourself:
  export TLLM_HOME=$TLLM_HOME PATH=$(dirname "$(command -v tllm)"):\$PATH
  tllm start && tllm infer "Why is the sky blue?"
SUMMARY
