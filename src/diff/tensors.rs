//! Weights of two sides: the same, moved, changed by how much, or on one side only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use serde::Serialize;

use crate::diff::Watching;
use crate::diff::elements::{self, Values};
use crate::diff::layout::{Encoding, Weight, weights};
use crate::diff::pairing::{Pairs, Prefix, pair};
use crate::diff::side::Side;
use crate::diff::statistics::{Statistics, Sums};
use crate::store::error::{Result, StoreError};

/// How a weight is stored, for people and machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Form {
    /// `BF16`, `NVFP4 (modelopt)`, …
    pub encoding: String,
    /// The shape that it stands for.
    pub shape: Vec<u64>,
    /// The bytes of all its parts.
    pub bytes: u64,
}

/// A weight that is not the same on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightChange {
    /// Its name: on the second side, else on the first.
    pub name: String,
    /// Its name on the first side, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// How it is stored on the first side; `None` where it is not there.
    pub a: Option<Form>,
    /// How it is stored on the second.
    pub b: Option<Form>,
    /// How far the values lie apart; `None` where there are not two of one shape to compare.
    pub statistics: Option<Statistics>,
    /// Why there are no statistics, where they could be expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What differs between the tensors of two sides.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TensorsDiff {
    /// Weights with the same name and bytes.
    pub identical: usize,
    /// Their bytes.
    pub identical_bytes: u64,
    /// Beginnings of names that became others.
    pub prefixes: Vec<Prefix>,
    /// Weights with the same bytes under another name, that no prefix explains: before and after.
    pub renamed: Vec<(String, String)>,
    /// Weights with another shape, type or value, worst first.
    pub changed: Vec<WeightChange>,
    /// Weights of the first side only.
    pub removed: Vec<WeightChange>,
    /// Weights of the second side only.
    pub added: Vec<WeightChange>,
    /// Bytes that were read for it.
    pub read_bytes: u64,
}

impl TensorsDiff {
    /// Whether the weights are the same under the same names.
    pub fn is_same(&self) -> bool {
        self.prefixes.is_empty()
            && self.renamed.is_empty()
            && self.changed.is_empty()
            && self.removed.is_empty()
            && self.added.is_empty()
    }
}

/// Elements that one task reads of each side.
const TASK: u64 = 256 << 10;

// A pair whose values must be looked at.
struct Open<'w> {
    names: (&'w str, &'w str),
    weights: (&'w Weight, &'w Weight),
    // Whether both are stored as numbers of one type, so that their bytes can be compared.
    alike: bool,
}

#[derive(Default)]
struct Buffers {
    bytes: (Vec<u8>, Vec<u8>),
    values: (Values, Values),
}

