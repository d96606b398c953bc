//! Tensor table of a safetensors blob: what its header says, and the BLAKE3 of every tensor's bytes.
//!
//! ```text
//! graftwerk tensors 1
//! data 712
//! metadata 1
//! "format" "pt"
//! tensors 2
//! BF16 [512,128] 0 131072 b3:af7b… "lm_head.weight"
//! F32 [] 131072 131076 b3:91c4… "scale"
//! ```
//!
//! One line a key of `__metadata__` in the order of the file (`metadata -` where there is none), one line a tensor:
//! type, shape, begin and end in the data section, digest, quoted name. (The store adds a line with its digest.)

use std::fmt::Write as _;

use crate::canon::{quote, unquote, unquote_prefix};
use crate::digest::Digest;
use crate::tensors::dtype::Dtype;
use crate::tensors::header::Header;

/// One tensor of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name: data, never a path.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Where its bytes start, counted from the start of the data section.
    pub begin: u64,
    /// Where they end.
    pub end: u64,
    /// BLAKE3 of its bytes.
    pub digest: Digest,
}

impl TensorEntry {
    /// The number of its bytes.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }

    /// Whether the other one has the same type, shape and bytes, under whatever name.
    pub fn same_content(&self, other: &TensorEntry) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.digest == other.digest
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a safetensors blob holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorTable {
    /// Where the data section starts in the file: 8 + the header's length.
    pub data_start: u64,
    /// The header's `__metadata__`, in the order of the file; `None` where there is none.
    pub metadata: Option<Vec<(String, String)>>,
    /// The tensors, by offset; those without bytes by name among their equals.
    pub tensors: Vec<TensorEntry>,
}

/// The text is not what [`TensorTable::to_text`] writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the tensor table: {what}")]
pub struct BadTable {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

const FIRST: &str = "graftwerk tensors 1";

impl TensorTable {
    /// The table of a header whose tensors have these digests, in the header's order. Tensors without a digest are
    /// left out.
    pub fn new(header: Header, digests: impl IntoIterator<Item = Digest>) -> Self {
        let tensors = header
            .tensors
            .into_iter()
            .zip(digests)
            .map(|(t, digest)| TensorEntry {
                name: t.name,
                dtype: t.dtype,
                shape: t.shape,
                begin: t.begin,
                end: t.end,
                digest,
            })
            .collect();
        Self { data_start: header.data_start, metadata: header.metadata, tensors }
    }

    /// The tensor of this name. A look through all of them: who looks up many makes a map, as
    /// [`Checkpoint`](crate::tensors::checkpoint::Checkpoint) does.
    pub fn get(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// The length of the data section: the sum of the tensors' bytes.
    pub fn data_len(&self) -> u64 {
        self.tensors.last().map_or(0, |t| t.end)
    }

    /// The size of the file.
    pub fn file_len(&self) -> u64 {
        self.data_start.saturating_add(self.data_len())
    }

    /// The canonical text.
    pub fn to_text(&self) -> String {
        let mut s = String::with_capacity(64 + self.tensors.len() * 160);
        let _ = writeln!(s, "{FIRST}\ndata {}", self.data_start);
        match &self.metadata {
            None => s.push_str("metadata -\n"),
            Some(pairs) => {
                let _ = writeln!(s, "metadata {}", pairs.len());
                for (k, v) in pairs {
                    let _ = writeln!(s, "{} {}", quote(k.as_bytes()), quote(v.as_bytes()));
                }
            }
        }
        let _ = writeln!(s, "tensors {}", self.tensors.len());
        for t in &self.tensors {
            let _ = write!(s, "{} [", t.dtype);
            for (i, d) in t.shape.iter().enumerate() {
                let _ = write!(s, "{}{d}", if i > 0 { "," } else { "" });
            }
            let _ = writeln!(s, "] {} {} {} {}", t.begin, t.end, t.digest, quote(t.name.as_bytes()));
        }
        s
    }

    /// Reads the canonical text. Errors: [`BadTable`] at the first line that [`TensorTable::to_text`] would not have
    /// written.
    pub fn parse(text: &str) -> Result<Self, BadTable> {
        let mut lines = Lines { lines: text.split_terminator('\n'), line: 0 };
        if lines.next()? != FIRST {
            return Err(lines.bad(format!("expected {FIRST:?}")));
        }
        let data_start = lines.number("data ")?;
        let line = lines.next()?;
        let metadata = match line {
            "metadata -" => None,
            _ => {
                let count = lines.number_in(line, "metadata ")?;
                let mut pairs = Vec::new();
                for _ in 0..count {
                    let line = lines.next()?;
                    let (key, rest) = unquote_prefix(line).map_err(|e| lines.bad(e.to_string()))?;
                    let value = rest.strip_prefix(' ').ok_or_else(|| lines.bad("expected a value"))?;
                    let value = unquote(value).map_err(|e| lines.bad(e.to_string()))?;
                    pairs.push((lines.utf8(key)?, lines.utf8(value)?));
                }
                Some(pairs)
            }
        };
        let count = lines.number("tensors ")?;
        let mut tensors: Vec<TensorEntry> = Vec::new();
        for _ in 0..count {
            let entry = lines.tensor()?;
            if entry.begin != tensors.last().map_or(0, |t| t.end) {
                return Err(lines.bad("the tensor does not start where the one before it ends"));
            }
            tensors.push(entry);
        }
        if lines.lines.next().is_some() {
            return Err(lines.bad("more lines than tensors"));
        }
        let table = Self { data_start, metadata, tensors };
        if table.to_text() != text {
            return Err(BadTable { line: 1, what: "the text is not in canonical form".to_owned() });
        }
        Ok(table)
    }
}

struct Lines<'a> {
    lines: std::str::SplitTerminator<'a, char>,
    line: usize,
}

impl<'a> Lines<'a> {
    fn bad(&self, what: impl Into<String>) -> BadTable {
        BadTable { line: self.line, what: what.into() }
    }

