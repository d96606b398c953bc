//! Which weights are quantised, left plain or left out.
//!
//! - A tensor that `drop` matches, by its own name or its module's, is left out.
//! - A **Linear** is a module with a `weight` of rank 2 that is neither an embedding nor a norm. An embedding is
//!   known by its name: its last part contains `embed`, or is `wte` or `wpe`. A norm's name ends in `norm`.
//! - A Linear that `ignore` matches by its module's name stays plain and is listed by its exact name; every other one
//!   is quantised. What can't be is refused by name: another type than BF16, F16 or F32, no elements, a last
//!   dimension that is no multiple of 16, or experts fused in one tensor of rank 3.
//! - A pattern that matches nothing is refused: a slip of the keyboard would quantise what was to stay plain. Only the
//!   name of an output layer (`lm_head`) may stand in `ignore` without a tensor, where `tie_word_embeddings` of
//!   config.json is true: references list it, and a loader that builds it must find it.

use std::collections::{BTreeMap, BTreeSet};

use super::config::Facts;
use super::fuse::scale_group;
use super::nvfp4::GROUP;
use super::round::Float;
use crate::kinds::StepError;
use crate::tensors::dtype::Dtype;
use crate::tensors::pattern::{NoMatch, Pattern, matching};

/// A tensor of the input.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: &'a [u64],
}

/// A weight that is to be quantised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// Its module: its name without `.weight`.
    pub module: String,
    /// Its type.
    pub float: Float,
    /// Its rows.
    pub rows: u64,
    /// Its columns, a multiple of 16.
    pub cols: u64,
    /// The group with which it shares a global scale.
    pub group: String,
}

/// What becomes of the tensors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// The weights to quantise, by tensor name.
    pub quantised: BTreeMap<String, Weight>,
    /// The tensors that are left out.
    pub dropped: BTreeSet<String>,
    /// The exact names of the Linear modules that stay plain: the ignore list.
    pub ignored: BTreeSet<String>,
    /// Those of them without a tensor: output layers that are tied to the embedding.
    pub tied: BTreeSet<String>,
}

/// The module of a tensor: its name without the last part.
fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(module, _)| module)
}

fn leaf_of(module: &str) -> &str {
    module.rsplit_once('.').map_or(module, |(_, leaf)| leaf)
}

fn is_embedding(module: &str) -> bool {
    let leaf = leaf_of(module);
    leaf.contains("embed") || matches!(leaf, "wte" | "wpe")
}

/// The module of experts that are fused in one tensor of rank 3, as recent mixtures of experts are saved.
fn fused_experts<'a>(t: &Tensor<'a>) -> Option<&'a str> {
    let name = t.name.strip_suffix(".weight").unwrap_or(t.name);
    let fused = t.shape.len() == 3 && matches!(leaf_of(name), "gate_up_proj" | "down_proj");
    fused.then(|| module_of(name))
}

