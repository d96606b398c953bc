"""Writes, for each layout of quantised weights, a checkpoint and what it stands for in F32 (computed here with numpy, from
the formats' definitions, by another way than the program's).

    make_quantised.py FOLDER     makes FOLDER/LAYOUT/{quantised,values}.safetensors
"""

import sys
from pathlib import Path

import numpy as np

RNG = np.random.default_rng(20260101)
E4M3 = np.array(
    [
        (-1.0 if c & 0x80 else 1.0)
        * ((c & 7) / 8 * 2.0**-6 if (c >> 3) & 15 == 0 else (1 + (c & 7) / 8) * 2.0 ** (((c >> 3) & 15) - 7))
        for c in range(256)
    ],
    np.float32,
)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NAMES = {np.uint8: "U8", np.int8: "I8", np.int32: "I32", np.int64: "I64", np.float32: "F32", np.uint16: "BF16"}


def save(path, tensors):
    """`tensors`: name → array, or (dtype's name, array of bytes of that type)."""
    import json

    header, data = {}, b""
    for name, array in tensors.items():
        dtype, array = array if isinstance(array, tuple) else (NAMES[array.dtype.type], array)
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def bf16(x):
    """Rounds to BF16, ties to even; the codes and the values."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    codes = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return codes, (codes.astype(np.uint32) << 16).view(np.float32)


def write(folder, name, quantised, values):
    save(folder / name / "quantised.safetensors", quantised)
    save(folder / name / "values.safetensors", {"m.weight": values.astype(np.float32)})


def pack_nibbles(codes):
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def pack_bits(values, bits):
    """Each row a stream of integers of so many bits, lowest first, in words of 32 bits."""
    rows = []
    for row in values:
        stream = 0
        for i, v in enumerate(row):
            stream |= int(v) << (i * bits)
        words = -(-len(row) * bits // 32)
        rows.append([(stream >> (32 * w)) & 0xFFFFFFFF for w in range(words)])
    return np.array(rows, np.uint32).view(np.int32)


def main(folder):
    def codes(shape, top):
        return RNG.integers(0, top, shape).astype(np.uint8)

    def scales(shape):
        return codes(shape, 0x60) + 0x10

    # FP4 with two levels of scales, both tools, also as a stack of matrices with a global scale each.
    for name, shape, inverse in [
        ("nvfp4-compressed-tensors", (6, 64), True),
        ("nvfp4-modelopt", (6, 64), False),
        ("nvfp4-stack", (3, 4, 32), True),
    ]:
        q, s = codes(shape, 16), scales((*shape[:-1], shape[-1] // 16))
        g = np.array([7.25, 3.5, 640.0][: shape[0] if len(shape) > 2 else 1], np.float32)
        each = g.reshape(-1, *[1] * (len(shape) - 1))
        scale = E4M3[s] / each if inverse else E4M3[s] * each
        values = FP4[q] * np.repeat(scale, 16, -1)
        if inverse:
            parts = {"m.weight_packed": pack_nibbles(q), "m.weight_scale": ("F8_E4M3", s), "m.weight_global_scale": g}
        else:
            parts = {"m.weight": pack_nibbles(q), "m.weight_scale": ("F8_E4M3", s), "m.weight_scale_2": g.reshape(())}
        write(folder, name, parts, values)

    q, s = codes((5, 64), 16), RNG.integers(120, 132, (5, 2)).astype(np.uint8)
    values = FP4[q] * np.repeat(np.float32(2) ** (s.astype(np.float32) - 127), 32, -1)
    write(folder, "mxfp4", {"m.weight_packed": pack_nibbles(q), "m.weight_scale": s}, values)

    # FP8: one scale, a scale a row, a scale a block with short last blocks.
    q = codes((300, 200), 0x7F)
    scale = np.array([0.0123], np.float32)
    write(folder, "fp8-one", {"m.weight": ("F8_E4M3", q), "m.weight_scale": scale}, E4M3[q] * scale)
    raw, scale = bf16(RNG.random((300, 1)) * 0.1)
    write(folder, "fp8-row", {"m.weight": ("F8_E4M3", q), "m.weight_scale": raw}, E4M3[q] * scale)
    scale = RNG.random((3, 2)).astype(np.float32)
    grid = np.repeat(np.repeat(scale, 128, 0)[:300], 128, 1)[:, :200]
    write(folder, "fp8-block", {"m.weight": ("F8_E4M3", q), "m.weight_scale_inv": scale}, E4M3[q] * grid)

    # INT8, a scale and a zero point a row.
    q = RNG.integers(-128, 128, (40, 24)).astype(np.int8)
    scale, zero = RNG.random((40, 1)).astype(np.float32), RNG.integers(-9, 9, (40, 1)).astype(np.int8)
    values = (q.astype(np.float32) - zero) * scale
    write(folder, "int8-row", {"m.weight": q, "m.weight_scale": scale, "m.weight_zero_point": zero}, values)

    # Packed integers: groups; zero points packed along the rows; columns in another order; 3 bits across words.
    for name, bits, group, asymmetric, ordered in [
        ("int4-groups", 4, 32, False, False),
        ("int4-zeros", 4, 32, True, False),
        ("int4-order", 4, 16, True, True),
        ("int8-packed", 8, 96, False, False),
        ("int3-groups", 3, 32, True, False),
    ]:
        half, groups = 1 << (bits - 1), 96 // group
        q = RNG.integers(-half, half, (10, 96))
        scale = RNG.random((10, groups)).astype(np.float32)
        zero = RNG.integers(-half, half, (10, groups)) if asymmetric else np.zeros((10, groups), int)
        which = RNG.permutation(np.arange(96) // group) if ordered else np.arange(96) // group
        values = (q - zero[:, which]).astype(np.float32) * scale[:, which]
        parts = {
            "m.weight_packed": pack_bits(q + half, bits),
            "m.weight_scale": scale,
            "m.weight_shape": np.array([10, 96], np.int64),
        }
        if asymmetric:
            parts["m.weight_zero_point"] = np.ascontiguousarray(pack_bits((zero + half).T, bits).T)
        if ordered:
            parts["m.weight_g_idx"] = which.astype(np.int32)
        write(folder, name, parts, values)


main(Path(sys.argv[1]))
