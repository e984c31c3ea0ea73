"""A model as a source has it: what serving needs of it, and what else lies beside."""

import json

from octavo_engine.fetch.pace import Pace

PART_BYTES = 4096
QUICK = Pace(part_bytes=PART_BYTES, first_pause_s=0.001, lock_poll_s=0.01)


def safetensors(num_bytes, seed=0):
    data = bytes((idx * 7 + seed) % 251 for idx in range(num_bytes))
    entry = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}
    header = json.dumps({"__metadata__": {"format": "pt"}, f"w{seed}": entry}).encode()
    return len(header).to_bytes(8, "little") + header + data


FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": safetensors(30_000, 0),
    "model-00002-of-00002.safetensors": safetensors(10_000, 1),
    "model.safetensors.index.json": json.dumps(
        {
            "weight_map": {
                "w0": "model-00001-of-00002.safetensors",
                "w1": "model-00002-of-00002.safetensors",
            }
        }
    ).encode(),
}
USELESS = {
    "README.md": b"words",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"again",
    "onnx/model.safetensors": b"other",
}
BIG = "model-00001-of-00002.safetensors"


def content(folder):
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.name.startswith(".octavo")
    }
