//! Elements of a type as numbers.

use std::sync::LazyLock;

use crate::tensors::dtype::Dtype;

/// Numbers of a piece of a tensor, in the narrowest of two types that holds them all.
#[derive(Debug, Default)]
pub struct Values {
    /// For types of at most 24 significant bits.
    pub narrow: Vec<f32>,
    /// For wider ones; empty while `narrow` is in use.
    pub wide: Vec<f64>,
}

impl Values {
    /// Empties both.
    pub fn clear(&mut self) {
        self.narrow.clear();
        self.wide.clear();
    }

    /// All of them as the wider type.
    pub fn widen(&mut self) {
        if self.wide.is_empty() {
            self.wide.extend(self.narrow.iter().map(|v| f64::from(*v)));
            self.narrow.clear();
        }
    }
}

/// Whether elements of this type can be read as numbers. Complex ones count as twice as many.
pub fn is_known(dtype: Dtype) -> bool {
    !matches!(dtype, Dtype::F6E2M3 | Dtype::F6E3M2 | Dtype::F4)
}

/// Whether they need the wider type.
pub fn is_wide(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::I64 | Dtype::U64 | Dtype::I32 | Dtype::U32)
}

macro_rules! each {
    ($bytes:expr, $n:literal, $f:expr) => {
        $bytes.as_chunks::<$n>().0.iter().map($f)
    };
}

/// Appends the numbers in `bytes`, little-endian. Types that are not [known](is_known) give nothing. 64-bit integers are
/// rounded to double precision.
#[allow(clippy::cast_precision_loss, reason = "said so above")]
pub fn decode(dtype: Dtype, bytes: &[u8], into: &mut Values) {
    let (narrow, wide) = (&mut into.narrow, &mut into.wide);
    match dtype {
        Dtype::Bf16 => narrow.extend(each!(bytes, 2, |b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))),
        Dtype::F16 => narrow.extend(each!(bytes, 2, |b| half::f16::from_le_bytes(*b).to_f32())),
        Dtype::F32 | Dtype::C64 => narrow.extend(each!(bytes, 4, |b| f32::from_le_bytes(*b))),
        Dtype::I16 => narrow.extend(each!(bytes, 2, |b| f32::from(i16::from_le_bytes(*b)))),
        Dtype::U16 => narrow.extend(each!(bytes, 2, |b| f32::from(u16::from_le_bytes(*b)))),
        Dtype::I8 => narrow.extend(bytes.iter().map(|b| f32::from(b.cast_signed()))),
        Dtype::U8 | Dtype::Bool => narrow.extend(bytes.iter().map(|b| f32::from(*b))),
        Dtype::F8E4M3 => narrow.extend(bytes.iter().map(|b| EIGHT.e4m3[usize::from(*b)])),
        Dtype::F8E5M2 => narrow.extend(bytes.iter().map(|b| EIGHT.e5m2[usize::from(*b)])),
        Dtype::F8E8M0 => narrow.extend(bytes.iter().map(|b| EIGHT.e8m0[usize::from(*b)])),
        Dtype::F8E4M3Fnuz => narrow.extend(bytes.iter().map(|b| EIGHT.e4m3fnuz[usize::from(*b)])),
        Dtype::F8E5M2Fnuz => narrow.extend(bytes.iter().map(|b| EIGHT.e5m2fnuz[usize::from(*b)])),
        Dtype::F64 => wide.extend(each!(bytes, 8, |b| f64::from_le_bytes(*b))),
        Dtype::I64 => wide.extend(each!(bytes, 8, |b| i64::from_le_bytes(*b) as f64)),
        Dtype::U64 => wide.extend(each!(bytes, 8, |b| u64::from_le_bytes(*b) as f64)),
        Dtype::I32 => wide.extend(each!(bytes, 4, |b| f64::from(i32::from_le_bytes(*b)))),
        Dtype::U32 => wide.extend(each!(bytes, 4, |b| f64::from(u32::from_le_bytes(*b)))),
        Dtype::F4 | Dtype::F6E2M3 | Dtype::F6E3M2 => {}
    }
}

struct Eight {
    e4m3: [f32; 256],
    e5m2: [f32; 256],
    e8m0: [f32; 256],
    e4m3fnuz: [f32; 256],
    e5m2fnuz: [f32; 256],
}

