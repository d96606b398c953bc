//! The parameters of a `check`, read and held against the aliases.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::canon::Value;
use crate::jsonedit::Pointer;
use crate::kinds::paths::PathGlob;
use crate::kinds::read::{boolean, count, dotted, globs, json, known, needs, only, pointer, rel, strings, table};
use crate::kinds::{ParamError, Params};
use crate::model::path::RelPath;
use crate::tensors::dtype::Dtype;
use crate::tensors::pattern::Pattern;

/// Values that a file must have.
pub(super) type FileValues = (RelPath, Vec<(Pointer, Json)>);

/// A number of a file, and its bounds.
pub(super) type Metric = (RelPath, Pointer, Bounds);

/// What is to be asserted.
#[derive(Debug, Default)]
pub(super) struct Spec {
    pub(super) allow_stray: Vec<PathGlob>,
    pub(super) tensors: TensorSpec,
    pub(super) config: Vec<FileValues>,
    pub(super) names_kept: Option<NamesKept>,
    pub(super) unchanged: Vec<(String, Vec<Pattern>)>,
    pub(super) files: Vec<PathGlob>,
    pub(super) rules: Rules,
    pub(super) calibration: Vec<(String, RowSpec)>,
    pub(super) metrics: Vec<(String, Vec<Metric>)>,
}

#[derive(Debug, Default)]
pub(super) struct TensorSpec {
    pub(super) is_given: bool,
    pub(super) count: Option<u64>,
    pub(super) names: Vec<Pattern>,
    pub(super) absent: Vec<Pattern>,
    pub(super) prefixes: Option<Vec<String>>,
    pub(super) dtypes: Vec<(Pattern, Vec<Dtype>)>,
    pub(super) shapes: Vec<(Pattern, Vec<u64>)>,
}

#[derive(Debug)]
pub(super) struct NamesKept {
    pub(super) input: String,
    pub(super) drop: Vec<Pattern>,
    pub(super) drop_config: Vec<String>,
}

/// The rules that are asked for.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) architecture: bool,
    pub(super) draft_head: Option<bool>,
    pub(super) exclusions: bool,
    pub(super) tied: bool,
    pub(super) processors: bool,
}

/// What the arguments of a tool call must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    Object,
    String,
}

#[derive(Debug, Default)]
pub(super) struct RowSpec {
    pub(super) file: Option<RelPath>,
    pub(super) count: Option<u64>,
    pub(super) tool_arguments: Option<Arguments>,
}

#[derive(Debug, Default)]
pub(super) struct Bounds {
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
}

impl Spec {
    pub(super) fn parse(params: &Params, aliases: &[&str]) -> Result<Spec, ParamError> {
        let mut spec = Spec::default();
        for (key, value) in params {
            let k = key.as_str();
            let of_model = !matches!(k, "calibration" | "metrics" | "kind" | "inputs" | "gate" | "platform" | "about");
            if of_model && !aliases.contains(&"model") {
                return Err(ParamError::new(k, format!("`{k}` asserts on the input `model`, and there is none"))
                    .hint(needs("model", aliases)));
            }
            match k {
                "tensors" => spec.tensors = TensorSpec::parse(value)?,
                "config" => spec.config = config(value)?,
                "names_kept" => spec.names_kept = Some(NamesKept::parse(value, aliases)?),
                "unchanged" => {
                    for (alias, list) in table(k, value)? {
                        let at = dotted(k, alias);
                        known(&at, alias, aliases)?;
                        spec.unchanged.push((alias.clone(), patterns(&at, list)?));
                    }
                }
                "files" => spec.files = globs(k, value)?,
                "allow_stray" => spec.allow_stray = globs(k, value)?,
                "calibration" => {
                    for (alias, rows) in table(k, value)? {
                        let at = dotted(k, alias);
                        known(&at, alias, aliases)?;
                        spec.calibration.push((alias.clone(), RowSpec::parse(&at, rows)?));
                    }
                }
                "metrics" => {
                    for (alias, files) in table(k, value)? {
                        let at = dotted(k, alias);
                        known(&at, alias, aliases)?;
                        spec.metrics.push((alias.clone(), metrics(&at, files)?));
                    }
                }
                "draft_head" => spec.rules.draft_head = Some(boolean(k, value)?),
                "architecture" => spec.rules.architecture = wanted(k, value)?,
                "exclusions" => spec.rules.exclusions = wanted(k, value)?,
                "tied" => spec.rules.tied = wanted(k, value)?,
                "processors" => spec.rules.processors = wanted(k, value)?,
                _ => {}
            }
        }
        let nothing = spec.calibration.is_empty() && spec.metrics.is_empty() && !aliases.contains(&"model");
        if nothing {
            return Err(ParamError::new("kind", "this check asserts nothing")
                .hint("give it inputs.model, or calibration.ALIAS, or metrics.ALIAS"));
        }
        Ok(spec)
    }
}

impl Spec {
    /// Whether something is asserted of the tensors of `model`.
    pub(super) fn needs_tensors(&self) -> bool {
        let rules = &self.rules;
        self.tensors.is_given
            || self.names_kept.is_some()
            || !self.unchanged.is_empty()
            || rules.architecture
            || rules.draft_head.is_some()
            || rules.exclusions
            || rules.tied
    }
}

