//! Default Docker denies namespaces even to root: there a step is refused, with the system call that failed and what
//! to do. With what the hint says, it works.
//!
//! Docker must be there. On a machine without it, `GRAFTWERK_SKIP_DOCKER=1` leaves this test out, though never in CI.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod rig;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use graftwerk::exec::resolve;
use graftwerk::exec::tools::MemoryDigests;
use rig::{Rig, binary};

/// An image that is gone when this is.
struct Image(String);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", "-f", &self.0]).output();
    }
}

fn skipped() -> bool {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    is("GRAFTWERK_SKIP_DOCKER", "1") && !is("CI", "true")
}

/// A folder with the binary, its loader and its libraries, and nothing else.
fn root(at: &Path) {
    let rig = Rig::new().script("g", "graftwerk", "");
    let mut tree = graftwerk::model::tree::Tree::new();
    tree.insert("graftwerk".try_into().unwrap(), rig.shelf.file(&fs::read(binary()).unwrap(), true)).unwrap();
    let input = rig.shelf.input_of("g", tree);
    let rig = rig.with(input);
    let tools = resolve(&rig.step("argv = [\"{in.g}/graftwerk\"]"), &rig.inputs, &MemoryDigests::default()).unwrap();
    let place = |inside: &str| {
        let to = at.join(&inside[1..]);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        to
    };
    for (inside, file) in &tools.files {
        fs::copy(&file.host, place(inside)).unwrap();
    }
    for (inside, target) in &tools.links {
        std::os::unix::fs::symlink(target, place(inside)).unwrap();
    }
    fs::copy(binary(), at.join("graftwerk")).unwrap();
    fs::set_permissions(at.join("graftwerk"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(at.join("tmp")).unwrap();
    // A project with one step, and a static program for it to run.
    fs::create_dir_all(at.join("opt")).unwrap();
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
    fs::copy(busybox.expect("busybox-static is needed"), at.join("opt/busybox")).unwrap();
    fs::create_dir(at.join("project")).unwrap();
    fs::write(at.join("project/graph.toml"), GRAPH).unwrap();
}

const GRAPH: &str = r#"
[node.step]
kind = "run"
argv = ["/opt/busybox", "sh", "-c", "echo made > {out}/x"]
"#;

fn image() -> Image {
    let dir = tempfile::tempdir().unwrap();
    root(dir.path());
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("graftwerk-test-refusal:{}-{n}", std::process::id());
    let mut tar = Command::new("tar")
        .args(["--owner=0", "--group=0", "-c", "."])
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("tar is needed");
    let imported = Command::new("docker")
        .args(["import", "-", &name])
        .stdin(tar.stdout.take().unwrap())
        .output()
        .expect("docker is needed; without CI, GRAFTWERK_SKIP_DOCKER=1 leaves this test out");
    assert!(tar.wait().unwrap().success());
    assert!(imported.status.success(), "docker import: {}", String::from_utf8_lossy(&imported.stderr));
    Image(name)
}

/// Exit code, stdout and stderr of the probe in a container.
fn probe(image: &Image, options: &[&str]) -> (Option<i32>, String) {
    let out = Command::new("docker")
        .args(["run", "--rm", "--network", "none"])
        .args(options)
        .args([&image.0, "/graftwerk", "__sandbox-probe"])
        .output()
        .unwrap();
    let text = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
    (out.status.code(), text)
}

#[test]
fn default_docker_is_refused_with_the_system_call_and_what_to_do() {
    if skipped() {
        return;
    }
    let image = image();
    let (code, text) = probe(&image, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("user namespace: Operation not permitted"), "{text}");
    assert!(text.contains("isolation: no\n"), "{text}");
    assert!(text.contains("error: this system does not let a step be isolated: unshare(CLONE_NEWUSER"), "{text}");
    assert!(text.contains("Operation not permitted"), "{text}");
    assert!(text.contains("--unsandboxed"), "{text}");

    let remedies = ["seccomp=unconfined", "systempaths=unconfined", "apparmor=unconfined"];
    let mut options = Vec::new();
    for r in remedies {
        assert!(text.contains(&format!("--security-opt {r}")), "the hint lacks {r}: {text}");
        options.extend(["--security-opt", r]);
    }
    let (code, text) = probe(&image, &options);
    assert_eq!(code, Some(0), "what the hint says does not help: {text}");
    assert!(text.contains("isolation: yes\n"), "{text}");
}

#[test]
fn a_build_in_default_docker_is_refused_and_goes_through_only_where_it_says_unsandboxed() {
    if skipped() {
        return;
    }
    let image = image();
    let shell = |script: &str| {
        let out = Command::new("docker")
            .args(["run", "--rm", "--network", "none", "-w", "/project", &image.0, "/opt/busybox", "sh", "-c", script])
            .output()
            .unwrap();
        [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat()
    };
    let text = shell("/graftwerk build; echo code $?; /graftwerk path step; echo path $?");
    assert!(text.contains("this system does not let a step be isolated: unshare(CLONE_NEWUSER"), "{text}");
    assert!(text.contains("--unsandboxed"), "{text}");
    assert!(text.contains("code 1\n") && text.contains("path 1\n"), "{text}");
    let text = shell(
        "/graftwerk build --unsandboxed; echo code $?; /opt/busybox cat out/step/x; /graftwerk build; echo code $?",
    );
    assert!(text.contains("code 0\nmade\n"), "{text}");
    assert!(
        text.contains("code 1\n"),
        "what was made without isolation is not used where isolation is asked for: {text}"
    );
}
