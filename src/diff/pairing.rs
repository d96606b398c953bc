//! Which weight of one side is which of the other.
//!
//! By name; then by a beginning of names that became another (`model.` → `model.language_model.`), where layer numbers or
//! equal bytes bear it out; then by equal bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use crate::diff::layout::Weight;
use crate::digest::Digest;

/// A beginning of names that is another on the other side.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Prefix {
    /// On the first side.
    pub from: String,
    /// On the second.
    pub to: String,
    /// How many weights it holds for.
    pub weights: usize,
}

/// What belongs together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Names on both sides; they may differ.
    pub pairs: Vec<(String, String)>,
    /// Only on the first side.
    pub removed: Vec<String>,
    /// Only on the second.
    pub added: Vec<String>,
    /// Beginnings that became others.
    pub prefixes: Vec<Prefix>,
}

/// Looks for pairs. `content` gives what a weight of a side (0 or 1) holds, its name apart; it is asked only for what has
/// no namesake. Errors: those of `content`.
pub fn pair<E>(
    a: &BTreeMap<String, Weight>,
    b: &BTreeMap<String, Weight>,
    content: &mut impl FnMut(usize, &str) -> Result<Option<Digest>, E>,
) -> Result<Pairs, E> {
    let mut pairs = Pairs::default();
    let mut left: BTreeSet<&str> = a.keys().map(String::as_str).filter(|n| !b.contains_key(*n)).collect();
    let mut right: BTreeSet<&str> = b.keys().map(String::as_str).filter(|n| !a.contains_key(*n)).collect();
    pairs.pairs.extend(a.keys().filter(|n| b.contains_key(*n)).map(|n| (n.clone(), n.clone())));
    let shape = |side: &BTreeMap<String, Weight>, n: &str| side.get(n).map(|w| w.shape.clone());
    for (from, to) in candidates(&left, &right) {
        let fits: Vec<(&str, &str)> = left
            .iter()
            .filter_map(|n| {
                let rest = n.strip_prefix(from.as_str())?;
                let other = right.get(format!("{to}{rest}").as_str())?;
                (shape(a, n) == shape(b, other)).then_some((*n, *other))
            })
            .collect();
        // One weight alone is looked for by its bytes, below.
        if fits.len() < 2 {
            continue;
        }
        // The same layer numbers bear it out by themselves, where most names go along: a draft head has a layer 0, too.
        // Else the bytes must.
        let numbered = fits.iter().filter(|(n, _)| has_number(&n[from.len()..])).count();
        let all = left.iter().filter(|n| n.starts_with(from.as_str())).count();
        let mut borne_out = numbered >= 2 && !has_number(&from) && 2 * fits.len() > all;
        if !borne_out {
            for (x, y) in fits.iter().take(8) {
                let (x, y) = (content(0, x)?, content(1, y)?);
                borne_out |= x.is_some() && x == y;
            }
        }
        if !borne_out {
            continue;
        }
        for (x, y) in &fits {
            left.remove(x);
            right.remove(y);
            pairs.pairs.push(((*x).to_owned(), (*y).to_owned()));
        }
        pairs.prefixes.push(Prefix { from, to, weights: fits.len() });
    }
    // One by one, by what they hold; equal shapes first, so that little is read.
    let shapes: BTreeSet<Option<Vec<u64>>> = right.iter().map(|n| shape(b, n)).collect();
    let mut by_content: HashMap<Digest, Vec<&str>> = HashMap::new();
    let wanted: Vec<&str> = left.iter().copied().filter(|n| shapes.contains(&shape(a, n))).collect();
    if !wanted.is_empty() {
        let shapes: BTreeSet<Option<Vec<u64>>> = wanted.iter().map(|n| shape(a, n)).collect();
        for n in right.iter().filter(|n| shapes.contains(&shape(b, n))) {
            if let Some(digest) = content(1, n)? {
                by_content.entry(digest).or_default().push(n);
            }
        }
    }
    for n in wanted {
        let Some(digest) = content(0, n)? else { continue };
        let Some(list) = by_content.get_mut(&digest).filter(|l| !l.is_empty()) else { continue };
        // Of several with the same bytes, the one that shares most of the end of its name.
        let best = (0..list.len()).max_by_key(|i| (common_end(n, list[*i]), std::cmp::Reverse(*i))).unwrap_or(0);
        let other = list.remove(best);
        left.remove(n);
        right.remove(other);
        pairs.pairs.push((n.to_owned(), other.to_owned()));
    }
    pairs.removed = left.into_iter().map(str::to_owned).collect();
    pairs.added = right.into_iter().map(str::to_owned).collect();
    pairs.pairs.sort();
    Ok(pairs)
}

fn common_end(a: &str, b: &str) -> usize {
    a.bytes().rev().zip(b.bytes().rev()).take_while(|(x, y)| x == y).count()
}

fn has_number(name: &str) -> bool {
    name.split('.').any(|c| !c.is_empty() && c.bytes().all(|b| b.is_ascii_digit()))
}

// Where the components of a name begin.
fn starts(name: &str) -> impl Iterator<Item = usize> {
    std::iter::once(0).chain(name.match_indices('.').map(|(i, _)| i + 1))
}

