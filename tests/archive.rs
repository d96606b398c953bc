//! `export` and `import`: a closure carried to another store as one file, a tree copied to a folder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{Project, Ran, files, store_check};

/// A graph with a filtered input, a check that gates, an executable file, a link and an empty folder.
const GRAPH: &str = r#"
[source]
model = { checkpoint = "model" }
extra = { folder = "extra" }

[node.cut]
kind = "edit"
inputs.model = "model"
drop = "notes.md"

[node.names]
kind = "check"
inputs.model = "cut"
files = "config.json"

[node.last]
kind = "edit"
inputs.model = { node = "cut", uses = ["@weights", "config.json"] }
gate = ["names"]
set = { "config.json" = { "/a" = 1 } }
"#;

fn project() -> Project {
    let p = Project::demo();
    p.build();
    p
}

fn ok(r: Ran) -> Ran {
    assert_eq!(r.code, Some(0), "{}\n{}", r.stdout, r.stderr);
    r
}

fn export(p: &Project, what: &[&str], file: &Path) -> Ran {
    let args = [&["export", "--json", "--archive", file.to_str().unwrap()], what].concat();
    ok(p.run(&args))
}

fn names(p: &Project) -> Vec<String> {
    p.trees().into_keys().collect()
}

fn listing(archive: &Path) -> Vec<String> {
    let zstd = zstd::stream::read::Decoder::new(fs::File::open(archive).unwrap()).unwrap();
    let mut tar = tar::Archive::new(zstd);
    tar.entries().unwrap().map(|e| e.unwrap().path().unwrap().to_str().unwrap().to_owned()).collect()
}

/// The same project elsewhere, with nothing built.
fn elsewhere() -> Project {
    Project::demo()
}

#[test]
fn what_was_exported_is_there_in_another_store_and_a_build_makes_nothing() {
    let p = project();
    let archive = p.holder().join("all.tar.zst");
    let all = names(&p);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let told = export(&p, &all, &archive).json();
    assert_eq!(told["archive_bytes"], fs::metadata(&archive).unwrap().len());

    let q = elsewhere();
    let told_there = ok(q.run(&["import", archive.to_str().unwrap(), "--json"])).json();
    assert_eq!(told_there["exports"], told["exports"]);
    assert_eq!(told_there["bytes"], told["bytes"]);
    store_check::check(&q.path("store"));
    ok(q.run(&["verify"]));
    // Its own roots hold it.
    ok(q.run(&["gc"]));
    let built = q.build();
    assert_eq!(built.nodes("built"), Vec::<String>::new(), "{}", built.stdout);
    assert_eq!(q.trees(), p.trees());
    for node in &all {
        let (a, b) = (p.run(&["show", node, "--json"]).json(), q.run(&["show", node, "--json"]).json());
        for key in ["recipe_text", "runs", "listing", "tree"] {
            assert_eq!(a[key], b[key], "{key} of {node}");
        }
    }
    assert_eq!(files(&p.node_path(all[0])), files(&q.node_path(all[0])));

    // Once more: nothing is new.
    let again = ok(q.run(&["import", archive.to_str().unwrap(), "--json"])).json();
    assert_eq!((&again["new_bytes"], &again["new_runs"]), (&0.into(), &0.into()));
}

#[test]
fn one_closure_is_one_file_of_bytes_on_either_side() {
    let p = project();
    let node = names(&p).pop().unwrap();
    let (a, b, c) = (p.holder().join("a"), p.holder().join("b"), p.holder().join("c"));
    export(&p, &[&node], &a);
    export(&p, &[&node, &node], &b);
    assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap());
    let q = elsewhere();
    ok(q.run(&["import", a.to_str().unwrap()]));
    let tree = p.trees()[&node].clone();
    ok(q.run(&["export", &tree, "--archive", c.to_str().unwrap()]));
    let out = p.holder().join("by-id");
    ok(p.run(&["export", &tree, "--archive", out.to_str().unwrap()]));
    let (there, here) = (listing(&c), listing(&out));
    assert!(here.iter().all(|n| there.contains(n)), "{here:#?}\n{there:#?}");
}

