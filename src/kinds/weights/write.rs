//! Writing what becomes of a checkpoint: shards that are kept, rewritten, new or left out, and the index.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::ControlFlow;

use crate::digest::BlobId;
use crate::kinds::{Input, InputFiles, Output, Space, Step, StepError};
use crate::model::path::RelPath;
use crate::tensors::checkpoint::{Checkpoint, Shard};
use crate::tensors::dtype::elements;
use crate::tensors::index::{INDEX_NAME, Index};
use crate::tensors::table::TensorEntry;
use crate::tensors::write::{CopyFrom, Placement, ShardLayout, ShardWriter, TensorSpec, WriteError};

/// A tensor of a planned shard: its name there and where its bytes are.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Its name in the planned shard.
    pub name: &'a str,
    /// What it is where it comes from.
    pub entry: &'a TensorEntry,
    /// The shard that holds it.
    pub shard: &'a Shard,
    /// Opens that shard.
    pub files: &'a dyn InputFiles,
}

/// A shard of the output.
pub struct Planned<'a> {
    /// Its file name.
    pub file: String,
    /// The shard of `into` that it was.
    pub old: Option<&'a Shard>,
    /// Whether its bytes are those of the old one.
    pub kept: bool,
    /// `__metadata__` of a shard that is written.
    pub metadata: Vec<(String, String)>,
    /// Its tensors in the order of the data.
    pub tensors: Vec<Source<'a>>,
}

impl<'a> Planned<'a> {
    /// A shard of `into` as it is.
    pub fn keep(shard: &'a Shard, files: &'a dyn InputFiles) -> Self {
        let tensors =
            shard.table.tensors.iter().map(|entry| Source { name: &entry.name, entry, shard, files }).collect();
        let metadata = shard.table.metadata.clone().unwrap_or_default();
        Self { file: shard.file.name.clone(), old: Some(shard), kept: true, metadata, tensors }
    }
}

/// The `format` of a shard that is written: loaders refuse one without it. Keeps what is there.
pub fn with_format(mut metadata: Vec<(String, String)>, format: &str) -> Vec<(String, String)> {
    if !metadata.iter().any(|(k, _)| k == "format") {
        metadata.insert(0, ("format".to_owned(), format.to_owned()));
    }
    metadata
}

/// The `format` that a new shard of this checkpoint gets: that of its shards, else the donor's, else `pt`.
pub fn format_of<'c>(into: &'c Checkpoint, from: &'c Checkpoint) -> &'c str {
    let format = |c: &'c Checkpoint| {
        let mut pairs = c.shards.iter().filter_map(|s| s.table.metadata.as_ref()).flatten();
        pairs.find(|(k, _)| k == "format").map(|(_, v)| v.as_str())
    };
    format(into).or_else(|| format(from)).unwrap_or("pt")
}

