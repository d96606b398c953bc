//! A plain folder, or one safetensors file, as a side: nothing of it is hashed before somebody asks.

use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::diff::side::{Side, SideFile, is_safetensors, note_of};
use crate::fsx::at;
use crate::model::path::RelPath;
use crate::store::error::Result;
use crate::store::source::{look_at_file, walk};
use crate::tensors::hash::HashError;
use crate::tensors::header::Header;

impl Side {
    /// The folder, links followed, or the one file at `path`. A safetensors file that is broken is compared as bytes,
    /// with a note. Errors: a folder that can't be read whole.
    pub fn of_path(name: &str, path: &Path) -> Result<Self> {
        let mut side = Self::new(name);
        let (found, empty) = if path.is_dir() {
            walk(path, &|rel, _| rel.as_bytes() == b".git" || rel.file_name() == b"__pycache__")?
        } else {
            let mut one = look_at_file(path)?;
            if let Some(own) = path.file_name().and_then(|n| RelPath::new(n.as_bytes()).ok()) {
                one.rel = own;
            }
            (vec![one], Vec::new())
        };
        for f in found {
            if is_safetensors(&f.rel) {
                let file = File::open(&f.path).map_err(at("open", &f.path))?;
                match Header::read(&file, f.stat.size) {
                    Ok(header) => side.take_header(&f.rel, header),
                    Err(e) => side.notes.push(note_of(&f.rel, &HashError::Header(e))),
                }
            }
            let file = SideFile::File { size: f.stat.size, executable: f.executable, blob: None, path: Some(f.path) };
            side.files.insert(f.rel, file);
        }
        side.files.extend(empty.into_iter().map(|d| (d, SideFile::EmptyDir)));
        Ok(side)
    }
}
