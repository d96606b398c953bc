//! Small tensor files for tests.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

/// A tensor to be put into a file.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl Made {
    pub(crate) fn new(name: &str, dtype: &str, shape: &[u64], bytes: &[u8]) -> Self {
        Self { name: name.into(), dtype: dtype.into(), shape: shape.to_vec(), bytes: bytes.to_vec() }
    }

    /// One F32 per value.
    pub(crate) fn f32(name: &str, shape: &[u64], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::new(name, "F32", shape, &bytes)
    }
}

/// A file with this header text and data, padded to 8.
pub(crate) fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    let mut h = header.as_bytes().to_vec();
    h.resize(h.len().next_multiple_of(8), b' ');
    let mut out = (h.len() as u64).to_le_bytes().to_vec();
    out.extend(h);
    out.extend(data);
    out
}

/// A safetensors file, written without the code under test.
pub(crate) fn shard(metadata: Option<&[(&str, &str)]>, tensors: &[Made]) -> Vec<u8> {
    let mut map = serde_json::Map::new();
    if let Some(m) = metadata {
        let m: serde_json::Map<String, serde_json::Value> = m.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        map.insert("__metadata__".into(), m.into());
    }
    let mut data = vec![];
    for t in tensors {
        let begin = data.len();
        data.extend(&t.bytes);
        let info = serde_json::json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [begin, data.len()]});
        map.insert(t.name.clone(), info);
    }
    raw(&serde_json::Value::Object(map).to_string(), &data)
}

/// An unnamed file of these bytes.
pub(crate) fn file_of(bytes: &[u8]) -> File {
    let mut f = tempfile::tempfile().unwrap();
    f.write_all(bytes).unwrap();
    f
}

/// A path below `tests/data`.
pub(crate) fn data(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "data", path].iter().collect()
}
