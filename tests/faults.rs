//! What the world does to a project and its store: odd folders, full pipes, damage, commands at the same time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Stdio;

use common::{Project, store_check};

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
    type Spoil = fn(&Path);
    let spoils: [Spoil; 6] = [
        |v| fs::write(v, "a file").unwrap(),
        |v| std::os::unix::fs::symlink("nowhere", v).unwrap(),
        |v| std::os::unix::fs::symlink("/", v).unwrap(),
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
    std::os::unix::fs::symlink(&deep, p.path("out")).unwrap();
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
