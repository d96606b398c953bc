//! Weights as they are meant: a plain tensor, or the parts of a quantised one with the shape and values that they stand
//! for.
//!
//! | parts, for a weight `W` of shape `[o, i]` | written by | value |
//! | --- | --- | --- |
//! | `W_packed` U8 `[o, i/2]`, `W_scale` F8_E4M3 `[o, i/16]`, `W_global_scale` F32 | compressed-tensors, NVFP4 | fp4 · (scale / global) |
//! | `W` U8 `[o, i/2]`, `W_scale` F8_E4M3 `[o, i/16]`, `W_scale_2` F32 | modelopt, NVFP4 | fp4 · (scale · scale_2) |
//! | `W_packed` U8 `[o, i/2]`, `W_scale` U8 or F8_E8M0 `[o, i/32]` | compressed-tensors, MXFP4 | fp4 · 2^(scale − 127) |
//! | `W` F8 or I8, `W_scale` or `W_scale_inv` for all, a row or a block, `W_zero_point` | both, FP8 and INT8 | (w − zero) · scale |
//! | `W_packed` I32 `[o, ⌈i·bits/32⌉]`, `W_scale` `[o, groups]`, `W_shape`, `W_zero_point`, `W_g_idx` | compressed-tensors, INT1 to INT8 | (q − zero) · scale |
//!
//! The low nibble is the even column. Packed integers stand densely, lowest bits first, with half their range added.
//! What fits none of these is a tensor like any other. Source: the formats' own tools, see docs/diff.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::diff::elements::{self, Values};
use crate::diff::side::{Side, SideTensor};
use crate::digest::Digest;
use crate::store::error::Result;
use crate::tensors::dtype::{Dtype, elements as count};

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// As itself.
    Plain(Dtype),
    /// FP4 in groups of 16, in compressed-tensors' layout.
    Nvfp4,
    /// FP4 in groups of 16, in modelopt's layout.
    Nvfp4Modelopt,
    /// FP4 in groups of 32.
    Mxfp4,
    /// 8-bit numbers with scales that each hold for so many rows and columns.
    Scaled {
        /// The numbers' type.
        dtype: Dtype,
        /// Rows and columns that share a scale; 0 for all of them.
        block: (u64, u64),
    },
    /// Integers packed into words of 32 bits.
    Packed {
        /// Bits an integer.
        bits: u32,
        /// Columns that share a scale.
        group: u64,
    },
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::Plain(d) => write!(f, "{d}"),
            Encoding::Nvfp4 => f.write_str("NVFP4 (compressed-tensors)"),
            Encoding::Nvfp4Modelopt => f.write_str("NVFP4 (modelopt)"),
            Encoding::Mxfp4 => f.write_str("MXFP4"),
            Encoding::Scaled { dtype, block: (0, 0) } => write!(f, "{dtype}, one scale"),
            Encoding::Scaled { dtype, block: (1, 0) } => write!(f, "{dtype}, a scale a row"),
            Encoding::Scaled { dtype, block: (r, c) } => write!(f, "{dtype}, a scale a block of {r}×{c}"),
            Encoding::Packed { bits, group: 0 } => write!(f, "INT{bits}, a scale a row"),
            Encoding::Packed { bits, group } => write!(f, "INT{bits}, groups of {group}"),
        }
    }
}

/// A weight: one tensor, or the parts of a quantised one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// The shape that it stands for.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub encoding: Encoding,
    /// The tensors that it is made of, by name; the first has the numbers.
    pub parts: Vec<String>,
    scale: Option<String>,
    global: Option<String>,
    zero: Option<String>,
    order: Option<String>,
}

