//! Writing quantised shards, a few MiB at a time.
//!
//! A rewritten shard holds first what is passed through, in its old order, so that a file system can share its blocks;
//! then all global scales, then for each weight in its old order the packed codes and their scales. Where that order
//! would put a tensor at an offset that its element size does not divide (a mapped file can't be viewed there), the
//! tensors are sorted by element size, the largest first.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;

use super::nvfp4::{self, GROUP, NonFinite, absmax, global_scale};
use super::round::Float;
use super::select::{Selection, Weight};
use crate::digest::Digest;
use crate::kinds::weights::write::with_format;
use crate::kinds::{Input, Output, Space, Step, StepError};
use crate::model::path::RelPath;
use crate::tensors::checkpoint::{Checkpoint, Shard};
use crate::tensors::dtype::Dtype;
use crate::tensors::table::TensorEntry;
use crate::tensors::write::{CopyFrom, LayoutError, Placement, ShardLayout, ShardWriter, TensorSpec, WriteError};

/// Bytes of a weight that are read and quantised at one time: a multiple of a group's in every type.
const CHUNK: usize = 8 << 20;

/// The names of a module's tensors.
const PACKED: &str = "weight_packed";
const SCALE: &str = "weight_scale";
const GLOBAL: &str = "weight_global_scale";

/// What became of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It has nothing to quantise or drop, and is the input's.
    Kept,
    /// All its tensors were dropped.
    LeftOut,
    /// It was written again with these tensors.
    Rewritten(Vec<TensorSpec>),
}

/// Quantises the shards of one checkpoint.
pub struct Rewriter<'a> {
    step: &'a Step<'a>,
    model: &'a Input,
    checkpoint: &'a Checkpoint,
    selection: &'a Selection,
    groups: BTreeMap<&'a str, Vec<(&'a str, &'a Weight)>>,
    globals: BTreeMap<&'a str, f32>,
    done: u64,
    total: u64,
}

/// Where a tensor of a rewritten shard comes from. The number is the weight's among those of the shard.
#[derive(Debug, Clone, Copy)]
enum Part<'t> {
    Copied(&'t TensorEntry),
    Global(usize),
    Packed(usize),
    Scale(usize),
}

/// Where the three tensors of a weight stand in the layout.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    global: usize,
    packed: usize,
    scale: usize,
}

impl<'a> Rewriter<'a> {
    /// For the given checkpoint, which is what the input `model` holds.
    pub fn new(step: &'a Step<'a>, model: &'a Input, checkpoint: &'a Checkpoint, selection: &'a Selection) -> Self {
        let mut groups: BTreeMap<&str, Vec<(&str, &Weight)>> = BTreeMap::new();
        for (name, weight) in &selection.quantised {
            groups.entry(&weight.group).or_default().push((name, weight));
        }
        let mut total = 0;
        for shard in checkpoint.shards.iter().filter(|s| touched(s, selection)) {
            for t in &shard.table.tensors {
                total += match (selection.quantised.contains_key(&t.name), selection.dropped.contains(&t.name)) {
                    (true, _) => 2 * t.len(),
                    (false, true) => 0,
                    (false, false) => t.len(),
                };
            }
        }
        Self { step, model, checkpoint, selection, groups, globals: BTreeMap::new(), done: 0, total }
    }

    /// Writes the shard again at `path`, where something of it changes. Errors: [`StepError`]; an infinity or NaN is
    /// named with its tensor, row and column.
    pub fn shard(&mut self, shard: &Shard, path: &RelPath, out: &mut Output) -> Result<Fate, StepError> {
        if !touched(shard, self.selection) {
            return Ok(Fate::Kept);
        }
        let (kept, weights) = sorted(shard, self.selection);
        if kept.is_empty() && weights.is_empty() {
            out.drop(path);
            return Ok(Fate::LeftOut);
        }
        let (layout, parts) = lay_out(shard, &kept, &weights)?;
        let specs = layout
            .tensors()
            .iter()
            .map(|t| TensorSpec { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() })
            .collect();

        let source = self.open(shard)?;
        let file = out.create(path.clone(), false).map_err(StepError::io(format!("creating {path}")))?;
        let mut writer = ShardWriter::start(&file, layout).map_err(|e| failed(path, e.into()))?;
        self.copy(shard, &source, &parts, &mut writer, path)?;
        for t in &kept {
            out.expect_tensor(path, &t.name, t.digest);
        }
        let mut places = vec![Places::default(); weights.len()];
        for (at, part) in parts.iter().enumerate() {
            let (k, slot): (_, fn(&mut Places) -> &mut usize) = match part {
                Part::Copied(_) => continue,
                Part::Global(k) => (k, |p| &mut p.global),
                Part::Packed(k) => (k, |p| &mut p.packed),
                Part::Scale(k) => (k, |p| &mut p.scale),
            };
            if let Some(p) = places.get_mut(*k) {
                *slot(p) = at;
            }
        }
        for ((entry, weight), to) in weights.iter().zip(places) {
            let global = self.global(&weight.group)?;
            writer.write(to.global, 0, &global.to_le_bytes()).map_err(|e| failed(path, e))?;
            let mut written = 0u64;
            let mut buffers = (Vec::new(), Vec::new());
            self.stream(shard, entry, &source, true, |chunk| {
                let groups = chunk.len() / (GROUP * weight.float.bytes());
                buffers.0.resize(groups * 8, 0);
                buffers.1.resize(groups, 0);
                nvfp4::quantise(weight.float, chunk, global, &mut buffers.0, &mut buffers.1);
                writer.write(to.packed, written * 8, &buffers.0).map_err(|e| failed(path, e))?;
                writer.write(to.scale, written, &buffers.1).map_err(|e| failed(path, e))?;
                written += groups as u64;
                Ok(())
            })?;
        }
        writer.finish().map_err(|e| failed(path, e))?;
        Ok(Fate::Rewritten(specs))
    }

