//! A checkpoint: safetensors shards and, where there are several, the index that names them.
//!
//! Its files stand at the top of a folder. What an index does not name, what stands in two shards and what is missing
//! are errors, since servers read every shard whole and let the later one win. A wrong `total_size` is a note:
//! llm-compressor sums file sizes, and nobody reads it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::digest::BlobId;
use crate::tensors::index::{INDEX_NAME, Index, IndexError, MAX_INDEX_BYTES};
use crate::tensors::table::{TensorEntry, TensorTable};

/// The name that loaders take first, index or not.
pub const SINGLE_NAME: &str = "model.safetensors";

/// Whether a file of this name, at the top of a checkpoint, is a shard.
pub fn is_shard_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.contains('/')
}

/// Whether a path of a tree is one of a checkpoint's weight files: a shard or the index.
pub fn is_weight_file(name: &str) -> bool {
    is_shard_name(name) || name == INDEX_NAME
}

/// A file at the top of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightFile {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub blob: BlobId,
    /// Their number.
    pub size: u64,
}

/// One shard with what is in it.
#[derive(Debug, Clone)]
pub struct Shard {
    /// The file.
    pub file: WeightFile,
    /// Its tensors.
    pub table: Arc<TensorTable>,
}

/// A checkpoint whose index and shards agree.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The index, where there is one.
    pub index: Option<Index>,
    /// The shards by name.
    pub shards: Vec<Shard>,
    /// What is odd and tolerated.
    pub notes: Vec<String>,
    // Tensor → places in `shards` and in the shard's table.
    places: BTreeMap<String, (usize, usize)>,
}

/// Why files are no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// No shard at all.
    #[error("there is no *.safetensors file in it")]
    NoWeights,
    /// Several shards and no index.
    #[error("there are {} shards ({}) and no {INDEX_NAME}", .shards.len(), first_three(.shards))]
    NoIndex {
        /// Their names.
        shards: Vec<String>,
    },
    /// The index can't be read.
    #[error("{INDEX_NAME}: {0}")]
    Index(#[from] IndexError),
    /// The index is too long to be one.
    #[error("{INDEX_NAME} has {size} bytes, more than {MAX_INDEX_BYTES}")]
    IndexTooLong {
        /// Its size.
        size: u64,
    },
    /// Shards that the index names are not there.
    #[error("{INDEX_NAME} names {}, and there is no such file", first_three(.shards))]
    MissingShards {
        /// Their names.
        shards: Vec<String>,
    },
    /// Weight files that the index does not name.
    #[error("{} beside {INDEX_NAME}, which does not name it", first_three(.shards))]
    StrayShards {
        /// Their names.
        shards: Vec<String>,
    },
    /// Shards hold tensors that the index does not name.
    #[error("{shard} holds {}, which {INDEX_NAME} does not name", first_three(.tensors))]
    NotInIndex {
        /// The shard.
        shard: String,
        /// The tensors.
        tensors: Vec<String>,
    },
    /// The index puts a tensor where it is not.
    #[error("{INDEX_NAME} puts {tensor:?} into {shard}, but {}", .found.as_ref().map_or_else(|| "no shard holds it".to_owned(), |f| format!("{f} holds it")))]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// Where it should be.
        shard: String,
        /// Where it is.
        found: Option<String>,
    },
    /// A tensor stands in two shards.
    #[error("{tensor:?} stands in {first} and in {second}")]
    TwoShards {
        /// The tensor.
        tensor: String,
        /// A shard.
        first: String,
        /// Another.
        second: String,
    },
    /// A `.safetensors` file that has no tensor table.
    #[error("{shard} is no safetensors file")]
    NotSafetensors {
        /// Its name.
        shard: String,
    },
    /// A file can't be read.
    #[error("{file}: {source}")]
    Io {
        /// Its name.
        file: String,
        /// What the system says.
        source: io::Error,
    },
}

fn first_three(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(3).map(|n| format!("{n:?}")).collect();
    let more = names.len().saturating_sub(3);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

impl CheckpointError {
    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoWeights => "name the folder with the shards; pytorch_model.bin is not read: convert it first",
            Self::NoIndex { .. } => "fetch the index too, or leave one shard",
            Self::Index(_) | Self::IndexTooLong { .. } => "fetch the index again, or write it again from the shards",
            Self::MissingShards { .. } => "the download is incomplete: fetch the missing files",
            Self::StrayShards { .. } => {
                "a server may load it: move it out of the folder, or name its tensors in the index"
            }
            Self::NotInIndex { .. } | Self::NotInShard { .. } => {
                "index and shards are of different versions: fetch both again"
            }
            Self::TwoShards { .. } => "a server would take either: write one of the shards again without it",
            Self::NotSafetensors { .. } => "move it out of the folder, or fetch it again",
            Self::Io { .. } => "",
        }
    }
}

