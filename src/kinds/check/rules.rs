//! What a server needs and does not say: faults that load in silence and cost hours.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::findings::Findings;
use super::model::Model;
use super::spec::Rules;
use crate::jsonedit::{Document, Pointer};
use crate::kinds::exclusions::{Coverage, Dialect, HF_QUANT_CONFIG, PLACE_IN_HF_QUANT_CONFIG, PLACES_IN_CONFIG};
use crate::kinds::weights::document;
use crate::kinds::{Input, StepError};
use crate::tensors::table::TensorEntry;

/// Asserts the rules that are asked for. Errors: an hf_quant_config.json that is broken.
pub(super) fn assert(rules: &Rules, input: &Input, model: &Model, found: &mut Findings) -> Result<(), StepError> {
    if rules.architecture {
        found.add("tensor names that the architecture loads", architecture(model));
    }
    match rules.draft_head {
        Some(true) => found.add("a draft head", draft_head(model)),
        Some(false) => found.instead("no draft head", no_draft_head(model)),
        None => {}
    }
    if rules.exclusions {
        exclusions(input, model, found)?;
    }
    if rules.tied {
        let (faults, notes) = tied(model);
        let assertion = "embedding and head to be what tie_word_embeddings says";
        if faults.is_empty() { found.holds(assertion, notes) } else { found.add(assertion, faults) }
    }
    if rules.processors {
        found.add("preprocessor_config.json of a multimodal model", processors(input, model));
    }
    Ok(())
}

fn value(config: &Document, path: &[&str]) -> Option<Json> {
    config.value(&Pointer::new(path.iter().copied())).filter(|v| !v.is_null())
}

/// A value of the text model, which stands in `text_config` where there is one.
fn of_text(config: &Document, key: &str) -> Option<Json> {
    value(config, &["text_config", key]).or_else(|| value(config, &[key]))
}

fn no_config() -> Vec<String> {
    vec!["there is no config.json".to_owned()]
}

/// At most three names for a message.
fn some<'a>(names: impl Iterator<Item = &'a String> + Clone) -> String {
    let shown: Vec<&str> = names.clone().take(3).map(String::as_str).collect();
    match names.count().saturating_sub(shown.len()) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

const FLAT: [&str; 4] = ["model.layers.", "model.embed_tokens.", "layers.", "embed_tokens."];

fn is_wrapped(name: &str) -> bool {
    name.contains("language_model.") || name.contains("text_model.")
}

fn is_vision(name: &str) -> bool {
    name.contains("visual.") || name.contains("vision")
}

fn architecture(model: &Model) -> Vec<String> {
    let Some(config) = &model.config else { return no_config() };
    let Some(name) = value(config, &["architectures", "0"]).and_then(|v| v.as_str().map(str::to_owned)) else {
        return vec!["config.json has no `architectures`".to_owned()];
    };
    let names = || model.tensors.keys();
    let has = |key: &str| value(config, &[key]).is_some();
    let mut faults = Vec::new();
    if name.ends_with("ForConditionalGeneration") && has("text_config") {
        let qwen = value(config, &["model_type"]).and_then(|v| v.as_str().map(|t| t.starts_with("qwen3_5")));
        let exact = qwen == Some(true);
        let is_text = |n: &String| if exact { n.starts_with("model.language_model.") } else { is_wrapped(n) };
        let flat = names().filter(|n| FLAT.iter().any(|p| n.starts_with(p)));
        if flat.clone().next().is_some() {
            faults.push(format!("{name} wants the text model under `language_model.`, found {}", some(flat)));
        }
        if !names().any(is_text) {
            let where_ = if exact { "model.language_model.*" } else { "*language_model.*" };
            faults.push(format!("{name} wants tensors {where_}, and there is none"));
        }
        let vision = |n: &String| if exact { n.starts_with("model.visual.") } else { is_vision(n) };
        if has("vision_config") && !names().any(vision) {
            let where_ = if exact { "model.visual.*" } else { "*visual.* or *vision*" };
            faults.push(format!("{name} has a vision_config and wants tensors {where_}, and there is none"));
        }
    } else if name.ends_with("ForCausalLM") {
        let wrapped = names().filter(|n| is_wrapped(n) || n.contains("visual."));
        if wrapped.clone().next().is_some() {
            faults.push(format!("{name} is a text model and loads no {}", some(wrapped)));
        }
        if has("text_config") {
            faults.push(format!("{name} is a text model, and config.json has a text_config"));
        }
    } else {
        faults.push(format!("no rule is known for {name}: assert tensors.prefixes instead"));
    }
    faults
}

/// How many layers of a draft head config.json declares.
fn declared_layers(config: &Document) -> u64 {
    of_text(config, "mtp_num_hidden_layers").and_then(|v| v.as_u64()).unwrap_or(0)
}

fn draft_head(model: &Model) -> Vec<String> {
    let Some(config) = &model.config else { return no_config() };
    let layer = |n: &String| n.strip_prefix("mtp.layers.")?.split('.').next()?.parse::<u64>().ok();
    let layers: BTreeSet<u64> = model.tensors.keys().filter_map(layer).collect();
    let declared = declared_layers(config);
    let mut faults = Vec::new();
    if declared == 0 {
        faults.push("config.json declares none (mtp_num_hidden_layers)".to_owned());
    }
    if !model.tensors.keys().any(|n| n.starts_with("mtp.")) {
        faults.push("there are no tensors mtp.*".to_owned());
    } else if layers.len() as u64 != declared || layers.last().is_some_and(|last| *last >= declared) {
        let found: Vec<String> = layers.iter().take(20).map(u64::to_string).collect();
        faults.push(format!("config.json declares {declared} layers, and there are layers [{}]", found.join(", ")));
    }
    faults
}

fn no_draft_head(model: &Model) -> Vec<String> {
    let mut faults: Vec<String> = model.tensors.keys().filter(|n| n.starts_with("mtp.")).cloned().collect();
    if let Some(n) = model.config.as_ref().map(declared_layers).filter(|n| *n > 0) {
        faults.push(format!("config.json declares mtp_num_hidden_layers = {n}"));
    }
    faults
}

/// The modules of `.weight` tensors of rank 2 that are plain and no embedding: each would be built as a packed layer.
fn plain_linears(model: &Model) -> impl Iterator<Item = &str> {
    let module = |t: &'_ TensorEntry| (t.shape.len() == 2 && t.dtype.is_plain_float()).then_some(());
    model.tensors.iter().filter(move |(_, t)| module(t).is_some()).filter_map(|(n, _)| {
        let module = n.strip_suffix(".weight")?;
        let leaf = module.rsplit('.').next().unwrap_or(module);
        let other = leaf.contains("embed") || matches!(leaf, "wte" | "wpe") || leaf.ends_with("norm");
        (!other).then_some(module)
    })
}

fn exclusions(input: &Input, model: &Model, found: &mut Findings) -> Result<(), StepError> {
    let mut listed = false;
    for place in PLACES_IN_CONFIG {
        let Some(config) = &model.config else { break };
        let Ok(at) = Pointer::parse(place) else { continue };
        if !matches!(config.value(&at), Some(Json::Object(_))) {
            continue;
        }
        listed = true;
        let method = config.value(&at.child("quant_method"));
        let list = at.child("ignore");
        let faults = match method.as_ref().and_then(Json::as_str).map(|m| (m, Dialect::of_method(m))) {
            Some((_, Some(dialect))) => uncovered(model, config, &list, dialect),
            Some((method, None)) => vec![format!("how a list of the method {method:?} is read is not known")],
            None => vec!["it has no quant_method".to_owned()],
        };
        found.add(format!("every unquantised Linear on the exclusion list config.json{list}"), faults);
    }
    if let Some(file) = document(input, HF_QUANT_CONFIG)? {
        listed = true;
        let Ok(at) = Pointer::parse(PLACE_IN_HF_QUANT_CONFIG) else { return Ok(()) };
        let list = at.child("exclude_modules");
        let faults = uncovered(model, &file, &list, Dialect::Globs);
        found.add(format!("every unquantised Linear on the exclusion list {HF_QUANT_CONFIG}{list}"), faults);
    }
    if !listed {
        let fault = "config.json has no quantization_config".to_owned();
        found.add("every unquantised Linear on an exclusion list", vec![fault]);
    }
    Ok(())
}

fn uncovered(model: &Model, file: &Document, list: &Pointer, dialect: Dialect) -> Vec<String> {
    let items = match file.value(list) {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(items)) => items,
        Some(_) => return vec!["it is no list".to_owned()],
    };
    let coverage = match Coverage::read(&items, dialect) {
        Ok(coverage) => coverage,
        Err(e) => return vec![e.to_string()],
    };
    let open = plain_linears(model).filter(|m| !coverage.covers(m)).map(|m| format!("{m} is not covered"));
    let mut faults: Vec<String> = open.collect();
    if !faults.is_empty() {
        faults.extend(coverage.skipped);
    }
    faults
}

