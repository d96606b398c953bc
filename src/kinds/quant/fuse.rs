//! Which modules share a global scale: servers run them as one matrix, which has one scale.

/// The leaf names of modules that servers fuse, where they have one parent. The union of llm-compressor's two lists
/// (by module tree and by tensor name).
const FUSED: [&[&str]; 5] = [
    &["q_proj", "k_proj", "v_proj"],
    &["gate_proj", "up_proj"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
    &["wq_a", "wkv_a_with_mqa"],
    &["w1", "w3"],
];

/// A name for the group that shares `module`'s global scale: the group's first member, whether that exists or not
/// (`model.layers.0.self_attn.v_proj` → `model.layers.0.self_attn.q_proj`). A module that is never fused is alone in
/// its group.
///
/// Only the members that are quantised count: one that is left plain has no part in the scale.
pub fn scale_group(module: &str) -> String {
    let (parent, leaf) = module.rsplit_once('.').unwrap_or(("", module));
    let first = FUSED.iter().find(|g| g.contains(&leaf)).and_then(|g| g.first()).unwrap_or(&leaf);
    if parent.is_empty() { (*first).to_owned() } else { format!("{parent}.{first}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_and_gate_up_share_a_scale_under_one_parent_only() {
        assert_eq!(scale_group("a.self_attn.v_proj"), scale_group("a.self_attn.k_proj"));
        assert_ne!(scale_group("a.self_attn.v_proj"), scale_group("b.self_attn.k_proj"));
        assert_eq!(scale_group("m.experts.3.up_proj"), "m.experts.3.gate_proj");
        assert_eq!(scale_group("m.down_proj"), "m.down_proj");
        assert_eq!(scale_group("w3"), "w1");
    }
}
