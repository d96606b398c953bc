//! The exclusion list of a quantised checkpoint, read as the servers read it.
//!
//! | method | an entry is |
//! | --- | --- |
//! | compressed-tensors | an exact module name, or a regular expression behind `re:` |
//! | modelopt | a module name with wildcards |
//!
//! Either takes exact names. modelopt keeps a second list in hf_quant_config.json.

use crate::jsonedit::{Document, Pointer};
use crate::tensors::pattern::{BadPattern, Pattern};

/// Where modelopt's own file stands.
pub const HF_QUANT_CONFIG: &str = "hf_quant_config.json";

/// An exclusion list.
#[derive(Debug, Clone)]
pub struct Exclusions {
    /// The method, as the file spells it.
    pub method: String,
    /// The entries as they are written.
    pub entries: Vec<String>,
    patterns: Vec<How>,
}

#[derive(Debug, Clone)]
enum How {
    Exact(String),
    Pattern(Pattern),
}

/// Where the list of a config.json stands, whether it is there or not.
pub fn place_in_config() -> Pointer {
    Pointer::new(["quantization_config", "ignore"])
}

/// Where the list of an hf_quant_config.json stands.
pub fn place_in_hf_quant_config() -> Pointer {
    Pointer::new(["quantization", "exclude_modules"])
}

impl Exclusions {
    /// The list of a config.json; `None` where the checkpoint is not quantised by its config. A missing list is an empty
    /// one. Errors: [`BadPattern`] for a regular expression that is not known here.
    pub fn of_config(config: &Document) -> Result<Option<Self>, BadPattern> {
        let Some(method) = config.value(&Pointer::new(["quantization_config", "quant_method"])) else {
            return Ok(None);
        };
        let method = method.as_str().unwrap_or_default().to_owned();
        let list = config.value(&place_in_config());
        // modelopt's name for the list in its own file is tolerated by servers here too.
        let list = list.or_else(|| config.value(&Pointer::new(["quantization_config", "exclude_modules"])));
        Self::new(method, list.as_ref()).map(Some)
    }

    /// The list of an hf_quant_config.json; `None` where there is no `quantization` in it.
    pub fn of_hf_quant_config(file: &Document) -> Result<Option<Self>, BadPattern> {
        if file.get(&Pointer::new(["quantization"])).is_none() {
            return Ok(None);
        }
        Self::new("modelopt".to_owned(), file.value(&place_in_hf_quant_config()).as_ref()).map(Some)
    }

    fn new(method: String, list: Option<&serde_json::Value>) -> Result<Self, BadPattern> {
        let list = list.and_then(|v| v.as_array());
        let entries: Vec<String> = list.into_iter().flatten().filter_map(|v| v.as_str()).map(str::to_owned).collect();
        let wildcards = method.starts_with("modelopt");
        let how = |e: &String| match (wildcards, e.starts_with("re:")) {
            (true, _) => Ok(How::Pattern(Pattern::glob(e))),
            (false, true) => Pattern::module(e).map(How::Pattern),
            (false, false) => Ok(How::Exact(e.clone())),
        };
        let patterns = entries.iter().map(how).collect::<Result<_, _>>()?;
        Ok(Self { method, entries, patterns })
    }

    /// Whether the module is left out of the quantisation.
    pub fn covers(&self, module: &str) -> bool {
        self.patterns.iter().any(|p| match p {
            How::Exact(name) => name == module,
            How::Pattern(p) => p.matches(module),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(method: &str, entry: &str, module: &str) -> bool {
        let text = format!(r#"{{"quantization_config": {{"quant_method": {method:?}, "ignore": [{entry:?}]}}}}"#);
        let config = Document::parse(text.as_bytes()).unwrap();
        Exclusions::of_config(&config).unwrap().unwrap().covers(module)
    }

    #[test]
    fn each_method_reads_its_own_dialect_as_the_servers_do() {
        assert!(covers("modelopt", "mtp*", "mtp.fc"));
        assert!(!covers("modelopt", "re:^mtp.*", "mtp.fc"));
        assert!(!covers("compressed-tensors", "mtp*", "mtp.fc"));
        assert!(covers("compressed-tensors", "re:^mtp.*", "mtp.fc"));
        for method in ["modelopt", "compressed-tensors"] {
            assert!(covers(method, "mtp.fc", "mtp.fc"));
            assert!(!covers(method, "mtp.f", "mtp.fc"));
        }
        assert!(Exclusions::of_config(&Document::parse(b"{}").unwrap()).unwrap().is_none());
    }
}
