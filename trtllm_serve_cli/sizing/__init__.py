"""What a model needs and what a GPU has, from small facts alone.

Takes a source's config.json and index, or a GGUF file's header, and a card of `gpus.yaml`; gives a
`ModelShape`, which says how many parameters the model has and where, and a `SizePlan`: what is in
each GPU's memory, how many sequences it has room for, how fast it could go. Nothing here reads
weights, needs a GPU or writes anything but the hub's cache.
"""
