//! How a process step ends: its exit code, its signal, its time limit, Ctrl-C and the death of graftwerk itself are
//! told apart, and in every case whatever it started is dead before anybody looks at its output.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod rig;

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use graftwerk::exec::{Ending, ExecError};
use graftwerk::model::run::Isolation;
use rig::{Rig, sh};

/// A pipe with a name in the output folder: whoever in the step holds its writing end is seen from outside.
fn pipe_in_out(rig: &Rig) -> PathBuf {
    let at = rig.out().join("alive");
    rustix::fs::mknodat(rustix::fs::CWD, &at, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    at
}

fn reader(pipe: &Path) -> File {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(pipe).unwrap()
}

/// Whether nobody has the writing end. A writer that is there and silent gives `WouldBlock`.
fn nobody_writes(mut reader: &File) -> bool {
    let mut buffer = [0; 64];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
            Err(e) => panic!("{e}"),
        }
    }
}

const BOTH: [Isolation; 2] = [Isolation::Namespaces, Isolation::None];

fn rig(isolation: Isolation) -> Rig {
    let mut rig = Rig::new();
    rig.isolation = isolation;
    rig
}

#[test]
fn exit_codes_and_signals_are_told_apart() {
    for isolation in BOTH {
        let ending = |script: &str| rig(isolation).sh(&[], script).exit.ending;
        assert_eq!(ending("exit 0"), Ending::Code(0));
        assert_eq!(ending("exit 3"), Ending::Code(3));
        assert_eq!(ending("exit 137"), Ending::Code(137));
        assert_eq!(ending("exit 255"), Ending::Code(255));
        assert_eq!(ending("kill -9 $$"), Ending::Signal(9));
        assert_eq!(ending("kill -TERM $$"), Ending::Signal(15));
        assert_eq!(ending("kill -SEGV $$"), Ending::Signal(11));
    }
    assert_eq!(Ending::Signal(11).to_string(), "was killed by signal 11 (SIGSEGV)");
    assert_eq!(Ending::Code(3).to_string(), "exited with code 3");
}

#[test]
fn a_daemon_that_outlives_its_step_is_dead_when_the_step_has_ended() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let reader = reader(&pipe_in_out(&rig));
        let script = "(setsid sh -c 'trap \"\" TERM HUP; sleep 600 & sleep 600' >$1/alive 2>&1 &) ; \
                      while ! [ -e /proc/self ]; do :; done; exit 0";
        let toml =
            format!("argv = [\"sh\", \"-c\", {script:?}, \"x\", \"{{out}}\"]\ntools = [\"sleep\", \"setsid\"]\n");
        let ran = rig.run(&toml);
        assert_eq!(ran.exit.ending, Ending::Code(0), "{}", ran.text());
        assert!(nobody_writes(&reader), "{isolation}: the daemon lives");
    }
}

#[test]
fn a_child_that_keeps_the_log_open_does_not_hold_the_step() {
    for isolation in BOTH {
        let ran = rig(isolation).sh(&["sleep"], "echo first; sleep 600 & exit 4");
        assert_eq!(ran.exit.ending, Ending::Code(4));
        assert_eq!(ran.text(), "first\n");
    }
}

#[test]
fn a_step_that_takes_too_long_is_ended_whether_it_listens_or_not() {
    for isolation in BOTH {
        for trap in ["", "trap '' TERM INT HUP; "] {
            let rig = rig(isolation);
            let reader = reader(&pipe_in_out(&rig));
            let script = format!("{trap}exec >$1/alive; sleep 600 & while :; do sleep 600; done");
            let toml =
                format!("argv = [\"sh\", \"-c\", {script:?}, \"x\", \"{{out}}\"]\ntools = [\"sleep\"]\ntimeout = 1\n");
            let mut spec = rig.spec(&toml);
            spec.timeout = Some(Duration::from_millis(300));
            spec.grace = Duration::from_millis(100);
            let ran = rig.finish(&spec, &|| false).unwrap();
            assert_eq!(ran.exit.ending, Ending::TimedOut(Duration::from_millis(300)));
            assert!(nobody_writes(&reader), "{isolation}: something lives");
        }
    }
}

#[test]
fn a_step_is_ended_when_the_build_is_being_stopped() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let reader = reader(&pipe_in_out(&rig));
        let toml = "argv = [\"sh\", \"-c\", \"echo up >$1/alive; exec >$1/alive; sleep 600\", \"x\", \"{out}\"]\n\
                    tools = [\"sleep\"]";
        let mut spec = rig.spec(toml);
        spec.grace = Duration::from_millis(100);
        // Stopped only once it is at work: at the first byte of the pipe.
        let up = Cell::new(false);
        let cancelled = || {
            let mut byte = [0];
            up.set(up.get() || matches!((&reader).read(&mut byte), Ok(1)));
            up.get()
        };
        let ran = rig.finish(&spec, &cancelled).unwrap();
        assert_eq!(ran.exit.ending, Ending::Cancelled);
        assert!(nobody_writes(&reader), "{isolation}: something lives");
    }
}

