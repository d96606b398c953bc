//! Archives taken apart, changed and put together again, by other means than the program's.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::Read as _;
use std::path::Path;

use graftwerk::digest::Digest;

use crate::common::Project;

pub const BLOCK: usize = 512;

/// One entry as it stands in the tar.
#[derive(Clone)]
pub struct Part {
    pub header: tar::Header,
    pub bytes: Vec<u8>,
}

pub fn part(name: &str, bytes: &[u8]) -> Part {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).unwrap();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o444);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    Part { header, bytes: bytes.to_vec() }
}

impl Part {
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.header.path_bytes()).into_owned()
    }

    /// The same with something of its header changed.
    pub fn with(mut self, change: impl FnOnce(&mut tar::Header)) -> Self {
        change(&mut self.header);
        self.header.set_cksum();
        self
    }

    /// The same under a name that no tar program would write.
    pub fn named(self, name: &str) -> Self {
        self.with(|h| {
            let field = &mut h.as_mut_bytes()[..100];
            field.fill(0);
            field[..name.len()].copy_from_slice(name.as_bytes());
        })
    }
}

pub fn tar_bytes(parts: &[Part]) -> Vec<u8> {
    let mut out = Vec::new();
    for p in parts {
        out.extend(p.header.as_bytes());
        out.extend(&p.bytes);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

pub fn packed(tar: &[u8]) -> Vec<u8> {
    sealed(zstd::stream::encode_all(tar, 3).unwrap())
}

/// With the digest behind it.
pub fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    let digest = *Digest::of(&frame).as_bytes();
    frame.extend([0x5f, 0x2a, 0x4d, 0x18, 32, 0, 0, 0]);
    frame.extend(digest);
    frame
}

pub fn parts_of(archive: &[u8]) -> Vec<Part> {
    let tar = zstd::stream::decode_all(archive).unwrap();
    let mut parts = Vec::new();
    for e in tar::Archive::new(tar.as_slice()).entries().unwrap() {
        let mut e = e.unwrap();
        let header = e.header().clone();
        let mut bytes = Vec::new();
        e.read_to_end(&mut bytes).unwrap();
        parts.push(Part { header, bytes });
    }
    parts
}

/// The manifest with its lines changed, and a sum that is right.
pub fn manifest(parts: &mut [Part], change: impl FnOnce(&mut Vec<String>)) {
    let text = String::from_utf8(parts[0].bytes.clone()).unwrap();
    let mut lines: Vec<String> = text.lines().filter(|l| !l.starts_with("sum ")).map(str::to_owned).collect();
    change(&mut lines);
    let text = lines.join("\n") + "\n";
    let text = format!("{text}sum {}\n", Digest::of(text.as_bytes()));
    parts[0] = part("graftwerk-archive", text.as_bytes());
}

/// Replaces an object by another, with everything in the manifest as it must be.
pub fn replace(parts: &mut Vec<Part>, old: &str, new: &str, bytes: &[u8]) {
    parts.retain(|p| p.name() != old);
    parts.push(part(new, bytes));
    relist(parts);
}

/// A manifest for these entries: whoever can make an archive can make that, too.
pub fn relist(parts: &mut [Part]) {
    let order = |n: &str| ["recipes/", "trees/", "tensors/", "runs/", "blobs/"].iter().position(|f| n.starts_with(f));
    parts[1..].sort_by_key(|p| (order(&p.name()), p.name()));
    let objects: Vec<String> =
        parts[1..].iter().map(|p| format!("{} {} {}", p.bytes.len(), Digest::of(&p.bytes), p.name())).collect();
    let bytes: usize = parts[1..].iter().map(|p| p.bytes.len()).sum();
    manifest(parts, |lines| {
        lines.retain(|l| l.starts_with("graftwerk") || l.starts_with("export") || l.starts_with("source"));
        lines.push(format!("objects {} {bytes}", objects.len()));
        lines.extend(objects);
    });
}

pub fn sharded(folder: &str, d: &Digest) -> String {
    format!("{folder}/{}/{}", &d.hex()[..2], &d.hex()[2..])
}

pub fn find(parts: &[Part], start: &str) -> Part {
    parts.iter().find(|p| p.name().starts_with(start)).unwrap_or_else(|| panic!("no {start}")).clone()
}

pub fn shard() -> Vec<u8> {
    let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  "#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2, 3, 4, 5, 6, 7, 8]].concat()
}

/// A good archive: two files, one of them of tensors, and the run that made them.
pub fn good() -> Vec<u8> {
    let t = tempfile::tempdir().unwrap();
    let q = Project::new(
        "[source]\nm = { folder = \"m\" }\n[node.n]\nkind = \"edit\"\ninputs.model = \"m\"\ndrop = \"gone\"\n",
    );
    q.write("m/gone", "x");
    q.write("m/a.txt", "some text");
    q.write("m/model.safetensors", shard());
    q.build();
    let out = t.path().join("a");
    let r = q.run(&["export", "n", "--archive", out.to_str().unwrap()]);
    assert_eq!(r.code, Some(0), "{}", r.stderr);
    fs::read(out).unwrap()
}

/// Everything below a folder that is no folder.
pub fn count(dir: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries.map(|e| e.unwrap()).map(|e| if e.file_type().unwrap().is_dir() { count(&e.path()) } else { 1 }).sum()
}
