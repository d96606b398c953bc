//! Where in a model a weight stands: its layer, and its module within that.

/// A weight's place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// What comes before the layer's number: `model.language_model.layers`; empty where there is none.
    pub stack: String,
    /// The layer's number.
    pub layer: Option<u64>,
    /// What is left: `self_attn.q_proj`, or the whole name, without `.weight`.
    pub module: String,
}

impl Place {
    /// Of a weight's name. The first number in it is the layer's; later ones (experts) stay in the module as `*`.
    pub fn of(name: &str) -> Self {
        let name = name.strip_suffix(".weight").unwrap_or(name);
        let parts: Vec<&str> = name.split('.').collect();
        let number = |c: &str| if c.bytes().all(|b| b.is_ascii_digit()) { c.parse::<u64>().ok() } else { None };
        let Some((at, layer)) = parts.iter().enumerate().find_map(|(i, c)| Some((i, number(c)?))) else {
            return Self { stack: String::new(), layer: None, module: name.to_owned() };
        };
        let module: Vec<&str> = parts[at + 1..].iter().map(|c| if number(c).is_some() { "*" } else { c }).collect();
        Self { stack: parts[..at].join("."), layer: Some(layer), module: module.join(".") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_stack_layer_and_module() {
        let of = |n: &str| {
            let p = Place::of(n);
            (p.stack, p.layer, p.module)
        };
        let s = |t: &str| t.to_owned();
        assert_eq!(of("model.layers.12.self_attn.q_proj.weight"), (s("model.layers"), Some(12), s("self_attn.q_proj")));
        assert_eq!(of("model.layers.3.mlp.experts.17.up.weight"), (s("model.layers"), Some(3), s("mlp.experts.*.up")));
        assert_eq!(of("lm_head.weight"), (s(""), None, s("lm_head")));
        assert_eq!(of("a.b1.bias"), (s(""), None, s("a.b1.bias")));
        assert_eq!(of(""), (s(""), None, s("")));
    }
}
