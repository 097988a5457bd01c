"""Commands for models: import, build, plan, list, show, set, validate, export, remove, lora."""