    fn next(&mut self) -> Result<&'a str, BadTable> {
        self.line += 1;
        self.lines.next().ok_or_else(|| self.bad("the text ends here"))
    }

    fn number(&mut self, key: &str) -> Result<u64, BadTable> {
        let line = self.next()?;
        self.number_in(line, key)
    }

    fn number_in(&self, line: &str, key: &str) -> Result<u64, BadTable> {
        line.strip_prefix(key)
            .and_then(|n| n.parse().ok())
            .ok_or_else(|| self.bad(format!("expected `{}` and a number", key.trim_end())))
    }

    fn utf8(&self, bytes: Vec<u8>) -> Result<String, BadTable> {
        String::from_utf8(bytes).map_err(|_| self.bad("not UTF-8"))
    }

    fn tensor(&mut self) -> Result<TensorEntry, BadTable> {
        let line = self.next()?;
        let mut parts = line.splitn(6, ' ');
        let mut part = || parts.next().ok_or_else(|| self.bad("expected type, shape, begin, end, digest and name"));
        let (dtype, shape, begin, end, digest, name) = (part()?, part()?, part()?, part()?, part()?, part()?);
        let dtype: Dtype = dtype.parse().map_err(|e| self.bad(format!("{e}")))?;
        let number = |n: &str| n.parse::<u64>().map_err(|_| self.bad(format!("{n:?} is no number")));
        let dims = shape
            .strip_prefix('[')
            .and_then(|s| s.strip_suffix(']'))
            .ok_or_else(|| self.bad(format!("{shape:?} is no shape")))?;
        let shape = dims.split(',').filter(|_| !dims.is_empty()).map(number).collect::<Result<Vec<_>, _>>()?;
        let (begin, end) = (number(begin)?, number(end)?);
        let size = dtype.byte_len(&shape).map_err(|e| self.bad(e.to_string()))?;
        if begin.checked_add(size) != Some(end) {
            return Err(self.bad(format!("{size} bytes by type and shape, but it spans {begin} to {end}")));
        }
        let digest = digest.parse().map_err(|e| self.bad(format!("{e}")))?;
        let name = unquote(name).map_err(|e| self.bad(e.to_string()))?;
        Ok(TensorEntry { name: self.utf8(name)?, dtype, shape, begin, end, digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> TensorTable {
        let entry = |name: &str, dtype, shape: &[u64], begin, end| TensorEntry {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            begin,
            end,
            digest: Digest::of(name.as_bytes()),
        };
        TensorTable {
            data_start: 712,
            metadata: Some(vec![("format".into(), "pt".into()), ("odd \"key\"\n".into(), "".into())]),
            tensors: vec![
                entry("empty", Dtype::F32, &[0, 4], 0, 0),
                entry("a b\n\"c\" \u{e9}", Dtype::Bf16, &[2, 3], 0, 12),
                entry("scalar", Dtype::F32, &[], 12, 16),
            ],
        }
    }

    #[test]
    fn the_text_of_a_table_does_not_change_unnoticed() {
        let text = sample().to_text();
        let golden = "graftwerk tensors 1\n\
            data 712\n\
            metadata 2\n\
            \"format\" \"pt\"\n\
            \"odd \\\"key\\\"\\n\" \"\"\n\
            tensors 3\n\
            F32 [0,4] 0 0 b3:";
        assert!(text.starts_with(golden), "{text}");
        assert_eq!(
            Digest::of(text.as_bytes()).to_string(),
            "b3:e57987b2a30f1f78b525ca98a8d17fd4e35932e57665df4a949d3dbd73b5a4e6"
        );
    }

    #[test]
    fn a_table_reads_back_byte_for_byte() {
        let mut t = sample();
        for metadata in [None, Some(vec![]), t.metadata.clone()] {
            t.metadata = metadata;
            assert_eq!(TensorTable::parse(&t.to_text()).unwrap(), t);
        }
        let empty = TensorTable { data_start: 10, metadata: None, tensors: vec![] };
        assert_eq!(TensorTable::parse(&empty.to_text()).unwrap(), empty);
    }

    #[test]
    fn a_damaged_table_is_an_error_with_its_line_and_never_a_shorter_table() {
        let text = sample().to_text();
        for cut in 0..text.len() {
            if text.is_char_boundary(cut) {
                assert!(TensorTable::parse(&text[..cut]).is_err(), "cut at {cut}");
            }
        }
        let e = TensorTable::parse(&text.replace(" 0 12 ", " 0 14 ")).unwrap_err();
        assert_eq!(e.line, 8);
        assert!(TensorTable::parse(&text.replace("tensors 3", "tensors 99999999999")).is_err());
        assert!(TensorTable::parse(&format!("{text}\n")).is_err());
        assert!(TensorTable::parse(&text.replace("data 712", "data 0712")).is_err());
    }
}
