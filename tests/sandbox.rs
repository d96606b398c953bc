//! What a process step sees, and what it can't reach:
//!
//! - its inputs, read-only whatever it tries; its programs; an empty `/out`; nothing else of the host;
//! - an environment, host name, user and umask that are the same everywhere;
//! - no network but its own loopback, no process but its own.
//!
//! Where namespaces are missing these tests fail: they never skip.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod rig;

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

use graftwerk::digest::{BlobId, Digest};
use graftwerk::exec::tools::{MemoryDigests, ToolError};
use graftwerk::exec::{ExecError, ProcessSpec, resolve};
use graftwerk::model::path::RelPath;
use graftwerk::model::run::Isolation;
use graftwerk::model::tree::{Entry, Tree};
use rig::{Rig, binary, owner, sh};

#[test]
fn a_file_that_is_not_declared_is_not_there() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "x").unwrap();
    let rig = Rig::new().files("a", &[("f", b"declared")]);
    let path = outside.path().join("secret");
    let ran = rig
        .sh(&["cat"], &format!("cat /in/a/f; cat {}; cat /root/.bashrc /etc/shadow /etc/os-release", path.display()));
    assert!(!ran.exit.success());
    let text = ran.text();
    assert!(text.starts_with("declared"), "{text}");
    assert_eq!(text.matches("No such file").count(), 4, "{text}");
}

#[test]
fn the_root_holds_what_was_declared_and_nothing_else() {
    let rig = Rig::new().files("a", &[("f", b"")]);
    let text = rig.sh(&["ls"], "echo $(ls -A / /in /dev /etc /tmp /out)").ok();
    let mut seen: Vec<&str> = text.split_whitespace().collect();
    // Where these are links to folders below /usr depends on the distribution.
    seen.retain(|w| !matches!(*w, "bin" | "lib" | "lib64" | "sbin" | "ld.so.cache"));
    let expected = "/: dev etc in in.json out proc tmp usr /dev: fd full null random shm stderr stdin stdout urandom \
                    zero /etc: group hosts nsswitch.conf passwd /in: a /out: /tmp:";
    assert_eq!(seen.join(" "), expected);
}