/// The index of these shards: that of `into` with its map and sums brought up to date. With it comes a note where
/// `total_parameters` had to go.
pub fn index_of(into: &Checkpoint, shards: &[Planned<'_>]) -> (Index, Option<String>) {
    let mut index = into.index.clone().unwrap_or_default();
    let mut size = 0u64;
    let (mut added, mut removed) = (0u64, 0u64);
    index.weight_map.clear();
    let count = |e: &TensorEntry| elements(&e.shape).unwrap_or(0);
    for shard in shards {
        for t in &shard.tensors {
            size = size.saturating_add(t.entry.len());
            index.weight_map.insert(t.name.to_owned(), shard.file.clone());
            let old = into.get(t.name).map(|(_, e)| count(e));
            added = added.saturating_add(count(t.entry));
            removed = removed.saturating_add(old.unwrap_or(0));
        }
    }
    let gone = index.update_sums(size, added, removed);
    let note =
        gone.map(|old| format!("{INDEX_NAME}: total_parameters = {old} could not be kept right and was removed"));
    (index, note)
}

/// Writes the index, or keeps the old file where it says the same.
pub fn put_index(out: &mut Output, into: &Checkpoint, index: &Index) -> Result<(), StepError> {
    if into.index.as_ref() == Some(index) {
        return Ok(());
    }
    let path = rel(INDEX_NAME)?;
    out.write(path, index.to_json().as_bytes()).map_err(StepError::io(format!("writing {INDEX_NAME}")))
}

/// A file name as a path of the tree.
pub fn rel(name: &str) -> Result<RelPath, StepError> {
    RelPath::try_from(name).map_err(|e| StepError::invalid(e.to_string(), ""))
}

/// Puts the shards into the output, over what `into` has there: kept ones by reference, under another name where they
/// have one; the others written. `into`'s own files must be in the output already. Each copied tensor is to be compared
/// with its digest. Memory: 1 MiB and the headers. Errors: [`StepError`] naming shard and tensor.
pub fn put_shards(
    step: &Step<'_>,
    out: &mut Output,
    input: &Input,
    into: &Checkpoint,
    shards: &[Planned<'_>],
) -> Result<(), StepError> {
    let names: BTreeSet<&str> = shards.iter().map(|s| s.file.as_str()).collect();
    for old in &into.shards {
        if !names.contains(old.file.name.as_str()) {
            out.drop(&rel(&old.file.name)?);
        }
    }
    let written = || shards.iter().filter(|s| !s.kept);
    let total: u64 = written().flat_map(|s| &s.tensors).map(|t| t.entry.len()).sum();
    let mut done = 0;
    for shard in shards {
        step.go_on()?;
        let path = rel(&shard.file)?;
        if shard.kept {
            if let Some(old) = shard.old
                && let Some(entry) = input.tree.get(&rel(&old.file.name)?)
            {
                out.keep(path, entry);
            }
            continue;
        }
        put_shard(step, out, &path, shard, done, total)?;
        done += shard.tensors.iter().map(|t| t.entry.len()).sum::<u64>();
    }
    Ok(())
}

/// How much room these shards need.
pub fn space_of(shards: &[Planned<'_>]) -> Result<Space, StepError> {
    let written = shards.iter().filter(|s| !s.kept);
    written.map(|s| Ok(Space::of_file(layout_of(s)?.file_len(), s.tensors.iter().map(|t| t.entry.len()).sum()))).sum()
}

fn layout_of(shard: &Planned<'_>) -> Result<ShardLayout, StepError> {
    let specs = shard.tensors.iter().map(|t| TensorSpec {
        name: t.name.to_owned(),
        dtype: t.entry.dtype,
        shape: t.entry.shape.clone(),
    });
    let placement = match shard.old {
        None => Placement::New,
        Some(old) => Placement::Rewritten { file_len: old.file.size, data_start: old.table.data_start },
    };
    ShardLayout::new(Some(&shard.metadata), specs.collect(), placement)
        .map_err(|e| StepError::invalid(format!("{}: {e}", shard.file), ""))
}

fn put_shard(
    step: &Step<'_>,
    out: &mut Output,
    path: &RelPath,
    shard: &Planned<'_>,
    before: u64,
    total: u64,
) -> Result<(), StepError> {
    let layout = layout_of(shard)?;
    // Named with its size: where the disk is full, that is what has to fit.
    let shown = format!("{path} ({} bytes)", layout.file_len());

    let mut open: BTreeMap<BlobId, File> = BTreeMap::new();
    for t in &shard.tensors {
        let file = &t.shard.file;
        if let Entry::Vacant(place) = open.entry(file.blob) {
            place.insert(t.files.open(file.blob).map_err(StepError::io(format!("opening {}", file.name)))?);
        }
    }
    let sources: Vec<Option<CopyFrom<'_>>> = shard
        .tensors
        .iter()
        .map(|t| {
            let file = open.get(&t.shard.file.blob)?;
            Some(CopyFrom { file, at: t.shard.table.data_start + t.entry.begin })
        })
        .collect();
    let file = out.create(path.clone(), false).map_err(StepError::io(format!("creating {path}")))?;
    let mut writer = ShardWriter::start(&file, layout).map_err(StepError::io(format!("writing {shown}")))?;
    let mut report = |n: u64| {
        step.progress.bytes(before + n, total);
        if step.progress.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let copied = writer.copy(&sources, &mut report);
    copied.and_then(|()| writer.finish().map(drop)).map_err(|e| match e {
        WriteError::Stopped => StepError::Cancelled,
        WriteError::Io(e) => StepError::io(format!("writing {shown}"))(e),
        WriteError::Copy { tensor, source: crate::fsx::copy::CopyError::Io(e) } => {
            StepError::io(format!("copying {tensor:?} to {shown}"))(e)
        }
        e => StepError::invalid(format!("{path}: {e}"), "the input was cut off while it was read: fetch it again"),
    })?;
    for t in &shard.tensors {
        out.expect_tensor(path, t.name, t.entry.digest);
    }
    Ok(())
}

/// Keys of `__metadata__` of these shards that stand, with the same value, in none of the kept ones: shard → key → value.
pub fn lost_metadata<'a>(
    shards: impl IntoIterator<Item = &'a Shard>,
    kept: &[&[(String, String)]],
) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut out: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for shard in shards {
        for (k, v) in shard.table.metadata.iter().flatten() {
            if !kept.iter().any(|m| m.iter().any(|pair| pair.0 == *k && pair.1 == *v)) {
                out.entry(shard.file.name.clone()).or_default().insert(k.clone(), v.clone());
            }
        }
    }
    out
}
