//! What the world does to a project and its store: odd folders, full pipes, damage, commands at the same time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{Project, files, store_check};

const COPY: &str = "[source]\nm = { folder = \"m\" }\n[node.copy]\nkind = \"edit\"\ninputs.model = \"m\"\n\
                    set.\"c.json\" = { \"/n\" = 1 }\n";

fn small() -> Project {
    let p = Project::new(COPY);
    p.write("m/c.json", "{}");
    p
}

#[test]
fn a_project_in_a_folder_whose_name_is_no_utf_8_builds_and_its_path_opens() {
    let mut p = small();
    let odd = p.holder().join(OsStr::from_bytes(b"odd \xff"));
    fs::rename(&p.dir, &odd).unwrap();
    p.dir = odd;
    assert_eq!(p.built(), ["copy"]);
    assert_eq!(p.built(), [""; 0]);
    let status = p.run(&["status", "--json"]);
    assert_eq!((status.code, status.json()["nodes"][0]["state"].as_str()), (Some(0), Some("fresh")));
    let printed = p.command(&["path", "copy"]).output().unwrap().stdout;
    let path = Path::new(OsStr::from_bytes(printed.strip_suffix(b"\n").unwrap()));
    assert!(path.join("c.json").is_file());
}

#[test]
fn an_answer_that_can_not_be_written_is_a_failure() {
    let p = small();
    for args in [["build", "--json"], ["status", "--json"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let o = p.command(&args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&o.stderr).into_owned();
        assert_eq!(o.status.code(), Some(1), "{said}");
        assert!(said.contains("No space left"), "{said}");
    }
}

#[test]
fn a_view_that_something_else_took_the_place_of_is_made_again() {
    let p = small();
    p.build();
    let view = p.node_path("copy");
    let spoils: [Spoil; 6] = [
        |v| fs::write(v, "a file").unwrap(),
        |v| symlink("nowhere", v).unwrap(),
        |v| symlink("/", v).unwrap(),
        |v| fs::create_dir(v).unwrap(),
        |v| fs::create_dir_all(v.join("c.json/sub")).unwrap(),
        |_| (),
    ];
    for (i, spoil) in spoils.iter().enumerate() {
        fs::remove_dir_all(&view).unwrap();
        spoil(&view);
        assert_eq!(p.node_path("copy"), view, "{i}");
        store_check::check(&p.path("store"));
    }
}

#[test]
fn out_may_be_a_link_to_another_folder() {
    let p = small();
    let deep = p.holder().join("a/b/c");
    fs::create_dir_all(&deep).unwrap();
    symlink(&deep, p.path("out")).unwrap();
    p.build();
    assert!(p.path("out/copy/c.json").is_file());
}

#[test]
fn a_build_whose_links_can_not_be_brought_up_to_date_fails() {
    let p = small();
    p.write("out", "a file");
    let r = p.run(&["build", "--json"]);
    assert_eq!((r.code, r.step("copy")["action"].as_str()), (Some(1), Some("built")));
    assert!(r.stderr.contains("out"), "{}", r.stderr);
    fs::remove_file(p.path("out")).unwrap();
    assert_eq!(p.built(), [""; 0]);
    assert!(p.path("out/copy/c.json").is_file());
}

#[test]
fn a_pin_that_is_set_while_a_build_runs_holds() {
    let p = Project::demo();
    p.build();
    p.write("demo/terse.jinja", "{{ other }}");
    let plan = p.run(&["plan", "--json"]);
    let recipe = plan.step("finetune-b")["recipe"].as_str().unwrap().trim_start_matches("b3:").to_owned();
    let lock = p.path(&format!("store/locks/recipe-{recipe}"));
    let mut held = fs::File::options().read(true).write(true).create_new(true).open(&lock).unwrap();
    held.lock().unwrap();
    held.write_all(br#"{"pid":4711,"host":"elsewhere","what":"x","since":"2026-01-01T00:00:00Z"}"#).unwrap();
    let mut build = p.command(&["build"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(build.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("4711") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the build ended without waiting");
    }
    assert_eq!(p.run(&["pin", "quant-a"]).code, Some(0));
    held.unlock().unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(build.wait().unwrap().success(), "{rest}");
    let lock = p.read("graph.lock");
    assert!(lock.contains("node = \"quant-a\""), "{lock}");
}

type Spoil = fn(&Path);

/// Every way in which a file of the store may be spoilt.
const SPOILS: [(&str, Spoil); 7] = [
    ("cut", |f| rewrite(f, |b| b.truncate(b.len() / 2))),
    ("zeroed", |f| rewrite(f, |b| b.fill(0))),
    ("flipped", |f| rewrite(f, |b| flip_last_digit(b))),
    ("a folder", |f| {
        fs::remove_file(f).unwrap();
        fs::create_dir_all(f.join("sub")).unwrap();
    }),
    ("a link", |f| {
        let copy = f.parent().unwrap().parent().unwrap().parent().unwrap().parent().unwrap().join("elsewhere");
        let _ = fs::remove_file(&copy);
        fs::rename(f, &copy).unwrap();
        symlink(copy, f).unwrap();
    }),
    ("a dangling link", |f| {
        fs::remove_file(f).unwrap();
        symlink("/nowhere", f).unwrap();
    }),
    ("a pipe", |f| {
        fs::remove_file(f).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, f, rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o644), 0).unwrap();
    }),
];

fn rewrite(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

// What still parses is the hardest to find out.
fn flip_last_digit(bytes: &mut [u8]) {
    let last = bytes.iter().rposition(u8::is_ascii_digit).unwrap_or(0);
    bytes[last] ^= 1;
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    common::files(dir).keys().map(|f| dir.join(f)).collect()
}

const SEAT: &str = r#"
[source]
base = { checkpoint = "demo/base" }
finetune = { checkpoint = "demo/finetune" }
[node.graft]
kind = "graft"
inputs = { into = "finetune", from = "base" }
tensors = ["mtp.*"]
[node.seat-a]
kind = "serve"
inputs = { model = "graft" }
image = "vllm/vllm-openai:v0.32.0"
name = "a"
args = ["--model", "/model", "--served-model-name", "a"]
"#;

fn seat() -> Project {
    let p = Project::demo();
    p.write("graph.toml", SEAT);
    p
}

fn spoil_each(folder: &str, then: impl Fn(&Project, &str, &BTreeMap<String, String>)) {
    for (how, spoil) in SPOILS {
        let p = seat();
        p.build();
        let trees = p.trees();
        for file in files_below(&p.path("store").join(folder)) {
            spoil(&file);
        }
        then(&p, how, &trees);
    }
}

#[test]
fn a_spoilt_listing_is_damage_in_every_shape() {
    spoil_each("trees", |p, how, _| {
        for args in [&["build"][..], &["status"], &["path", "seat-a"]] {
            let r = p.run(args);
            assert_eq!(r.code, Some(3), "{how}: {args:?}: {}", r.stderr);
            assert!(r.stderr.contains("store/trees/"), "{how}: {}", r.stderr);
        }
    });
}

#[test]
fn a_text_object_that_is_spoilt_in_any_way_is_set_aside_and_written_anew_when_its_text_is_at_hand() {
    for (how, spoil) in SPOILS {
        let p = seat();
        p.build();
        let trees = p.trees();
        // The runs are lost, so every step is made again, with every listing and recipe.
        fs::remove_dir_all(p.path("store/runs")).unwrap();
        let mut spoilt = 0;
        for folder in ["trees", "recipes"] {
            for file in files_below(&p.path("store").join(folder)) {
                spoil(&file);
                spoilt += 1;
            }
        }
        let r = p.run(&["build", "--json"]);
        assert_eq!(r.code, Some(0), "{how}: {}", r.stderr);
        assert!(r.stderr.contains("set aside as"), "{how}: {}", r.stderr);
        assert_eq!(p.trees(), trees, "{how}");
        assert_eq!(common::set_aside(&p), spoilt, "{how}");
        store_check::check(&p.path("store"));
    }
}

#[test]
fn spoilt_tensor_tables_and_refs_are_made_again_and_nothing_runs() {
    for folder in ["tensors", "refs"] {
        spoil_each(folder, |p, how, trees| {
            let r = p.run(&["build", "--json", "--check-content"]);
            assert_eq!(r.code, Some(0), "{folder} {how}: {}", r.stderr);
            assert_eq!(r.nodes("built"), [""; 0], "{folder} {how}");
            assert_eq!(&p.trees(), trees, "{folder} {how}");
            store_check::check(&p.path("store"));
        });
    }
}

#[test]
fn a_tensor_table_with_a_wrong_digit_is_never_believed() {
    let p = seat();
    p.build();
    let trees = p.trees();
    for file in files_below(&p.path("store/tensors")) {
        rewrite(&file, |b| {
            let digit = b.windows(3).position(|w| w == b"b3:").unwrap() + 3;
            b[digit] = if b[digit] == b'0' { b'1' } else { b'0' };
        });
    }
    fs::remove_dir_all(p.path("store/runs")).unwrap();
    p.build();
    assert_eq!(p.trees(), trees);
}

#[test]
fn spoilt_blobs_are_set_aside_and_built_again_also_those_that_a_seat_has_of_a_source() {
    spoil_each("blobs", |p, how, trees| {
        let r = p.run(&["build", "--json"]);
        assert_eq!(r.code, Some(0), "{how}: {}", r.stderr);
        assert!(r.nodes("built").contains(&"seat-a".to_owned()), "{how}");
        assert_eq!(&p.trees(), trees, "{how}");
        assert_eq!(p.built(), [""; 0], "{how}");
        assert_eq!(p.run(&["path", "seat-a"]).code, Some(0));
        store_check::check(&p.path("store"));
    });
}

#[test]
fn the_blob_of_a_source_that_a_seat_brought_into_the_store_is_brought_in_again() {
    let p = seat();
    p.build();
    let trees = p.trees();
    let blob = graftwerk::digest::Digest::of(p.read("demo/finetune/tokenizer_config.json").as_bytes()).hex();
    fs::remove_file(p.path(&format!("store/blobs/{}/{}", &blob[..2], &blob[2..]))).unwrap();
    assert_eq!(p.built(), ["seat-a"]);
    assert_eq!(p.trees(), trees);
    assert_eq!(p.built(), [""; 0]);
}

const RANDOM: &str = r#"
[source]
s = { folder = "s" }
[node.draw]
kind = "run"
inputs = { s = "s" }
argv = ["sh", "{in.s}/draw.sh"]
tools = ["head", "od"]
"#;

#[test]
fn a_pinned_tree_that_is_lost_and_can_not_be_made_again_is_not_replaced_by_another() {
    let p = Project::new(RANDOM);
    p.write("s/draw.sh", "head -c 16 /dev/urandom | od -An -tx1 > /out/r\n");
    assert_eq!(p.built(), ["draw"]);
    assert_eq!(p.run(&["pin", "draw"]).code, Some(0));
    let first = p.trees();
    let drawn = p.read("out/draw/r");
    let blob = graftwerk::digest::Digest::of(drawn.as_bytes()).hex();
    let stored = p.path(&format!("store/blobs/{}/{}", &blob[..2], &blob[2..]));
    fs::remove_file(&stored).unwrap();
    let r = p.run(&["build", "--json"]);
    assert_eq!((r.code, r.step("draw")["action"].as_str()), (Some(1), Some("failed")), "{}", r.stderr);
    assert!(r.stderr.contains("pinned to b3:") && r.stderr.contains("graftwerk pin draw"), "{}", r.stderr);
    // Brought back, it is used again; nothing was overwritten by the attempt.
    fs::write(&stored, &drawn).unwrap();
    assert_eq!(p.built(), [""; 0]);
    assert_eq!(p.trees(), first);
    assert_eq!(p.read("out/draw/r"), drawn);
}

#[test]
fn nodes_with_one_recipe_that_fails_run_it_once_however_many_jobs_there_are() {
    for jobs in ["1", "8"] {
        let node = |n: &str| RANDOM.split_once("[node.draw]").unwrap().1.to_owned() + &format!("# {n}\n");
        let graph = RANDOM.to_owned() + "[node.again]" + &node("a") + "[node.once-more]" + &node("b");
        let p = Project::new(&graph);
        p.write("s/draw.sh", "exit 3\n");
        let r = p.run(&["build", "--json", "--keep-going", "-j", jobs]);
        assert_eq!((r.code, r.nodes("failed").len()), (Some(1), 3), "{}", r.stderr);
        let runs = fs::read_dir(p.path("store/runs")).unwrap().next().unwrap().unwrap().path();
        assert_eq!(fs::read_dir(runs).unwrap().count(), 1, "with {jobs} jobs");
    }
}

#[test]
fn after_a_repair_no_artifact_opens_with_damaged_bytes() {
    let p = Project::demo();
    p.build();
    let good = files(&p.path("out/model-a/"));
    let shard = fs::read(p.path("out/model-a/model-00002-of-00002.safetensors")).unwrap();
    let digest = graftwerk::digest::Digest::of(&shard).hex();
    let blob = format!("store/blobs/{}/{}", &digest[..2], &digest[2..]);
    fs::set_permissions(p.path(&blob), fs::Permissions::from_mode(0o644)).unwrap();
    p.flip(&blob, shard.len() / 2);
    let repaired = p.run(&["repair"]);
    assert_eq!(repaired.code, Some(1), "its nodes are to be built again: {}", repaired.stdout);
    for node in fs::read_dir(p.path("out")).unwrap() {
        let shard = node.unwrap().path().join("model-00002-of-00002.safetensors");
        if let Ok(bytes) = fs::read(&shard) {
            let table = graftwerk::digest::Digest::of(&bytes).hex();
            assert!(table != digest, "{} opens", shard.display());
            let named = p.path(&format!("store/blobs/{}/{}", &table[..2], &table[2..])).is_file();
            assert!(named || fs::symlink_metadata(&shard).unwrap().is_symlink(), "{} is damaged", shard.display());
        }
    }
    p.build();
    assert_eq!(p.run(&["verify"]).code, Some(0));
    assert_eq!(files(&p.path("out/model-a/")), good);
}

#[test]
fn a_view_that_leads_to_a_lost_twin_of_its_source_is_found_and_mended() {
    let p = Project::new(
        "[source]\na = { folder = \"a\" }\nb = { folder = \"b\" }\n\
         [node.n]\nkind = \"edit\"\ninputs.model = \"a\"\ndrop = \"x.txt\"\n\
         [node.o]\nkind = \"edit\"\ninputs.model = \"b\"\ndrop = \"y.txt\"\n",
    );
    for dir in ["a", "b"] {
        for name in ["c", "x", "y"] {
            p.write(&format!("{dir}/{name}.txt"), name);
        }
    }
    // A file counts as at rest once the clock's grain has passed since it was written.
    std::thread::sleep(std::time::Duration::from_secs(3));
    p.build();
    let leads_to = |node: &str| fs::read_link(p.path(&format!("out/{node}/c.txt"))).unwrap();
    let twin = if leads_to("n").ends_with("a/c.txt") { "a" } else { "b" };
    fs::rename(p.path(twin), p.path("away")).unwrap();
    let verify = p.run(&["verify"]);
    assert_eq!(verify.code, Some(3), "{}", verify.stdout);
    assert!(verify.stdout.contains("c.txt") && verify.stdout.contains("has its bytes"), "{}", verify.stdout);
    assert_eq!(p.run(&["repair"]).code, Some(0));
    assert_eq!(p.run(&["verify"]).code, Some(0));
    assert_eq!(p.read("out/n/c.txt"), "c");
}