// Beginnings that may have become others, those that most names speak for first.
fn candidates(left: &BTreeSet<&str>, right: &BTreeSet<&str>) -> Vec<(String, String)> {
    // A name votes with so many namesakes of its longest known end.
    const MOST: usize = 4;
    let mut ends: HashMap<&str, Vec<&str>> = HashMap::new();
    for n in right {
        for at in starts(n) {
            let known = ends.entry(&n[at..]).or_default();
            if known.len() < MOST {
                known.push(&n[..at]);
            }
        }
    }
    let mut votes: HashMap<(&str, &str), usize> = HashMap::new();
    for n in left {
        let Some((at, prefixes)) = starts(n).find_map(|at| Some((at, ends.get(&n[at..])?))) else { continue };
        for to in prefixes {
            *votes.entry((&n[..at], to)).or_default() += 1;
        }
    }
    let mut all: Vec<((&str, &str), usize)> = votes.into_iter().collect();
    all.sort_by(|x, y| y.1.cmp(&x.1).then(x.0.cmp(&y.0)));
    all.into_iter().take(64).map(|((from, to), _)| (from.to_owned(), to.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::layout::weights;
    use crate::diff::side::{Side, SideTensor};
    use crate::model::path::RelPath;
    use crate::tensors::dtype::Dtype;

    // Weights by name, each with a shape and what it holds.
    fn side(list: &[(&str, u64, &str)]) -> (BTreeMap<String, Weight>, BTreeMap<String, Digest>) {
        let mut side = Side::new("s");
        for (name, n, _) in list {
            let file = RelPath::try_from("model.safetensors").unwrap();
            let t = SideTensor { dtype: Dtype::U8, shape: vec![*n], file, offset: 0, len: *n, digest: None };
            side.tensors.insert((*name).to_owned(), t);
        }
        let contents = list.iter().map(|(n, _, c)| ((*n).to_owned(), Digest::of(c.as_bytes()))).collect();
        (weights(&side).unwrap(), contents)
    }

    fn paired(a: &[(&str, u64, &str)], b: &[(&str, u64, &str)]) -> (Pairs, usize) {
        let (a, b) = (side(a), side(b));
        let mut asked = 0;
        let mut content = |s: usize, n: &str| {
            asked += 1;
            Ok::<_, ()>(if s == 0 { &a.1 } else { &b.1 }.get(n).copied())
        };
        let pairs = pair(&a.0, &b.0, &mut content).unwrap();
        (pairs, asked)
    }

    #[test]
    fn a_prefix_that_became_another_is_one_line_and_layer_numbers_bear_it_out_unread() {
        let (pairs, asked) = paired(
            &[
                ("model.layers.0.q.weight", 4, "x"),
                ("model.layers.1.q.weight", 4, "y"),
                ("model.norm.weight", 4, "n"),
                ("lm_head.weight", 8, "h"),
            ],
            &[
                ("model.language_model.layers.0.q.weight", 4, "x"),
                ("model.language_model.layers.1.q.weight", 4, "changed"),
                ("model.language_model.norm.weight", 4, "n"),
                ("lm_head.weight", 8, "h"),
            ],
        );
        let expected = Prefix { from: "model.".into(), to: "model.language_model.".into(), weights: 3 };
        assert_eq!(pairs.prefixes, [expected]);
        assert_eq!((pairs.pairs.len(), pairs.removed.len(), pairs.added.len(), asked), (4, 0, 0, 0));
    }

    #[test]
    fn a_draft_head_is_no_renamed_layer() {
        let (pairs, _) = paired(
            &[("model.layers.3.mlp.up.weight", 4, "a"), ("model.layers.3.mlp.down.weight", 4, "b")],
            &[("mtp.layers.0.mlp.up.weight", 4, "c"), ("mtp.layers.0.mlp.down.weight", 4, "d")],
        );
        assert_eq!((pairs.pairs.len(), pairs.prefixes.len()), (0, 0));
        assert_eq!((pairs.removed.len(), pairs.added.len()), (2, 2));
    }

    #[test]
    fn the_same_bytes_under_another_name_are_found_and_the_likeliest_of_several_is_taken() {
        let (pairs, _) = paired(
            &[("wte.weight", 4, "e"), ("a.norm.weight", 2, "ones"), ("b.ln.bias", 2, "ones")],
            &[("embed_tokens.weight", 4, "e"), ("x.bias", 2, "ones"), ("y.weight", 2, "ones")],
        );
        let names: Vec<(&str, &str)> = pairs.pairs.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(
            names,
            [("a.norm.weight", "y.weight"), ("b.ln.bias", "x.bias"), ("wte.weight", "embed_tokens.weight")]
        );
    }

    #[test]
    fn another_shape_is_another_weight() {
        let (pairs, asked) = paired(&[("a.0.w", 4, "x"), ("a.1.w", 4, "x")], &[("b.0.w", 5, "x"), ("b.1.w", 5, "x")]);
        assert_eq!((pairs.removed.len(), pairs.added.len(), asked), (2, 2, 0));
    }
}
