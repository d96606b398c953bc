//! Signed provenance: what `attest` writes is verified by other people's programs, what those sign is verified by
//! `verify`, and every way in which files, signatures and keys can be wrong is told as what it is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bstr::ByteSlice as _;
use common::{Project, Ran, repository};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const GRAPH: &str = r#"
[source]
base = { checkpoint = "demo/base" }
finetune = { checkpoint = "demo/finetune" }

[node.graft]
kind = "graft"
inputs = { into = "finetune", from = "base" }
tensors = ["mtp.*"]

[node.edited]
kind = "edit"
inputs.model = "graft"
set."config.json" = { "/edited" = true }
"#;

fn venv(program: &str) -> Command {
    let path = repository().join("target/venv/bin").join(program);
    assert!(path.exists(), "{} is not there: scripts/test makes it", path.display());
    let mut c = Command::new(path);
    // What a tool keeps for itself is kept out of the home folder.
    c.env("PYTHONDONTWRITEBYTECODE", "1");
    c
}

fn python(args: &[&str]) -> Command {
    let mut c = venv("python");
    c.arg(repository().join("tests/data/attest.py")).args(args);
    c
}

fn must(done: &Output) -> String {
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
    text
}

/// A built project, with keys beside it.
struct Fixture {
    p: Project,
    keys: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let p = Project::in_memory(GRAPH);
        common::copy_tree(&repository().join("demo"), &p.path("demo"));
        p.build();
        let keys = p.holder().join("keys");
        fs::create_dir(&keys).unwrap();
        must(&python(&["keys", keys.to_str().unwrap()]).output().unwrap());
        Self { p, keys }
    }

    fn key(&self, name: &str) -> String {
        self.keys.join(name).to_str().unwrap().to_owned()
    }

    fn attest(&self, node: &str, key: &str, out: &str, more: &[&str]) -> Ran {
        let key = self.key(key);
        self.p.run(&[&["attest", node, "--key", &key, "--out", out], more].concat())
    }

    fn attested(&self, node: &str, key: &str, out: &str, more: &[&str]) {
        let done = self.attest(node, key, out, more);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
    }

    fn verify(&self, what: &str, key: &str, signature: &str) -> Ran {
        let key = self.key(key);
        self.p.run(&["verify", what, "--key", &key, "--signature", signature])
    }

    /// A copy of a node's folder, without links.
    fn export(&self, node: &str, to: &str) {
        let done = self.p.run(&["export", node, to]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
    }

    fn refused(&self, args: &[&str], code: i32, texts: &[&str]) -> Ran {
        let done = self.p.run(args);
        assert_eq!(done.code, Some(code), "{args:?}\n{}{}", done.stdout, done.stderr);
        for text in texts {
            assert!(done.stderr.contains(text), "{text:?} in\n{}", done.stderr);
        }
        done
    }
}