/// The weights of a side by name. Errors: a part that can't be read.
pub fn weights(side: &Side) -> Result<BTreeMap<String, Weight>> {
    let mut found = BTreeMap::new();
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    for name in side.tensors.keys() {
        let base = name.strip_suffix("_packed").unwrap_or(name);
        // A weight that is there both packed and plain is two.
        if base != name && side.tensors.contains_key(base) {
            continue;
        }
        if let Some(weight) = quantised(side, base)? {
            taken.extend(weight.parts.iter().filter_map(|p| side.tensors.get_key_value(p)).map(|(k, _)| k.as_str()));
            found.insert(base.to_owned(), weight);
        }
    }
    for (name, t) in side.tensors.iter().filter(|(n, _)| !taken.contains(n.as_str())) {
        let weight = Weight {
            shape: t.shape.clone(),
            encoding: Encoding::Plain(t.dtype),
            parts: vec![name.clone()],
            scale: None,
            global: None,
            zero: None,
            order: None,
        };
        found.insert(name.clone(), weight);
    }
    Ok(found)
}

fn quantised(side: &Side, base: &str) -> Result<Option<Weight>> {
    let part = |suffix: &str| {
        let name = format!("{base}{suffix}");
        side.tensors.get(&name).map(|t| (name, t))
    };
    let Some((scale_name, scale)) = part("_scale").or_else(|| part("_scale_inv")) else { return Ok(None) };
    let packed = part("_packed");
    let Some((name, numbers)) = packed.clone().or_else(|| part("")) else { return Ok(None) };
    let Some((columns, above)) = numbers.shape.split_last() else { return Ok(None) };
    let global = part(if packed.is_some() { "_global_scale" } else { "_scale_2" });
    let doubled = || columns.checked_mul(2).map(|c| [above, &[c]].concat());
    let groups =
        |of: u64| doubled().is_some_and(|s| s.last().is_some_and(|c| scale.shape == [above, &[c / of]].concat()));
    let float = |t: &SideTensor| t.dtype.is_plain_float();
    let mut weight = Weight {
        shape: Vec::new(),
        encoding: Encoding::Nvfp4,
        parts: vec![name, scale_name.clone()],
        scale: Some(scale_name),
        global: None,
        zero: None,
        order: None,
    };
    match (numbers.dtype, scale.dtype, global) {
        (Dtype::U8, Dtype::F8E4M3, Some((global_name, global)))
            if global.dtype == Dtype::F32 && groups(16) && per_row(numbers, global) =>
        {
            weight.encoding = if packed.is_some() { Encoding::Nvfp4 } else { Encoding::Nvfp4Modelopt };
            weight.shape = doubled().unwrap_or_default();
            weight.parts.push(global_name.clone());
            weight.global = Some(global_name);
        }
        (Dtype::U8, Dtype::U8 | Dtype::F8E8M0, None) if packed.is_some() && groups(32) => {
            weight.encoding = Encoding::Mxfp4;
            weight.shape = doubled().unwrap_or_default();
        }
        (Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::I8, _, None) if packed.is_none() && float(scale) => {
            let Some(block) = block_of(&numbers.shape, &scale.shape) else { return Ok(None) };
            weight.encoding = Encoding::Scaled { dtype: numbers.dtype, block };
            weight.shape.clone_from(&numbers.shape);
            if let Some((zero_name, zero)) = part("_zero_point") {
                if zero.shape != scale.shape || !matches!(zero.dtype, Dtype::I8 | Dtype::I32) {
                    return Ok(None);
                }
                weight.parts.push(zero_name.clone());
                weight.zero = Some(zero_name);
            }
        }
        (Dtype::I32, _, None) if packed.is_some() && float(scale) => {
            let Some(shape) = part("_shape") else { return Ok(None) };
            if !packed_integers(side, &mut weight, (numbers, scale), shape, part("_zero_point"), part("_g_idx"))? {
                return Ok(None);
            }
        }
        _ => return Ok(None),
    }
    Ok(Some(weight))
}

type Named<'a> = (String, &'a SideTensor);

