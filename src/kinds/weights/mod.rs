//! What the kinds that move tensors between checkpoints share: opening an input as a checkpoint, choosing tensors of a
//! donor, and writing shards.

pub mod choice;
pub mod told;
pub mod write;

use std::sync::Arc;

use crate::digest::BlobId;
use crate::jsonedit::{Document, Pointer};
use crate::kinds::{Input, Params, StepError};
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree, link_target};
use crate::tensors::checkpoint::{Checkpoint, CheckpointError, WeightFile, is_weight_file};
use crate::tensors::index::MAX_INDEX_BYTES;
use crate::tensors::table::TensorTable;

/// The largest config.json that is read, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Opens the checkpoint in an input: the weight files at its top, links to files inside it followed. Errors:
/// [`StepError`] naming the alias, the file and the tensor.
pub fn open(input: &Input) -> Result<Checkpoint, StepError> {
    let files = weight_files(&input.tree);
    let read = |f: &WeightFile| {
        let mut file = input.files.open(f.blob)?;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(&mut file, MAX_INDEX_BYTES), &mut bytes)?;
        Ok(bytes)
    };
    let table = |f: &WeightFile| -> std::io::Result<Option<Arc<TensorTable>>> { input.files.table(f.blob) };
    Checkpoint::open(files, read, table).map_err(|e| match e {
        CheckpointError::Io { file, source } if source.kind() != std::io::ErrorKind::InvalidData => {
            StepError::io(format!("{}: {file}", input.called()))(source)
        }
        e => StepError::invalid(format!("{}: {e}", input.called()), e.hint()),
    })
}

fn weight_files(tree: &Tree) -> Vec<WeightFile> {
    tree.iter()
        .filter_map(|(path, entry)| {
            let name = path.as_str().filter(|n| is_weight_file(n))?;
            let (blob, size) = file_behind(tree, path, entry)?;
            Some(WeightFile { name: name.to_owned(), blob, size })
        })
        .collect()
}

/// The file that an entry is or leads to: its blob and size.
pub(crate) fn file_behind(tree: &Tree, path: &RelPath, entry: &Entry) -> Option<(BlobId, u64)> {
    let (mut path, mut entry) = (path.clone(), entry);
    // Links in a tree stay inside; a loop of them ends here.
    for _ in 0..16 {
        match entry {
            Entry::File { blob, size, .. } => return Some((*blob, *size)),
            Entry::EmptyDir => return None,
            Entry::Link { target } => {
                path = link_target(&path, target)?;
                entry = tree.get(&path)?;
            }
        }
    }
    None
}

/// Reads a JSON file at the top of an input for editing; `None` where there is none. Errors: [`StepError`] with path,
/// line and column.
pub fn document(input: &Input, name: &str) -> Result<Option<Document>, StepError> {
    let Ok(path) = RelPath::try_from(name) else { return Ok(None) };
    if !matches!(input.tree.get(&path), Some(Entry::File { .. })) {
        return Ok(None);
    }
    let bytes = input.read(&path, MAX_CONFIG_BYTES).map_err(StepError::io(format!("{}: {name}", input.called())))?;
    Document::parse(&bytes)
        .map(Some)
        .map_err(|e| StepError::invalid(format!("{}: {name}: {e}", input.called()), e.hint().unwrap_or_default()))
}

/// Whether a language-model head among `names` goes into a model whose config says that its head is its embedding.
/// Where there is no config.json nothing can be said. Errors: [`StepError::Invalid`] where it does and `allow_tied` does
/// not say that it may: loaders would pass the head over, or complain.
pub fn tied_head(into: &Input, names: &[&str], params: &Params) -> Result<bool, StepError> {
    let Some(head) = names.iter().find(|n| is_head(n)) else { return Ok(false) };
    let Some(place) = document(into, "config.json")?.and_then(|c| tied_at(&c)) else { return Ok(false) };
    if choice::allow_tied(params).map_err(|e| StepError::Invalid { what: e.what, hint: e.hint })? {
        return Ok(true);
    }
    Err(StepError::invalid(
        format!("{head} is to be put into a model whose config.json says {place} = true: its head is its embedding"),
        "set allow_tied = true to put it in all the same, or leave it out of `tensors`",
    ))
}

/// Whether a tensor of this name is a language-model head.
pub fn is_head(name: &str) -> bool {
    name == "lm_head.weight" || name.ends_with(".lm_head.weight")
}

// Where the config ties head and embedding: at its top, or one level below (text_config).
fn tied_at(config: &Document) -> Option<String> {
    const KEY: &str = "tie_word_embeddings";
    let root = config.value(&Pointer::root())?;
    let top = root.as_object()?;
    if top.get(KEY) == Some(&serde_json::Value::Bool(true)) {
        return Some(KEY.to_owned());
    }
    let nested = top.iter().find(|(_, v)| v.get(KEY) == Some(&serde_json::Value::Bool(true)))?;
    Some(format!("{}.{KEY}", nested.0))
}
