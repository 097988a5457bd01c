"""Rename the linear layers of an OpenVINO model to the names that LoRA adapters use.

OpenVINO GenAI matches an adapter's tensors to layers by node name. In models exported from PyTorch,
nodes are named after modules. In models converted from a GGUF file, nodes are numbered. This module
therefore identifies linear layers by their position in the graph, relative to an attention node and
the activation that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_ATTENTION = "ScaledDotProductAttention"
_ACTIVATION = "Swish"
# Node types that may occur between a stored weight and its MatMul node.
_DECOMPRESSION = ("Convert", "Multiply", "Reshape", "Subtract", "Transpose")


def find_modules(model: Any) -> dict[str, Any]:
    """Return each module's MatMul node, keyed by the module name in Hugging Face's Llama.

    Raise `LookupError` if the structure of `model` differs from Llama's.
    """
    modules: dict[str, Any] = {}
    # Each attention node depends on the previous layer's attention node, so the topological order
    # matches the layer order.
    attentions = [node for node in model.get_ordered_ops() if node.get_type_name() == _ATTENTION]
    for layer, attention in enumerate(attentions):
        for name, node in _layer_modules(attention).items():
            modules[f"model.layers.{layer}.{name}"] = node
    if len({node.get_friendly_name() for node in modules.values()}) != len(modules):
        raise LookupError("two modules share the same MatMul node")
    return modules


def name_modules(model: Any) -> None:
    """Rename the nodes from `find_modules` to the names that a PyTorch export would use.

    Raise `LookupError` if the structure of `model` differs from Llama's.
    """
    for name, node in find_modules(model).items():
        node.set_friendly_name(f"__module.{name}/ov_ext::linear/MatMul")


def _layer_modules(attention: Any) -> dict[str, Any]:
    output = _nearest(_consumers(attention), _consumers, _is_linear)
    activation = _nearest(_consumers(output), _consumers, _is_activation)
    gated = _nearest(_consumers(activation), lambda node: [], _is_multiplication)
    factors = [node for node in _producers(gated) if not _is_same(node, activation)]
    return {
        **{
            f"self_attn.{name}_proj": _nearest([node], _producers, _is_linear)
            for name, node in zip("qkv", _producers(attention), strict=False)
        },
        "self_attn.o_proj": output,
        "mlp.gate_proj": _nearest(_producers(activation), _producers, _is_linear),
        "mlp.up_proj": _nearest(factors, _producers, _is_linear),
        "mlp.down_proj": _nearest(_consumers(gated), _consumers, _is_linear),
    }


def _nearest(
    start: Iterable[Any], step: Callable[[Any], list[Any]], matches: Callable[[Any], bool]
) -> Any:
    """Return the nearest matching node, found by a breadth-first search.

    Nodes are identified by name, because OpenVINO returns a new Python object on each access. Raise
    `LookupError` if no node matches.
    """
    seen: set[str] = set()
    pending = list(start)
    while pending:
        current, pending = pending, []
        for node in current:
            if node.get_friendly_name() in seen:
                continue
            seen.add(node.get_friendly_name())
            if matches(node):
                return node
            pending += step(node)
    raise LookupError("the structure of a layer differs from Llama's")


def _is_linear(node: Any) -> bool:
    """Return whether the node multiplies by a weight matrix."""
    if node.get_type_name() != "MatMul":
        return False
    weight = node.input_value(1)
    shape = weight.get_partial_shape()
    if shape.is_dynamic or len(shape) != 2:
        return False
    origin = weight.get_node()
    while origin.get_type_name() in _DECOMPRESSION:
        origin = origin.input_value(0).get_node()
    return bool(origin.get_type_name() == "Constant")


def _is_activation(node: Any) -> bool:
    return bool(node.get_type_name() == _ACTIVATION)


def _is_multiplication(node: Any) -> bool:
    return bool(node.get_type_name() == "Multiply")


def _is_same(node: Any, other: Any) -> bool:
    return bool(node.get_friendly_name() == other.get_friendly_name())


def _producers(node: Any) -> list[Any]:
    return [node.input_value(index).get_node() for index in range(node.get_input_size())]


def _consumers(node: Any) -> list[Any]:
    return [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]