/// Holds an index against the shards that are there: every name and table. Returns notes on what is odd and tolerated.
/// Errors: [`CheckpointError`].
pub fn check_set(index: Option<&Index>, shards: &[(&str, &TensorTable)]) -> Result<Vec<String>, CheckpointError> {
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let Some(index) = index else {
        return match shards {
            [] => Err(CheckpointError::NoWeights),
            [_] => Ok(Vec::new()),
            many => Err(CheckpointError::NoIndex { shards: owned(many.iter().map(|s| s.0).collect()) }),
        };
    };
    let there: BTreeMap<&str, &TensorTable> = shards.iter().copied().collect();
    let mut named: Vec<&str> = index.weight_map.values().map(String::as_str).collect();
    named.sort_unstable();
    named.dedup();
    let missing: Vec<&str> = named.iter().copied().filter(|n| !there.contains_key(n)).collect();
    if !missing.is_empty() {
        return Err(CheckpointError::MissingShards { shards: owned(missing) });
    }
    let stray: Vec<&str> = there.keys().copied().filter(|n| named.binary_search(n).is_err()).collect();
    if !stray.is_empty() {
        return Err(CheckpointError::StrayShards { shards: owned(stray) });
    }
    if there.is_empty() {
        return Err(CheckpointError::NoWeights);
    }
    let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
    for (shard, table) in &there {
        for t in &table.tensors {
            if let Some(first) = holders.insert(&t.name, shard) {
                let (tensor, first, second) = (t.name.clone(), first.to_owned(), (*shard).to_owned());
                return Err(CheckpointError::TwoShards { tensor, first, second });
            }
        }
    }
    for (shard, table) in &there {
        let unnamed = table.tensors.iter().filter(|t| !index.weight_map.contains_key(&t.name));
        let tensors: Vec<String> = unnamed.map(|t| t.name.clone()).collect();
        if !tensors.is_empty() {
            return Err(CheckpointError::NotInIndex { shard: (*shard).to_owned(), tensors });
        }
    }
    for (tensor, shard) in &index.weight_map {
        let found = holders.get(tensor.as_str()).copied();
        if found != Some(shard.as_str()) {
            let found = found.map(str::to_owned);
            return Err(CheckpointError::NotInShard { tensor: tensor.clone(), shard: shard.clone(), found });
        }
    }
    let bytes: u64 = there.values().map(|t| t.data_len()).sum();
    let mut notes = Vec::new();
    match index.meta("total_size") {
        Some(given) if given.as_u64() != Some(bytes) => {
            notes.push(format!("{INDEX_NAME} gives total_size as {given}, and the tensors have {bytes} bytes"));
        }
        _ => {}
    }
    Ok(notes)
}

impl Checkpoint {
    /// Opens the checkpoint among these files; those that are no weight files are passed over. `read` reads the index,
    /// `table` gives a shard's tensors. Errors: [`CheckpointError`].
    pub fn open(
        files: impl IntoIterator<Item = WeightFile>,
        read: impl FnOnce(&WeightFile) -> io::Result<Vec<u8>>,
        mut table: impl FnMut(&WeightFile) -> io::Result<Option<Arc<TensorTable>>>,
    ) -> Result<Checkpoint, CheckpointError> {
        let io = |file: &WeightFile, source| CheckpointError::Io { file: file.name.clone(), source };
        let mut shards = Vec::new();
        let mut index_file = None;
        for file in files {
            if file.name == INDEX_NAME {
                index_file = Some(file);
            } else if is_shard_name(&file.name) {
                let Some(table) = table(&file).map_err(|e| io(&file, e))? else {
                    return Err(CheckpointError::NotSafetensors { shard: file.name });
                };
                shards.push(Shard { file, table });
            }
        }
        shards.sort_by(|a, b| a.file.name.cmp(&b.file.name));
        let index = match index_file {
            None => None,
            Some(f) if f.size > MAX_INDEX_BYTES => return Err(CheckpointError::IndexTooLong { size: f.size }),
            Some(f) => Some(Index::parse(&read(&f).map_err(|e| io(&f, e))?)?),
        };
        let set: Vec<(&str, &TensorTable)> = shards.iter().map(|s| (s.file.name.as_str(), &*s.table)).collect();
        let notes = check_set(index.as_ref(), &set)?;
        let mut places = BTreeMap::new();
        for (s, shard) in shards.iter().enumerate() {
            for (t, tensor) in shard.table.tensors.iter().enumerate() {
                places.insert(tensor.name.clone(), (s, t));
            }
        }
        Ok(Checkpoint { index, shards, notes, places })
    }

