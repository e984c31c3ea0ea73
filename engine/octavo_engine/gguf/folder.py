"""Writes a GGUF checkpoint as a Hugging Face folder: bfloat16 safetensors and tokenizer files."""

import json
from pathlib import Path
from typing import Literal

from octavo_engine.gguf.checkpoint import GGUFCheckpoint


def write_folder(
    checkpoint: GGUFCheckpoint,
    folder: Path,
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16",
) -> None:
    """Fills `folder` (made when missing) with what `transformers` and this engine load.

    All weights become `dtype`, rounded to nearest even. Not atomic: write beside, then rename.
    """
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights_dtype: torch.dtype = getattr(torch, dtype)
    tensors = {name: tensor.to(weights_dtype) for name, tensor in checkpoint.tensors()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # made private; a server runs as another user
    files = dict(checkpoint.tokenizer_files)
    files["config.json"] = checkpoint.config | {"dtype": dtype}
    files["generation_config.json"] = checkpoint.generation_config
    template = files["tokenizer_config.json"].get("chat_template")
    for name, content in files.items():
        (folder / name).write_text(
            json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8"
        )
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, "utf-8")
