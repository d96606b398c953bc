"""Packs every rank-2 weight of a one-file checkpoint to NVFP4 (weights only) on the GPU, as compressed-tensors does."""

import json
import os
import shutil
import struct
import sys

import torch

# Ties as compressed-tensors has them: the midpoints that belong to the larger value are marked.
MIDPOINTS = [(0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)]
ROWS = 4096


def read(path):
    """Name → (type, shape, tensor of bytes), mapped, not read."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
    body = torch.from_file(path, shared=False, size=os.path.getsize(path), dtype=torch.uint8)[8 + size :]
    return {
        name: (t["dtype"], t["shape"], body[t["data_offsets"][0] : t["data_offsets"][1]])
        for name, t in header.items()
        if name != "__metadata__"
    }


def write(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + data.numel()]}
        at += data.numel()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            data.numpy().tofile(f)


def pack(weight):
    """A bf16 matrix [out, in] on the GPU → packed [out, in/2], scales [out, in/16], the global scale."""
    absmax = max(rows.abs().max() for rows in weight.split(ROWS))
    scale = (absmax.reciprocal() * 2688.0).float()
    packed, scales = [], []
    for rows in weight.split(ROWS):
        groups = rows.reshape(rows.shape[0], -1, 16)
        local = groups.abs().amax(-1) / 6.0
        code = (scale * local.float()).clamp(max=448.0).to(torch.float8_e4m3fn)
        code = torch.where(code.view(torch.uint8) == 0, 0x20, code.view(torch.uint8))
        step = code.view(torch.float8_e4m3fn).float() / scale
        x = (groups.float() / step.unsqueeze(-1)).clamp(-6.0, 6.0)
        size = x.abs()
        four = sum((size >= t if up else size > t).to(torch.uint8) for t, up in MIDPOINTS)
        four |= (x < 0).to(torch.uint8) << 3
        four = four.reshape(rows.shape)
        packed.append((four[:, 0::2] | four[:, 1::2] << 4).cpu())
        scales.append(code.cpu())
    return torch.cat(packed), torch.cat(scales), scale.reshape(1).cpu()


def main(model, out):
    print("on", torch.cuda.get_device_name(0), "of", torch.cuda.device_count(), flush=True)
    made = {}
    for name, (dtype, shape, data) in read(f"{model}/model.safetensors").items():
        if len(shape) != 2 or dtype != "BF16" or not name.endswith(".weight"):
            made[name] = (dtype, shape, data)
            continue
        print("packing", name, shape, f"{data.numel() / 2**30:.1f} GiB", flush=True)
        weight = data.view(torch.bfloat16).reshape(shape).cuda()
        packed, scales, scale = pack(weight)
        made[f"{name}_packed"] = ("U8", list(packed.shape), packed.reshape(-1))
        made[f"{name}_scale"] = ("F8_E4M3", list(scales.shape), scales.reshape(-1))
        made[f"{name}_global_scale"] = ("F32", [1], scale.view(torch.uint8))
    write(f"{out}/model.safetensors", made)
    shutil.copyfile(f"{model}/config.json", f"{out}/config.json")
    print("peak of GPU memory:", f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
