//! The project of the scenarios: a node of each kind over checkpoints of a few kB.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use crate::common::{Project, files};

const GRAPH: &str = r#"
[source]
base = { checkpoint = "base" }
finetune = { checkpoint = "finetune" }
calib = { rows = "calib.jsonl" }
scripts = { folder = "scripts" }

[node.graft]
kind = "graft"
inputs = { into = "finetune", from = "base" }
tensors = ["mtp.*"]

[node.quant]
kind = "quant"
inputs.model = "graft"
method = "nvfp4a16"
drop = ["mtp.*"]

[node.splice]
kind = "splice"
inputs = { into = "quant", from = "base" }
tensors = ["mtp.*"]

[node.edit]
kind = "edit"
inputs.model = "splice"
set."config.json" = { "/edited" = true }

[node.step]
kind = "run"
inputs = { model = "edit", scripts = "scripts" }
argv = ["sh", "{in.scripts}/step.sh"]
tools = ["cp", "mkdir", "ln"]

[node.check]
kind = "check"
inputs = { model = "edit", calib = "calib" }
calibration.calib = { count = 3 }

[node.seat]
kind = "serve"
inputs = { model = "edit" }
gate = ["check"]
image = "vllm/vllm-openai:v0.32.0"
name = "seat"
args = ["--model", "/model", "--served-model-name", "seat"]
"#;

const STEP: &str = "set -e
echo working
cp {in.model}/config.json {out}/
mkdir {out}/sub {out}/empty
echo made > {out}/sub/made
cp {out}/sub/made {out}/tool
ln -s sub/made {out}/link
echo done
";

/// Writes a shard of BF16 tensors.
pub fn shard(path: &Path, tensors: &[(&str, [u64; 2])]) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    for (name, shape) in tensors {
        let begin = data.len();
        for i in 0..shape[0] * shape[1] {
            // Small finite values that differ.
            data.extend((0x3c00 + (i * 7 % 512) as u16).to_le_bytes());
        }
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert((*name).to_owned(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, [&(header.len() as u64).to_le_bytes(), &header[..], &data].concat()).unwrap();
}

/// The project, with nothing built.
pub fn project() -> Project {
    let p = Project::in_memory(GRAPH);
    shard(&p.path("base/model.safetensors"), &[("mtp.fc.weight", [16, 32]), ("model.norm.weight", [1, 32])]);
    p.write("base/config.json", "{}\n");
    let shards = [
        ("model-00001-of-00002.safetensors", "model.layers.0.mlp.gate_proj.weight"),
        ("model-00002-of-00002.safetensors", "model.layers.1.mlp.gate_proj.weight"),
    ];
    let mut map = Map::new();
    for (file, tensor) in shards {
        shard(&p.path("finetune").join(file), &[(tensor, [16, 32])]);
        map.insert(tensor.to_owned(), json!(file));
    }
    let index = json!({ "metadata": { "total_size": 2048 }, "weight_map": map });
    p.write("finetune/model.safetensors.index.json", format!("{index:#}\n"));
    p.write("finetune/config.json", "{\n  \"model_type\": \"tiny\"\n}\n");
    p.write("finetune/tokenizer.json", "{}\n");
    let row = |n: u32| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"row {n}\"}}]}}\n");
    p.write("calib.jsonl", (1..=3).map(row).collect::<String>());
    p.write("scripts/step.sh", STEP.replace("{in.model}", "/in/model").replace("{out}", "/out"));
    p
}

/// Every file of its sources, by path.
pub fn sources(p: &Project) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for folder in ["base", "finetune", "scripts"] {
        all.extend(files(&p.path(folder)).into_iter().map(|(path, bytes)| (Path::new(folder).join(path), bytes)));
    }
    all.insert("calib.jsonl".into(), fs::read(p.path("calib.jsonl")).unwrap());
    all
}