fn model_signing(folder: &Path, signature: &Path, public: &str, more: &[&str]) -> (bool, String) {
    let mut c = venv("model_signing");
    c.args(["verify", "key"]).arg(folder).arg("--signature").arg(signature).args(["--public_key", public]).args(more);
    let done = c.output().unwrap();
    (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn hex(id: &Value) -> &str {
    id.as_str().unwrap().strip_prefix("b3:").unwrap()
}

#[test]
fn provenance_names_every_file_and_all_that_it_was_made_of_for_whoever_verifies() {
    let f = Fixture::new();
    let status = f.p.run(&["status", "--json"]).json();
    let node = |name: &str| status["nodes"].as_array().unwrap().iter().find(|n| n["node"] == name).unwrap().clone();
    for (key, public) in [("ed25519.pem", "ed25519.pub"), ("p256.pem", "p256.pub"), ("ssh", "ed25519.pub")] {
        let out = format!("{key}.intoto.json");
        f.attested("edited", key, &out, &[]);
        let checked = python(&["check", &out, &f.key(public)]).current_dir(&f.p.dir).output().unwrap();
        let statement: Value = serde_json::from_str(&must(&checked)).unwrap();
        let subjects: BTreeMap<&str, &Value> = statement["subject"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| (s["name"].as_str().unwrap(), &s["digest"]))
            .collect();
        let files = common::files(&f.p.node_path("edited"));
        assert_eq!(subjects.len(), files.len() + 1);
        for (path, bytes) in &files {
            let digest = subjects[path.to_str().unwrap()];
            assert_eq!(digest["sha256"], sha256(bytes), "{}", path.display());
            assert_eq!(digest["blake3"], blake3::hash(bytes).to_hex().as_str(), "{}", path.display());
        }
        assert_eq!(subjects["."]["graftwerkTree"], hex(&node("edited")["tree"]));

        let definition = &statement["predicate"]["buildDefinition"];
        let external = &definition["externalParameters"];
        assert_eq!(external["node"], "edited");
        assert_eq!(external["kind"], "edit");
        assert_eq!(external["inputs"], json!({"model": "node/graft"}));
        assert!(external["parameters"]["set"].as_str().unwrap().contains("\"/edited\" = true"), "{external}");
        assert_eq!(definition["internalParameters"]["recipe"], node("edited")["recipe"]);
        let dependencies: BTreeMap<&str, &Value> = definition["resolvedDependencies"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| (d["name"].as_str().unwrap(), &d["digest"]["graftwerkTree"]))
            .collect();
        let lock: toml::Table = f.p.read("graph.lock").parse().unwrap();
        let locked = |name: &str| lock["source"][name]["tree"].as_str().unwrap().trim_start_matches("b3:").to_owned();
        let graft = hex(&node("graft")["tree"]).to_owned();
        let wanted = [
            ("input/model", graft.clone()),
            ("node/graft", graft),
            ("source/base", locked("base")),
            ("source/finetune", locked("finetune")),
        ];
        assert_eq!(dependencies.len(), wanted.len(), "{dependencies:?}");
        for (name, tree) in wanted {
            assert_eq!(dependencies[name], &Value::from(tree), "{name}");
        }
        let run = &statement["predicate"]["runDetails"];
        assert_eq!(run["builder"]["id"], "graftwerk:builder/v1/builtin");
        let invocation = format!("{}/1", node("edited")["recipe"].as_str().unwrap());
        assert_eq!(run["metadata"]["invocationId"], invocation);
        // The same bytes each time: what is signed tells nothing of when and where it was signed.
        let again = f.p.run(&["attest", "edited", "--key", &f.key(key)]);
        assert_eq!(again.stdout, f.p.read(&out));
    }
    assert_eq!(f.p.read("ssh.intoto.json"), f.p.read("ed25519.pem.intoto.json"), "one key in two formats");
}

#[test]
fn neither_the_machine_nor_the_key_is_told_anywhere() {
    let f = Fixture::new();
    let telling = f.p.path("somewhere");
    f.p.edit("graph.toml", "\"/edited\" = true", &format!("\"/edited\" = {telling:?}"));
    f.p.build();
    let mut said = String::new();
    for (key, more) in
        [("ed25519.pem", &[][..]), ("p256.pem", &["--oms"]), ("sec1.pem", &["--oms", "--json"]), ("ssh", &["-v"])]
    {
        let done = f.attest("edited", key, &format!("{key}.out"), more);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        said += &(done.stdout + &done.stderr);
    }
    for locked in ["locked.pem", "rsa.pem", "p384.pem", "ssh-p256", "sec1-locked.pem"] {
        said += &f.attest("edited", locked, "never", &[]).stderr;
    }
    let mut all: Vec<(PathBuf, Vec<u8>)> = common::files(&f.p.dir).into_iter().collect();
    all.push((PathBuf::from("what was said"), said.into_bytes()));
    for key in fs::read_dir(&f.keys).unwrap() {
        let key = key.unwrap().path();
        if key.extension().is_some_and(|e| e == "pub") {
            continue;
        }
        let text = fs::read_to_string(&key).unwrap();
        let lines: Vec<&str> = text.lines().filter(|l| l.len() > 20 && !l.starts_with('-')).collect();
        for (path, bytes) in &all {
            for line in &lines {
                assert!(!bytes.contains_str(line), "a line of {} stands in {}", key.display(), path.display());
            }
        }
    }
    let host = f.p.run(&["show", "edited", "--json"]).json()["runs"][0]["host"].as_str().unwrap().to_owned();
    for (name, bytes) in all.iter().filter(|(n, _)| n.extension().is_some_and(|e| e == "out")) {
        let envelope: Value = serde_json::from_slice(bytes).unwrap();
        let envelope = envelope.get("dsseEnvelope").unwrap_or(&envelope);
        let payload = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
        let text = String::from_utf8(payload).unwrap();
        assert_eq!(text.contains("withheld"), text.contains("slsa"), "a parameter that holds a path: {text}");
        for told in [f.p.dir.to_str().unwrap(), f.p.holder().to_str().unwrap(), host.as_str()] {
            assert!(!text.contains(told), "{told} stands in {}: {text}", name.display());
        }
    }
}

#[test]
fn the_openssf_tool_accepts_a_model_signature_and_refuses_it_after_one_flipped_byte() {
    let f = Fixture::new();
    for key in ["p256.pem", "sec1.pem"] {
        let sig = format!("{key}.sig");
        f.attested("graft", key, &sig, &["--oms"]);
        let sig = f.p.path(&sig);
        // The folder of the node has links to the sources, a copy of it has none.
        let view = f.p.node_path("graft");
        assert!(model_signing(&view, &sig, &f.key("p256.pub"), &["--allow_symlinks"]).0);
        let copy = format!("copy-{key}");
        f.export("graft", &copy);
        let (holds, said) = model_signing(&f.p.path(&copy), &sig, &f.key("p256.pub"), &[]);
        assert!(holds, "{said}");
        assert!(!model_signing(&f.p.path(&copy), &sig, &f.key("other-p256.pub"), &[]).0);
        let shard = format!("{copy}/model-graft.safetensors");
        f.p.flip(&shard, 9000);
        let (holds, said) = model_signing(&f.p.path(&copy), &sig, &f.key("p256.pub"), &[]);
        assert!(!holds && said.contains("model-graft.safetensors"), "{said}");
        let ours = f.verify(&copy, "p256.pub", sig.to_str().unwrap());
        assert_eq!(ours.code, Some(1), "{}", ours.stderr);
        let bytes = fs::read(f.p.path(&shard)).unwrap();
        let right = fs::read(view.join("model-graft.safetensors")).unwrap();
        let line = format!("hashes to sha256:{}, not to sha256:{}", sha256(&bytes), sha256(&right));
        assert!(ours.stdout.contains(&line), "{}", ours.stdout);
    }
    let text = f.p.read("p256.pem.sig");
    assert_eq!(text, f.p.read("sec1.pem.sig"), "one key in two formats");
}

#[test]
fn what_the_openssf_tool_signs_is_verified_without_graph_and_store() {
    let f = Fixture::new();
    f.export("graft", "../copy");
    fs::write(f.p.holder().join("copy/.gitattributes"), "never signed").unwrap();
    let other = Project::in_memory("");
    fs::remove_file(other.path("graph.toml")).unwrap();
    let copy = f.p.holder().join("copy");
    let copy_text = copy.to_str().unwrap();
    for (method, hash) in [("files", "sha256"), ("files", "blake3"), ("shards", "sha256"), ("shards", "blake3")] {
        // In the folder itself, where the tool puts it.
        let sig = copy.join("model.sig");
        let sig_text = sig.to_str().unwrap();
        let made = python(&["model", copy_text, &f.key("p256.pem"), sig_text, method, hash]).output().unwrap();
        must(&made);
        let verify = || other.run(&["verify", copy_text, "--key", &f.key("p256.pub"), "--signature", sig_text]);
        let done = verify();
        assert_eq!(done.code, Some(0), "{method} {hash}: {}{}", done.stdout, done.stderr);
        assert!(done.stdout.contains("all is right"), "{}", done.stdout);
        let config = copy.join("config.json");
        let right = fs::read(&config).unwrap();
        fs::write(&config, [right.as_slice(), b" "].concat()).unwrap();
        let done = verify();
        assert_eq!(done.code, Some(1), "{method} {hash}: {}{}", done.stdout, done.stderr);
        assert!(done.stdout.contains("1 changed, 0 missing, 0 extra"), "{}", done.stdout);
        fs::write(&config, right).unwrap();
        fs::remove_file(sig).unwrap();
    }
    // BLAKE2b is an algorithm of that format, too.
    let sig = f.p.holder().join("blake2.sig");
    let sig_text = sig.to_str().unwrap();
    must(&python(&["model", copy_text, &f.key("p256.pem"), sig_text, "files", "blake2"]).output().unwrap());
    let done = other.run(&["verify", copy_text, "--key", &f.key("p256.pub"), "--signature", sig_text]);
    assert_eq!(done.code, Some(2), "{}", done.stdout);
    assert!(done.stderr.contains("hashes files with blake2"), "{}", done.stderr);
}

#[test]
fn what_differs_from_what_was_signed_is_named_with_both_digests() {
    let f = Fixture::new();
    f.attested("graft", "ed25519.pem", "graft.json", &[]);
    f.export("graft", "copy");
    assert_eq!(f.verify("copy", "ed25519.pub", "graft.json").code, Some(0));
    assert_eq!(f.verify("copy", "ssh.pub", "graft.json").code, Some(0));
    assert_eq!(f.verify("graft", "ed25519.pub", "graft.json").code, Some(0));
    assert_eq!(f.verify("copy/config.json", "ed25519.pub", "graft.json").code, Some(0));

    f.p.write("copy/more/evil.py", "import os");
    std::os::unix::fs::symlink("/", f.p.path("copy/all")).unwrap();
    let extra = f.verify("copy", "ed25519.pub", "graft.json");
    assert_eq!(extra.code, Some(4), "{}", extra.stdout);
    let right = fs::read(f.p.path("copy/config.json")).unwrap();
    f.p.flip("copy/config.json", 3);
    fs::remove_file(f.p.path("copy/tokenizer.json")).unwrap();
    let done = f.p.run(&["verify", "copy", "--key", &f.key("ed25519.pub"), "--signature", "graft.json", "--json"]);
    assert_eq!(done.code, Some(1), "{}", done.stdout);
    let found = done.json();
    let names = |list: &str| -> BTreeSet<String> {
        let one = |f: &Value| f["path"].as_str().unwrap().split("copy/").nth(1).unwrap().to_owned();
        found[list].as_array().unwrap().iter().map(one).collect()
    };
    assert_eq!(names("changed"), BTreeSet::from(["config.json".to_owned()]));
    assert_eq!(names("missing"), BTreeSet::from(["tokenizer.json".to_owned()]));
    assert_eq!(names("extra"), BTreeSet::from(["all".to_owned(), "more/evil.py".to_owned()]));
    let bytes = fs::read(f.p.path("copy/config.json")).unwrap();
    let what = format!("hashes to sha256:{}, not to sha256:{}", sha256(&bytes), sha256(&right));
    assert_eq!(found["changed"][0]["what"], what);
    assert_eq!(found["ok"], false);
    assert_eq!(found["signed"]["format"], "provenance");
    assert_eq!(found["signed"]["algorithm"], "ed25519");
}

#[test]
fn a_signature_of_another_key_node_or_content_does_not_hold() {
    let f = Fixture::new();
    f.attested("graft", "ed25519.pem", "graft.json", &[]);
    f.attested("graft", "p256.pem", "graft.sig", &["--oms"]);
    f.attested("edited", "ed25519.pem", "edited.json", &[]);

    let verify = |key: &str, signature: &str| {
        let key = f.key(key);
        [
            "verify".to_owned(),
            "graft".to_owned(),
            "--key".to_owned(),
            key,
            "--signature".to_owned(),
            signature.to_owned(),
        ]
    };
    let refused = |key: &str, signature: &str, code: i32, texts: &[&str]| {
        let args = verify(key, signature);
        f.refused(&args.each_ref().map(String::as_str), code, texts)
    };
    refused("other.pub", "graft.json", 1, &["graft.json says that the key ", "and the key given is ", "hint: "]);
    refused("other-p256.pub", "graft.sig", 1, &["graft.sig has no signature of the ECDSA P-256 key"]);
    refused("ed25519.pub", "graft.sig", 1, &["has no signature of the ed25519 key"]);

    // Of another node: the tree is named, and the file that differs.
    let other = f.verify("graft", "ed25519.pub", "edited.json");
    assert_eq!(other.code, Some(1), "{}", other.stderr);
    assert!(other.stdout.contains("is the tree b3:") && other.stdout.contains(" was signed"), "{}", other.stdout);
    assert!(other.stdout.contains("config.json hashes to sha256:"), "{}", other.stdout);

    // One letter of the payload.
    let mut envelope: Value = serde_json::from_str(&f.p.read("graft.json")).unwrap();
    let payload = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
    let forged = String::from_utf8(payload.clone()).unwrap().replacen("\"node\":\"graft\"", "\"node\":\"grafT\"", 1);
    assert_ne!(forged.as_bytes(), payload);
    envelope["payload"] = Value::from(STANDARD.encode(forged));
    f.p.write("forged.json", envelope.to_string());
    refused("ed25519.pub", "forged.json", 1, &["forged.json has no signature of the ed25519 key", "it was changed"]);

    // The payload's type is signed, too.
    let mut envelope: Value = serde_json::from_str(&f.p.read("graft.json")).unwrap();
    envelope["payloadType"] = Value::from("application/json");
    f.p.write("retyped.json", envelope.to_string());
    refused("ed25519.pub", "retyped.json", 1, &["has no signature"]);

    // What can't be read is no signature that fails.
    let text = f.p.read("graft.json");
    f.p.write("cut.json", &text[..text.len() / 2]);
    refused("ed25519.pub", "cut.json", 2, &["cut.json is no signature that can be read", "hint: copy the file again"]);
    f.p.write("empty.json", "");
    refused("ed25519.pub", "empty.json", 2, &["is no signature that can be read"]);
    f.p.write("list.json", "[]");
    refused("ed25519.pub", "list.json", 2, &["is neither a DSSE envelope"]);
    let mut bare: Value = serde_json::from_str(&text).unwrap();
    bare["signatures"] = json!([]);
    f.p.write("bare.json", bare.to_string());
    refused("ed25519.pub", "bare.json", 2, &["its list of signatures is empty"]);
    refused("ed25519.pub", "nowhere.json", 2, &["nowhere.json can't be read"]);
}

#[test]
fn a_signed_statement_that_contradicts_itself_is_refused() {
    let f = Fixture::new();
    let digest = "0".repeat(64);
    let statement = |subject: Value| json!({"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://example.com/x", "subject": subject});
    let file = |name: &str| json!({"name": name, "digest": {"sha256": digest}});
    let oms = |resources: Value, root: &str| {
        let mut s = statement(json!([{"name": "m", "digest": {"sha256": root}}]));
        s["predicateType"] = Value::from("https://model_signing/signature/v1.0");
        let serialization = json!({"method": "files", "hash_type": "sha256", "allow_symlinks": false});
        s["predicate"] = json!({"serialization": serialization, "resources": resources});
        s
    };
    let resource = |name: &str| json!({"name": name, "digest": digest, "algorithm": "sha256"});
    let cases: Vec<(Value, &str)> = vec![
        (statement(json!([file("a"), file("b"), file("./a")])), "names \"./a\" twice"),
        (statement(json!([file("/etc/passwd")])), "names \"/etc/passwd\", which is no path inside of a folder"),
        (statement(json!([file("a/../../b")])), "which is no path inside"),
        (statement(json!([])), "names no file"),
        (
            statement(json!([{"name": "a", "digest": {"md5": "00"}}])),
            "has no sha256 and no blake3 digest of \"a\", only md5",
        ),
        (json!({"_type": "x", "predicateType": "y", "subject": []}), "holds a statement of the type \"x\""),
        (json!({"builder": 1}), "holds no in-toto statement"),
        (oms(json!([resource("a"), resource("a")]), &digest), "names \"a\" twice"),
        (oms(json!([resource("a")]), &digest), "its root digest is not that of its files"),
        (oms(json!([]), &digest), "names no file"),
    ];
    for (statement, said) in cases {
        let mut child =
            python(&["sign", &f.key("ed25519.pem")]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(statement.to_string().as_bytes()).unwrap();
        f.p.write("odd.json", must(&child.wait_with_output().unwrap()));
        let key = f.key("ed25519.pub");
        f.refused(&["verify", "graft", "--key", &key, "--signature", "odd.json"], 2, &[said, "odd.json", "hint: "]);
    }
}

#[test]
fn a_key_that_can_t_be_used_is_told_as_what_it_is() {
    let f = Fixture::new();
    let cases = [
        ("locked.pem", "is encrypted"),
        ("sec1-locked.pem", "is encrypted"),
        ("rsa.pem", "is an RSA key"),
        ("p384.pem", "is a key of the curve P-384"),
        ("ssh-p256", "is an OpenSSH key of the kind ecdsa-sha2-nistp256"),
        ("ed25519.pub", "is a public key, and only the private one signs"),
        ("ssh.pub", "is a public key"),
        ("nowhere", "can't be read"),
    ];
    for (key, said) in cases {
        let key = f.key(key);
        f.refused(&["attest", "graft", "--key", &key, "--out", "never"], 2, &[&key, said, "hint: "]);
    }
    f.attested("graft", "ed25519.pem", "graft.json", &[]);
    let cases = [
        ("ed25519.pem", "is a private key, and the public one is enough"),
        ("ssh", "is a private key"),
        ("rsa.pub", "is an RSA key"),
        ("p384.pub", "is a key of the curve P-384"),
    ];
    for (key, said) in cases {
        let key = f.key(key);
        f.refused(&["verify", "graft", "--key", &key, "--signature", "graft.json"], 2, &[&key, said, "hint: "]);
    }
    let whole = fs::read_to_string(f.key("ed25519.pem")).unwrap();
    for (name, text) in [
        ("text", "hello".to_owned()),
        ("cut", whole[..whole.len() - 20].to_owned()),
        ("bent", whole.replacen("MC4", "AAA", 1)),
        ("certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned()),
        ("binary", "\u{0}\u{1}".to_owned()),
    ] {
        let key = f.key(name);
        fs::write(&key, text).unwrap();
        f.refused(&["attest", "graft", "--key", &key, "--out", "never"], 2, &[&key, "hint: "]);
    }
    // The OpenSSF format knows no ed25519 keys.
    let key = f.key("ed25519.pem");
    f.refused(&["attest", "graft", "--key", &key, "--oms"], 2, &["the OpenSSF format takes ECDSA keys", "hint: "]);
    f.refused(&["attest", "graft"], 2, &["neither --key nor GRAFTWERK_KEY", "hint: "]);
    let done = f.refused(&["attest", "graft", "--key", &whole], 2, &["is given a key itself"]);
    assert!(!done.stderr.contains("PRIVATE KEY"), "{}", done.stderr);
    assert!(!f.p.path("never").exists());
}

#[test]
fn a_key_may_come_from_the_environment_as_text_or_path_and_is_never_shown() {
    let f = Fixture::new();
    f.attested("graft", "ed25519.pem", "by-file.json", &[]);
    let run = |value: &str, out: &str| {
        let mut c = f.p.command(&["attest", "graft", "--out", out]);
        let done = c.env("GRAFTWERK_KEY", value).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
    };
    let path = f.key("ed25519.pem");
    let text = fs::read_to_string(&path).unwrap();
    for (value, out) in [(&path, "by-path.json"), (&text, "by-text.json")] {
        let (code, said) = run(value, out);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(f.p.read(out), f.p.read("by-file.json"));
    }
    let secret: String = text.lines().nth(1).unwrap().to_owned();
    let (code, said) = run(&secret, "never");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("GRAFTWERK_KEY holds neither a key in PEM nor the path of a file"), "{said}");
    assert!(!said.contains(&secret), "{said}");
    let (code, said) = run(&text.replace(&secret, "AAAA"), "never");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("GRAFTWERK_KEY is no whole key"), "{said}");
}

#[test]
fn a_key_that_others_may_read_is_a_warning() {
    let f = Fixture::new();
    assert!(!f.attest("graft", "ed25519.pem", "a.json", &[]).stderr.contains("others"));
    fs::set_permissions(f.key("ed25519.pem"), fs::Permissions::from_mode(0o640)).unwrap();
    let done = f.attest("graft", "ed25519.pem", "b.json", &[]);
    assert_eq!(done.code, Some(0));
    assert!(done.stderr.contains("can be read by others (mode 0640): chmod 600"), "{}", done.stderr);
}

#[test]
fn a_step_that_is_a_process_names_its_programs_its_script_and_its_log() {
    let p = Project::new(
        "[source]\nscripts = { folder = \"scripts\" }\n[node.step]\nkind = \"run\"\n\
         inputs = { scripts = \"scripts\" }\nargv = [\"sh\", \"{in.scripts}/step.sh\"]\n",
    );
    p.write("scripts/step.sh", "echo said; echo made > $OUT/made 2>/dev/null || echo made > /out/made\n");
    p.build();
    let keys = p.holder().join("keys");
    fs::create_dir(&keys).unwrap();
    must(&python(&["keys", keys.to_str().unwrap()]).output().unwrap());
    let key = keys.join("p256.pem");
    let done = p.run(&["attest", "step", "--key", key.to_str().unwrap(), "--builder", "https://ci.example.com/gpu"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    p.write("step.json", &done.stdout);
    let public = keys.join("p256.pub");
    let checked = python(&["check", "step.json", public.to_str().unwrap()]).current_dir(&p.dir).output().unwrap();
    let statement: Value = serde_json::from_str(&must(&checked)).unwrap();
    let definition = &statement["predicate"]["buildDefinition"];
    let names: BTreeSet<&str> =
        definition["resolvedDependencies"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert!(names.contains("source/scripts") && names.contains("input/scripts"), "{names:?}");
    // A program by its name, and no path of the host.
    assert!(names.iter().any(|n| n.starts_with("tool/")), "{names:?}");
    assert!(names.iter().all(|n| n.matches('/').count() == 1), "{names:?}");
    let details = &statement["predicate"]["runDetails"];
    assert_eq!(details["builder"]["id"], "https://ci.example.com/gpu");
    let log = p.run(&["log", "step", "--json"]).json()["log"].as_str().unwrap().to_owned();
    assert!(log.contains("said"));
    assert_eq!(details["byproducts"][0]["digest"]["sha256"], sha256(log.as_bytes()));
}

#[test]
fn a_store_that_may_only_be_read_is_attested() {
    let f = Fixture::new();
    f.attested("graft", "ed25519.pem", "before.json", &[]);
    let script = "mount --bind store store && mount -o remount,bind,ro store && exec \"$@\"";
    let mut c = Command::new("unshare");
    c.arg(if rustix::process::geteuid().is_root() { "-m" } else { "-rm" });
    c.args(["sh", "-c", script, "sh", common::GRAFTWERK, "attest", "graft", "--key", &f.key("ed25519.pem")]);
    let done = c.current_dir(&f.p.dir).output().unwrap();
    assert_eq!(must(&done), f.p.read("before.json"));
}

#[test]
fn nothing_is_overwritten_and_nothing_is_written_into_the_store() {
    let f = Fixture::new();
    f.p.write("taken", "mine");
    let key = f.key("ed25519.pem");
    f.refused(&["attest", "graft", "--key", &key, "--out", "taken"], 2, &["taken is there already", "hint: "]);
    assert_eq!(f.p.read("taken"), "mine");
    f.refused(&["attest", "graft", "--key", &key, "--out", "out/graft/model.sig"], 2, &["lies in the store", "hint: "]);
    f.refused(&["attest", "base", "--key", &key, "--out", "new"], 2, &["hint: "]);
    f.p.edit("graph.toml", "mtp.*", "mtp.fc.*");
    f.refused(&["attest", "graft", "--key", &key, "--out", "new"], 1, &["graft is not built", "hint: "]);
    assert!(!f.p.path("new").exists());
    assert_eq!(f.p.run(&["verify"]).code, Some(0));
}

#[test]
fn bytes_that_are_damaged_in_the_store_are_not_signed() {
    let f = Fixture::new();
    let shard = f.p.node_path("graft").join("model-graft.safetensors");
    fs::set_permissions(&shard, fs::Permissions::from_mode(0o644)).unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    bytes[9000] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let touched = Command::new("touch").args(["-d", "@1"]).arg(&shard).status().unwrap();
    assert!(touched.success());
    let done = f.attest("graft", "ed25519.pem", "never", &[]);
    assert_ne!(done.code, Some(0), "{}", done.stdout);
    assert!(done.stderr.contains("b3:"), "{}", done.stderr);
    assert!(!f.p.path("never").exists());
}

#[test]
fn a_list_of_digests_of_another_tool_is_verified() {
    let f = Fixture::new();
    f.export("graft", "copy");
    let sums = Command::new("sh")
        .args([
            "-c",
            "cd copy && find . -type f | sort | xargs sha256sum > ../sums && sha256sum --tag config.json > ../tagged",
        ])
        .current_dir(&f.p.dir)
        .status()
        .unwrap();
    assert!(sums.success());
    f.p.write("b3", must(&python(&["b3sum", f.p.path("copy").to_str().unwrap()]).output().unwrap()));
    for list in ["sums", "b3"] {
        for what in ["copy", "graft", "copy/config.json"] {
            let done = f.p.run(&["verify", what, "--manifest", list]);
            assert_eq!(done.code, Some(0), "{what} {list}: {}{}", done.stdout, done.stderr);
        }
    }
    assert_eq!(f.p.run(&["verify", "copy/config.json", "--manifest", "tagged"]).code, Some(0));
    // A list in the folder itself is no part of it; what it does not list is extra.
    fs::copy(f.p.path("sums"), f.p.path("copy/SHA256SUMS")).unwrap();
    assert_eq!(f.p.run(&["verify", "copy", "--manifest", "copy/SHA256SUMS"]).code, Some(0));
    let extra = f.p.run(&["verify", "copy", "--manifest", "sums"]);
    assert_eq!(extra.code, Some(4), "{}", extra.stdout);
    f.p.flip("copy/config.json", 3);
    let changed = f.p.run(&["verify", "copy", "--manifest", "sums"]);
    assert_eq!(changed.code, Some(1));
    let bytes = fs::read(f.p.path("copy/config.json")).unwrap();
    assert!(changed.stdout.contains(&format!("hashes to sha256:{} and b3:", sha256(&bytes))), "{}", changed.stdout);
    f.p.write("bad", format!("{}  a\nhello\n", "0".repeat(64)));
    f.refused(&["verify", "copy", "--manifest", "bad"], 2, &["bad:2: is no line of a list of digests", "hint: "]);
    f.refused(&["verify", "--manifest", "bad"], 2, &[]);
    f.refused(&["verify", "copy", "graft", "--manifest", "sums"], 2, &["of one folder, and 2 stand here"]);
    f.refused(&["verify", "copy", "--signature", "sums"], 2, &["--key"]);
}