static EIGHT: LazyLock<Eight> = LazyLock::new(|| Eight {
    // OCP OFP8: E4M3 has no infinities, and S.1111.111 is no number; E5M2 is as IEEE's formats.
    e4m3: table(3, 7, |code| code & 0x7f == 0x7f, |_| None),
    e5m2: table(
        2,
        15,
        |code| code & 0x7c == 0x7c && code & 3 != 0,
        |code| (code & 0x7f == 0x7c).then_some(f32::INFINITY),
    ),
    // OCP MX: 2^(code − 127).
    e8m0: std::array::from_fn(|code| match code {
        255 => f32::NAN,
        code => 2f64.powi(i32::try_from(code).unwrap_or(0) - 127) as f32,
    }),
    // Without negative zero, whose code is no number; one more in the bias.
    e4m3fnuz: table(3, 8, |code| code == 0x80, |_| None),
    e5m2fnuz: table(2, 16, |code| code == 0x80, |_| None),
});

// The values of an 8-bit float with this many mantissa bits and this bias.
fn table(
    mantissa: u32,
    bias: i32,
    is_nan: impl Fn(usize) -> bool,
    infinity: impl Fn(usize) -> Option<f32>,
) -> [f32; 256] {
    std::array::from_fn(|code| {
        if is_nan(code) {
            return f32::NAN;
        }
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        if let Some(infinity) = infinity(code) {
            return infinity * sign;
        }
        let bits = u32::try_from(code & 0x7f).unwrap_or(0);
        let (exponent, fraction) = (bits >> mantissa, bits & ((1 << mantissa) - 1));
        let one = f32::from(1u16 << mantissa);
        let fraction = f32::from(u16::try_from(fraction).unwrap_or(0)) / one;
        let power = |e: i32| 2f32.powi(e);
        sign * match exponent {
            0 => fraction * power(1 - bias),
            e => (1.0 + fraction) * power(i32::try_from(e).unwrap_or(0) - bias),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
        let mut v = Values::default();
        decode(dtype, bytes, &mut v);
        v.widen();
        v.wide
    }

    #[test]
    fn eight_bit_floats_have_the_values_of_their_standards() {
        assert_eq!(
            of(Dtype::F8E4M3, &[0x00, 0x01, 0x08, 0x38, 0x7e, 0xfe]),
            [0.0, 0.001953125, 0.015625, 1.0, 448.0, -448.0]
        );
        assert!(of(Dtype::F8E4M3, &[0x7f])[0].is_nan());
        assert_eq!(
            of(Dtype::F8E5M2, &[0x01, 0x3c, 0x7b, 0x7c, 0xfc]),
            [1.52587890625e-5, 1.0, 57344.0, f64::INFINITY, f64::NEG_INFINITY]
        );
        assert_eq!(of(Dtype::F8E8M0, &[127, 128, 126, 0]), [1.0, 2.0, 0.5, 2f64.powi(-127)]);
        assert_eq!(of(Dtype::F8E4M3Fnuz, &[0x40, 0x7f]), [1.0, 240.0]);
        assert!(of(Dtype::F8E5M2Fnuz, &[0x80])[0].is_nan());
    }

    #[test]
    fn e4m3_is_what_the_quantiser_has() {
        for code in 0..=0x7eu8 {
            let expected = f64::from(crate::kinds::quant::round::e4m3_to_f32(code));
            assert_eq!(of(Dtype::F8E4M3, &[code]), [expected], "{code:#x}");
        }
    }

    #[test]
    fn every_known_type_gives_a_number_an_element() {
        for d in Dtype::ALL.iter().filter(|d| is_known(**d)) {
            let bytes = vec![1u8; 64];
            let n = 64 * 8 / usize::try_from(d.bits()).unwrap() * if *d == Dtype::C64 { 2 } else { 1 };
            assert_eq!(of(*d, &bytes).len(), n, "{d}");
        }
        assert_eq!(of(Dtype::Bf16, &[0x80, 0x3f, 0x00, 0xc0]), [1.0, -2.0]);
        assert_eq!(of(Dtype::I64, &(-3i64).to_le_bytes()), [-3.0]);
    }
}