#[test]
fn the_environment_is_the_declared_one_and_fixed_values_and_nothing_of_the_host() {
    // Cargo sets dozens of variables for this test; none may arrive.
    assert!(std::env::vars().count() > 3);
    let text = Rig::new().run("argv = [\"env\"]\nenv = { CALIB_N = \"512\", OUT = \"{out}\" }").ok();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let expected = [
        "CALIB_N=512",
        "HOME=/tmp",
        "HOSTNAME=graftwerk",
        "LANG=C.UTF-8",
        "LC_ALL=C.UTF-8",
        "LOGNAME=graftwerk",
        "OUT=/out",
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "TMPDIR=/tmp",
        "TZ=UTC",
        "USER=graftwerk",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn host_name_user_umask_and_standard_input_are_fixed() {
    let script = "cat /proc/sys/kernel/hostname; id -un; id -u; id -g; umask; pwd; cat; ulimit -c; date +%Z";
    let text = Rig::new().sh(&["cat", "id", "date"], script).ok();
    assert_eq!(text, "graftwerk\ngraftwerk\n1000\n1000\n0022\n/tmp\n0\nUTC\n");
}

#[test]
fn outputs_belong_to_the_caller() {
    let rig = Rig::new();
    rig.sh(&["mkdir", "chmod"], "mkdir /out/sub; echo x > /out/sub/f; chmod 700 /out/sub").ok();
    let me = owner(rig.dir.path());
    assert_eq!(owner(&rig.out().join("sub")), me);
    assert_eq!(owner(&rig.out().join("sub/f")), me);
    graftwerk::exec::check_output(&rig.out()).unwrap();
    fs::remove_dir_all(rig.out()).unwrap();
}

#[test]
fn inputs_cannot_be_changed_by_any_way_in() {
    let host = tempfile::tempdir().unwrap();
    fs::write(host.path().join("f"), "whole").unwrap();
    let rig = Rig::new().files("tree", &[("f", b"whole"), ("d/g", b"whole")]).files("dir", &[("f", b"whole")]);
    let mut one = rig.shelf.input("one", &[("name", b"whole")]);
    one.single_file = true;
    let rig = rig.with(one);
    let mut script = String::new();
    for f in ["/in/tree/f", "/in/tree/d/g", "/in/dir/f", "/in/one", "/in.json", "/usr/bin/chmod"] {
        for attempt in [
            "echo x >> F",
            "echo x > F",
            "chmod 777 F",
            "chown 0 F",
            "rm -f F",
            "mv F /out/moved",
            "ln F /out/linked",
            "touch F",
            "ln -s F /tmp/link && echo x >> /tmp/link; s=$?; rm -f /tmp/link; [ $s = 0 ]",
            "echo x >> /proc/self/root/F",
            "echo x >> /proc/1/root/F",
            "exec 3<F && echo x >> /proc/self/fd/3",
            "mount -o remount,rw F",
            "umount F",
        ] {
            script.push_str(
                &format!("( {} ) 2>/dev/null && echo 'DONE: {attempt}' F\n", attempt.replace('F', f))
                    .replace(" F\n", &format!(" {f}\n")),
            );
        }
    }
    for folder in ["/in", "/in/tree", "/in/tree/d", "/in/dir", "/usr", "/etc", "/", "/dev", "/proc/sys/kernel"] {
        script.push_str(&format!("( echo x > {folder}/new ) 2>/dev/null && echo 'DONE: new file in {folder}'\n"));
    }
    script.push_str("( echo other > /proc/sys/kernel/hostname ) 2>/dev/null && echo 'DONE: sysctl'\ntrue\n");
    let mut spec = rig.spec(&sh(&["chmod", "chown", "rm", "mv", "ln", "touch", "mount", "umount"], &script));
    spec.use_folder("dir", host.path());
    let ran = rig.finish(&spec, &|| false).unwrap();
    assert_eq!(ran.ok(), "");
    assert_eq!(fs::read(host.path().join("f")).unwrap(), b"whole");
    // The shelf's file, without writing it again.
    let blob = BlobId(Digest::of(b"whole"));
    let mut bytes = Vec::new();
    rig.inputs["tree"].files.open(blob).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"whole");
}

#[test]
fn a_step_has_no_privileges_and_cannot_gain_any() {
    let text = Rig::new().sh(&["grep"], "grep -E '^(Cap|NoNewPrivs)' /proc/self/status").ok();
    for line in text.lines() {
        let (name, value) = line.split_once(':').unwrap();
        let expected = if name == "NoNewPrivs" { "1" } else { "0000000000000000" };
        assert_eq!(value.trim(), expected, "{name}");
    }
    assert_eq!(text.lines().count(), 6);
}

#[test]
fn there_is_no_network_but_an_own_loopback_unless_it_is_declared() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    let step = |network: bool| format!("argv = [\"bash\", \"-c\", {connect:?}]\nnetwork = {network}\n");
    let rig = Rig::new();
    let ran = rig.run(&step(false));
    assert!(!ran.exit.success());
    assert!(ran.text().contains("Connection refused"), "the loopback is up and nobody listens: {}", ran.text());
    let text = Rig::new().sh(&["cat"], "cat /proc/net/dev").ok();
    assert_eq!(text.lines().filter(|l| l.contains(':') && !l.contains("lo:")).count(), 0, "{text}");
    Rig::new().run(&step(true)).ok();
    listener.accept().unwrap();
}

#[test]
fn other_processes_cannot_be_seen_or_touched() {
    let me = std::process::id();
    let script = format!(
        "for p in /proc/[0-9]*; do echo $p; done; kill -0 {me} && echo KILLED; cat /proc/1/environ && echo READ; \
         (cat /proc/1/fd/3 || ls /proc/1/root || ls /proc/1/cwd) && echo OPENED; true"
    );
    let text = Rig::new().sh(&["cat", "ls"], &script).ok();
    let pids = text.lines().filter(|l| l.starts_with("/proc/") && !l.contains(' ')).count();
    assert!(pids <= 2, "{text}");
    for bad in ["KILLED", "READ", "OPENED"] {
        assert!(!text.contains(bad), "{text}");
    }
}

#[test]
fn descriptors_that_leaked_into_this_process_are_closed_inside() {
    let file = File::open("/etc/passwd").unwrap();
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let n = file.as_raw_fd();
    assert!(n > 2);
    let text = Rig::new().sh(&[], &format!("[ -e /proc/self/fd/{n} ] && echo leaked; echo end")).ok();
    assert_eq!(text, "end\n");
}

#[test]
fn nothing_stays_mounted_on_the_host() {
    let rig = Rig::new().files("a", &[("f", b"x")]);
    rig.sh(&[], "true").ok();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let scratch = rig.dir.path().to_str().unwrap();
    assert!(!mounts.contains(scratch));
    assert_eq!(fs::read_dir(rig.dir.path().join("scratch/root")).unwrap().count(), 0);
}

