"""A tiny gpt-oss whose experts are stored in MXFP4, as its published checkpoints are."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.engine.tiny_models import save_tiny
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
LARGEST_EXPONENT = 2
"""Of the largest of these."""
QUANTIZED = ("gate_up_proj", "down_proj")
CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


def to_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [E, N, K] -> (blocks [E, N, K/32, 16], scales [E, N, K/32]), both uint8."""
    groups = weight.float().unflatten(-1, (-1, 32))
    top = groups.abs().amax(dim=-1, keepdim=True).clamp_min(2.0**-100)
    exponents = top.log2().floor() - LARGEST_EXPONENT
    scaled = groups * torch.exp2(-exponents)
    codes = (scaled.abs()[..., None] - NUMBERS).abs().argmin(dim=-1) + 8 * (scaled < 0)
    blocks = codes[..., ::2] | codes[..., 1::2] << 4
    return blocks.to(torch.uint8), (exponents.squeeze(-1) + 127).to(torch.uint8)


def save_mxfp4(folder: Path, **overrides: Any) -> Any:
    """Returns the reference model, whose experts are what transformers makes of the blocks."""
    model = save_tiny("gpt_oss", folder, **overrides)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    weights = dict(model.named_parameters())
    for name in [name for name in tensors if name.endswith(QUANTIZED)]:
        blocks, scales = to_blocks(tensors.pop(name).transpose(1, 2))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        with torch.no_grad():
            weights[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIG}))
    return model
