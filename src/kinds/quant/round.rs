//! Rounding between the float formats that NVFP4 touches: BF16, F16, F32, F8_E4M3 and FP4 (E2M1).
//!
//! Every rounding is to nearest, ties to even, subnormals kept: what IEEE 754 and the reference tools do.

use half::f16;

/// The element types that can be quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl Float {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Float::Bf16 | Float::F16 => 2,
            Float::F32 => 4,
        }
    }

    /// The type in which values of both are computed: the same, else F32.
    pub fn common(self, other: Float) -> Float {
        if self == other { self } else { Float::F32 }
    }

    /// `x` rounded to this type, as F32. Overflow gives an infinity.
    pub fn round(self, x: f32) -> f32 {
        match self {
            Float::Bf16 => round_bf16(x),
            Float::F16 => f16::from_f32(x).to_f32(),
            Float::F32 => x,
        }
    }
}

/// Rounds to BF16 and widens again. A NaN stays one, overflow gives an infinity.
pub fn round_bf16(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let bits = x.to_bits();
    // Half of the last kept place, less one where the kept part is even: a tie then does not carry.
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// Widens BF16 bits.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Widens the bits of a finite F16; an infinity or NaN gives a wrong finite number. Without branches, so that loops
/// over it vectorise.
#[inline]
pub fn finite_f16_to_f32(bits: u16) -> f32 {
    // The exponent's bias differs by 112; multiplying by 2^112 shifts it, subnormals included, exactly.
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// The F8_E4M3 code nearest to a non-negative `x`; above 448 it is 448's.
#[inline]
pub fn to_e4m3(x: f32) -> u8 {
    let x = x.min(448.0);
    // Subnormal: multiples of 2^-9. In [2^14, 2^15) an F32's last place is just that.
    let subnormal = (x + 16384.0).to_bits().wrapping_sub(16384.0f32.to_bits());
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7_ffff + (bits >> 20 & 1));
    // The exponents' biases differ by 120. 448 is 0x7e, hence a code fits seven bits.
    let normal = (rounded >> 20).wrapping_sub(120 << 3);
    // Both are computed, so that loops over this vectorise.
    (if x < 0.015_625 { subnormal } else { normal }) as u8
}

/// The value of a non-negative finite F8_E4M3 code.
#[inline]
pub fn e4m3_to_f32(code: u8) -> f32 {
    // As in finite_f16_to_f32, with biases that differ by 120.
    f32::from_bits(u32::from(code) << 20) * f32::from_bits((127 + 120) << 23)
}

/// The eight FP4 magnitudes by code.
pub const FP4: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The FP4 code nearest to `x`: bit 3 is the sign. Ties go to the even code, what lies beyond ±6 to ±6; a negative
/// number that rounds to zero is −0 (8), −0 itself is +0 (0), as in compressed-tensors' `cast_to_fp4`.
#[inline]
pub fn to_fp4(x: f32) -> u8 {
    // The bits of non-negative floats order as their values do; integer compares add up in vector registers.
    let a = (x.to_bits() & 0x7fff_ffff) as i32;
    let above = |t: f32| i32::from(a > t.to_bits() as i32);
    let from = |t: f32| i32::from(a >= t.to_bits() as i32);
    let magnitude = above(0.25) + from(0.75) + above(1.25) + from(1.75) + above(2.5) + from(3.5) + above(5.0);
    (magnitude | i32::from(x < 0.0) << 3) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn all_e4m3() -> Vec<f32> {
        (0u8..0x7f).map(e4m3_to_f32).collect()
    }

    #[test]
    fn e4m3_codes_are_ascending_and_read_back() {
        let values = all_e4m3();
        assert!(values.windows(2).all(|w| w[0] < w[1]));
        assert_eq!((values[1], values[8], values[0x20], values[0x7e]), (0.001_953_125, 0.015_625, 0.125, 448.0));
        for (code, v) in values.iter().enumerate() {
            assert_eq!(usize::from(to_e4m3(*v)), code, "{v}");
        }
        assert_eq!(to_e4m3(f32::INFINITY), 0x7e);
    }

    #[test]
    fn e4m3_rounds_to_the_nearest_and_ties_to_the_even_code() {
        for (code, pair) in all_e4m3().windows(2).enumerate() {
            let middle = (pair[0] + pair[1]) / 2.0;
            let even = if code % 2 == 0 { code } else { code + 1 };
            assert_eq!(usize::from(to_e4m3(middle)), even, "{middle}");
            assert_eq!(usize::from(to_e4m3(middle.next_down())), code, "{middle}");
            assert_eq!(usize::from(to_e4m3(middle.next_up())), code + 1, "{middle}");
        }
        assert_eq!((to_e4m3(0.0), to_e4m3(f32::from_bits(1))), (0, 0));
    }

    #[test]
    fn fp4_ties_go_to_the_even_code_and_small_negatives_to_minus_zero() {
        let ties = [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6)];
        for (x, code) in ties {
            assert_eq!((to_fp4(x), to_fp4(-x)), (code, code | 8), "{x}");
        }
        for (code, v) in FP4.iter().enumerate() {
            assert_eq!(usize::from(to_fp4(*v)), code);
        }
        assert_eq!((to_fp4(-0.1), to_fp4(-0.0), to_fp4(1e30), to_fp4(f32::NEG_INFINITY)), (8, 0, 7, 15));
    }

    #[test]
    fn every_bf16_and_f16_widens_and_rounds_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
            if b.is_finite() {
                assert_eq!(bf16_to_f32(bits).to_bits(), b.to_f32().to_bits());
                // Halfway to the next one, and one place to either side.
                for x in [0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits(u32::from(bits) << 16 | low)) {
                    assert_eq!(round_bf16(x).to_bits(), bf16::from_f32(x).to_f32().to_bits(), "{x:e}");
                }
            }
            if h.is_finite() {
                assert_eq!(finite_f16_to_f32(bits).to_bits(), h.to_f32().to_bits());
            }
        }
    }
}