// Whether that is one number, or one for so many rows each.
fn per_row(numbers: &SideTensor, global: &SideTensor) -> bool {
    let (rows, _) = flat(&numbers.shape);
    count(&global.shape).is_some_and(|n| n == 1 || n > 0 && rows % n == 0)
}

fn packed_integers(
    side: &Side,
    weight: &mut Weight,
    (numbers, scale): (&SideTensor, &SideTensor),
    (shape_name, shape): Named<'_>,
    zero: Option<Named<'_>>,
    order: Option<Named<'_>>,
) -> Result<bool> {
    let ([rows, words], [scale_rows, groups]) = (&numbers.shape[..], &scale.shape[..]) else { return Ok(false) };
    if shape.dtype != Dtype::I64 || shape.shape != [2] || !side.has_bytes(shape) || scale_rows != rows {
        return Ok(false);
    }
    let mut bytes = [0u8; 16];
    side.read(shape, 0, &mut bytes)?;
    let stated: Vec<i64> = bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
    let Ok(columns) = u64::try_from(stated[1]) else { return Ok(false) };
    if u64::try_from(stated[0]) != Ok(*rows) {
        return Ok(false);
    }
    let packed = |n: u64, bits: u64| n.checked_mul(bits).map(|all| all.div_ceil(32));
    // Of fewer than 32 columns several numbers of bits may fit: the usual ones first.
    let Some(bits) = [4, 8, 2, 3, 5, 6, 7, 1].into_iter().find(|bits| packed(columns, *bits) == Some(*words)) else {
        return Ok(false);
    };
    let Some(group) = block(columns, *groups) else { return Ok(false) };
    weight.encoding =
        Encoding::Packed { bits: u32::try_from(bits).unwrap_or(4), group: if *groups == 1 { 0 } else { group } };
    weight.shape = vec![*rows, columns];
    weight.parts.push(shape_name);
    if let Some((name, zero)) = zero {
        if zero.dtype != Dtype::I32 || packed(*rows, bits).is_none_or(|n| zero.shape != [n, *groups]) {
            return Ok(false);
        }
        weight.parts.push(name.clone());
        weight.zero = Some(name);
    }
    if let Some((name, order)) = order {
        if order.dtype != Dtype::I32 || order.shape != [columns] {
            return Ok(false);
        }
        weight.parts.push(name.clone());
        weight.order = Some(name);
    }
    Ok(true)
}

/// How many of `n` share one of `scales`, where the last block may be short: a power of two where one fits.
fn block(n: u64, scales: u64) -> Option<u64> {
    if scales == 0 || n == 0 || scales > n {
        return None;
    }
    if scales == 1 {
        return Some(n);
    }
    let powers = [128u64, 1, 2, 4, 8, 16, 32, 64, 256, 512, 1024];
    powers.into_iter().find(|p| n.div_ceil(*p) == scales).or_else(|| n.is_multiple_of(scales).then_some(n / scales))
}

// Rows and columns that share a scale; 0 where all do.
fn block_of(numbers: &[u64], scale: &[u64]) -> Option<(u64, u64)> {
    if count(scale) == Some(1) {
        return Some((0, 0));
    }
    let (rows, columns) = flat(numbers);
    if scale == [rows] {
        return Some((1, 0));
    }
    if scale.len() != numbers.len() || scale.len() < 2 {
        return None;
    }
    let (above, last) = (numbers.len() - 2, numbers.len() - 1);
    if numbers[..above] != scale[..above] {
        return None;
    }
    let (r, c) = (block(numbers[above], scale[above])?, block(columns, scale[last])?);
    Some((if above == 0 && r == numbers[above] { 0 } else { r }, if c == columns { 0 } else { c }))
}

/// All dimensions but the last as rows, and the last.
fn flat(shape: &[u64]) -> (u64, u64) {
    match shape.split_last() {
        Some((columns, above)) => (count(above).unwrap_or(0), *columns),
        None => (1, 1),
    }
}