/// Faults and notes on embedding and head.
fn tied(model: &Model) -> (Vec<String>, Vec<String>) {
    let Some(config) = &model.config else { return (no_config(), Vec::new()) };
    // The outer one counts where both are there: transformers ties by it.
    let key = "tie_word_embeddings";
    let said = value(config, &[key]).or_else(|| value(config, &["text_config", key])).and_then(|v| v.as_bool());
    let by_leaf = |leaf: &str| {
        let mut all = model.tensors.iter().filter(|(n, _)| !n.starts_with("mtp."));
        all.find(|(n, _)| {
            let module = n.rsplit_once('.').map_or("", |(m, _)| m);
            module == leaf || module.ends_with(&format!(".{leaf}"))
        })
    };
    let (embedding, head) = (by_leaf("embed_tokens").or_else(|| by_leaf("wte")), by_leaf("lm_head"));
    let mut faults = Vec::new();
    let mut notes = Vec::new();
    match (said, embedding, head) {
        (_, None, _) => faults.push("there is no embedding (embed_tokens.weight)".to_owned()),
        (Some(true), Some(_), None) | (Some(false), Some(_), Some(_)) | (None, Some(_), Some(_)) => {}
        (Some(true), Some((e, a)), Some((h, b))) if a.digest == b.digest && a.dtype == b.dtype => {
            notes.push(format!("{e} and {h} are both there, with the same bytes"));
        }
        (Some(true), Some((e, _)), Some((h, _))) => {
            faults.push(format!("{key} is true, and {e} and {h} have other bytes"));
        }
        (Some(false), Some((e, _)), None) => faults.push(format!("{key} is false, and there is only {e}")),
        (None, Some((e, _)), None) => notes.push(format!("{key} is not said, and there is only {e}")),
    }
    (faults, notes)
}

fn processors(input: &Input, model: &Model) -> Vec<String> {
    let Some(config) = &model.config else { return no_config() };
    let multimodal = ["vision_config", "audio_config"].iter().any(|k| value(config, &[k]).is_some());
    if !multimodal || input.tree.at("preprocessor_config.json").is_some() {
        return Vec::new();
    }
    let hint = if input.tree.at("processor_config.json").is_some() {
        "there is only processor_config.json: make the other with `edit`, \
         add.\"preprocessor_config.json\" = \"model/processor_config.json#/image_processor\""
    } else {
        "there is neither it nor processor_config.json: copy them from the model it was made of"
    };
    vec![hint.to_owned()]
}
