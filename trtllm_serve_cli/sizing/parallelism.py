"""Check whether a model can be split across several GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.shape import Experts, ModelShape


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The distribution of a model across GPUs.

    The layers are divided among `pp` pipeline stages, and each layer is split across `tp` GPUs. In
    layers with experts, the experts are divided among `moe_ep` groups of GPUs, and each expert is
    split across `moe_tp` GPUs. The product of `moe_tp` and `moe_ep` is `tp` if the model has
    experts. Otherwise, both are 1.
    """

    tp: int = 1
    pp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1

    @property
    def world_size(self) -> int:
        return self.tp * self.pp


def check_parallelism(
    shape: ModelShape,
    tp: int = 1,
    pp: int = 1,
    moe_tp: int | None = None,
    moe_ep: int | None = None,
    *,
    needs_equal_groups: bool = True,
) -> Parallelism:
    """Return the parallelism if it is valid, with TensorRT-LLM's defaults for unset values.

    If only one of `moe_tp` and `moe_ep` is set, the other value is `tp` divided by the set value.
    If neither is set, each expert is split across all `tp` GPUs. If `needs_equal_groups` is false,
    the groups of GPUs may have different numbers of experts. Raise `BadInput` if a number is less
    than 1, or if the model cannot be divided in this way. Also raise `BadInput` if `moe_tp` or
    `moe_ep` is greater than 1 but the model does not have experts.
    """
    for name, number in (("tp", tp), ("pp", pp), ("moe-tp", moe_tp), ("moe-ep", moe_ep)):
        if number is not None and number < 1:
            raise _refuse(
                f"--{name} {number}", "the number must be at least 1", f"set --{name} to 1 or more"
            )
    _check_tensor_parallelism(shape, tp)
    if pp > shape.num_layers:
        raise _refuse(
            f"--pp {pp}",
            f"the number of pipeline stages exceeds the number of layers, {shape.num_layers}",
            f"set --pp to {shape.num_layers} or less",
        )
    if shape.experts is None:
        if (moe_tp or 1, moe_ep or 1) != (1, 1):
            raise _refuse(
                f"--moe-tp {moe_tp or 1} --moe-ep {moe_ep or 1}",
                "the model does not have experts",
                "omit --moe-tp and --moe-ep",
            )
        return Parallelism(tp, pp)
    moe_tp, moe_ep = _resolve(tp, moe_tp, moe_ep)
    _check_experts(shape.experts, moe_tp, moe_ep, needs_equal_groups=needs_equal_groups)
    return Parallelism(tp, pp, moe_tp, moe_ep)


def find_tensor_parallelisms(shape: ModelShape, max_tp: int) -> tuple[int, ...]:
    """Return every `tp` up to `max_tp` that the shape allows, in ascending order."""
    return tuple(tp for tp in range(1, max_tp + 1) if _find_obstacle(shape, tp) is None)


def _check_tensor_parallelism(shape: ModelShape, tp: int) -> None:
    if why := _find_obstacle(shape, tp):
        possible = find_tensor_parallelisms(shape, 16)
        raise _refuse(f"--tp {tp}", why, f"set --tp to one of {', '.join(map(str, possible))}")


def _find_obstacle(shape: ModelShape, tp: int) -> str | None:
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    if heads % tp:
        return f"the number of attention heads, {heads}, is not divisible by {tp}"
    # With MLA, every GPU caches the complete latent, so the number of key-value heads does not
    # limit `tp`.
    if shape.latent is None and kv_heads % tp and tp % kv_heads:
        return (
            f"the number of key-value heads, {kv_heads}, is neither a multiple nor a divisor of "
            f"{tp}"
        )
    has_dense_mlp = shape.experts is None or shape.experts.num_layers < shape.num_layers
    if has_dense_mlp and shape.intermediate_size % tp:
        return f"the MLP width, {shape.intermediate_size}, is not divisible by {tp}"
    return None


def _resolve(tp: int, moe_tp: int | None, moe_ep: int | None) -> tuple[int, int]:
    if moe_tp is None and moe_ep is None:
        return tp, 1
    resolved = (moe_tp or tp // (moe_ep or 1), moe_ep or tp // (moe_tp or 1))
    if resolved[0] * resolved[1] != tp:
        raise _refuse(
            " ".join(
                f"{flag} {number}"
                for flag, number in (("--moe-tp", moe_tp), ("--moe-ep", moe_ep))
                if number
            ),
            f"the product of --moe-tp and --moe-ep must equal --tp ({tp})",
            f"pass --moe-tp {tp} --moe-ep 1",
        )
    return resolved


def _check_experts(experts: Experts, moe_tp: int, moe_ep: int, *, needs_equal_groups: bool) -> None:
    is_unequal = experts.num_experts % moe_ep != 0
    if experts.num_experts < moe_ep or (is_unequal and needs_equal_groups):
        raise _refuse(
            f"--moe-ep {moe_ep}",
            f"the number of experts, {experts.num_experts}, is not divisible by {moe_ep}",
            f"set --moe-ep to a divisor of {experts.num_experts}",
        )
    if experts.intermediate_size % moe_tp:
        raise _refuse(
            f"--moe-tp {moe_tp}",
            f"the expert width, {experts.intermediate_size}, is not divisible by {moe_tp}",
            "pass --moe-tp 1 --moe-ep N to divide the experts among the GPUs",
        )


def _refuse(what: str, why: str, next_step: str) -> BadInput:
    return BadInput(f"The model cannot run with {what}.", why=why, next_step=next_step)