/// A rule that can be asked for and not be turned round.
fn wanted(key: &str, value: &Value) -> Result<bool, ParamError> {
    if boolean(key, value)? {
        return Ok(true);
    }
    Err(ParamError::new(key, format!("`{key} = false` asserts nothing")).hint("leave it out"))
}

fn patterns(key: &str, value: &Value) -> Result<Vec<Pattern>, ParamError> {
    Ok(strings(key, value)?.into_iter().map(Pattern::glob).collect())
}

impl TensorSpec {
    fn parse(value: &Value) -> Result<Self, ParamError> {
        let map = table("tensors", value)?;
        only("tensors", map, &["count", "names", "absent", "prefixes", "dtypes", "shapes"])?;
        let mut spec = Self { is_given: true, ..Self::default() };
        for (k, v) in map {
            let at = dotted("tensors", k);
            match k.as_str() {
                "count" => spec.count = Some(count(&at, v)?),
                "names" => spec.names = patterns(&at, v)?,
                "absent" => spec.absent = patterns(&at, v)?,
                "prefixes" => spec.prefixes = Some(strings(&at, v)?.into_iter().map(str::to_owned).collect()),
                "dtypes" => {
                    for (glob, list) in table(&at, v)? {
                        let at = dotted(&at, glob);
                        let dtypes = strings(&at, list)?
                            .into_iter()
                            .map(|t| t.parse::<Dtype>().map_err(|e| ParamError::new(&at, e.to_string())))
                            .collect::<Result<_, _>>()?;
                        spec.dtypes.push((Pattern::glob(glob), dtypes));
                    }
                }
                _ => {
                    for (glob, list) in table(&at, v)? {
                        let at = dotted(&at, glob);
                        let dims = list.as_list().ok_or_else(|| {
                            ParamError::new(&at, format!("expected a list of numbers, found {}", list.type_name()))
                        })?;
                        let shape = dims.iter().map(|d| count(&at, d)).collect::<Result<_, _>>()?;
                        spec.shapes.push((Pattern::glob(glob), shape));
                    }
                }
            }
        }
        Ok(spec)
    }
}

impl NamesKept {
    fn parse(value: &Value, aliases: &[&str]) -> Result<Self, ParamError> {
        let key = "names_kept";
        let (input, drop, drop_config) = match value {
            Value::Str(alias) => (alias.clone(), Vec::new(), Vec::new()),
            _ => {
                let map = table(key, value)?;
                only(key, map, &["input", "drop", "drop_config"])?;
                let input = map.get("input").and_then(Value::as_str).ok_or_else(|| {
                    ParamError::new(key, "`names_kept` names no input").hint("names_kept = { input = \"ALIAS\" }")
                })?;
                let drop = map.get("drop").map(|v| patterns("names_kept.drop", v)).transpose()?.unwrap_or_default();
                let keys = map.get("drop_config").map(|v| strings("names_kept.drop_config", v)).transpose()?;
                (input.to_owned(), drop, keys.unwrap_or_default().into_iter().map(str::to_owned).collect())
            }
        };
        known(key, &input, aliases)?;
        Ok(Self { input, drop, drop_config })
    }
}

impl RowSpec {
    fn parse(key: &str, value: &Value) -> Result<Self, ParamError> {
        let map = table(key, value)?;
        only(key, map, &["count", "tool_arguments", "file"])?;
        let mut spec = Self::default();
        for (k, v) in map {
            let at = dotted(key, k);
            match k.as_str() {
                "count" => spec.count = Some(count(&at, v)?),
                "file" => spec.file = Some(rel(&at, v.as_str().unwrap_or_default())?),
                _ => {
                    spec.tool_arguments = Some(match v.as_str() {
                        Some("object") => Arguments::Object,
                        Some("string") => Arguments::String,
                        _ => return Err(ParamError::new(at, "expected \"object\" or \"string\"")),
                    });
                }
            }
        }
        Ok(spec)
    }
}

fn config(value: &Value) -> Result<Vec<FileValues>, ParamError> {
    let mut all = Vec::new();
    for (file, values) in table("config", value)? {
        let at = dotted("config", file);
        let mut list = Vec::new();
        for (text, v) in table(&at, values)? {
            let at = dotted(&at, text);
            list.push((pointer(&at, text)?, json(&at, v)?));
        }
        all.push((rel(&at, file)?, list));
    }
    Ok(all)
}

fn metrics(key: &str, value: &Value) -> Result<Vec<Metric>, ParamError> {
    let mut all = Vec::new();
    for (file, values) in table(key, value)? {
        let at = dotted(key, file);
        let path = rel(&at, file)?;
        for (text, bounds) in table(&at, values)? {
            let at = dotted(&at, text);
            let map: &BTreeMap<String, Value> = table(&at, bounds)?;
            only(&at, map, &["min", "max"])?;
            let bound = |k: &str| match map.get(k) {
                None => Ok(None),
                Some(Value::Float(f)) if !f.is_nan() => Ok(Some(*f)),
                Some(Value::Int(i)) => Ok(Some(*i as f64)),
                Some(v) => Err(ParamError::new(dotted(&at, k), format!("expected a number, found {}", v.type_name()))),
            };
            let bounds = Bounds { min: bound("min")?, max: bound("max")? };
            if bounds.min.is_none() && bounds.max.is_none() {
                return Err(ParamError::new(at, "neither `min` nor `max`").hint("{ min = 0.9 }"));
            }
            all.push((path.clone(), pointer(&at, text)?, bounds));
        }
    }
    Ok(all)
}
