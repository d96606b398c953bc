"""Makes a checkpoint with one BF16 matrix, from a seed: make_model.py FOLDER [ROWS COLUMNS], by default 4 GiB."""

import json
import os
import struct
import sys

import torch

folder = sys.argv[1]
rows, columns = (int(n) for n in sys.argv[2:4]) if len(sys.argv) > 3 else (32768, 65536)
os.makedirs(folder, exist_ok=True)
name = "model.layers.0.mlp.down_proj.weight"
header = json.dumps({name: {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, rows * columns * 2]}}).encode()
header += b" " * (-len(header) % 8)
seed = torch.Generator().manual_seed(20)
with open(f"{folder}/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header)
    for at in range(0, rows, 1024):
        block = torch.randn(min(1024, rows - at), columns, generator=seed) * 0.02
        block.to(torch.bfloat16).view(torch.uint8).numpy().tofile(f)
config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
json.dump(config, open(f"{folder}/config.json", "w"), indent=2)