/// Not a test of its own: the process that the next test kills.
#[test]
fn a_build_that_is_going_to_be_killed() {
    let Some(dir) = std::env::var_os("GRAFTWERK_TEST_VICTIM") else { return };
    let mut rig = Rig::new();
    rig.isolation = if std::env::var_os("GRAFTWERK_TEST_BARE").is_some() { BOTH[1] } else { BOTH[0] };
    let pipe = pipe_in_out(&rig);
    fs::rename(&pipe, Path::new(&dir).join("pipe")).unwrap();
    fs::hard_link(Path::new(&dir).join("pipe"), &pipe).unwrap();
    let script = "exec >$1/alive; (setsid sh -c 'trap \"\" TERM; sleep 600' &); echo up; sleep 600";
    let toml = format!("argv = [\"sh\", \"-c\", {script:?}, \"x\", \"{{out}}\"]\ntools = [\"sleep\", \"setsid\"]\n");
    println!("ready");
    rig.run(&toml);
}

#[test]
fn kill_9_of_graftwerk_ends_the_step_and_everything_below_it() {
    for bare in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "a_build_that_is_going_to_be_killed", "--nocapture"])
            .env("GRAFTWERK_TEST_VICTIM", dir.path())
            .stdout(Stdio::piped());
        if bare {
            command.env("GRAFTWERK_TEST_BARE", "1");
        }
        let mut victim = command.spawn().unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("ready") {}
        // Opening waits for the step to open the other end.
        let pipe = File::open(dir.path().join("pipe")).unwrap();
        let mut lines = BufReader::new(pipe).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        victim.kill().unwrap();
        assert_eq!(victim.wait().unwrap().signal(), Some(9));
        // The end of the pipe comes when the last process of the step is dead, and never if one lives.
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(lines.next().is_none()));
        let end = told.recv_timeout(Duration::from_secs(60));
        assert_eq!(end, Ok(true), "bare: {bare}: something outlived graftwerk");
    }
}

#[test]
fn ten_megabytes_on_one_line_are_logged_whole_and_remembered_in_short() {
    let ran = Rig::new()
        .sh(&["head", "tr"], "head -c 10000000 /dev/zero | tr '\\0' x; echo; printf 'a\\377\\n'; echo end >&2");
    assert_eq!(ran.exit.ending, Ending::Code(0));
    assert_eq!(ran.log.len(), 10_000_001 + 3 + 4);
    assert!(ran.log.ends_with(b"xx\na\xff\nend\n"));
    let lines: Vec<&str> = ran.exit.last_lines.iter().map(String::as_str).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("xxxx") && lines[0].len() < 5000);
    assert_eq!(lines[1..], ["a\u{fffd}", "end"]);
}

#[test]
fn each_line_is_heard_while_the_step_runs() {
    let rig = Rig::new();
    let spec = rig.spec(&sh(&[], "for i in 1 2 3; do echo line $i; done; echo -n rest"));
    let heard = std::cell::RefCell::new(Vec::new());
    graftwerk::exec::run(&spec, &|| false, &|l| heard.borrow_mut().push(l.to_owned())).unwrap();
    assert_eq!(*heard.borrow(), ["line 1", "line 2", "line 3", "rest"]);
}

#[test]
fn a_log_that_cannot_be_written_ends_the_step_with_its_path() {
    let rig = Rig::new();
    let mut spec = rig.spec(&sh(&["sleep"], "echo x; sleep 600"));
    spec.grace = Duration::from_millis(10);
    spec.places.log = "/dev/full".into();
    let e = rig.finish(&spec, &|| false).err().unwrap();
    assert!(e.to_string().starts_with("cannot write the log /dev/full"), "{e}");
}

#[test]
fn a_helper_that_is_none_is_an_error_that_names_it() {
    let rig = Rig::new();
    let mut spec = rig.spec(&sh(&[], "true"));
    spec.helper = "/bin/true".into();
    let e = rig.finish(&spec, &|| false).err().unwrap();
    assert!(matches!(e, ExecError::Helper { .. }), "{e}");
    assert!(e.to_string().starts_with("the sandbox helper /bin/true ended early"), "{e}");
    assert!(graftwerk::exec::probe::isolation_works(Some(Path::new("/bin/true"))).is_err());
    graftwerk::exec::probe::isolation_works(Some(&rig::binary())).unwrap();
}

#[test]
fn an_input_that_vanished_is_an_error_that_names_it() {
    let rig = Rig::new().files("a", &[("f", b"x")]);
    let mut spec = rig.spec(&sh(&[], "true"));
    spec.use_folder("a", Path::new("/no/such/folder"));
    let e = rig.finish(&spec, &|| false).err().unwrap();
    assert!(matches!(e, ExecError::Setup { .. }), "{e}");
    assert!(e.to_string().contains("mount /no/such/folder at /in/a: No such file"), "{e}");
}
