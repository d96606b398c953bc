//! What is known to go wrong with a seat, said before a GPU is taken.
//!
//! | fault | what is seen without these rules |
//! | --- | --- |
//! | a shim is mounted and not on PYTHONPATH, or the reverse | a crash loop that looks like a bad quant |
//! | drafts are asked for, and the head is not in the weights | the server loads, and accepts no draft |
//! | a multimodal model without its image processor | vision does not load |
//! | a multimodal model without its vision tower | it loads in silence, and sees noise |
//! | the served name is another one than the seat's | every client gets a 404 |

use std::io;

use serde_json::Value as Json;

use crate::kinds::{Input, ParamError, StepError};
use crate::model::path::RelPath;

use super::seat::Seat;

const CONFIG_LIMIT: u64 = 64 << 20;

/// The rules that need no input. Errors: [`ParamError`] at the key.
pub(super) fn check_params(seat: &Seat) -> Result<(), ParamError> {
    served_name(seat)?;
    shims(seat)?;
    draft_method(seat).map(|_| ())
}

fn served_name(seat: &Seat) -> Result<(), ParamError> {
    let Some(name) = &seat.name else { return Ok(()) };
    let given = |arg: &String| arg == name || arg.split_once('=').is_some_and(|(_, value)| value == name);
    if seat.args.iter().any(given) {
        return Ok(());
    }
    let flag = seat.args.iter().position(|a| a == "--served-model-name").and_then(|i| seat.args.get(i + 1));
    let what = match flag {
        Some(other) => format!("the seat's name is {name:?}, and its engine is told {other:?}"),
        None => format!("the seat's name is {name:?}, and its engine is not told so"),
    };
    Err(ParamError::new("name", what).hint(format!("put \"--served-model-name\", {name:?} into `args`")))
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

// Python imports these two by itself when it starts, from PYTHONPATH.
fn is_shim(path: &str) -> bool {
    path.ends_with("/sitecustomize.py") || path.ends_with("/usercustomize.py")
}

fn shims(seat: &Seat) -> Result<(), ParamError> {
    let declared = seat.env.get("PYTHONPATH").map(String::as_str).unwrap_or_default();
    let folders: Vec<&str> = declared.split(':').filter(|f| !f.is_empty()).map(|f| f.trim_end_matches('/')).collect();
    for target in seat.mounts.keys().filter(|t| is_shim(t)) {
        let folder = folder_of(target);
        if !folders.contains(&folder) {
            let what = format!("{target} is mounted, and PYTHONPATH is {declared:?}: Python will not find it");
            return Err(ParamError::new("mounts", what).hint(format!("env.PYTHONPATH = {folder:?}")));
        }
    }
    for folder in folders {
        let below = format!("{folder}/");
        let known = seat.in_image.iter().any(|f| f.trim_end_matches('/') == folder);
        if !known && !seat.mounts.keys().any(|t| t.starts_with(&below)) {
            let what = format!("PYTHONPATH names {folder}, and nothing is mounted there");
            return Err(ParamError::new("env.PYTHONPATH", what).hint(format!(
                "mount the shim (mounts = {{ \"{folder}/sitecustomize.py\" = \"ALIAS/FILE\" }}), or say that the image has \
                 that folder: in_image = [{folder:?}]"
            )));
        }
    }
    Ok(())
}

/// The values of a flag: `--flag value` and `--flag=value`.
fn flag_values<'a>(args: &'a [String], flag: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    for (i, arg) in args.iter().enumerate() {
        if arg == flag {
            found.extend(args.get(i + 1).map(String::as_str));
        } else if let Some(value) = arg.strip_prefix(flag).and_then(|r| r.strip_prefix('=')) {
            found.push(value);
        }
    }
    found
}

