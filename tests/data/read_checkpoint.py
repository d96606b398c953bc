"""Reads a checkpoint folder with the reference safetensors library, and prints name -> [dtype, shape, BLAKE3] as JSON.

usage: read_checkpoint.py FOLDER

Stops where a loader would be misled: a tensor in two files, an index that names other tensors than the shards hold, a
weight file that the index does not know, a bare model.safetensors beside an index.
"""

import json
import pathlib
import sys

import blake3
import safetensors

folder = pathlib.Path(sys.argv[1])
files = sorted(p.name for p in folder.glob("*.safetensors"))
index_path = folder / "model.safetensors.index.json"

tensors = {}
held_by = {}
total = 0
for name in files:
    # The memory-mapped way in, which loaders take ...
    with safetensors.safe_open(folder / name, framework="numpy") as f:
        keys = set(f.keys())
        shapes = {k: f.get_slice(k).get_shape() for k in keys}
        assert f.metadata().get("format") == "pt", (name, f.metadata())
    # ... and the one that gives raw bytes, whatever numpy knows of the type.
    for key, tensor in safetensors.deserialize((folder / name).read_bytes()):
        assert key not in held_by, f"{key} is in {held_by[key]} and in {name}"
        assert key in keys and list(shapes[key]) == list(tensor["shape"]), key
        held_by[key] = name
        total += len(tensor["data"])
        tensors[key] = [tensor["dtype"], list(tensor["shape"]), blake3.blake3(bytes(tensor["data"])).hexdigest()]

if index_path.exists():
    index = json.loads(index_path.read_text())
    assert "model.safetensors" not in files, "a bare file beside an index: loaders take the bare one"
    assert index["weight_map"] == held_by, "the index names other tensors or shards than there are"
    assert index["metadata"]["total_size"] == total, (index["metadata"]["total_size"], total)
else:
    assert files == ["model.safetensors"], files

json.dump(tensors, sys.stdout)