/// Compares the tensors. Those whose digests are known and equal are not read; of the others each byte once, by all
/// cores, with a few MiB a core. Errors: the disk's; Cancelled.
pub fn compare(a: &Side, b: &Side, watching: &Watching<'_>) -> Result<TensorsDiff> {
    let all = (weights(a)?, weights(b)?);
    let read = AtomicU64::new(0);
    let mut content = |side: usize, name: &str| {
        let (side, weights) = if side == 0 { (a, &all.0) } else { (b, &all.1) };
        let Some(weight) = weights.get(name) else { return Ok(None) };
        let unread = |p: &String| side.tensors.get(p).is_some_and(|t| t.digest.is_none());
        if weight.parts.iter().any(unread) {
            read.fetch_add(weight.stored_len(side), Ordering::Relaxed);
        }
        weight.content(side, watching.cancelled).map(Some)
    };
    let Pairs { pairs, removed, added, prefixes } = pair(&all.0, &all.1, &mut content)?;
    let mut diff = TensorsDiff { prefixes, ..TensorsDiff::default() };
    let mut open: Vec<Open<'_>> = Vec::new();
    for (x, y) in &pairs {
        let (Some(wa), Some(wb)) = (all.0.get(x), all.1.get(y)) else { continue };
        if wa.same_digests(a, wb, b) == Some(true) {
            diff.same(x, y, wa.stored_len(a));
        } else if wa.shape != wb.shape || !wa.is_readable(a) || !wb.is_readable(b) {
            diff.unread((x, y), (wa, wb), (a, b));
        } else {
            let alike = wa.encoding == wb.encoding && matches!(wa.encoding, Encoding::Plain(_));
            open.push(Open { names: (x, y), weights: (wa, wb), alike });
        }
    }
    let total: u64 = open.iter().map(|o| o.weights.0.stored_len(a) + o.weights.1.stored_len(b)).sum();
    let before = read.load(Ordering::Relaxed);
    let outcomes = values(&open, (a, b), &read, before + total, watching)?;
    for (o, (sums, same_bytes)) in open.iter().zip(outcomes) {
        let (wa, wb) = o.weights;
        let statistics = sums.statistics();
        let no_value_changed = statistics.changed == 0.0 && wa.encoding == wb.encoding;
        // Of a quantised weight the values were compared: whether its parts are the same is looked at only now.
        let same = same_bytes
            || no_value_changed && !o.alike && {
                let stopped = watching.cancelled;
                wa.parts.len() == wb.parts.len() && wa.content(a, stopped)? == wb.content(b, stopped)?
            };
        if same {
            diff.same(o.names.0, o.names.1, wa.stored_len(a));
            continue;
        }
        let note = no_value_changed
            .then(|| "the bytes differ, the values do not: signs of zero, or parts of a quantised weight".to_owned());
        diff.changed.push(WeightChange { statistics: Some(statistics), note, ..change(o.names, (wa, wb), (a, b)) });
    }
    let one = |name: &String, weights: &BTreeMap<String, Weight>, side: &Side| weights.get(name).map(|w| form(w, side));
    let bare =
        |name: &String| WeightChange { name: name.clone(), was: None, a: None, b: None, statistics: None, note: None };
    diff.removed = removed.iter().map(|n| WeightChange { a: one(n, &all.0, a), ..bare(n) }).collect();
    diff.added = added.iter().map(|n| WeightChange { b: one(n, &all.1, b), ..bare(n) }).collect();
    diff.changed.sort_by(|x, y| badness(y).total_cmp(&badness(x)).then_with(|| x.name.cmp(&y.name)));
    diff.read_bytes = read.load(Ordering::Relaxed);
    Ok(diff)
}

/// How bad a change is: what has no figures first, then by relative distance.
fn badness(c: &WeightChange) -> f64 {
    match &c.statistics {
        None => f64::INFINITY,
        Some(s) if s.non_finite > 0 => f64::MAX,
        Some(s) => s.relative_l2,
    }
}

fn form(weight: &Weight, side: &Side) -> Form {
    Form { encoding: weight.encoding.to_string(), shape: weight.shape.clone(), bytes: weight.stored_len(side) }
}

fn change(names: (&str, &str), weights: (&Weight, &Weight), sides: (&Side, &Side)) -> WeightChange {
    WeightChange {
        name: names.1.to_owned(),
        was: (names.0 != names.1).then(|| names.0.to_owned()),
        a: Some(form(weights.0, sides.0)),
        b: Some(form(weights.1, sides.1)),
        statistics: None,
        note: None,
    }
}

impl TensorsDiff {
    fn same(&mut self, x: &str, y: &str, bytes: u64) {
        let explained =
            || self.prefixes.iter().any(|p| x.strip_prefix(&p.from).is_some_and(|r| y.strip_prefix(&p.to) == Some(r)));
        if x == y || explained() {
            self.identical += 1;
            self.identical_bytes += bytes;
        } else {
            self.renamed.push((x.to_owned(), y.to_owned()));
        }
    }

