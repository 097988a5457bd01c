"""The commands: each module parses its options, calls one stage, prints what came back."""