    /// The global scale of a group; its members are read when it is asked for first, and are then still in memory's
    /// cache when they are quantised.
    fn global(&mut self, group: &'a str) -> Result<f32, StepError> {
        if let Some(scale) = self.globals.get(group) {
            return Ok(*scale);
        }
        let mut largest: Option<(Float, f32)> = None;
        for (name, weight) in self.groups.get(group).cloned().unwrap_or_default() {
            let Some((shard, entry)) = self.checkpoint.get(name) else { continue };
            let source = self.open(shard)?;
            let (mut max, mut elements) = (0.0f32, 0u64);
            self.stream(shard, entry, &source, false, |chunk| {
                let found = absmax(weight.float, chunk).map_err(|e| not_finite(shard, entry, weight, elements, e))?;
                max = max.max(found);
                elements += (chunk.len() / weight.float.bytes()) as u64;
                Ok(())
            })?;
            let (float, so_far) = largest.unwrap_or((weight.float, 0.0));
            largest = Some((float.common(weight.float), so_far.max(max)));
        }
        let (float, max) = largest.unwrap_or((Float::F32, 0.0));
        let scale = global_scale(float, max);
        self.globals.insert(group, scale);
        Ok(scale)
    }

    fn open(&self, shard: &Shard) -> Result<File, StepError> {
        let what = || format!("opening {} of the input `{}`", shard.file.name, self.model.alias);
        self.model.files.open(shard.file.blob).map_err(|e| StepError::Io { what: what(), source: e })
    }

    /// Reads a tensor in chunks of whole groups, the next one while `each` works on one. With `verify` its bytes are
    /// held against the table's digest.
    fn stream(
        &mut self,
        shard: &Shard,
        entry: &TensorEntry,
        source: &File,
        verify: bool,
        mut each: impl FnMut(&[u8]) -> Result<(), StepError> + Send,
    ) -> Result<(), StepError> {
        let (start, len) = (shard.table.data_start + entry.begin, entry.len());
        let read = |buffer: &mut Vec<u8>, at: u64| {
            buffer.resize(usize::try_from(len - at).unwrap_or(CHUNK).min(CHUNK), 0);
            source.read_exact_at(buffer, start + at)
        };
        let failed = |e| {
            let what = format!("reading {} of {} of the input `{}`", entry.name, shard.file.name, self.model.alias);
            StepError::Io { what, source: e }
        };
        let (mut now, mut next) = (Vec::new(), Vec::new());
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        read(&mut now, at).map_err(failed)?;
        while !now.is_empty() {
            self.step.go_on()?;
            at += now.len() as u64;
            let (ahead, worked) = rayon::join(
                || read(&mut next, at),
                || {
                    if verify {
                        hasher.update_rayon(&now);
                    }
                    each(&now)
                },
            );
            ahead.map_err(failed)?;
            worked?;
            self.done += now.len() as u64;
            self.step.progress.bytes(self.done, self.total);
            std::mem::swap(&mut now, &mut next);
        }
        let found = Digest::from(hasher.finalize());
        if verify && found != entry.digest {
            let what = format!(
                "{} of {} changed since it was hashed: {} then, {found} now",
                entry.name, shard.file.name, entry.digest
            );
            return Err(StepError::invalid(what, "something is writing to it: build again when that is done"));
        }
        Ok(())
    }

