"""Check whether a model's shape allows a number of GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.shape import Experts, ModelShape


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The distribution of a model over GPUs.

    `pp` pipeline stages divide the layers, and `tp` GPUs split each layer. In layers with experts,
    `moe_tp` GPUs split each expert, and `moe_ep` groups of GPUs divide the experts. The product of
    `moe_tp` and `moe_ep` is `tp`.
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
) -> Parallelism:
    """Return the parallelism with the defaults of TensorRT-LLM for unset numbers.

    If only `moe_tp` or `moe_ep` is set, the other number is `tp` divided by it. If both are unset,
    each expert is split over all `tp` GPUs. Raise `BadInput` if the model's shape does not allow
    the numbers.
    """
    for name, number in (("tp", tp), ("pp", pp), ("moe-tp", moe_tp), ("moe-ep", moe_ep)):
        if number is not None and number < 1:
            raise _refuse(f"--{name} {number}", "it must be at least 1", f"--{name} 1")
    _check_tensor_parallelism(shape, tp)
    if pp > shape.num_layers:
        raise _refuse(
            f"--pp {pp}",
            f"the model only has {shape.num_layers} layers",
            f"--pp {shape.num_layers} or fewer",
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
    _check_experts(shape.experts, moe_tp, moe_ep)
    return Parallelism(tp, pp, moe_tp, moe_ep)


def find_tensor_parallelisms(shape: ModelShape, max_tp: int) -> tuple[int, ...]:
    """Return every `tp` up to `max_tp` that the shape allows, in ascending order."""
    return tuple(tp for tp in range(1, max_tp + 1) if _find_obstacle(shape, tp) is None)


def _check_tensor_parallelism(shape: ModelShape, tp: int) -> None:
    if why := _find_obstacle(shape, tp):
        possible = find_tensor_parallelisms(shape, 16)
        raise _refuse(f"--tp {tp}", why, f"--tp {', '.join(map(str, possible))}")


def _find_obstacle(shape: ModelShape, tp: int) -> str | None:
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    if heads % tp:
        return f"{heads} attention heads cannot be divided among {tp} GPUs"
    # MLA caches a latent without heads, which is replicated, so its KV heads need no division.
    if shape.latent is None and kv_heads % tp and tp % kv_heads:
        return f"{kv_heads} key-value heads can neither be divided nor repeated among {tp} GPUs"
    has_dense_mlp = shape.experts is None or shape.experts.num_layers < shape.num_layers
    if has_dense_mlp and shape.intermediate_size % tp:
        return f"an MLP of width {shape.intermediate_size} cannot be divided among {tp} GPUs"
    return None


def _resolve(tp: int, moe_tp: int | None, moe_ep: int | None) -> tuple[int, int]:
    if moe_tp is None and moe_ep is None:
        return tp, 1
    resolved = (moe_tp or tp // (moe_ep or 1), moe_ep or tp // (moe_tp or 1))
    if resolved[0] * resolved[1] != tp:
        raise _refuse(
            f"--moe-tp {moe_tp or 'unset'} --moe-ep {moe_ep or 'unset'}",
            f"their product must be --tp, which is {tp}",
            f"--moe-tp {tp} --moe-ep 1",
        )
    return resolved


def _check_experts(experts: Experts, moe_tp: int, moe_ep: int) -> None:
    if experts.num_experts % moe_ep:
        raise _refuse(
            f"--moe-ep {moe_ep}",
            f"{experts.num_experts} experts cannot be divided evenly among {moe_ep} GPUs",
            "set --moe-ep to a divisor of the number of experts",
        )
    if experts.intermediate_size % moe_tp:
        raise _refuse(
            f"--moe-tp {moe_tp}",
            f"an expert of width {experts.intermediate_size} cannot be divided among {moe_tp} GPUs",
            "divide the experts instead: --moe-tp 1 --moe-ep N",
        )


def _refuse(what: str, why: str, next_step: str) -> BadInput:
    return BadInput(f"The model cannot run with {what}.", why=why, next_step=next_step)
