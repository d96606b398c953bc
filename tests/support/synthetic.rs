//! A large checkpoint of small cost: every weight is mostly a hole in its file, with a block of noise each MiB.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::{Map, json};

/// What to make.
#[derive(Clone, Copy)]
pub struct Synthetic {
    /// Bytes of each large weight, a multiple of 8 KiB: BF16 with 4096 columns.
    pub weight_bytes: u64,
    /// Layers of four weights: gate, up and down, and one that is left plain.
    pub layers: u64,
    /// Layers to a shard.
    pub layers_per_shard: u64,
    /// Tensors `mtp.*` of this size each, besides.
    pub mtp: u64,
}

impl Synthetic {
    /// 3 GiB in 48 weights of 64 MiB.
    pub const THREE_GIB: Self = Self { weight_bytes: 64 << 20, layers: 12, layers_per_shard: 3, mtp: 0 };

    fn weights(&self, layers: std::ops::Range<u64>) -> Vec<(String, Vec<u64>)> {
        let rows = self.weight_bytes / 8192;
        let mut all = Vec::new();
        for l in layers {
            for leaf in ["gate_proj", "up_proj", "down_proj", "plain"] {
                all.push((format!("model.layers.{l}.mlp.{leaf}.weight"), vec![rows, 4096]));
            }
            all.push((format!("model.layers.{l}.input_layernorm.weight"), vec![4096]));
        }
        all
    }

    /// Writes shards, index and config.json into the empty folder `dir`. Returns the sum of the tensors' bytes.
    pub fn write(&self, dir: &Path) -> u64 {
        let shards = self.layers.div_ceil(self.layers_per_shard.max(1));
        let mut map = Map::new();
        let mut total = 0;
        for s in 0..shards {
            let first = s * self.layers_per_shard;
            let mut tensors = self.weights(first..self.layers.min(first + self.layers_per_shard));
            if s + 1 == shards {
                tensors.extend(
                    (0..self.mtp).map(|i| (format!("mtp.layers.{i}.fc.weight"), vec![self.weight_bytes / 8192, 4096])),
                );
            }
            let name = format!("model-{:05}-of-{shards:05}.safetensors", s + 1);
            total += shard(&dir.join(&name), &tensors);
            map.extend(tensors.into_iter().map(|(t, _)| (t, json!(name))));
        }
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        std::fs::write(dir.join("model.safetensors.index.json"), format!("{index:#}\n")).unwrap();
        std::fs::write(dir.join("config.json"), "{\n  \"model_type\": \"synthetic\"\n}\n").unwrap();
        total
    }
}

/// Writes a shard of BF16 tensors; returns their bytes.
fn shard(path: &Path, tensors: &[(String, Vec<u64>)]) -> u64 {
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let begin = end;
        end += shape.iter().product::<u64>() * 2;
        header.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, end] }));
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = File::create_new(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    let start = 8 + header.len() as u64;
    file.set_len(start + end).unwrap();
    let mut seed = tensors.len() as u64;
    for at in (0..end).step_by(1 << 20) {
        let block: Vec<u8> = (0..2048).flat_map(|_| noise(&mut seed).to_le_bytes()).collect();
        let len = block.len().min((end - at) as usize);
        file.write_all_at(&block[..len], start + at).unwrap();
    }
    end
}

/// A finite BF16 within ±2, of any sign.
fn noise(seed: &mut u64) -> u16 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let bits = (*seed >> 40) as u16;
    bits & 0x8000 | (0x3c00 + (bits & 0x3ff))
}