#[test]
fn odd_names_arrive_unchanged_and_the_manifest_tells_them_apart() {
    let names: [&[u8]; 9] = [b"a b", b"b ", b"a\nb", b"x\xff", b"x\xfe", b"-rf", b"#x", &[b'n'; 255], "é/ü".as_bytes()];
    let rig = Rig::new();
    let mut tree = Tree::new();
    for name in names {
        tree.insert(RelPath::new(name).unwrap(), rig.shelf.file(name, false)).unwrap();
    }
    tree.insert(RelPath::try_from("empty").unwrap(), Entry::EmptyDir).unwrap();
    tree.insert(RelPath::try_from("l").unwrap(), Entry::Link { target: b"a\nb".to_vec() }).unwrap();
    let input = rig.shelf.input_of("odd", tree);
    let rig = rig.with(input);
    rig.sh(&["cp"], "cp -r /in/odd /out/odd; cp /in.json /out").ok();
    let copy = rig.out().join("odd");
    for name in names {
        assert_eq!(fs::read(copy.join(RelPath::new(name).unwrap().as_path())).unwrap(), name);
    }
    assert!(copy.join("empty").is_dir());
    assert_eq!(fs::read_link(copy.join("l")).unwrap().as_os_str().as_bytes(), b"a\nb");
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(rig.out().join("in.json")).unwrap()).unwrap();
    let listed = manifest["inputs"]["odd"]["files"].as_array().unwrap();
    let from_hex = |s: &str| -> Vec<u8> {
        (0..s.len() / 2).map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap()).collect()
    };
    let mut found: Vec<Vec<u8>> = listed
        .iter()
        .map(|f| match f["path"].as_str() {
            Some(p) => p.as_bytes().to_vec(),
            None => from_hex(f["path_hex"].as_str().unwrap()),
        })
        .collect();
    found.sort();
    let mut expected: Vec<Vec<u8>> = names.iter().map(|n| n.to_vec()).collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn five_thousand_inputs_are_all_there() {
    let mut rig = Rig::new();
    for i in 0..5000 {
        let mut input = rig.shelf.input(&format!("i{i}"), &[("f", format!("{i}\n").as_bytes())]);
        input.single_file = i % 2 == 0;
        rig = rig.with(input);
    }
    let text = rig
        .sh(&["ls", "cat", "grep"], "ls /in | grep -c .; cat /in/i4998 /in/i4999/f; grep -c '\"digest\"' /in.json")
        .ok();
    assert_eq!(text, "5000\n4998\n4999\n5000\n");
}

#[test]
fn a_script_finds_its_interpreter_and_stays_executable() {
    // The test's blobs are not executable on disk: the entry says that this one is.
    let rig = Rig::new().script("s", "run.sh", "#!/usr/bin/env sh\necho \"$0 $1\"\n");
    let text = rig.run("argv = [\"{in.s}/run.sh\", \"{param.x}\"]\nparams = { x = 1.0 }").ok();
    assert_eq!(text, "/in/s/run.sh 1.0\n");
}

#[test]
fn an_input_can_be_seen_at_another_place_even_below_a_linked_folder() {
    let rig = Rig::new();
    let mut input = rig.shelf.input("lib", &[("m.sh", b"echo from $0")]);
    input.at = Some("/lib/graftwerk-test".to_owned());
    let rig = rig.with(input);
    let text = rig.run("argv = [\"sh\", \"{in.lib}/m.sh\"]").ok();
    assert_eq!(text, "from /lib/graftwerk-test/m.sh\n");
}

#[test]
fn two_inputs_at_one_place_and_places_of_the_sandbox_are_refused() {
    let refused = |first: Option<&str>, second: &str| {
        let rig = Rig::new();
        let mut a = rig.shelf.input("a", &[("f", b"")]);
        a.at = first.map(str::to_owned);
        let mut b = rig.shelf.input("b", &[("f", b"")]);
        b.at = Some(second.to_owned());
        let rig = rig.with(a).with(b);
        let step = rig.step("argv = [\"sh\"]");
        match resolve(&step, &rig.inputs, &MemoryDigests::default()) {
            Err(ToolError::Place(e)) => e.to_string(),
            Err(e) => panic!("{e}"),
            Ok(tools) => match ProcessSpec::new(&step, &rig.inputs, &tools, rig.places(), Isolation::Namespaces) {
                Err(ExecError::Place { what, .. }) => what,
                other => panic!("{other:?}"),
            },
        }
    };
    assert_eq!(refused(None, "/in/a"), "two inputs want to be at /in/a inside, `b` is the second");
    assert_eq!(refused(Some("/opt/x"), "/opt/x/y"), "an input wants to be at /opt/x/y, inside another one at /opt/x");
    assert_eq!(refused(None, "/out"), "the input `b` wants to be at /out, and /out belongs to the sandbox");
}