#[test]
fn provenance_goes_down_to_the_sources_without_their_bytes_unless_they_are_asked_for() {
    let p = Project::new(GRAPH);
    common::copy_tree(&common::repository().join("demo/finetune"), &p.path("model"));
    p.write("model/notes.md", "gone");
    p.write("extra/x", "x");
    p.build();
    let (lean, fat) = (p.holder().join("lean"), p.holder().join("fat"));
    export(&p, &["last"], &lean);
    let args = ["export", "last", "--with-inputs", "--archive", fat.to_str().unwrap()];
    ok(p.run(&args));
    let (lean, fat) = (listing(&lean), listing(&fat));
    let recipe = |node: &str| {
        let id = p.run(&["show", node, "--json"]).json()["recipe"].as_str().unwrap()[3..].to_owned();
        format!("recipes/{}/{}", &id[..2], &id[2..])
    };
    for node in ["cut", "names", "last"] {
        assert!(lean.contains(&recipe(node)), "{node} is not in {lean:#?}");
    }
    let notes = graftwerk::digest::Digest::of(b"gone").hex();
    let notes = format!("blobs/{}/{}", &notes[..2], &notes[2..]);
    assert!(!lean.contains(&notes) && fat.contains(&notes));
    assert!(lean.iter().any(|n| n.starts_with("tensors/")));
    assert_eq!(lean[0], "graftwerk-archive");
}

#[test]
fn a_closure_is_carried_by_a_pipe_and_into_a_store_without_a_graph() {
    let p = project();
    let node = names(&p).pop().unwrap();
    let sent = p.command(&["export", &node, "--archive", "-"]).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let t = tempfile::tempdir().unwrap();
    let mut c = p.command(&["import", "-", "--store", t.path().join("s").to_str().unwrap(), "--json"]);
    let mut child = c.current_dir(t.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&sent.stdout).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success());
    let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(told["exports"][0]["tree"], p.trees()[&node].as_str());
    assert!(told["archive"].is_null());
    // That most of what it came from is not here is no damage.
    let mut verify = p.command(&["verify", "--store", t.path().join("s").to_str().unwrap()]);
    let o = verify.output().unwrap();
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stdout));
    let source = graftwerk::digest::Digest::of(b"no tree at all").to_string();
    assert_eq!(p.run(&["export", &source, "--archive", "x"]).code, Some(2));
    assert_eq!(fs::read_dir(t.path().join("s/roots")).unwrap().count(), 1);
}

