//! Archives that would fill memory or disk, given to the real program. One test to a file: what a child is said to have
//! had of memory at most includes what its parent had when it was started.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod hostile;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use graftwerk::digest::Digest;
use hostile::{BLOCK, Part, count, good, manifest, part, parts_of, relist, sharded, tar_bytes};

/// The exit code, what it said, and the most memory that it had at once, in bytes.
fn import_measured(store: &Path, archive: &Path) -> (i32, String, u64) {
    #[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
    let child = std::process::Command::new(common::GRAFTWERK)
        .args(["import", archive.to_str().unwrap(), "--store", store.to_str().unwrap()])
        .current_dir(store.parent().unwrap())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    let mut said = String::new();
    child.stderr.unwrap().read_to_string(&mut said).unwrap();
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which zeros are fine; wait4 writes both out-pointers, which outlive the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::wait4(pid, &raw mut status, 0, &raw mut usage), pid);
        usage
    };
    (libc::WEXITSTATUS(status), said, u64::try_from(usage.ru_maxrss).unwrap() * 1024)
}

/// A tar of these parts, the last one going on with `zeros` bytes of nothing, written as it is made.
fn bomb(path: &Path, parts: &[Part], zeros: u64) {
    let file = fs::File::create(path).unwrap();
    let mut zstd = zstd::stream::write::Encoder::new(file, 3).unwrap();
    let tar = tar_bytes(parts);
    zstd.write_all(&tar[..tar.len() - 2 * BLOCK]).unwrap();
    let nothing = vec![0; 1 << 20];
    for _ in 0..zeros >> 20 {
        zstd.write_all(&nothing).unwrap();
    }
    zstd.write_all(&[0; 2 * BLOCK]).unwrap();
    zstd.finish().unwrap();
    let digest = *Digest::of(&fs::read(path).unwrap()).as_bytes();
    let mut file = fs::File::options().append(true).open(path).unwrap();
    file.write_all(&[0x5f, 0x2a, 0x4d, 0x18, 32, 0, 0, 0]).unwrap();
    file.write_all(&digest).unwrap();
}

#[test]
fn bombs_are_refused_with_exit_code_2_and_little_memory() {
    const GIB: u64 = 1 << 30;
    let good = parts_of(&good());
    let t = tempfile::tempdir().unwrap();
    let last = good.last().unwrap().clone();
    let mut undeclared = good.clone();
    undeclared.pop();
    undeclared.push(Part { bytes: Vec::new(), ..last.clone() }.with(|h| h.set_size(GIB)));
    let long = |kind| {
        vec![
            good[0].clone(),
            part("x", b"").with(|h| {
                h.set_entry_type(kind);
                h.set_size(GIB);
            }),
        ]
    };
    let mut ended = good.clone();
    ended.push(Part { header: tar::Header::from_byte_slice(&[0; BLOCK]).clone(), bytes: vec![0; BLOCK] });
    let endless_manifest = vec![part("graftwerk-archive", b"").with(|h| h.set_size(60 << 20))];
    let zeros = 192u64 << 20;
    let mut declared = good.clone();
    declared.push(part(&sharded("blobs", &Digest::from_bytes([0xff; 32])), b""));
    relist(&mut declared);
    manifest(&mut declared, |l| {
        let i = l.len() - 1;
        l[i] =
            format!("{zeros} {} {}", Digest::from_bytes([0xff; 32]), sharded("blobs", &Digest::from_bytes([0xff; 32])));
        let n = l.iter().position(|l| l.starts_with("objects")).unwrap();
        let sum: u64 = l[n + 1..].iter().map(|l| l.split(' ').next().unwrap().parse::<u64>().unwrap()).sum();
        l[n] = format!("objects {} {sum}", l.len() - n - 1);
    });
    let i = declared.len() - 1;
    declared[i] = declared[i].clone().with(|h| h.set_size(zeros));
    for (name, told, parts, zeros) in [
        ("undeclared", "the manifest says", undeclared, GIB),
        ("a long name", "is a long name", long(tar::EntryType::GNULongName), GIB),
        ("extensions", "is a header of extensions", long(tar::EntryType::XHeader), GIB),
        ("a manifest", "not one of this version", endless_manifest, 60 << 20),
        ("a manifest without end", "are read", vec![part("graftwerk-archive", b"").with(|h| h.set_size(GIB))], GIB),
        ("declared, of another digest", "hashes to", declared, zeros),
        ("behind the end", "behind its last entry", ended, GIB),
    ] {
        let path = t.path().join("bomb");
        bomb(&path, &parts, zeros);
        let size = fs::metadata(&path).unwrap().len();
        assert!(size < 1 << 20, "{name} has {size} bytes");
        let store = t.path().join("store");
        let (code, said, memory) = import_measured(&store, &path);
        assert_eq!(code, 2, "{name}: {said}");
        assert!(said.contains(told), "{name}: {said}");
        assert!(memory < 64 << 20, "{name} took {memory} bytes");
        for folder in ["blobs", "trees", "recipes", "runs", "tmp"] {
            assert_eq!(count(&store.join(folder)), 0, "{name}: {folder}");
        }
    }
}
