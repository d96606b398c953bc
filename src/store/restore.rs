//! What a repair puts back: only under its own name, only where nothing is, and only what hashes right.

use std::fs;
use std::path::{Path, PathBuf};

use crate::digest::BlobId;
use crate::fsx::{self, Placed, at};
use crate::store::Store;
use crate::store::error::Result;
use crate::store::plain::Plain;
use crate::store::roots::Roots;
use crate::store::sealed::seal;
use crate::tensors::hash::hash_file;

impl Store {
    /// Copies the bytes of a blob from wherever they are to its place. False where they are not the right ones.
    pub fn restore_blob(&self, blob: BlobId, executable: bool, from: &Path) -> Result<bool> {
        let mut commit = self.commit();
        let temp = commit.temp_path();
        fsx::copy_file(from, &temp)?;
        let file = fs::File::open(&temp).map_err(at("open", &temp))?;
        let size = file.metadata().map_err(at("look at", &temp))?.len();
        if !hash_file(&file, size, false, &mut |_| {}, &|| false).is_ok_and(|h| h.blob == blob) {
            fsx::remove_file(&temp)?;
            return Ok(false);
        }
        self.place_blob(blob, executable, &temp, &mut commit)?;
        self.flush(&mut commit)?;
        Ok(true)
    }

    /// Puts a text of the store at its place; `name` is what is called that is found there and is another one.
    pub fn restore_text(&self, path: &Path, name: &str, bytes: &[u8]) -> Result<()> {
        let mut commit = self.commit();
        commit.place_text(path, name.to_owned(), bytes)?;
        self.flush(&mut commit)
    }

    /// Writes down roots that belong to no project: `roots/recovered-N.json`. They hold what they name until somebody
    /// removes them.
    pub fn put_recovered_roots(&self, roots: &Roots) -> Result<PathBuf> {
        let temp = self.temp_path();
        let text = seal(roots).map_err(at("write", &temp))?;
        fsx::write_new(&temp, &text, 0o644)?;
        fsx::fsync(&temp)?;
        let dir = self.dir.join("roots");
        fsx::create_dir_all(&dir)?;
        let mut n = 1u32;
        loop {
            let path = dir.join(format!("recovered-{n}.json"));
            if fsx::rename_noreplace(&temp, &path)? == Placed::Placed {
                fsx::fsync(&dir)?;
                return Ok(path);
            }
            n += 1;
        }
    }
}

impl Plain {
    /// The text of the VERSION that the store's objects prove: their formats, and whether records are sealed. `None` where
    /// they prove none.
    pub fn proven_version(&self) -> Result<Option<&'static str>> {
        crate::store::version::proven(&self.dir)
    }

    /// Writes VERSION.
    pub fn write_version(&self, text: &str) -> Result<()> {
        Ok(fsx::replace_file(&self.dir.join("VERSION"), text.as_bytes(), &self.dir)?)
    }
}
