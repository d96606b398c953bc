"""Statistics of two checkpoints with numpy, for tests/diff.rs: name → figures. NVFP4 in both layouts is dequantised.

    diff_reference.py A B
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open

E4M3 = np.array(
    [
        (-1.0 if c & 0x80 else 1.0)
        * ((c & 7) / 8 * 2.0**-6 if (c >> 3) & 15 == 0 else (1 + (c & 7) / 8) * 2.0 ** (((c >> 3) & 15) - 7))
        for c in range(256)
    ],
    np.float32,
)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def read(folder):
    """Name → (dtype, shape, bytes)."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        raw = path.read_bytes()
        n = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + n])
        with safe_open(path, "np") as f:
            assert set(f.keys()) == set(header) - {"__metadata__"}
        for name, t in header.items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                found[name] = (t["dtype"], t["shape"], raw[8 + n + a : 8 + n + b])
    return found


def plain(dtype, shape, raw):
    if dtype == "BF16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    kinds = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I64": np.int64, "F8_E4M3": np.uint8}
    a = np.frombuffer(raw, kinds[dtype]).reshape(shape)
    return E4M3[a] if dtype == "F8_E4M3" else a


def weights(folder):
    t = {n: plain(*v) for n, v in read(folder).items()}
    for name in [n for n in t if n.endswith(".weight_packed")]:
        base = name[: -len("_packed")]
        scale = t.pop(base + "_scale") / t.pop(base + "_global_scale")[0]
        t[base] = unpack(t.pop(name), scale)
    for name in [n for n in t if n.endswith(".weight_scale_2")]:
        base = name[: -len("_scale_2")]
        scale = t.pop(base + "_scale") * t.pop(name)
        t[base] = unpack(t[base], scale)
    return t


def unpack(packed, scale):
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    return FP4[codes] * np.repeat(scale.astype(np.float32), 16, 1)


def main(a, b):
    a, b = weights(a), weights(b)
    out = {}
    for name in sorted(set(a) & set(b)):
        x, y = a[name].astype(np.float64).ravel(), b[name].astype(np.float64).ravel()
        if x.size != y.size or np.array_equal(x, y):
            continue
        d = y - x
        out[name] = {
            "max_abs": float(np.abs(d).max()),
            "mean_abs": float(np.abs(d).mean()),
            "relative_l2": float(np.linalg.norm(d) / np.linalg.norm(x)),
            "cosine": float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y))),
            "changed": float((x != y).mean()),
            "snr_db": float(10 * np.log10((x @ x) / (d @ d))),
        }
    print(json.dumps(out))


main(sys.argv[1], sys.argv[2])