/// Decides. Errors: [`StepError::Invalid`] with the names, as the page above says.
pub fn select(
    tensors: &[Tensor<'_>],
    facts: &Facts,
    ignore: &[Pattern],
    drop: &[Pattern],
) -> Result<Selection, StepError> {
    every_pattern_matches(tensors, facts, ignore, drop)?;
    let mut out = Selection::default();
    let mut refused: Vec<String> = Vec::new();
    let mut embedding_seen = false;
    for t in tensors {
        let module = module_of(t.name);
        if drop.iter().any(|p| p.matches(t.name) || p.matches(module)) {
            out.dropped.insert(t.name.to_owned());
            continue;
        }
        let ignored = |module: &str| ignore.iter().any(|p| p.matches(module));
        if let Some(experts) = fused_experts(t) {
            let name = t.name.strip_suffix(".weight").unwrap_or(t.name);
            if ignored(experts) || ignored(name) {
                out.ignored.insert(experts.to_owned());
            } else {
                refused.push(format!("{} holds fused experts {:?}", t.name, t.shape));
            }
            continue;
        }
        let (&[rows, cols], true) = (t.shape, t.name.ends_with(".weight")) else { continue };
        if is_embedding(module) {
            embedding_seen = true;
        } else if module.ends_with("norm") {
            // Not a Linear, and the references leave it out of the list.
        } else if ignored(module) {
            out.ignored.insert(module.to_owned());
        } else {
            match weight(t, module, rows, cols) {
                Ok(w) => {
                    out.quantised.insert(t.name.to_owned(), w);
                }
                Err(why) => refused.push(format!("{} {why}", t.name)),
            }
        }
    }
    if !refused.is_empty() {
        let what = format!("{} of the weights can't be quantised to NVFP4:\n  {}", refused.len(), refused.join("\n  "));
        return Err(StepError::invalid(what, "add their modules to `ignore`, or the tensors to `drop`"));
    }
    if !embedding_seen {
        no_embedding_among_them(&out, facts)?;
    }
    if out.quantised.is_empty() {
        let what = format!("no weight is left to quantise: {} Linear modules are ignored", out.ignored.len());
        return Err(StepError::invalid(what, "narrow `ignore` or `drop`"));
    }
    keep_tied_output(tensors, facts, ignore, &mut out);
    Ok(out)
}

fn weight(t: &Tensor<'_>, module: &str, rows: u64, cols: u64) -> Result<Weight, String> {
    let float = match t.dtype {
        Dtype::Bf16 => Float::Bf16,
        Dtype::F16 => Float::F16,
        Dtype::F32 => Float::F32,
        other => return Err(format!("is {other}: expected BF16, F16 or F32")),
    };
    if rows == 0 || cols == 0 {
        return Err(format!("has no elements: {:?}", t.shape));
    }
    if !cols.is_multiple_of(GROUP as u64) {
        return Err(format!("has {cols} columns: no multiple of {GROUP}"));
    }
    Ok(Weight { module: module.to_owned(), float, rows, cols, group: scale_group(module) })
}

fn every_pattern_matches(
    tensors: &[Tensor<'_>],
    facts: &Facts,
    ignore: &[Pattern],
    drop: &[Pattern],
) -> Result<(), StepError> {
    let modules: BTreeSet<&str> = tensors
        .iter()
        .map(|t| module_of(t.name))
        .chain(tensors.iter().filter(|t| fused_experts(t).is_some()).flat_map(|t| [t.name, module_of(t.name)]))
        .collect();
    let modules: Vec<&str> = modules.into_iter().collect();
    // An output layer that is tied to the embedding has no tensor; see keep_tied_output.
    let allowed = |p: &Pattern| facts.tied && tied_output(p).is_some();
    let ignore: Vec<Pattern> = ignore.iter().filter(|p| !allowed(p)).cloned().collect();
    let names: Vec<&str> = tensors.iter().map(|t| t.name).chain(modules.iter().copied()).collect();
    let misses = [("ignore", matching(&modules, &ignore)), ("drop", matching(&names, drop))];
    let misses: Vec<(&str, NoMatch)> = misses.into_iter().filter_map(|(key, m)| Some((key, m.err()?))).collect();
    if misses.is_empty() {
        return Ok(());
    }
    let what: Vec<String> = misses.iter().map(|(key, e)| format!("`{key}`: {e} in the input `model`")).collect();
    let hints: Vec<String> = misses.iter().map(|(_, e)| e.hint()).filter(|h| !h.is_empty()).collect();
    let keys: Vec<String> = misses.iter().map(|(key, _)| format!("`{key}`")).collect();
    let take_out = format!("take out of {} what this model does not have", keys.join(" and "));
    let hint = match hints.join(" ") {
        none if none.is_empty() => take_out,
        asked if asked.ends_with('?') => format!("{asked} Or {take_out}"),
        said => format!("{said}: {take_out}"),
    };
    Err(StepError::invalid(what.join("; "), hint))
}

/// The name, where the pattern is the exact name of an output layer.
fn tied_output(pattern: &Pattern) -> Option<&str> {
    let text = pattern.text();
    (leaf_of(text) == "lm_head" && !text.starts_with("re:") && !text.contains(['*', '?', '['])).then_some(text)
}

/// Without an embedding by name, one of the weights that are as high as the vocabulary may be it.
fn no_embedding_among_them(out: &Selection, facts: &Facts) -> Result<(), StepError> {
    let Some(vocab) = facts.vocab_size else { return Ok(()) };
    let suspects: Vec<&str> = out
        .quantised
        .values()
        .filter(|w| w.rows == vocab && leaf_of(&w.module) != "lm_head")
        .map(|w| w.module.as_str())
        .collect();
    if suspects.is_empty() {
        return Ok(());
    }
    let what = format!(
        "no module is an embedding by its name, and these have the {vocab} rows of the vocabulary (config.json): {}",
        suspects.join(", ")
    );
    Err(StepError::invalid(what, "add the embedding to `ignore`"))
}

/// A tied output layer is a Linear without a tensor of its own. A loader that builds it must find it in the list.
fn keep_tied_output(tensors: &[Tensor<'_>], facts: &Facts, ignore: &[Pattern], out: &mut Selection) {
    if !facts.tied || tensors.iter().any(|t| leaf_of(module_of(t.name)) == "lm_head") {
        return;
    }
    out.tied.extend(ignore.iter().filter_map(tied_output).map(str::to_owned));
    out.tied.insert("lm_head".to_owned());
    out.ignored.extend(out.tied.iter().cloned());
}

#[cfg(test)]
mod tests {
    use super::*;

    const BF16: Dtype = Dtype::Bf16;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|t| Pattern::module(t).unwrap()).collect()
    }

    fn of(tensors: &[(&str, Dtype, &[u64])], ignore: &[&str], drop: &[&str]) -> Result<Selection, String> {
        with(tensors, ignore, drop, &Facts::default())
    }

    fn with(
        tensors: &[(&str, Dtype, &[u64])],
        ignore: &[&str],
        drop: &[&str],
        facts: &Facts,
    ) -> Result<Selection, String> {
        let tensors: Vec<_> =
            tensors.iter().map(|(name, dtype, shape)| Tensor { name, dtype: *dtype, shape }).collect();
        select(&tensors, facts, &patterns(ignore), &patterns(drop)).map_err(|e| match e {
            StepError::Invalid { what, hint } => format!("{what} | {}", hint.unwrap_or_default()),
            other => other.to_string(),
        })
    }

    const SMALL: &[(&str, Dtype, &[u64])] = &[
        ("lm_head.weight", BF16, &[64, 32]),
        ("m.embed_tokens.weight", BF16, &[64, 32]),
        ("m.visual.pos_embed.weight", BF16, &[64, 32]),
        ("m.layers.0.q_proj.weight", BF16, &[64, 32]),
        ("m.layers.0.q_proj.bias", BF16, &[64]),
        ("m.layers.0.conv1d.weight", BF16, &[64, 1, 4]),
        ("m.layers.0.input_layernorm.weight", BF16, &[32]),
        ("mtp.fc.weight", BF16, &[32, 64]),
        ("mtp.norm.weight", BF16, &[32]),
    ];

    #[test]
    fn linear_weights_are_quantised_and_embeddings_norms_and_convolutions_are_not() {
        let s = of(SMALL, &["lm_head"], &[]).unwrap();
        assert_eq!(s.quantised.keys().collect::<Vec<_>>(), ["m.layers.0.q_proj.weight", "mtp.fc.weight"]);
        assert_eq!(s.ignored, ["lm_head".to_owned()].into());
        assert!(s.dropped.is_empty());
    }

    #[test]
    fn dropped_tensors_are_left_out_and_not_listed_and_ignored_ones_are_listed_by_name() {
        let s = of(SMALL, &["re:lm_head", "m.visual.*"], &["mtp.*"]).unwrap();
        assert_eq!(s.dropped, ["mtp.fc.weight".to_owned(), "mtp.norm.weight".to_owned()].into());
        assert_eq!(s.ignored, ["lm_head".to_owned()].into());
        let s = of(SMALL, &["lm_head", "mtp*"], &[]).unwrap();
        assert_eq!(s.ignored, ["lm_head".to_owned(), "mtp.fc".to_owned()].into());
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_an_error_with_near_names() {
        let e = of(SMALL, &["m.layers.0.q_prj"], &[]).unwrap_err();
        let said = "`ignore`: the pattern \"m.layers.0.q_prj\" matches none of 8 names in the input `model` | did you mean \"m.layers.0.q_proj\"";
        assert!(e.starts_with(said), "{e}");
        assert!(of(SMALL, &[], &["mpt.*"]).unwrap_err().contains("`drop`: the pattern \"mpt.*\" matches none"));
        let e = of(SMALL, &["m.vizual.*", "lm_head", "*.moe.*"], &["mpt.*"]).unwrap_err();
        let said = "`ignore`: the patterns \"m.vizual.*\", \"*.moe.*\" match none of 8 names in the input `model`; \
                    `drop`: the pattern \"mpt.*\" matches none of 17 names in the input `model` | for \"m.vizual.*\" did you";
        assert!(e.starts_with(said), "{e}");
        assert!(e.ends_with("Or take out of `ignore` and `drop` what this model does not have"), "{e}");
    }

    #[test]
    fn what_cannot_be_quantised_is_refused_by_name_all_at_once() {
        let e = of(
            &[
                ("a.weight", BF16, &[4, 24]),
                ("b.weight", Dtype::F8E4M3, &[4, 32]),
                ("c.weight", BF16, &[0, 16]),
                ("d.experts.gate_up_proj", BF16, &[8, 64, 32]),
                ("e.weight", BF16, &[4, 16]),
            ],
            &[],
            &[],
        )
        .unwrap_err();
        for part in [
            "4 of the weights",
            "a.weight has 24 columns: no multiple of 16",
            "b.weight is F8_E4M3: expected BF16",
            "c.weight has no elements: [0, 16]",
            "d.experts.gate_up_proj holds fused experts [8, 64, 32]",
            "`ignore`",
        ] {
            assert!(e.contains(part), "{part:?} in {e}");
        }
        assert!(of(&[("a.weight", BF16, &[4, 16])], &["a"], &[]).unwrap_err().starts_with("no weight is left"));
    }

    #[test]
    fn an_embedding_under_another_name_is_asked_for_rather_than_quantised() {
        let tensors: &[(&str, Dtype, &[u64])] =
            &[("m.tok.weight", BF16, &[512, 32]), ("m.a_proj.weight", BF16, &[32, 32])];
        let facts = Facts { vocab_size: Some(512), ..Facts::default() };
        assert!(with(tensors, &[], &[], &facts).unwrap_err().contains("config.json): m.tok | add the embedding"));
        assert_eq!(with(tensors, &["m.tok"], &[], &facts).unwrap().quantised.len(), 1);
    }

    #[test]
    fn a_tied_output_layer_stays_in_the_list_though_it_has_no_tensor() {
        let tensors: &[(&str, Dtype, &[u64])] =
            &[("m.embed_tokens.weight", BF16, &[8, 16]), ("a.weight", BF16, &[8, 16])];
        let tied = Facts { tied: true, ..Facts::default() };
        assert_eq!(with(tensors, &[], &[], &tied).unwrap().ignored, ["lm_head".to_owned()].into());
        assert_eq!(with(tensors, &["lm_head"], &[], &tied).unwrap().tied, ["lm_head".to_owned()].into());
        assert!(of(tensors, &[], &[]).unwrap().ignored.is_empty());
        let e = of(tensors, &["lm_head"], &[]).unwrap_err();
        assert!(e.starts_with("`ignore`: the pattern \"lm_head\" matches none of 2 names"), "not tied: {e}");
    }

    #[test]
    fn fused_experts_that_are_ignored_are_listed_as_their_module() {
        let tensors: &[(&str, Dtype, &[u64])] =
            &[("l.experts.down_proj", BF16, &[8, 32, 32]), ("a.weight", BF16, &[8, 16])];
        assert_eq!(of(tensors, &["*.experts*"], &[]).unwrap().ignored, ["l.experts".to_owned()].into());
    }
}
