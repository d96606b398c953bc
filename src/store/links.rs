//! `roots/link-<key>.json`: a symbolic link outside of the store that holds a tree, as long as it leads to its artifact.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, TreeId};
use crate::fsx;
use crate::store::Store;
use crate::store::error::Result;
use crate::store::objects::read_plain;
use crate::store::sealed::seal;

/// How the names of such files begin.
pub(crate) const PREFIX: &str = "link-";

/// A link that holds a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLink {
    path: String,
    // The path's bytes, where they are no UTF-8.
    #[serde(default)]
    path_hex: Option<String>,
    /// The tree.
    pub tree: TreeId,
}

/// How such a link stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// It leads to the tree's artifact.
    Leads,
    /// It was removed, or leads elsewhere: it holds nothing any more.
    LetGo,
    /// Nobody can tell: its folder is gone, or can't be looked into. It holds what it held.
    Unknown,
}

impl HeldLink {
    /// Where the link is.
    pub fn path(&self) -> PathBuf {
        match self.path_hex.as_deref().and_then(unhex) {
            Some(bytes) => PathBuf::from(OsString::from_vec(bytes)),
            None => PathBuf::from(&self.path),
        }
    }

    /// How it stands now.
    pub fn state(&self) -> LinkState {
        let path = self.path();
        match std::fs::read_link(&path) {
            Ok(target) if artifact_in(&target) == Some(self.tree) => LinkState::Leads,
            Ok(_) => LinkState::LetGo,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => match path.parent() {
                Some(dir) if dir.is_dir() => LinkState::LetGo,
                _ => LinkState::Unknown,
            },
            // Something that is no link.
            Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => LinkState::LetGo,
            Err(_) => LinkState::Unknown,
        }
    }
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()).collect()
}

/// The tree whose artifact a link's target names: `…/artifacts/<tree>`, whatever stands before and behind that. A store
/// may be reached by more than one path.
pub fn artifact_in(target: &Path) -> Option<TreeId> {
    let parts: Vec<Component<'_>> = target.components().collect();
    parts.windows(2).find_map(|w| {
        let [Component::Normal(folder), Component::Normal(name)] = w else { return None };
        if *folder != "artifacts" {
            return None;
        }
        Digest::from_hex(name.to_str()?).ok().map(TreeId)
    })
}

impl Store {
    fn link_file(&self, path: &Path) -> PathBuf {
        let key = Digest::of(path.as_os_str().as_bytes()).hex();
        self.dir.join("roots").join(format!("{PREFIX}{}.json", &key[..32]))
    }

    /// Has the symbolic link at `path` (absolute) hold a tree, as long as it leads to its artifact. To be called before the
    /// link is made. Errors: the disk's.
    pub fn register_link(&self, path: &Path, tree: TreeId) -> Result<()> {
        self.must_write()?;
        self.hold_trees([tree])?;
        let hex = || path.as_os_str().as_bytes().iter().map(|b| format!("{b:02x}")).collect();
        let link =
            HeldLink { path: path.to_string_lossy().into_owned(), path_hex: path.to_str().is_none().then(hex), tree };
        let file = self.link_file(path);
        let text = seal(&link).map_err(fsx::at("write", &file))?;
        if read_plain(&file)?.as_deref() != Some(&text) {
            fsx::replace_file(&file, &text, self.temp_dir())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_holds_as_long_as_it_leads_there_or_nobody_can_tell() {
        let t = tempfile::tempdir().unwrap();
        let tree = TreeId(Digest::of(b"t"));
        let at = |path: PathBuf| HeldLink { path: path.to_string_lossy().into_owned(), path_hex: None, tree };
        let path = t.path().join("l");
        let link = at(path.clone());
        assert_eq!(link.state(), LinkState::LetGo, "its folder is there, and it is not");
        std::os::unix::fs::symlink(format!("/s/artifacts/{}", tree.hex()), &path).unwrap();
        assert_eq!(link.state(), LinkState::Leads);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/s/artifacts/other", &path).unwrap();
        assert_eq!(link.state(), LinkState::LetGo);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "x").unwrap();
        assert_eq!(link.state(), LinkState::LetGo);
        assert_eq!(at(t.path().join("gone/l")).state(), LinkState::Unknown);
    }

    #[test]
    fn a_registered_link_reads_back_whatever_its_name() {
        let t = tempfile::tempdir().unwrap();
        let store = Store::open(t.path()).unwrap();
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"/x/\xff"));
        for path in [Path::new("/x/y"), odd] {
            store.register_link(path, TreeId(Digest::of(b"t"))).unwrap();
        }
        let mut paths: Vec<_> = store.survey().unwrap().links.values().map(HeldLink::path).collect();
        paths.sort();
        assert_eq!(paths, [Path::new("/x/y"), odd]);
    }
}