impl Weight {
    /// The number of its elements.
    pub fn elements(&self) -> u64 {
        count(&self.shape).unwrap_or(0)
    }

    /// The bytes of all its parts.
    pub fn stored_len(&self, side: &Side) -> u64 {
        self.parts.iter().filter_map(|p| side.tensors.get(p)).map(|t| t.len).sum()
    }

    /// Whether its numbers can be told: a known type, and bytes that are there.
    pub fn is_readable(&self, side: &Side) -> bool {
        let plain = match self.encoding {
            Encoding::Plain(d) => elements::is_known(d),
            _ => true,
        };
        plain && self.parts.iter().all(|p| side.tensors.get(p).is_some_and(|t| side.has_bytes(t)))
    }

    /// Whether both are stored alike and every part has the same digest; `None` where a digest is not known.
    pub fn same_digests(&self, side: &Side, other: &Weight, other_side: &Side) -> Option<bool> {
        if self.encoding != other.encoding || self.shape != other.shape || self.parts.len() != other.parts.len() {
            return Some(false);
        }
        let mut all = true;
        for (a, b) in self.parts.iter().zip(&other.parts) {
            let (a, b) = (side.tensors.get(a)?, other_side.tensors.get(b)?);
            all &= a.digest? == b.digest?;
        }
        Some(all)
    }

