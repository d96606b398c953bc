"""Makes a small checkpoint of edge cases and quantises it with llm-compressor, as a reference for the native quantiser.

Needs (PyPI): llmcompressor==0.14.0.1, compressed-tensors==0.19.0, torch==2.13.0, safetensors==0.8.0.
usage: record.py FOLDER     writes FOLDER/input.safetensors and FOLDER/output.safetensors
"""
import os, sys, tempfile
import torch
from safetensors.torch import load_file, save_file
from llmcompressor import model_free_ptq

torch.set_num_threads(1)
gen = torch.Generator().manual_seed(20260117)
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
IGNORE = ["re:.*ignored_k\\.self_attn\\.k_proj$"]


def normal(rows, cols, std=0.02):
    return torch.randn(rows, cols, generator=gen, dtype=torch.float64) * std


def spread(rows, cols, decades):
    """Each group of 16 has its own magnitude, log-uniform over so many decades below 1."""
    g = torch.rand(rows, cols // 16, 1, generator=gen, dtype=torch.float64) * -decades
    x = torch.randn(rows, cols // 16, 16, generator=gen, dtype=torch.float64)
    return (x * 10.0**g).reshape(rows, cols)


def grid(rows, cols):
    """Multiples of 1/4 up to 6 times a power of two for each group: exact ties between FP4 values."""
    k = torch.randint(-24, 25, (rows, cols // 16, 16), generator=gen).double() / 4
    k[..., 0] = 6.0
    e = torch.randint(-6, 1, (rows, cols // 16, 1), generator=gen).double()
    return (k * 2.0**e).reshape(rows, cols)


def cases(t):
    f = torch.finfo(t)
    sub = f.tiny * f.eps  # the smallest subnormal
    yield "model.layers.0.mlp.down_proj", normal(16, 64)
    for leaf, std in (("q", 0.02), ("k", 0.08), ("v", 0.01)):
        yield f"model.layers.0.self_attn.{leaf}_proj", normal(16, 32, std)
    for leaf, std in (("gate", 0.01), ("up", 0.3)):
        yield f"model.layers.0.mlp.{leaf}_proj", normal(16, 32, std)
    # A fused group with a member that is all zero, and one with a member that is ignored (and the largest).
    for leaf, std in (("q", 0.0), ("k", 0.05), ("v", 0.5)):
        yield f"zero_q.self_attn.{leaf}_proj", normal(4, 32, std)
    for leaf, std in (("q", 0.02), ("k", 8.0), ("v", 0.5)):
        yield f"ignored_k.self_attn.{leaf}_proj", normal(4, 32, std)
    x = normal(8, 64)
    x[::2, 16:32] = 0.0
    x[1, :] = 0.0
    yield "zero_groups", x
    yield "all_zero", torch.zeros(4, 32, dtype=torch.float64)
    yield "all_minus_zero", torch.full((4, 32), -0.0, dtype=torch.float64)
    x = normal(8, 32)
    x[:, ::3] = -0.0
    x[0, 16:] = -0.0
    yield "minus_zero", x
    yield "spread_3", spread(32, 64, 3)
    yield "spread_7", spread(16, 64, 7)
    yield "grid", grid(16, 64)
    x = normal(8, 32)
    x[:, 16:] = torch.randint(-30, 31, (8, 16), generator=gen).double() * sub
    yield "some_subnormal", x
    yield "all_subnormal", torch.randint(-30, 31, (4, 32), generator=gen).double() * sub
    yield "smallest_subnormal", torch.tensor([[sub] + [0.0] * 15 + [-sub] * 16], dtype=torch.float64)
    x = normal(4, 32, 0.3 * f.max).clamp(f.min, f.max)
    x[0, 0], x[1, 20] = f.max, f.min
    yield "max", x
    # The largest magnitude at and about where 2688 / absmax leaves the type.
    limit = torch.tensor(2688.0 / f.max, dtype=torch.float64).to(t)
    for i in range(-3, 4):
        a = limit.clone()
        for _ in range(abs(i)):
            a = torch.nextafter(a, torch.tensor(float("inf") if i > 0 else 0.0, dtype=t))
        x = normal(2, 32, 0.3).clamp(-1, 1) * a.double()
        x[1, 7] = a.double()
        yield f"limit_{'below' if i < 0 else 'above'}_{abs(i)}", x
    # Largest magnitudes over the whole range of the type: the global scale's roundings.
    lo, hi = torch.log2(torch.tensor(f.tiny, dtype=torch.float64)).item(), torch.log2(torch.tensor(f.max, dtype=torch.float64)).item()
    for i in range(24):
        top = 2.0 ** (lo + (hi - lo) * (i + torch.rand(1, generator=gen, dtype=torch.float64).item()) / 24)
        yield f"range_{i:02}", normal(1, 32, 0.3).clamp(-1, 1) * top


tensors = {}
for name, dtype in DTYPES.items():
    for case, x in cases(dtype):
        tensors[f"{name}.{case}.weight"] = x.to(dtype).contiguous()
# A fused group of three types.
for leaf, name, std in (("q", "bf16", 0.02), ("k", "f16", 0.08), ("v", "f32", 0.04)):
    tensors[f"mixed.self_attn.{leaf}_proj.weight"] = normal(4, 32, std).to(DTYPES[name])
for leaf, name, std in (("gate", "f16", 0.02), ("up", "f16", 0.0003)):
    tensors[f"small.mlp.{leaf}_proj.weight"] = normal(4, 32, std).to(DTYPES[name])

out = sys.argv[1]
with tempfile.TemporaryDirectory() as tmp:
    src, dst = os.path.join(tmp, "src"), os.path.join(tmp, "dst")
    os.mkdir(src)
    save_file(tensors, os.path.join(src, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(src, "config.json"), "w") as f:
        f.write('{"architectures": ["X"], "model_type": "x"}')
    model_free_ptq(src, dst, scheme="NVFP4A16", ignore=IGNORE, device="cpu")
    save_file(tensors, os.path.join(out, "input.safetensors"), metadata={"format": "pt"})
    os.replace(os.path.join(dst, "model.safetensors"), os.path.join(out, "output.safetensors"))
made = load_file(os.path.join(out, "output.safetensors"))
nan = [k for k, v in made.items() if not torch.isfinite(v.float()).all()]
print(len(tensors), "tensors in,", len(made), "out; not finite:", nan)
