//! What a quantised checkpoint says of itself in config.json.

use serde_json::{Value, json};

use crate::jsonedit::{Document, JsonError, Parents, Pointer};

/// Where the description stands.
pub const KEY: &str = "quantization_config";

/// Places in a config.json that say that a checkpoint is quantised already.
const TAKEN: [&str; 3] = ["/quantization_config", "/compression_config", "/text_config/quantization_config"];

/// The description of NVFP4A16 in compressed-tensors' words: version 0.19.0 of them. `ignore` are the exact names of
/// the Linear modules that are left plain.
pub fn nvfp4a16(ignore: &[String]) -> Value {
    json!({
        "config_groups": {
            "NVFP4A16": {
                "format": "nvfp4-pack-quantized",
                "input_activations": null,
                "output_activations": null,
                "targets": ["Linear"],
                "weights": {
                    "actorder": null,
                    "block_structure": null,
                    "dynamic": false,
                    "group_size": 16,
                    "num_bits": 4,
                    "observer": null,
                    "observer_kwargs": {},
                    "scale_dtype": "torch.float8_e4m3fn",
                    "strategy": "tensor_group",
                    "symmetric": true,
                    "type": "float",
                    "zp_dtype": null
                }
            }
        },
        "format": "nvfp4-pack-quantized",
        "global_compression_ratio": null,
        "ignore": ignore,
        "kv_cache_scheme": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "transform_config": {},
        "version": "0.19.0"
    })
}

/// What the quantiser has to know of a config.json.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// The pointer of an existing quantisation, if there is one.
    pub quantised_at: Option<&'static str>,
    /// Rows of the embedding of tokens, if it says so.
    pub vocab_size: Option<u64>,
    /// Whether the output layer is the embedding: a module `lm_head` without a tensor of its own.
    pub tied: bool,
}

/// Reads the facts. A multimodal config has them in `text_config`.
pub fn facts(config: &Document) -> Facts {
    let value = |pointer: &str| config.value(&Pointer::parse(pointer).ok()?).filter(|v| !v.is_null());
    let in_text = |key: &str| value(&format!("/text_config/{key}")).or_else(|| value(&format!("/{key}")));
    Facts {
        quantised_at: TAKEN.into_iter().find(|p| value(p).is_some()),
        vocab_size: in_text("vocab_size").and_then(|v| v.as_u64()),
        // The outer one counts where both are there: transformers ties by it.
        tied: value("/tie_word_embeddings").or_else(|| value("/text_config/tie_word_embeddings")) == Some(json!(true)),
    }
}

/// Puts the description into a config.json; nothing else of it changes. Errors: [`JsonError`] where it is no object.
pub fn insert(config: &mut Document, description: &Value) -> Result<(), JsonError> {
    config.set_value(&Pointer::new([KEY]), description, Parents::Require).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_added_and_no_other_character_changes() {
        let text = "{\n  \"eps\": 1e-06,\n  \"text_config\": {\"vocab_size\": 512}\n}\n";
        let mut config = Document::parse(text.as_bytes()).unwrap();
        insert(&mut config, &nvfp4a16(&["lm_head".to_owned()])).unwrap();
        let made = String::from_utf8(config.finish()).unwrap();
        let head = "{\n  \"eps\": 1e-06,\n  \"text_config\": {\"vocab_size\": 512},\n  \"quantization_config\": {\n    \"config_groups\": {";
        assert!(made.starts_with(head), "{made}");
        assert!(made.ends_with("    \"version\": \"0.19.0\"\n  }\n}\n"), "{made}");
        let read: Value = serde_json::from_str(&made).unwrap();
        assert_eq!(read[KEY], nvfp4a16(&["lm_head".to_owned()]));
    }

    #[test]
    fn facts_are_found_in_a_plain_and_in_a_multimodal_config() {
        let of = |text: &str| facts(&Document::parse(text.as_bytes()).unwrap());
        let plain = of(r#"{"vocab_size": 7, "tie_word_embeddings": true}"#);
        assert_eq!(plain, Facts { quantised_at: None, vocab_size: Some(7), tied: true });
        let nested = of(r#"{"vocab_size": 7, "text_config": {"vocab_size": 9, "tie_word_embeddings": false}}"#);
        assert_eq!(nested, Facts { quantised_at: None, vocab_size: Some(9), tied: false });
        let inner = r#"{"text_config": {"quantization_config": {}}, "quantization_config": null}"#;
        assert_eq!(of(inner).quantised_at, Some("/text_config/quantization_config"));
    }
}