    fn unread(&mut self, names: (&str, &str), weights: (&Weight, &Weight), sides: (&Side, &Side)) {
        let note = if weights.0.shape != weights.1.shape {
            None
        } else if weights.0.is_readable(sides.0) && weights.1.is_readable(sides.1) {
            Some("its values can't be compared".to_owned())
        } else {
            let gone = |w: &Weight, s: &Side| w.parts.iter().filter_map(|p| s.tensors.get(p)).any(|t| !s.has_bytes(t));
            let of = match (gone(weights.0, sides.0), gone(weights.1, sides.1)) {
                (true, true) => "both sides'",
                (true, false) => "the first side's",
                (false, true) => "the second side's",
                (false, false) => "",
            };
            Some(match of {
                "" => format!("values of type {} can't be read", weights.0.encoding),
                of => format!("{of} bytes are not there any more, and the digests differ"),
            })
        };
        self.changed.push(WeightChange { note, ..change(names, weights, sides) });
    }
}

// The sums of each pair, and whether its bytes are the same.
fn values(
    open: &[Open<'_>],
    sides: (&Side, &Side),
    read: &AtomicU64,
    total: u64,
    watching: &Watching<'_>,
) -> Result<Vec<(Sums, bool)>> {
    let mut tasks: Vec<(usize, u64, u64)> = Vec::new();
    for (i, o) in open.iter().enumerate() {
        let elements = o.weights.0.elements();
        let row = o.weights.0.row().max(o.weights.1.row());
        let step = (TASK / row).max(1) * row;
        let mut at = 0;
        while at < elements {
            let n = step.min(elements - at);
            tasks.push((i, at, n));
            at += n;
        }
    }
    let done: Result<Vec<(usize, Sums, bool)>> = tasks
        .par_iter()
        .map_init(Buffers::default, |buffers, (i, at, n)| {
            if (watching.cancelled)() {
                return Err(StoreError::Cancelled);
            }
            let o = &open[*i];
            let (sums, same) = piece(o, sides, *at, *n, buffers)?;
            let share = |w: &Weight, side: &Side| {
                let all = u128::from(w.stored_len(side)) * u128::from(*n);
                u64::try_from(all / u128::from(w.elements().max(1))).unwrap_or(0)
            };
            let bytes = share(o.weights.0, sides.0) + share(o.weights.1, sides.1);
            (watching.progress)(read.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
            Ok((*i, sums, same))
        })
        .collect();
    // In the order of the data, whoever was done first.
    let mut all: Vec<(Sums, bool)> = open.iter().map(|o| (Sums::default(), o.alike)).collect();
    for (i, sums, same) in done? {
        all[i].0.append(&sums);
        all[i].1 &= same;
    }
    Ok(all)
}

fn piece(o: &Open<'_>, sides: (&Side, &Side), at: u64, n: u64, buffers: &mut Buffers) -> Result<(Sums, bool)> {
    let (Buffers { bytes, values }, (wa, wb)) = (buffers, o.weights);
    values.0.clear();
    values.1.clear();
    let mut sums = Sums::default();
    if o.alike
        && let Encoding::Plain(dtype) = wa.encoding
    {
        wa.raw(sides.0, at, n, &mut bytes.0)?;
        wb.raw(sides.1, at, n, &mut bytes.1)?;
        elements::decode(dtype, &bytes.0, &mut values.0);
        let same = bytes.0 == bytes.1;
        if same {
            sums.add_equal(&values.0.narrow);
            sums.add_equal(&values.0.wide);
            return Ok((sums, true));
        }
        elements::decode(dtype, &bytes.1, &mut values.1);
    } else {
        wa.values(sides.0, at, n, &mut bytes.0, &mut values.0)?;
        wb.values(sides.1, at, n, &mut bytes.1, &mut values.1)?;
        if values.0.wide.is_empty() != values.1.wide.is_empty() {
            values.0.widen();
            values.1.widen();
        }
    }
    sums.add(&values.0.narrow, &values.1.narrow);
    sums.add(&values.0.wide, &values.1.wide);
    Ok((sums, false))
}
