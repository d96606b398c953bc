//! NVFP4A16: weights in FP4 with an F8_E4M3 scale per 16 columns and one F32 scale per tensor, byte for byte as
//! llm-compressor 0.14 with compressed-tensors 0.19 writes them (`nvfp4-pack-quantized`).
//!
//! With `T` the weight's type (BF16, F16 or F32) and `T(x)` the rounding to it:
//!
//! ```text
//! absmax  = max |w| over the tensor, or over all tensors of its fused group
//! global  = T(2688 · T(1 / absmax)); 1 where that overflows T           2688 = 448 · 6
//! local   = T(max |w16| / 6)                                            per group of 16 columns
//! code    = e4m3(f32(global · local)), at most 448; a zero code becomes 0.125's (0x20)
//! s       = f32(value(code) / global)
//! q       = fp4(f32(w / s)), two to a byte, the even column in the low nibble
//! ```
//!
//! A tensor whose columns are a multiple of 16 is a flat row of groups: shapes play no part here.

use rayon::prelude::*;

use super::round::{Float, bf16_to_f32, e4m3_to_f32, finite_f16_to_f32, to_e4m3, to_fp4};

/// Elements that share a local scale.
pub const GROUP: usize = 16;

/// 448 · 6: the largest F8_E4M3 times the largest FP4.
const RANGE: f32 = 2688.0;

/// What stands for a scale that rounds to zero (0.125), so that nothing is divided by zero.
const ZERO_CODE: u8 = 0x20;

/// Groups that one task takes: 64 KiB of BF16.
const TASK_GROUPS: usize = 2048;

/// Groups whose scales are computed side by side.
const BLOCK: usize = 32;

/// An infinity or NaN in a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NonFinite {
    /// Which element of the bytes given, counted from 0.
    pub index: u64,
    /// The value.
    pub value: f32,
}

/// The largest magnitude among the elements in `bytes` (little-endian, whole elements). 0 for no bytes. Errors: the
/// first [`NonFinite`].
pub fn absmax(dtype: Float, bytes: &[u8]) -> Result<f32, NonFinite> {
    let task = TASK_GROUPS * GROUP * dtype.bytes();
    // The bits of non-negative floats order as their values do, and infinities and NaN come last.
    let bits = bytes.par_chunks(task).map(|part| absmax_bits(dtype, part)).max().unwrap_or(0);
    let (infinity, value) = match dtype {
        Float::Bf16 => (0x7f80, bf16_to_f32(bits as u16)),
        Float::F16 => (0x7c00, finite_f16_to_f32(bits as u16)),
        Float::F32 => (0x7f80_0000, f32::from_bits(bits)),
    };
    if bits < infinity { Ok(value) } else { Err(first_non_finite(dtype, bytes)) }
}

fn absmax_bits(dtype: Float, bytes: &[u8]) -> u32 {
    match dtype {
        Float::Bf16 | Float::F16 => {
            let (pairs, _) = bytes.as_chunks::<2>();
            u32::from(pairs.iter().fold(0, |m, b| m.max(u16::from_le_bytes(*b) & 0x7fff)))
        }
        Float::F32 => {
            let (quads, _) = bytes.as_chunks::<4>();
            quads.iter().fold(0, |m, b| m.max(u32::from_le_bytes(*b) & 0x7fff_ffff))
        }
    }
}

/// Only called where there is one.
fn first_non_finite(dtype: Float, bytes: &[u8]) -> NonFinite {
    let value_of = |b: &[u8]| match (dtype, b) {
        (Float::Bf16, [a, b]) => half::bf16::from_le_bytes([*a, *b]).to_f32(),
        (Float::F16, [a, b]) => half::f16::from_le_bytes([*a, *b]).to_f32(),
        (Float::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]),
        _ => f32::NAN,
    };
    let mut values = bytes.chunks_exact(dtype.bytes()).map(value_of).enumerate();
    let (index, value) = values.find(|(_, v)| !v.is_finite()).unwrap_or((0, f32::NAN));
    NonFinite { index: index as u64, value }
}

/// The scale of a whole tensor, or fused group of tensors, of this largest magnitude.
pub fn global_scale(dtype: Float, absmax: f32) -> f32 {
    // The reference evaluates `2688 / absmax` as a reciprocal and a product, each rounded to the weight's type.
    let scale = dtype.round(RANGE * dtype.round(1.0 / absmax));
    // Zero and what is too small overflow; the reference has 1 there.
    if scale.is_finite() { scale } else { 1.0 }
}