    /// The shard and the entry of a tensor.
    pub fn get(&self, name: &str) -> Option<(&Shard, &TensorEntry)> {
        let (s, t) = self.places.get(name)?;
        let shard = self.shards.get(*s)?;
        Some((shard, shard.table.tensors.get(*t)?))
    }

    /// The shard of this file name.
    pub fn shard(&self, file: &str) -> Option<&Shard> {
        self.shards.iter().find(|s| s.file.name == file)
    }

    /// All tensor names in byte order.
    pub fn names(&self) -> Vec<&str> {
        self.places.keys().map(String::as_str).collect()
    }

    /// All tensors by name, each with its shard.
    pub fn tensors(&self) -> impl Iterator<Item = (&Shard, &TensorEntry)> {
        self.places.keys().filter_map(|n| self.get(n))
    }

    /// The sum of the tensors' bytes.
    pub fn data_len(&self) -> u64 {
        self.shards.iter().map(|s| s.table.data_len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::hash::hash_file;
    use crate::tensors::testing::data;
    use std::fs::{self, File};
    use std::path::Path;

    fn open(dir: &Path) -> Result<Checkpoint, CheckpointError> {
        let mut files = vec![];
        for e in fs::read_dir(dir).unwrap() {
            let path = e.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let size = path.metadata().unwrap().len();
            let h = hash_file(&File::open(&path).unwrap(), size, false, &mut |_| {}, &|| false).unwrap();
            files.push(WeightFile { name, blob: h.blob, size });
        }
        let table = |f: &WeightFile| {
            let file = File::open(dir.join(&f.name))?;
            let h = hash_file(&file, f.size, true, &mut |_| {}, &|| false).map_err(io::Error::other)?;
            Ok(h.table.map(Arc::new))
        };
        Checkpoint::open(files, |f| fs::read(dir.join(&f.name)), table)
    }

    #[test]
    fn index_and_shards_must_agree() {
        let of = |name: &str| open(&data("malformed").join(name));
        let ok = of("i0-control-ok").unwrap();
        assert_eq!(ok.names(), ["a", "b"]);
        assert_eq!(ok.get("b").unwrap().0.file.name, "model-00002-of-00002.safetensors");
        assert!(ok.notes.is_empty());
        for (name, message) in [
            (
                "i1-index-missing-shard",
                "model.safetensors.index.json names \"model-00002-of-00002.safetensors\", and there is no such file",
            ),
            (
                "i3-tensor-not-in-index",
                "model-00002-of-00002.safetensors holds \"mtp.fc.weight\", which model.safetensors.index.json does not name",
            ),
            (
                "i4-tensor-in-two-shards",
                "\"b\" stands in model-00001-of-00002.safetensors and in model-00002-of-00002.safetensors",
            ),
            (
                "i6-index-and-single",
                "\"model.safetensors\" beside model.safetensors.index.json, which does not name it",
            ),
        ] {
            assert_eq!(of(name).unwrap_err().to_string(), message, "{name}");
        }
        let notes = of("i5-wrong-total-size").unwrap().notes;
        assert_eq!(notes.len(), 1);
        assert!(notes[0].starts_with("model.safetensors.index.json gives total_size as "), "{notes:?}");
    }

    #[test]
    fn a_single_file_needs_no_index_and_two_do() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(open(dir.path()), Err(CheckpointError::NoWeights)));
        let from = data("malformed/i0-control-ok");
        fs::copy(from.join("model-00001-of-00002.safetensors"), dir.path().join("any.safetensors")).unwrap();
        assert_eq!(open(dir.path()).unwrap().names().len(), 1);
        fs::copy(from.join("model-00002-of-00002.safetensors"), dir.path().join("model.safetensors")).unwrap();
        let e = open(dir.path()).unwrap_err().to_string();
        assert_eq!(
            e,
            "there are 2 shards (\"any.safetensors\", \"model.safetensors\") and no model.safetensors.index.json"
        );
    }

    #[test]
    fn an_index_that_puts_a_tensor_into_the_wrong_shard_is_told_the_right_one() {
        let table = |name: &str| TensorTable {
            data_start: 8,
            metadata: None,
            tensors: vec![TensorEntry {
                name: name.into(),
                dtype: crate::tensors::dtype::Dtype::U8,
                shape: vec![0],
                begin: 0,
                end: 0,
                digest: crate::digest::Digest::of(b""),
            }],
        };
        let index = Index::parse(br#"{"weight_map":{"a":"2.safetensors","b":"1.safetensors"}}"#).unwrap();
        let (a, b) = (table("a"), table("b"));
        let e = check_set(Some(&index), &[("1.safetensors", &a), ("2.safetensors", &b)]).unwrap_err();
        let expected = "model.safetensors.index.json puts \"a\" into 2.safetensors, but 1.safetensors holds it";
        assert_eq!(e.to_string(), expected);
    }
}
