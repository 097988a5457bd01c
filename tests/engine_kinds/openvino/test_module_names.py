"""Linear layers of an OpenVINO model, identified by structure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.engine_kinds.openvino.module_names import find_modules, name_modules

openvino = pytest.importorskip("openvino", reason="needs the extra `embedded`")

HIDDEN, INNER = 8, 16
SIZES = {
    "self_attn.q_proj": [HIDDEN, HIDDEN],
    "self_attn.k_proj": [HIDDEN, HIDDEN],
    "self_attn.v_proj": [HIDDEN, HIDDEN],
    "self_attn.o_proj": [HIDDEN, HIDDEN],
    "mlp.gate_proj": [INNER, HIDDEN],
    "mlp.up_proj": [INNER, HIDDEN],
    "mlp.down_proj": [HIDDEN, INNER],
}


def make_model(
    num_layers: int, *, has_activation: bool = True, has_multiplication: bool = True
) -> Any:
    """Return a decoder of bare layers; each node is named after its module and layer."""
    from openvino import opset13 as ops

    rng = np.random.default_rng(0)

    def linear(x: Any, layer: int, name: str) -> Any:
        weight = ops.constant(rng.random(SIZES[name], dtype=np.float32).astype(np.float16))
        node = ops.matmul(x, ops.convert(weight, "f32"), False, True)
        node.set_friendly_name(f"made {layer} {name}")
        return node

    x = entry = ops.parameter([-1, -1, HIDDEN], np.float32, "x")
    for layer in range(num_layers):
        q, k, v = (linear(x, layer, f"self_attn.{each}_proj") for each in "qkv")
        heads = [ops.unsqueeze(each, ops.constant(1)) for each in (ops.multiply(q, q), k, v)]
        attention = ops.squeeze(ops.scaled_dot_product_attention(*heads), ops.constant(1))
        x = ops.add(x, linear(attention, layer, "self_attn.o_proj"))
        up = linear(x, layer, "mlp.up_proj")
        gate = linear(x, layer, "mlp.gate_proj")
        gate = ops.swish(gate) if has_activation else ops.relu(gate)
        gated = ops.multiply(up, gate) if has_multiplication else ops.add(up, gate)
        x = ops.add(x, linear(gated, layer, "mlp.down_proj"))
    return openvino.Model([x], [entry])


def test_finds_modules_by_structure() -> None:
    found = find_modules(make_model(3))
    assert {name: node.get_friendly_name() for name, node in found.items()} == {
        f"model.layers.{layer}.{name}": f"made {layer} {name}"
        for layer in range(3)
        for name in SIZES
    }


def test_modules_get_the_names_of_a_pytorch_export() -> None:
    model = make_model(1)
    name_modules(model)
    names = {node.get_friendly_name() for node in model.get_ops()}
    assert {f"__module.model.layers.0.{name}/ov_ext::linear/MatMul" for name in SIZES} <= names


@pytest.mark.parametrize("missing", ["has_activation", "has_multiplication"])
def test_does_not_rename_nodes_of_an_unknown_structure(missing: str) -> None:
    model = make_model(1, **{missing: False})
    with pytest.raises(LookupError, match="the structure of a layer differs from"):
        name_modules(model)
    assert not any("__module" in node.get_friendly_name() for node in model.get_ops())
