//! What an ELF file says of the files that it needs. Reads headers only, by pread: a library may be gigabytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use goblin::container::Ctx;
use goblin::elf::dynamic::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRSZ, DT_STRTAB, Dynamic};
use goblin::elf::program_header::{PT_DYNAMIC, PT_INTERP, PT_LOAD, ProgramHeader};
use goblin::elf::{Elf as Parsed, header::Header};

/// The first bytes of a file, for a look at what it is.
pub(super) const HEAD_BYTES: usize = 4096;
// Far above what linkers write; a bound against damaged files.
const MAX_SECTION: u64 = 64 << 20;

/// What one ELF file needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Elf {
    /// 32 or 64 bit, byte order and machine: libraries must agree.
    pub(super) machine: (u8, u8, u16),
    /// The program interpreter, as written.
    pub(super) interpreter: Option<String>,
    /// Names of shared libraries, in order.
    pub(super) needed: Vec<String>,
    /// Search folders, as written; `rpath` is ignored where there is a `runpath`.
    pub(super) rpath: Vec<String>,
    pub(super) runpath: Vec<String>,
}

/// Reads the first bytes of a file.
pub(super) fn head(path: &Path) -> io::Result<Vec<u8>> {
    read_some(&File::open(path)?, 0, HEAD_BYTES as u64)
}

/// Whether these first bytes are those of an ELF file.
pub(super) fn is_elf(head: &[u8]) -> bool {
    head.starts_with(b"\x7fELF")
}

/// Reads what an ELF file needs; `None` where it is none. Errors: what the disk says, and `InvalidData` for a file
/// that is damaged.
pub(super) fn read(path: &Path) -> io::Result<Option<Elf>> {
    let file = File::open(path)?;
    let head = read_some(&file, 0, HEAD_BYTES as u64)?;
    if !is_elf(&head) {
        return Ok(None);
    }
    let bad = |e: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} is a damaged ELF file: {e}", path.display()))
    };
    let header = Parsed::parse_header(&head).map_err(|e| bad(&e))?;
    let ctx = context(&header).ok_or_else(|| bad(&"unknown class or byte order"))?;
    let (count, size) = (usize::from(header.e_phnum), u64::from(header.e_phentsize));
    let table = read_some(&file, header.e_phoff, count as u64 * size)?;
    let segments = ProgramHeader::parse(&table, 0, count, ctx).map_err(|e| bad(&e))?;
    let mut elf = Elf { machine: (header.e_ident[4], header.e_ident[5], header.e_machine), ..Elf::default() };
    if let Some(s) = segments.iter().find(|s| s.p_type == PT_INTERP) {
        let text = read_some(&file, s.p_offset, s.p_filesz)?;
        elf.interpreter = Some(c_string(&text, 0).ok_or_else(|| bad(&"its interpreter is no text"))?);
    }
    let Some(s) = segments.iter().find(|s| s.p_type == PT_DYNAMIC) else { return Ok(Some(elf)) };
    let bytes = read_some(&file, s.p_offset, s.p_filesz)?;
    let here = ProgramHeader { p_offset: 0, p_filesz: bytes.len() as u64, ..s.clone() };
    let Some(dynamic) = Dynamic::parse(&bytes, &[here], ctx).map_err(|e| bad(&e))? else { return Ok(Some(elf)) };
    let value = |tag: u64| dynamic.dyns.iter().find(|d| d.d_tag == tag).map(|d| d.d_val);
    let (Some(at), Some(size)) = (value(DT_STRTAB), value(DT_STRSZ)) else { return Ok(Some(elf)) };
    let load = segments
        .iter()
        .find(|s| s.p_type == PT_LOAD && s.p_vaddr <= at && at - s.p_vaddr < s.p_filesz)
        .ok_or_else(|| bad(&"its string table is in no segment"))?;
    let offset = load.p_offset.checked_add(at - load.p_vaddr).ok_or_else(|| bad(&"a segment without end"))?;
    let strings = read_some(&file, offset, size)?;
    for d in &dynamic.dyns {
        if !matches!(d.d_tag, DT_NEEDED | DT_RPATH | DT_RUNPATH) {
            continue;
        }
        let offset = usize::try_from(d.d_val).map_err(|e| bad(&e))?;
        let text = c_string(&strings, offset).ok_or_else(|| bad(&"a name that is no text"))?;
        let folders = || text.split(':').filter(|f| !f.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        match d.d_tag {
            DT_NEEDED => elf.needed.push(text),
            DT_RPATH => elf.rpath = folders(),
            _ => elf.runpath = folders(),
        }
    }
    Ok(Some(elf))
}

fn context(header: &Header) -> Option<Ctx> {
    Some(Ctx { container: header.container().ok()?, le: header.endianness().ok()? })
}

// Fewer bytes at the end of the file.
fn read_some(file: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    if len > MAX_SECTION {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a part of {len} bytes in an ELF file")));
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn c_string(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|b| *b == 0)?;
    String::from_utf8(rest[..end].to_vec()).ok()
}

/// The libraries that `ldconfig` knows, name and path, from the text of `/etc/ld.so.cache`. Those for particular
/// processors are left out: what a step sees must not depend on the processor of the machine that planned it.
pub(super) fn read_cache(bytes: &[u8]) -> Vec<(String, String)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    // An older table may stand in front of this one.
    let Some(start) = bytes.windows(MAGIC.len()).position(|w| w == MAGIC) else { return Vec::new() };
    let table = &bytes[start..];
    let word = |at: usize| Some(u32::from_ne_bytes(table.get(at..at + 4)?.try_into().ok()?));
    let count = word(20).unwrap_or(0) as usize;
    let mut found = Vec::new();
    for i in 0..count {
        let at = HEADER + i * ENTRY;
        let (Some(key), Some(value), Some(low), Some(high)) =
            (word(at + 4), word(at + 8), word(at + 16), word(at + 20))
        else {
            break;
        };
        if low == 0
            && high == 0
            && let (Some(name), Some(path)) = (c_string(table, key as usize), c_string(table, value as usize))
        {
            found.push((name, path));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_test_program_needs_an_interpreter_and_the_c_library() {
        let elf = read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(elf.interpreter.is_some_and(|i| i.starts_with('/')));
        assert!(elf.needed.iter().any(|n| n.starts_with("libc.")), "{:?}", elf.needed);
    }

    #[test]
    fn damaged_elf_files_are_errors_and_other_files_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        assert_eq!(read(&file).unwrap(), None);
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for cut in [4, 16, 63, 64, 200] {
            std::fs::write(&file, &whole[..cut]).unwrap();
            // A cut program table may hold no dynamic part any more; what matters is that nothing panics.
            let _ = read(&file);
        }
        std::fs::write(&file, &whole[..16]).unwrap();
        assert_eq!(read(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut wild = whole;
        wild[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        std::fs::write(&file, &wild).unwrap();
        let _ = read(&file);
    }

    #[test]
    fn a_cache_that_is_none_knows_nothing() {
        assert!(read_cache(b"").is_empty());
        assert!(read_cache(b"glibc-ld.so.cache1.1\xff\xff\xff\xff").is_empty());
    }
}