/// Quantises whole groups. `weights` holds `n` groups of 16 finite little-endian elements; `packed` takes 8·n bytes,
/// `scales` n F8_E4M3 codes. Returns how many groups were done: the least that the three slices have room for.
pub fn quantise(dtype: Float, weights: &[u8], global: f32, packed: &mut [u8], scales: &mut [u8]) -> usize {
    match dtype {
        Float::Bf16 => by_tasks(weights, packed, scales, |w| w.as_chunks::<2>().0, load_bf16, dtype, global),
        Float::F16 => by_tasks(weights, packed, scales, |w| w.as_chunks::<2>().0, load_f16, dtype, global),
        Float::F32 => by_tasks(weights, packed, scales, |w| w.as_chunks::<4>().0, load_f32, dtype, global),
    }
}

fn load_bf16(bytes: [u8; 2]) -> f32 {
    bf16_to_f32(u16::from_le_bytes(bytes))
}

fn load_f16(bytes: [u8; 2]) -> f32 {
    finite_f16_to_f32(u16::from_le_bytes(bytes))
}

fn load_f32(bytes: [u8; 4]) -> f32 {
    f32::from_le_bytes(bytes)
}

/// Spreads the groups over all cores.
fn by_tasks<const N: usize>(
    weights: &[u8],
    packed: &mut [u8],
    scales: &mut [u8],
    elements: impl Fn(&[u8]) -> &[[u8; N]] + Sync,
    load: impl Fn([u8; N]) -> f32 + Sync + Copy,
    dtype: Float,
    global: f32,
) -> usize {
    let (groups, _) = elements(weights).as_chunks::<GROUP>();
    let (packed, _) = packed.as_chunks_mut::<8>();
    let done = groups.len().min(packed.len()).min(scales.len());
    let tasks = groups[..done].par_chunks(TASK_GROUPS);
    tasks.zip(packed.par_chunks_mut(TASK_GROUPS)).zip(scales.par_chunks_mut(TASK_GROUPS)).for_each(|((g, p), s)| {
        for ((g, p), s) in g.chunks(BLOCK).zip(p.chunks_mut(BLOCK)).zip(s.chunks_mut(BLOCK)) {
            block(g, p, s, load, dtype, global);
        }
    });
    done
}

/// Quantises at most [`BLOCK`] groups, in three loops that each vectorise.
#[inline(always)]
fn block<const N: usize>(
    groups: &[[[u8; N]; GROUP]],
    packed: &mut [[u8; 8]],
    scales: &mut [u8],
    load: impl Fn([u8; N]) -> f32 + Copy,
    dtype: Float,
    global: f32,
) {
    let mut amax = [0.0f32; BLOCK];
    for (amax, group) in amax.iter_mut().zip(groups) {
        *amax = group_absmax(&group.map(load));
    }
    let mut divisors = [1.0f32; BLOCK];
    let mut codes = [ZERO_CODE; BLOCK];
    for ((amax, divisor), code) in amax.iter().zip(&mut divisors).zip(&mut codes) {
        let local = dtype.round(amax / 6.0);
        let rounded = to_e4m3(global * local);
        *code = if rounded == 0 { ZERO_CODE } else { rounded };
        *divisor = e4m3_to_f32(*code) / global;
    }
    for (scale, code) in scales.iter_mut().zip(codes) {
        *scale = code;
    }
    for ((packed, group), divisor) in packed.iter_mut().zip(groups).zip(divisors) {
        *packed = pack(&group.map(|w| to_fp4(load(w) / divisor)));
    }
}

fn group_absmax(w: &[f32; GROUP]) -> f32 {
    // Four maxima side by side: a chain of 16 would wait for itself.
    let lanes = w
        .as_chunks::<4>()
        .0
        .iter()
        .fold([0u32; 4], |m, part| std::array::from_fn(|i| m[i].max(part[i].to_bits() & 0x7fff_ffff)));
    f32::from_bits(lanes[0].max(lanes[1]).max(lanes[2].max(lanes[3])))
}

/// Two codes to a byte, the first in the low nibble.
fn pack(codes: &[u8; GROUP]) -> [u8; 8] {
    let halves = codes.as_chunks::<8>().0.iter().map(|half| {
        let v = u64::from_le_bytes(*half);
        let v = (v | v >> 4) & 0x00ff_00ff_00ff_00ff;
        let v = (v | v >> 8) & 0x0000_ffff_0000_ffff;
        (v | v >> 16) & 0xffff_ffff
    });
    halves.rev().fold(0, |all, half| all << 32 | half).to_le_bytes()
}