    /// What it holds as one digest, its name apart. Errors: its bytes can't be read.
    pub fn content(&self, side: &Side, cancelled: &dyn Fn() -> bool) -> Result<Digest> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{} {:?}", self.encoding, self.shape).as_bytes());
        for t in self.parts.iter().filter_map(|p| side.tensors.get(p)) {
            hasher.update(format!("{} {:?}", t.dtype, t.shape).as_bytes());
            hasher.update(side.digest_of(t, cancelled)?.as_bytes());
        }
        Ok(hasher.finalize().into())
    }

    /// Elements that are read at once: whole rows of a quantised weight.
    pub fn row(&self) -> u64 {
        match self.encoding {
            Encoding::Plain(_) => 1,
            _ => flat(&self.shape).1.max(1),
        }
    }

    /// Bytes of a plain weight's elements `from` to `from + n`, as they are stored. Errors: the disk's.
    pub fn raw(&self, side: &Side, from: u64, n: u64, buffer: &mut Vec<u8>) -> Result<bool> {
        let (Encoding::Plain(dtype), Some(t)) = (self.encoding, self.part(side, 0)) else { return Ok(false) };
        let bytes = dtype.bits() / 8;
        resize(buffer, n * bytes);
        side.read(t, from * bytes, buffer)?;
        Ok(true)
    }

    fn part<'s>(&self, side: &'s Side, n: usize) -> Option<&'s SideTensor> {
        side.tensors.get(self.parts.get(n)?)
    }

    /// Appends the values of elements `from` to `from + n`, both in whole [rows](Self::row). Errors: the disk's.
    pub fn values(&self, side: &Side, from: u64, n: u64, buffer: &mut Vec<u8>, into: &mut Values) -> Result<()> {
        if let Encoding::Plain(dtype) = self.encoding {
            self.raw(side, from, n, buffer)?;
            elements::decode(dtype, buffer, into);
            return Ok(());
        }
        let columns = self.row();
        let (first, rows) = (from / columns, n / columns);
        let Some(numbers) = self.part(side, 0) else { return Ok(()) };
        let stored = numbers.len / flat(&self.shape).0.max(1);
        resize(buffer, rows * stored);
        side.read(numbers, first * stored, buffer)?;
        let scales = match &self.scale {
            Some(scale) => self.lines(side, scale, first, rows)?,
            None => Lines::default(),
        };
        match self.encoding {
            Encoding::Nvfp4 | Encoding::Nvfp4Modelopt | Encoding::Mxfp4 => fp4(buffer, columns, &scales, into),
            Encoding::Scaled { dtype, .. } => {
                let mut numbers = Values::default();
                elements::decode(dtype, buffer, &mut numbers);
                let zeros = match &self.zero {
                    Some(zero) => Some(self.lines(side, zero, first, rows)?),
                    None => None,
                };
                let columns = usize::try_from(columns).unwrap_or(1);
                for (r, line) in numbers.narrow.chunks(columns).enumerate() {
                    let zero = |c: usize| zeros.as_ref().map_or(0.0, |z| z.at(r, c));
                    into.narrow.extend(line.iter().enumerate().map(|(c, q)| (q - zero(c)) * scales.at(r, c)));
                }
            }
            Encoding::Packed { bits, .. } => self.unpack(side, first, bits, buffer, &scales, into)?,
            Encoding::Plain(_) => {}
        }
        Ok(())
    }

    // Rows and columns for which one scale holds, in full numbers.
    fn shared(&self) -> (u64, u64) {
        let (rows, columns) = flat(&self.shape);
        let all = |n: u64, of: u64| if n == 0 { of.max(1) } else { n };
        match self.encoding {
            Encoding::Nvfp4 | Encoding::Nvfp4Modelopt => (1, 16),
            Encoding::Mxfp4 => (1, 32),
            Encoding::Packed { group, .. } => (1, all(group, columns)),
            Encoding::Scaled { block: (r, c), .. } => (all(r, rows), all(c, columns)),
            Encoding::Plain(_) => (1, 1),
        }
    }

    // What the tensor `name`, shaped as the scales are, holds for rows `first` to `first + rows`; with the global scale
    // where there is one.
    fn lines(&self, side: &Side, name: &str, first: u64, rows: u64) -> Result<Lines> {
        let Some(scale) = side.tensors.get(name) else { return Ok(Lines::default()) };
        let (all_rows, columns) = flat(&self.shape);
        let (row, column) = self.shared();
        // Blocks of rows begin anew in each matrix of a stack.
        let matrix = if row >= all_rows { all_rows } else { self.shape.iter().rev().nth(1).copied().unwrap_or(1) };
        let matrix = matrix.max(1);
        let line_of = |r: u64| r / matrix * matrix.div_ceil(row) + r % matrix / row;
        let a_line = columns.div_ceil(column).max(1);
        let (from, to) = (line_of(first), line_of(first + rows.max(1) - 1) + 1);
        let width = scale.dtype.bits() / 8 * a_line;
        let mut bytes = Vec::new();
        resize(&mut bytes, (to - from) * width);
        side.read(scale, from * width, &mut bytes)?;
        let mut numbers = Values::default();
        let dtype = if self.encoding == Encoding::Mxfp4 { Dtype::F8E8M0 } else { scale.dtype };
        elements::decode(dtype, &bytes, &mut numbers);
        #[allow(clippy::cast_possible_truncation, reason = "a scale in F64 is rounded, as the tools round it")]
        numbers.narrow.extend(numbers.wide.iter().map(|v| *v as f32));
        let mut numbers = numbers.narrow;
        let index = |n: u64| usize::try_from(n).unwrap_or(0);
        if let Some(global) = self.global.as_ref().and_then(|g| side.tensors.get(g)) {
            let mut bytes = Vec::new();
            resize(&mut bytes, global.len);
            side.read(global, 0, &mut bytes)?;
            let mut globals = Values::default();
            elements::decode(Dtype::F32, &bytes, &mut globals);
            let n = globals.narrow.len() as u64;
            for (i, line) in numbers.chunks_mut(index(a_line)).enumerate() {
                let which = (from + i as u64) * n / all_rows.max(1);
                let global = globals.narrow.get(index(which)).copied().unwrap_or(1.0);
                let divides = self.encoding == Encoding::Nvfp4;
                line.iter_mut().for_each(|s| *s = if divides { *s / global } else { *s * global });
            }
        }
        let lines = (first..first + rows).map(|r| index(line_of(r) - from)).collect();
        Ok(Lines { numbers, lines, a_line: index(a_line), column: index(column) })
    }

    fn unpack(
        &self,
        side: &Side,
        first: u64,
        bits: u32,
        bytes: &[u8],
        scales: &Lines,
        into: &mut Values,
    ) -> Result<()> {
        let (_, columns) = flat(&self.shape);
        let columns = usize::try_from(columns).unwrap_or(0);
        let half = 1i64 << (bits - 1);
        let words = (columns * bits as usize).div_ceil(32);
        let read = |name: &Option<String>| -> Result<Option<Vec<u32>>> {
            let Some(t) = name.as_ref().and_then(|n| side.tensors.get(n)) else { return Ok(None) };
            let mut bytes = vec![0u8; usize::try_from(t.len).unwrap_or(0)];
            side.read(t, 0, &mut bytes)?;
            Ok(Some(bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()))
        };
        let (zeros, order) = (read(&self.zero)?, read(&self.order)?);
        let groups = scales.a_line;
        let all: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        for (r, line) in all.chunks(words.max(1)).enumerate() {
            let row = usize::try_from(first).unwrap_or(0) + r;
            for c in 0..columns {
                let q = integer(|word| line.get(word).copied(), c, bits) - half;
                let group = match order.as_ref().and_then(|o| o.get(c)) {
                    Some(g) => *g as usize,
                    None => c / scales.column.max(1),
                };
                // Packed along the rows, each group apart.
                let zero = zeros
                    .as_ref()
                    .map_or(0, |z| integer(|word| z.get(word * groups + group).copied(), row, bits) - half);
                let scale = scales.of_row(r).get(group).copied().unwrap_or(0.0);
                #[allow(clippy::cast_precision_loss, reason = "of at most 9 bits")]
                into.narrow.push((q - zero) as f32 * scale);
            }
        }
        Ok(())
    }
}