/// The draft method that is asked for, where the drafts come from the served weights themselves.
fn draft_method(seat: &Seat) -> Result<Option<String>, ParamError> {
    let mut method = flag_values(&seat.args, "--speculative-config.method").first().map(|m| (*m).to_owned());
    let mut model = !flag_values(&seat.args, "--speculative-config.model").is_empty();
    for text in flag_values(&seat.args, "--speculative-config") {
        let config: Json = serde_json::from_str(text).map_err(|e| {
            ParamError::new("args", format!("--speculative-config {text:?} is no JSON: {e}")).hint(
                "in single quotes, TOML takes it as it is: '{\"method\":\"qwen3_5_mtp\",\"num_speculative_tokens\":3}'",
            )
        })?;
        method = config.get("method").and_then(Json::as_str).map(str::to_owned).or(method);
        model |= config.get("model").is_some();
    }
    Ok(method.filter(|m| !model && (m == "mtp" || m.ends_with("_mtp"))))
}

/// The rules that look at the model: its config and the names of its tensors. Returns what could not be looked at.
/// Errors: [`StepError::Invalid`], and [`StepError::Io`] where a weight file is broken.
pub(super) fn check_model(seat: &Seat, model: &Input) -> Result<Vec<String>, StepError> {
    let Some(names) = tensor_names(model)? else { return Ok(Vec::new()) };
    let config = match config(model)? {
        Ok(config) => config,
        Err(note) => return Ok(vec![note]),
    };
    let heads = ["/mtp_num_hidden_layers", "/text_config/mtp_num_hidden_layers"];
    let declared = heads.iter().find_map(|p| config.pointer(p));
    let method = draft_method(seat).map_err(|e| StepError::invalid(e.what, e.hint.unwrap_or_default()))?;
    if let (Some(method), Some(layers)) = (&method, declared)
        && !names.iter().any(|n| n.split('.').any(|part| part == "mtp"))
    {
        return Err(StepError::invalid(
            format!(
                "--speculative-config asks for {method}, and none of the model's {} tensors is named mtp.*, though its \
                 config says mtp_num_hidden_layers = {layers}",
                names.len()
            ),
            "the head was lost on the way: splice it in from the base (kind = \"splice\", tensors = [\"mtp.*\"])",
        ));
    }
    let text_only = seat.args.iter().any(|a| a == "--language-model-only");
    if config.get("vision_config").is_some_and(Json::is_object) && !text_only {
        if model.tree.at("preprocessor_config.json").is_none() {
            return Err(StepError::invalid(
                "config.json describes a multimodal model, and preprocessor_config.json is not there: vision would not load",
                "copy it from the finetune or the base by an `edit` node, or serve text only: --language-model-only",
            ));
        }
        let vision = |n: &String| n.split('.').any(|p| p == "visual" || p.starts_with("vision_"));
        if !names.iter().any(vision) {
            return Err(StepError::invalid(
                format!(
                    "config.json describes a multimodal model, and none of its {} tensors is of a vision tower",
                    names.len()
                ),
                "an earlier step dropped them (a causal-LM class does): see `names_kept` of a check; or serve text only: \
                 --language-model-only",
            ));
        }
    }
    Ok(Vec::new())
}

/// The names of all tensors; `None` where there is no safetensors file.
fn tensor_names(model: &Input) -> Result<Option<Vec<String>>, StepError> {
    let mut names = Vec::new();
    let mut any = false;
    for (path, blob, ..) in model.tree.files().filter(|f| f.0.as_bytes().ends_with(b".safetensors")) {
        any = true;
        let table = model.files.table(blob).map_err(StepError::io(format!("reading {path} of the model")))?;
        names.extend(table.iter().flat_map(|t| t.tensors.iter().map(|t| t.name.clone())));
    }
    Ok(any.then_some(names))
}

fn config(model: &Input) -> Result<Result<Json, String>, StepError> {
    let path = RelPath::try_from("config.json").map_err(|e| StepError::invalid(e.to_string(), ""))?;
    match model.read(&path, CONFIG_LIMIT) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)
            .map_err(|e| format!("config.json is no JSON ({e}): what is known of its kind was not looked at"))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Ok(Err("the model has no config.json: what is known of its kind was not looked at".to_owned()))
        }
        Err(e) => Err(StepError::Io { what: "reading config.json of the model".to_owned(), source: e }),
    }
}