#[test]
fn what_is_there_is_never_replaced_and_a_failed_export_leaves_nothing() {
    let p = project();
    let node = names(&p).pop().unwrap();
    let t = tempfile::tempdir().unwrap();
    let (file, dir) = (t.path().join("file"), t.path().join("dir"));
    fs::write(&file, "mine").unwrap();
    fs::create_dir(&dir).unwrap();
    for target in [&file, &dir] {
        let target = target.to_str().unwrap();
        for args in [vec!["export", &node, "--archive", target], vec!["export", &node, target]] {
            let r = p.run(&args);
            assert_eq!(r.code, Some(2), "{}", r.stderr);
            assert!(r.stderr.contains("is there already") && r.stderr.contains(target), "{}", r.stderr);
        }
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    // A node that is not built, and a store that says no in the middle.
    p.edit("graph.toml", "kind = \"quant\"", "kind = \"quant\"\nplatform = \"new\"");
    let r = p.run(&["export", "quant-a", "--archive", t.path().join("a").to_str().unwrap()]);
    assert_eq!(r.code, Some(1), "{}", r.stderr);
    for n in [3, 6, 9] {
        for args in [vec!["export", "graft-a", "--archive", "new"], vec!["export", "graft-a", "new"]] {
            let mut c = p.command(&args);
            c.arg("-C").arg(&p.dir).arg("--graph").arg(p.path("graph.toml")).current_dir(&p.dir);
            let o = c.env("GRAFTWERK_FAILPOINT", format!("enospc@{}", n + 12)).output().unwrap();
            let new = p.path("new");
            if o.status.success() {
                fs::remove_file(&new).or_else(|_| fs::remove_dir_all(&new)).unwrap();
            } else {
                assert!(!new.exists(), "{args:?} {n}");
            }
        }
    }
    let left: Vec<_> = fs::read_dir(t.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(
        !fs::read_dir(&p.dir).unwrap().any(|e| e.unwrap().file_name().to_string_lossy().contains("graftwerk-part"))
    );
}

#[test]
fn a_folder_has_every_file_bit_link_and_empty_folder_whatever_the_umask() {
    let p = Project::new(
        "[source]\nm = { folder = \"m\" }\n[node.n]\nkind = \"edit\"\ninputs.model = \"m\"\ndrop = \"gone\"\n",
    );
    p.write("m/gone", "x");
    p.write("m/sub/run.sh", "#!/bin/sh\n");
    p.write("m/plain", "text");
    fs::create_dir_all(p.path("m/empty/er")).unwrap();
    fs::set_permissions(p.path("m/sub/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    p.build();
    for link in [false, true] {
        let name = format!("copy-{link}");
        let mut c = p.command(&["export", "n", &name, "--json"]);
        if link {
            c.arg("--link");
        }
        // SAFETY: umask(2) is async-signal-safe and changes only the child.
        unsafe {
            c.pre_exec(|| {
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
                Ok(())
            })
        };
        let o = c.output().unwrap();
        assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
        let top = p.path(&name);
        let mode = |rel: &str| fs::symlink_metadata(top.join(rel)).unwrap().mode() & 0o777;
        assert_eq!((mode(""), mode("sub"), mode("empty/er")), (0o755, 0o755, 0o755));
        assert_eq!((mode("sub/run.sh"), mode("plain")), (0o755, 0o644), "a source is never linked");
        assert_eq!(fs::read(top.join("sub/run.sh")).unwrap(), b"#!/bin/sh\n");
        assert_eq!(fs::read_dir(top.join("empty/er")).unwrap().count(), 0);
        let told: serde_json::Value = serde_json::from_slice(&o.stdout).unwrap();
        assert_eq!((&told["files"], told["path"].as_str()), (&2.into(), top.to_str()));
    }
}

#[test]
fn a_folder_of_links_shares_what_the_store_holds() {
    let p = project();
    ok(p.run(&["export", "graft-a", "linked", "--link"]));
    ok(p.run(&["export", "graft-a", "copied"]));
    let shared = |top: &str| {
        files(&p.path(top)).keys().filter(|f| fs::metadata(p.path(top).join(f)).unwrap().nlink() > 1).count()
    };
    assert!(shared("linked") > 0);
    assert_eq!(shared("copied"), 0);
    assert_eq!(files(&p.path("linked")), files(&p.path("copied")));
    assert_eq!(files(&p.path("copied")), files(&p.node_path("graft-a")));
}

#[test]
fn a_blob_that_was_changed_on_the_disk_is_not_exported() {
    let p = project();
    let tree = p.node_path("graft-a");
    let (name, _) = files(&tree).into_iter().find(|(f, _)| fs::metadata(tree.join(f)).unwrap().nlink() > 1).unwrap();
    // Behind the store's back, with everything that is looked at as it was.
    let path = tree.join(name).canonicalize().unwrap();
    let before = fs::metadata(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(before.modified().unwrap()).unwrap();
    let r = p.run(&["export", "graft-a", "--archive", "new"]);
    assert_eq!(r.code, Some(3), "{}", r.stderr);
    assert!(r.stderr.contains("hashes to"), "{}", r.stderr);
    assert!(!p.path("new").exists());
}

#[test]
fn a_number_that_another_run_has_is_left_to_it() {
    let p = project();
    let archive = p.holder().join("a");
    export(&p, &["graft-a"], &archive);
    let q = elsewhere();
    q.build();
    let runs = |p: &Project| p.run(&["show", "graft-a", "--json"]).json()["runs"].as_array().unwrap().clone();
    let (there, before) = (runs(&p), runs(&q));
    ok(q.run(&["import", archive.to_str().unwrap()]));
    ok(q.run(&["import", archive.to_str().unwrap()]));
    let after = runs(&q);
    assert_eq!(after[0], before[0]);
    if there[0] == before[0] {
        // Both stores built it in one second and in equally many milliseconds.
        assert_eq!(after.len(), 1);
    } else {
        assert_eq!((after.len(), &after[1]["seq"], &after[1]["started"]), (2, &2.into(), &there[0]["started"]));
    }
    assert_eq!(q.build().nodes("built"), Vec::<String>::new());
}

#[test]
fn a_killed_import_leaves_nothing_half_made_and_goes_on() {
    let p = project();
    let archive = p.holder().join("a");
    export(&p, &["graft-a", "quant-a"], &archive);
    let trace = p.holder().join("trace");
    let q = elsewhere();
    let import = ["import", archive.to_str().unwrap()];
    let o = q.command(&import).env("GRAFTWERK_FAILPOINT", format!("trace={}", trace.display())).output().unwrap();
    assert!(o.status.success());
    let calls = fs::read_to_string(trace).unwrap().lines().count();
    assert!(calls > 50, "{calls}");
    for at in (1..=calls).step_by(calls / 10) {
        let q = elsewhere();
        let _ = q.command(&import).env("GRAFTWERK_FAILPOINT", format!("kill@{at}")).output().unwrap();
        if q.path("store/VERSION").exists() {
            store_check::check(&q.path("store"));
        }
        ok(q.run(&import));
        store_check::check(&q.path("store"));
        assert_eq!(fs::read_dir(q.path("store/tmp")).unwrap().count(), 0, "kill@{at}");
        assert_eq!(q.trees()["quant-a"], p.trees()["quant-a"]);
    }
}

#[test]
fn a_killed_export_is_taken_over_by_the_next() {
    let p = project();
    let trace = p.holder().join("trace");
    for (args, target) in
        [(["export", "graft-a", "--archive", "one"].as_slice(), "one"), (&["export", "graft-a", "two"], "two")]
    {
        let o = p.command(args).env("GRAFTWERK_FAILPOINT", format!("trace={}", trace.display())).output().unwrap();
        assert!(o.status.success());
        let calls = fs::read_to_string(&trace).unwrap().lines().count();
        let target = p.path(target);
        let whole =
            if target.is_dir() { files(&target) } else { [(PathBuf::new(), fs::read(&target).unwrap())].into() };
        for at in (1..=calls).step_by((calls / 10).max(1)).chain([calls - 1, calls]) {
            let _ = fs::remove_file(&target).or_else(|_| fs::remove_dir_all(&target));
            let _ = p.command(args).env("GRAFTWERK_FAILPOINT", format!("kill@{at}")).output().unwrap();
            if !target.exists() {
                ok(p.run(args));
            }
            let now =
                if target.is_dir() { files(&target) } else { [(PathBuf::new(), fs::read(&target).unwrap())].into() };
            assert!(now == whole, "kill@{at}");
            let left = fs::read_dir(&p.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            assert_eq!(left.filter(|n| n.contains("graftwerk-part")).count(), 0, "kill@{at}");
        }
        fs::remove_file(&trace).unwrap();
    }
}

#[test]
fn what_was_imported_is_shown_and_copied_out_with_a_store_and_no_graph() {
    let p = Project::demo();
    p.build();
    let archive = p.holder().join("model.tar.zst");
    assert_eq!(p.run(&["export", "model-a", "--archive", archive.to_str().unwrap()]).code, Some(0));
    let tree = p.trees()["model-a"].clone();
    let bare = Project::new("");
    std::fs::remove_file(bare.path("graph.toml")).unwrap();
    let without = bare.run(&["import", archive.to_str().unwrap()]);
    assert!(without.code == Some(2) && without.stderr.contains("--store DIR is enough"), "{}", without.stderr);
    for args in [
        vec!["import", archive.to_str().unwrap(), "--store", "s"],
        vec!["show", &tree, "--store", "s"],
        vec!["export", &tree, "model", "--store", "s"],
    ] {
        let ran = bare.run(&args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    }
    assert_eq!(common::files(&bare.path("model")), common::files(&p.node_path("model-a")));
    assert_eq!(bare.run(&["status", "--store", "s"]).code, Some(2), "a node needs a graph");
}
