"""Compares the tensors of two one-file checkpoints, byte by byte."""

import sys

import torch
from pack import read

a, b, out = sys.argv[1:]
a, b = (read(f"{d}/model.safetensors") for d in (a, b))
same = [n for n in a if n in b and a[n][:2] == b[n][:2] and torch.equal(a[n][2], b[n][2])]
differ = sorted((set(a) | set(b)) - set(same))
print(len(a), "tensors,", f"these differ: {differ}" if differ else "all the same")
with open(f"{out}/report.txt", "w") as f:
    f.write("".join(f"{n} differs\n" for n in differ) or "all the same\n")
sys.exit(bool(differ))
