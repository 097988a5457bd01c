"""Serve an OpenAI-compatible API in front of Triton models.

The gateway runs in one or more processes outside Triton. It renders chat templates, encodes
prompts, sends token ids to a model's engine worker or to Triton, and decodes the generated tokens.

    config       the gateway configuration and its JSON format
    app          the ASGI application: routes, error handlers and lifespan
    endpoints    request handlers for all routes except Triton's API
    schema       request bodies
    translate    conversion of Anthropic Messages and OpenAI Responses requests to chat completions
    generation   backends that generate tokens, and detokenization
    prompts      chat templates, and parsers for tool calls and reasoning
    access       API keys, limits and the request queue
    door         proxy for Triton's API, with limits that protect Triton
    telemetry    metrics, traces and the access log
"""
