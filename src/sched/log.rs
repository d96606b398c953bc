//! The log of a step, kept with its realisation.

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::fsx;

// A shorter one is kept as it is, for `cat`.
const SHORT: u64 = 4096;
const LEVEL: i32 = 3;

/// Writes what a builtin step said; a process has written its log itself, and what was found of its output goes behind
/// that. Says whether there is a log.
pub(super) fn write_log(text: &str, path: &Path) -> bool {
    if path.exists() {
        // The step's own lines are there whatever becomes of these.
        let _ = if text.is_empty() { Ok(()) } else { append_lines(path, text) };
    } else if text.is_empty() || fsx::write_new(path, text.as_bytes(), 0o444).is_err() {
        return false;
    }
    // The record will name it.
    fsx::fsync(path).is_ok() && path.parent().is_none_or(|dir| fsx::fsync(dir).is_ok())
}

fn append_lines(path: &Path, text: &str) -> std::io::Result<()> {
    let log = std::fs::File::options().read(true).append(true).open(path)?;
    let mut last = *b"\n";
    if let Some(at) = log.metadata()?.len().checked_sub(1) {
        log.read_exact_at(&mut last, at)?;
    }
    let gap = if last == *b"\n" { "" } else { "\n" };
    fsx::write_all(&log, format!("{gap}{text}").as_bytes())
}

/// Compresses the log of a step that ended well; its name from now on. One that is short, or can't be compressed, stays.
pub(super) fn compressed(path: &Path, name: String) -> String {
    let to = path.with_extension("log.zst");
    match compress(path, &to) {
        Ok(true) => {
            // Left, it is only what the other one says.
            let _ = fsx::remove_file(path);
            format!("{name}.zst")
        }
        Ok(false) => name,
        Err(_) => {
            let _ = fsx::remove_file(&to);
            name
        }
    }
}

fn compress(from: &Path, to: &Path) -> std::io::Result<bool> {
    let mut log = std::fs::File::open(from)?;
    if log.metadata()?.len() < SHORT {
        return Ok(false);
    }
    let file = fsx::create_new(to, 0o444)?;
    let mut zstd = zstd::stream::write::Encoder::new(Written(&file), LEVEL)?;
    zstd.include_checksum(true)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = log.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        std::io::Write::write_all(&mut zstd, &buffer[..n])?;
    }
    zstd.finish()?;
    fsx::fsync(to).map_err(|e| e.source)?;
    if let Some(dir) = to.parent() {
        fsx::fsync(dir).map_err(|e| e.source)?;
    }
    Ok(true)
}

// Every write passes the file-system floor.
struct Written<'f>(&'f std::fs::File);

impl std::io::Write for Written<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        fsx::write_all(self.0, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
