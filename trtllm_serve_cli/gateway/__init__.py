"""Serve an OpenAI-compatible API in front of Triton models.

The gateway is a separate process that runs next to Triton. It renders chat templates, encodes
prompts, sends token ids to a model's engine worker or to Triton, and decodes the generated tokens.

    config       the gateway's configuration, and its conversion to and from JSON
    app          the ASGI application: routes, errors and the life cycle
    endpoints    handlers for the requests to each route, except for Triton's own API
    schema       request bodies
    translate    conversion of Anthropic Messages and OpenAI Responses requests to chat completions
    generation   backends that generate tokens, and the conversion of tokens to text
    prompts      chat templates, and parsers for tool calls and reasoning
    access       API keys, limits and the request queue
    door         access to Triton's own API, with limits that protect Triton
    telemetry    metrics, traces and the access log
"""
