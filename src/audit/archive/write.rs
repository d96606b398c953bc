//! Writing an archive: every object is hashed once more as it goes out.

use std::fs::File;
use std::io::{Read, Write};

use crate::audit::archive::closure::Closure;
use crate::audit::archive::error::{ArchiveError, Result};
use crate::audit::archive::frame::FrameWriter;
use crate::audit::archive::manifest::{Item, MANIFEST, ObjectName};
use crate::audit::archive::tarball::{BLOCK, header, padding};
use crate::digest::Digest;
use crate::fsx::at;
use crate::store::{Presence, Store, StoreError};

const PIECE: usize = 1 << 20;

/// Writes a closure to `to`. `progress` hears of bytes done, of all. Says how many bytes were written. Errors: Damaged or
/// SourceChanged where an object is not what its name says; whatever was written until then is no archive.
pub fn write(
    store: &Store,
    closure: &Closure,
    to: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
    cancelled: &dyn Fn() -> bool,
) -> Result<u64> {
    let mut out = FrameWriter::new(to).map_err(ArchiveError::Write)?;
    let text = closure.manifest();
    let total = closure.items().iter().fold(0u64, |n, i| n.saturating_add(i.size));
    put(&mut out, MANIFEST, text.as_bytes())?;
    let mut buf = vec![0u8; PIECE];
    let mut done = 0;
    for item in closure.items() {
        if cancelled() {
            return Err(StoreError::Cancelled.into());
        }
        match item.name {
            ObjectName::Blob(..) => {
                let before = done;
                let mut more = |n: u64| progress(before + n, total);
                put_blob(store, item, &mut out, &mut buf, &mut more, cancelled)?;
            }
            name => {
                let bytes = closure.text(store, name)?;
                if Digest::of(&bytes) != item.digest {
                    let path = store.dir().join(name.to_string());
                    return Err(StoreError::Damaged { path, what: "changed while it was read".to_owned() }.into());
                }
                put(&mut out, &name.to_string(), &bytes)?;
            }
        }
        done += item.size;
        progress(done, total);
    }
    out.write_all(&[0; 2 * BLOCK]).map_err(ArchiveError::Write)?;
    Ok(out.finish().map_err(ArchiveError::Write)?.1)
}

fn put(out: &mut impl Write, name: &str, bytes: &[u8]) -> Result<()> {
    let size = bytes.len() as u64;
    let h = header(name, size).map_err(ArchiveError::Write)?;
    out.write_all(h.as_bytes())
        .and_then(|()| out.write_all(bytes))
        .and_then(|()| out.write_all(&[0; BLOCK][..padding(size)]))
        .map_err(ArchiveError::Write)
}

fn put_blob(
    store: &Store,
    item: &Item,
    out: &mut impl Write,
    buf: &mut [u8],
    progress: &mut dyn FnMut(u64),
    cancelled: &dyn Fn() -> bool,
) -> Result<()> {
    let ObjectName::Blob(blob, executable) = item.name else { return Ok(()) };
    let presence = store.presence(blob, executable)?;
    let Some(path) = presence.path() else { return Err(store.gone(blob).into()) };
    let wrong = |what: String| match &presence {
        Presence::Referenced(_) => StoreError::SourceChanged { path: path.to_owned() },
        _ => StoreError::Damaged { path: path.to_owned(), what },
    };
    let mut file = File::open(path).map_err(at("open", path))?;
    let h = header(&item.name.to_string(), item.size).map_err(ArchiveError::Write)?;
    out.write_all(h.as_bytes()).map_err(ArchiveError::Write)?;
    let mut hasher = blake3::Hasher::new();
    let mut done = 0u64;
    while done < item.size {
        if cancelled() {
            return Err(StoreError::Cancelled.into());
        }
        let want = usize::try_from(item.size - done).unwrap_or(PIECE).min(buf.len());
        file.read_exact(&mut buf[..want]).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => wrong(format!("has fewer than {} bytes", item.size)),
            _ => at("read", path)(e).into(),
        })?;
        hasher.update(&buf[..want]);
        out.write_all(&buf[..want]).map_err(ArchiveError::Write)?;
        done += want as u64;
        progress(done);
    }
    let found = Digest::from(hasher.finalize());
    if found != item.digest {
        return Err(wrong(format!("hashes to {found}")).into());
    }
    out.write_all(&[0; BLOCK][..padding(item.size)]).map_err(ArchiveError::Write)
}