#[test]
fn a_program_that_is_nowhere_or_no_program_is_named() {
    let error = |rig: &Rig, toml: &str| resolve(&rig.step(toml), &rig.inputs, &MemoryDigests::default()).unwrap_err();
    let rig = Rig::new().script("s", "plain", "echo no first line\n").files("d", &[("data", b"x")]);
    let e = error(&rig, "argv = [\"no-such-program\"]");
    assert_eq!(
        e.to_string(),
        "the program `no-such-program` is neither in an input nor in /usr/local/bin:/usr/bin:/bin"
    );
    assert!(e.hint().is_some());
    let e = error(&rig, "argv = [\"{in.s}/missing\"]");
    assert_eq!(e.to_string(), "there is no file /in/s/missing inside");
    let e = error(&rig, "argv = [\"{in.s}/plain\"]");
    assert_eq!(e.to_string(), "/in/s/plain is neither a script with a #! line nor an ELF program");
    let e = error(&rig, "argv = [\"{in.d}/data\"]");
    assert_eq!(e.to_string(), "/in/d/data is not executable");
    let rig = Rig::new().script("s", "x", "#!/no/such/interpreter\n");
    let e = error(&rig, "argv = [\"{in.s}/x\"]");
    assert_eq!(e.to_string(), "there is no file /no/such/interpreter inside, and /in/s/x needs it");
}

#[test]
fn a_working_directory_that_is_not_there_is_named() {
    let e = Rig::new().try_run("argv = [\"env\"]\nworkdir = \"/no/such\"").err().unwrap();
    assert!(matches!(e, ExecError::NotStarted { .. }), "{e:?}");
    assert_eq!(e.to_string(), "cannot enter the working directory /no/such: No such file or directory (os error 2)");
}

#[test]
fn the_tools_of_a_recipe_are_program_loader_and_libraries_by_digest() {
    let rig = Rig::new();
    let tools = resolve(&rig.step("argv = [\"env\"]"), &rig.inputs, &MemoryDigests::default()).unwrap();
    let fields = tools.fields();
    assert!(fields.keys().any(|k| k.ends_with("/env")), "{fields:#?}");
    assert!(fields.keys().any(|k| k.contains("libc.so.") || k.contains("ld-musl")), "{fields:#?}");
    for (at, file) in &tools.files {
        assert_eq!(file.digest, Digest::of(&fs::read(&file.host).unwrap()), "{at}");
    }
    let again = resolve(&rig.step("argv = [\"env\", \"x\"]"), &rig.inputs, &MemoryDigests::default()).unwrap();
    assert_eq!(again.fields(), fields, "arguments are no tools");
}

#[test]
fn a_step_without_isolation_is_told_where_its_inputs_really_are() {
    let mut rig = Rig::new().files("a", &[("d/f", b"declared\n")]);
    rig.isolation = Isolation::None;
    let toml =
        "argv = [\"sh\", \"-c\", \"cat $1/d/f; cp $2 $3; env; umask\", \"x\", \"{in.a}\", \"{manifest}\", \"{out}/m\"]";
    let ran = rig.run(toml);
    assert_eq!(ran.exit.isolation, Isolation::None);
    let text = ran.ok();
    assert!(text.starts_with("declared\n") && text.ends_with("0022\n"), "{text}");
    assert!(!text.contains("CARGO"), "{text}");
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(rig.out().join("m")).unwrap()).unwrap();
    let at = manifest["inputs"]["a"]["path"].as_str().unwrap();
    assert!(Path::new(at).join("d/f").is_file());
}

#[test]
fn the_probe_says_yes_here() {
    let out = Command::new(binary()).arg("__sandbox-probe").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    assert!(text.ends_with("isolation: yes\n"), "{text}");
}

#[test]
fn all_of_this_holds_for_a_user_without_privileges() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    if !rustix::process::geteuid().is_root() {
        // Then it has just been shown.
        return;
    }
    let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let copy = |from: &Path, name: &str| {
        let to = dir.path().join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    let program = copy(&binary(), "graftwerk");
    let tests = copy(&std::env::current_exe().unwrap(), "tests");
    let scratch = dir.path().join("tmp");
    fs::create_dir(&scratch).unwrap();
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o1777)).unwrap();
    let out = Command::new(tests)
        .current_dir("/")
        .env("GRAFTWERK_TEST_BINARY", program)
        .env("TMPDIR", &scratch)
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    assert!(!text.contains(" 0 passed"), "{text}");
}
