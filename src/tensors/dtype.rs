//! Element types.

use std::fmt;
use std::str::FromStr;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $text:literal $bits:literal,)*) => {
        /// An element type that the safetensors format knows. Source: `Dtype` of safetensors 0.8.0.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Dtype {
            $($(#[$doc])* $variant,)*
        }

        impl Dtype {
            /// All of them, in the order of the reference.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant,)*];

            /// The word in a header.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Dtype::$variant => $text,)*
                }
            }

            /// The size of one element in bits; F4 and F6 have less than a byte.
            pub const fn bits(self) -> u64 {
                match self {
                    $(Dtype::$variant => $bits,)*
                }
            }
        }

        impl FromStr for Dtype {
            type Err = UnknownDtype;
            fn from_str(text: &str) -> Result<Self, UnknownDtype> {
                match text {
                    $($text => Ok(Dtype::$variant),)*
                    _ => Err(UnknownDtype { text: text.chars().take(64).collect() }),
                }
            }
        }
    };
}

dtypes! {
    /// A byte that is 0 or 1.
    Bool "BOOL" 8,
    /// OCP MX FP4 (E2M1), two to a byte.
    F4 "F4" 4,
    /// OCP MX FP6.
    F6E2M3 "F6_E2M3" 6,
    /// OCP MX FP6.
    F6E3M2 "F6_E3M2" 6,
    /// Unsigned 8-bit integer; packed FP4 weights are stored so.
    U8 "U8" 8,
    /// Signed 8-bit integer.
    I8 "I8" 8,
    /// FP8 with 5 exponent bits.
    F8E5M2 "F8_E5M2" 8,
    /// FP8 with 4 exponent bits, without infinities.
    F8E4M3 "F8_E4M3" 8,
    /// OCP MX scale: an exponent.
    F8E8M0 "F8_E8M0" 8,
    /// FP8 E4M3 without negative zero.
    F8E4M3Fnuz "F8_E4M3FNUZ" 8,
    /// FP8 E5M2 without negative zero.
    F8E5M2Fnuz "F8_E5M2FNUZ" 8,
    /// Signed 16-bit integer.
    I16 "I16" 16,
    /// Unsigned 16-bit integer.
    U16 "U16" 16,
    /// IEEE half precision.
    F16 "F16" 16,
    /// Brain float: the upper half of an F32.
    Bf16 "BF16" 16,
    /// Signed 32-bit integer.
    I32 "I32" 32,
    /// Unsigned 32-bit integer.
    U32 "U32" 32,
    /// IEEE single precision.
    F32 "F32" 32,
    /// Complex of two F32.
    C64 "C64" 64,
    /// IEEE double precision.
    F64 "F64" 64,
    /// Signed 64-bit integer.
    I64 "I64" 64,
    /// Unsigned 64-bit integer.
    U64 "U64" 64,
}

/// A word that names no element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no element type of safetensors 0.8")]
pub struct UnknownDtype {
    /// The word, cut at 64 characters.
    pub text: String,
}

/// Why a shape of a type has no size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The number of elements or of bits exceeds 64 bits.
    #[error("its size overflows 64 bits")]
    Overflow,
    /// A type below a byte, and a number of elements that does not fill the last byte.
    #[error("its {bits} bits are no whole number of bytes")]
    PartByte {
        /// The size in bits.
        bits: u64,
    },
}

impl Dtype {
    /// The size in bytes of a tensor of this type; an empty shape is a scalar. Errors: [`SizeError`].
    pub fn byte_len(self, shape: &[u64]) -> Result<u64, SizeError> {
        let bits = elements(shape).and_then(|n| n.checked_mul(self.bits())).ok_or(SizeError::Overflow)?;
        if bits % 8 == 0 { Ok(bits / 8) } else { Err(SizeError::PartByte { bits }) }
    }

    /// Whether it is a float that holds a value by itself, as unquantised weights do: BF16, F16, F32 or F64.
    pub const fn is_plain_float(self) -> bool {
        matches!(self, Dtype::Bf16 | Dtype::F16 | Dtype::F32 | Dtype::F64)
    }
}

/// The number of elements of a shape: 1 for a scalar; `None` where it overflows 64 bits.
pub fn elements(shape: &[u64]) -> Option<u64> {
    // Multiplied in order, as the reference does: [2^40, 2^40, 0] overflows there too.
    shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d))
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_reads_back_its_name_and_the_reference_knows_it_with_the_same_bits() {
        assert_eq!(Dtype::ALL.len(), 22);
        for d in Dtype::ALL {
            assert_eq!(d.name().parse::<Dtype>().unwrap(), *d);
            let reference: safetensors::Dtype = serde_json::from_str(&format!("{:?}", d.name())).unwrap();
            assert_eq!(reference.bitsize() as u64, d.bits(), "{d}");
        }
        assert!("Q4_K".parse::<Dtype>().is_err());
        assert!("bf16".parse::<Dtype>().is_err());
    }

    #[test]
    fn types_below_a_byte_are_counted_in_bits() {
        assert_eq!(Dtype::F4.byte_len(&[2, 8]), Ok(8));
        assert_eq!(Dtype::F4.byte_len(&[3]), Err(SizeError::PartByte { bits: 12 }));
        assert_eq!(Dtype::F6E2M3.byte_len(&[4]), Ok(3));
        assert_eq!(Dtype::C64.byte_len(&[1]), Ok(8));
        assert_eq!(Dtype::F32.byte_len(&[]), Ok(4));
        assert_eq!(Dtype::F32.byte_len(&[0, 4]), Ok(0));
    }

    #[test]
    fn a_shape_that_overflows_has_no_size() {
        assert_eq!(Dtype::U8.byte_len(&[1 << 40, 1 << 40]), Err(SizeError::Overflow));
        assert_eq!(Dtype::U8.byte_len(&[1 << 40, 1 << 40, 0]), Err(SizeError::Overflow));
        assert_eq!(Dtype::F64.byte_len(&[1 << 60]), Err(SizeError::Overflow));
    }
}