    fn copy(
        &mut self,
        shard: &Shard,
        source: &File,
        parts: &[Part<'_>],
        writer: &mut ShardWriter<'_>,
        path: &RelPath,
    ) -> Result<(), StepError> {
        let sources: Vec<_> = parts
            .iter()
            .map(|p| match p {
                Part::Copied(t) => Some(CopyFrom { file: source, at: shard.table.data_start + t.begin }),
                _ => None,
            })
            .collect();
        let mut copied = 0;
        let (done, total, progress) = (self.done, self.total, self.step.progress);
        let result = writer.copy(&sources, &mut |bytes| {
            copied = bytes;
            progress.bytes(done + bytes, total);
            if progress.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.done += copied;
        result.map_err(|e| failed(path, e))
    }
}

/// Whether something of a shard is quantised or left out.
fn touched(shard: &Shard, selection: &Selection) -> bool {
    let changes = |t: &TensorEntry| selection.quantised.contains_key(&t.name) || selection.dropped.contains(&t.name);
    shard.table.tensors.iter().any(changes)
}

/// How much room the shards need that are written again.
pub fn space_of(checkpoint: &Checkpoint, selection: &Selection) -> Result<Space, StepError> {
    let touched = checkpoint.shards.iter().filter(|s| touched(s, selection));
    let space = |shard| {
        let (kept, weights) = sorted(shard, selection);
        if kept.is_empty() && weights.is_empty() {
            return Ok(Space::default());
        }
        let (layout, _) = lay_out(shard, &kept, &weights)?;
        Ok(Space::of_file(layout.file_len(), kept.iter().map(|t| t.len()).sum()))
    };
    touched.map(space).sum()
}

/// The tensors of a shard that are passed through, and those that are quantised.
type Sorted<'s, 'w> = (Vec<&'s TensorEntry>, Vec<(&'s TensorEntry, &'w Weight)>);

fn sorted<'s, 'w>(shard: &'s Shard, selection: &'w Selection) -> Sorted<'s, 'w> {
    let (mut kept, mut weights) = (Vec::new(), Vec::new());
    for t in &shard.table.tensors {
        match selection.quantised.get(&t.name) {
            Some(w) => weights.push((t, w)),
            None if selection.dropped.contains(&t.name) => {}
            None => kept.push(t),
        }
    }
    (kept, weights)
}

fn lay_out<'t>(
    shard: &Shard,
    kept: &[&'t TensorEntry],
    weights: &[(&TensorEntry, &Weight)],
) -> Result<(ShardLayout, Vec<Part<'t>>), StepError> {
    let placement = Placement::Rewritten { file_len: shard.file.size, data_start: shard.table.data_start };
    place(shard, kept, weights, placement).map_err(|e| StepError::invalid(format!("{}: {e}", shard.file.name), ""))
}

fn place<'t>(
    shard: &Shard,
    kept: &[&'t TensorEntry],
    weights: &[(&TensorEntry, &Weight)],
    placement: Placement,
) -> Result<(ShardLayout, Vec<Part<'t>>), LayoutError> {
    let mut parts: Vec<Part<'t>> = kept.iter().map(|t| Part::Copied(t)).collect();
    parts.extend((0..weights.len()).map(Part::Global));
    parts.extend((0..weights.len()).flat_map(|k| [Part::Packed(k), Part::Scale(k)]));
    let metadata = with_format(shard.table.metadata.clone().unwrap_or_default(), "pt");
    let layout = |parts: &[Part<'_>]| {
        let specs = parts.iter().filter_map(|p| spec(p, weights)).collect();
        ShardLayout::new(Some(&metadata), specs, placement)
    };
    let first = layout(&parts)?;
    let aligned = |l: &ShardLayout| {
        l.tensors().iter().all(|t| (l.data_start() + t.begin).is_multiple_of(t.dtype.bits().div_ceil(8)))
    };
    if aligned(&first) {
        return Ok((first, parts));
    }
    // Stable, so equals keep their order.
    parts.sort_by_key(|p| std::cmp::Reverse(spec(p, weights).map_or(0, |s| s.dtype.bits())));
    Ok((layout(&parts)?, parts))
}

/// What a part is called and what it is; `None` only for a weight that is not there.
fn spec(part: &Part<'_>, weights: &[(&TensorEntry, &Weight)]) -> Option<TensorSpec> {
    let of = |k: usize, name: &str, dtype, shape: fn(&Weight) -> Vec<u64>| {
        let (_, w) = weights.get(k)?;
        Some(TensorSpec { name: format!("{}.{name}", w.module), dtype, shape: shape(w) })
    };
    match part {
        Part::Copied(t) => Some(TensorSpec { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() }),
        Part::Global(k) => of(*k, GLOBAL, Dtype::F32, |_| vec![1]),
        Part::Packed(k) => of(*k, PACKED, Dtype::U8, |w| vec![w.rows, w.cols / 2]),
        Part::Scale(k) => of(*k, SCALE, Dtype::F8E4M3, |w| vec![w.rows, w.cols / GROUP as u64]),
    }
}

fn not_finite(shard: &Shard, entry: &TensorEntry, weight: &Weight, before: u64, found: NonFinite) -> StepError {
    let index = before + found.index;
    let (row, col) = (index / weight.cols, index % weight.cols);
    let what =
        format!("{} of {} is {} at [{row}, {col}] and can't be quantised", entry.name, shard.file.name, found.value);
    StepError::invalid(what, "repair the weight, or add its module to `ignore`")
}

fn failed(path: &RelPath, e: WriteError) -> StepError {
    match e {
        WriteError::Stopped => StepError::Cancelled,
        WriteError::Io(source) => StepError::Io { what: format!("writing {path}"), source },
        other => StepError::invalid(format!("writing {path}: {other}"), ""),
    }
}