// Scales, or zero points, of some rows.
#[derive(Default)]
struct Lines {
    numbers: Vec<f32>,
    // Row → its line of `numbers`.
    lines: Vec<usize>,
    a_line: usize,
    // Columns that share one.
    column: usize,
}

impl Lines {
    fn of_row(&self, row: usize) -> &[f32] {
        let start = self.lines.get(row).copied().unwrap_or(0) * self.a_line;
        self.numbers.get(start..start + self.a_line).unwrap_or(&[])
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.of_row(row).get(column / self.column.max(1)).copied().unwrap_or(0.0)
    }
}

// Two numbers a byte, the even column in the low nibble.
fn fp4(bytes: &[u8], columns: u64, scales: &Lines, into: &mut Values) {
    let a_row = usize::try_from(columns / 2).unwrap_or(1).max(1);
    for (r, row) in bytes.chunks(a_row).enumerate() {
        for (group, scale) in row.chunks((scales.column / 2).max(1)).zip(scales.of_row(r)) {
            into.narrow.extend(
                group.iter().flat_map(|b| [FP4[usize::from(b & 15)], FP4[usize::from(b >> 4)]]).map(|q| q * scale),
            );
        }
    }
}

/// FP4's values by code; bit 3 is the sign. Source: OCP Microscaling Formats, E2M1.
const FP4: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

// The `n`-th integer of so many bits of a row of words, lowest bits first; it may lie across two words.
fn integer(word: impl Fn(usize) -> Option<u32>, n: usize, bits: u32) -> i64 {
    let at = n * bits as usize;
    let both = u64::from(word(at / 32).unwrap_or(0)) | u64::from(word(at / 32 + 1).unwrap_or(0)) << 32;
    (both >> (at % 32) & ((1 << bits) - 1)).cast_signed()
}

fn resize(buffer: &mut Vec<u8>, n: u64) {
    buffer.resize(usize::try_from(n).unwrap_or(0), 0);
}
