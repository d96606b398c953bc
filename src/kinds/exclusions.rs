//! The exclusion lists of a quantised checkpoint, read as the servers read them.
//!
//! | list | an entry covers a module |
//! | --- | --- |
//! | config.json, `quantization_config.ignore`, method `compressed-tensors` | of that very name, or by `re:` from the start of the name |
//! | config.json, `quantization_config.ignore`, method `modelopt` | by glob |
//! | hf_quant_config.json, `quantization.exclude_modules` | by glob |
//!
//! Source: vLLM 0.32 with checkpoints of both methods.

use serde_json::Value as Json;

use crate::tensors::pattern::Pattern;

/// modelopt's own file.
pub const HF_QUANT_CONFIG: &str = "hf_quant_config.json";

/// Where config.json may describe the quantisation. The list is at `ignore` below, the method at `quant_method`.
pub const PLACES_IN_CONFIG: [&str; 3] =
    ["/quantization_config", "/compression_config", "/text_config/quantization_config"];

/// Where hf_quant_config.json describes it. The list is at `exclude_modules` below.
pub const PLACE_IN_HF_QUANT_CONFIG: &str = "/quantization";

/// How the entries of a list are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Exact names, and regular expressions behind `re:`.
    ExactOrRegex,
    /// Globs.
    Globs,
}

impl Dialect {
    /// That of a `quant_method`; `None` for one whose lists are not known here.
    pub fn of_method(method: &str) -> Option<Self> {
        match method {
            "compressed-tensors" => Some(Self::ExactOrRegex),
            m if m == "modelopt" || m.starts_with("modelopt_") => Some(Self::Globs),
            _ => None,
        }
    }
}

/// A list, ready to be held against modules.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    entries: Vec<Entry>,
    /// Entries that only Python understands, each with what is wrong; they cover nothing here.
    pub skipped: Vec<String>,
}

#[derive(Debug, Clone)]
enum Entry {
    Exact(String),
    Pattern(Pattern),
}

/// An entry of a list that is no string.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("it holds {entry}, which is no string")]
pub struct BadEntry {
    /// The entry.
    pub entry: Json,
}

impl Coverage {
    /// Reads the items of a list. Errors: [`BadEntry`].
    pub fn read(items: &[Json], dialect: Dialect) -> Result<Self, BadEntry> {
        let mut out = Self::default();
        for item in items {
            let Some(text) = item.as_str() else { return Err(BadEntry { entry: item.clone() }) };
            match dialect {
                Dialect::Globs => out.entries.push(Entry::Pattern(Pattern::glob(text))),
                Dialect::ExactOrRegex if text.starts_with("re:") => match Pattern::module(text) {
                    Ok(p) => out.entries.push(Entry::Pattern(p)),
                    Err(e) => out.skipped.push(format!("{text:?} is not looked at: {}", e.what)),
                },
                Dialect::ExactOrRegex => out.entries.push(Entry::Exact(text.to_owned())),
            }
        }
        Ok(out)
    }

    /// Whether the module is left out of the quantisation.
    pub fn covers(&self, module: &str) -> bool {
        self.entries.iter().any(|e| match e {
            Entry::Exact(name) => name == module,
            Entry::Pattern(p) => p.matches(module),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(method: &str, entry: &str, module: &str) -> bool {
        Coverage::read(&[Json::from(entry)], Dialect::of_method(method).unwrap()).unwrap().covers(module)
    }

    #[test]
    fn each_method_reads_its_own_dialect_as_the_servers_do() {
        assert!(covers("modelopt", "mtp*", "mtp.fc"));
        assert!(!covers("modelopt", "re:^mtp.*", "mtp.fc"));
        assert!(!covers("compressed-tensors", "mtp*", "mtp.fc"));
        assert!(covers("compressed-tensors", "re:^mtp.*", "mtp.fc"));
        for method in ["modelopt", "modelopt_fp4", "compressed-tensors"] {
            assert!(covers(method, "mtp.fc", "mtp.fc"));
            assert!(!covers(method, "mtp.f", "mtp.fc"));
        }
        assert_eq!(Dialect::of_method("awq"), None);
    }

    #[test]
    fn an_expression_that_only_python_knows_covers_nothing_and_is_told() {
        let list = [Json::from("re:(?!a)b"), Json::from("c")];
        let coverage = Coverage::read(&list, Dialect::ExactOrRegex).unwrap();
        assert!(coverage.skipped[0].starts_with("\"re:(?!a)b\" is not looked at: "), "{:?}", coverage.skipped);
        assert!(coverage.covers("c"));
        assert!(Coverage::read(&[Json::from(1)], Dialect::Globs).is_err());
    }
}
