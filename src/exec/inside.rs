//! What a path means inside, before anything is mounted: an input's file, or one of the host's.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::exec::ExecError;
use crate::kinds::Input;
use crate::model::path::RelPath;
use crate::model::tree::Entry;

// Places that are not the caller's to fill.
const TAKEN: &[&str] = &["/proc", "/dev", "/sys", "/tmp", "/out", "/in.json"];
// As the kernel counts them.
const MAX_LINKS: usize = 40;

/// Looks at the place that an input wants. Errors: [`ExecError::Place`] for an alias that is no file name, a path that
/// is relative or not plain, and one that belongs to the sandbox itself.
pub(super) fn free_place(alias: &str, at: &str) -> Result<String, ExecError> {
    let place = |what: String, hint: &str| Err(ExecError::Place { what, hint: hint.to_owned() });
    if alias.is_empty() || alias.contains(['/', '\0']) || matches!(alias, "." | "..") {
        return place(format!("{alias:?} can't be a file name inside"), "give the input another alias");
    }
    let plain = at.strip_prefix('/').is_some_and(|rest| RelPath::try_from(rest).is_ok());
    if !plain {
        let hint = "write an absolute path without `.`, `..` or a slash at its end";
        return place(format!("the input `{alias}` can't be at {at:?}"), hint);
    }
    let below = |a: &str, b: &str| a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
    if let Some(taken) = TAKEN.iter().find(|t| below(at, t) || below(t, at)).or((at == "/in").then_some(&"/in")) {
        return place(
            format!("the input `{alias}` wants to be at {at}, and {taken} belongs to the sandbox"),
            "give it another `at`",
        );
    }
    Ok(at.to_owned())
}

/// The path with links in its folders followed, as `links` has them.
pub(super) fn resolve_links(at: &str, links: &BTreeMap<String, String>) -> String {
    let mut at = at.to_owned();
    for _ in 0..MAX_LINKS {
        let ends = at.match_indices('/').map(|(i, _)| i).filter(|i| *i > 0);
        let found = ends.clone().find_map(|i| links.get(&at[..i]).map(|target| (i, target.clone())));
        let Some((i, target)) = found else { return at };
        let Some(whole) = join(parent(&at[..i]), &target) else { return at };
        at = format!("{}{}", whole.trim_end_matches('/'), &at[i..]);
    }
    at
}

fn parent(path: &str) -> &str {
    path.rfind('/').map_or("", |i| &path[..i])
}

// `folder` joined with a link's target, `.` and `..` taken away by their letters: right where folders are no links.
fn join(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> =
        if target.starts_with('/') { Vec::new() } else { folder.split('/').filter(|p| !p.is_empty()).collect() };
    for p in target.split('/') {
        match p {
            "" | "." => {}
            ".." => _ = parts.pop(),
            p => parts.push(p),
        }
    }
    Some(format!("/{}", parts.join("/")))
}

/// A file as a step would find it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The path inside, all links followed.
    pub(super) real: String,
    /// Links of the host on the way: path inside → target.
    pub(super) links: Vec<(String, String)>,
    /// Where its bytes are on the host.
    pub(super) host: PathBuf,
    pub(super) executable: bool,
    /// Whether it is an input's: then it is there already.
    pub(super) of_input: bool,
}

/// The inputs by place, in front of the host's file system.
pub(super) struct Inside<'a> {
    inputs: Vec<(String, &'a Input)>,
}

enum Here<'a> {
    Folder,
    File { host: PathBuf, executable: bool },
    Link(String),
    HostLink(String),
    Entry(&'a Input, &'a Entry),
    Nothing,
}

impl<'a> Inside<'a> {
    pub(super) fn new(inputs: &'a BTreeMap<String, Input>) -> Result<Self, ExecError> {
        let mut list = Vec::new();
        for (alias, input) in inputs {
            let at = free_place(alias, input.at.as_deref().unwrap_or(&format!("/in/{alias}")))?;
            // As the host has the folders above it: that is how links of the host lead there.
            let folder = parent(&at);
            let real = fs::canonicalize(if folder.is_empty() { "/" } else { folder }).ok();
            let real = real.as_deref().and_then(Path::to_str).map_or(folder, |r| r.trim_end_matches('/')).to_owned();
            list.push((format!("{real}{}", &at[folder.len()..]), input));
        }
        Ok(Self { inputs: list })
    }

    /// Whether an input is at `path`, or below it.
    pub(super) fn leads_to_input(&self, path: &str) -> bool {
        self.inputs.iter().any(|(at, _)| at.strip_prefix(path).is_some_and(|r| r.is_empty() || r.starts_with('/')))
    }

    /// Finds the file at an absolute path. `None` where there is none, or something else. Errors: what the disk says,
    /// other than that.
    pub(super) fn find(&self, path: &str) -> io::Result<Option<Found>> {
        let mut todo: Vec<String> = components(path);
        let mut done = String::new();
        let mut links = Vec::new();
        let mut followed = 0;
        while let Some(next) = todo.pop() {
            if next == ".." {
                done.truncate(parent(&done).len());
                continue;
            }
            let here = format!("{done}/{next}");
            let target = match self.look(&here)? {
                Here::Nothing => return Ok(None),
                Here::Folder => {
                    done = here;
                    continue;
                }
                Here::File { host, executable } if todo.is_empty() => {
                    return Ok(Some(Found { real: here, links, host, executable, of_input: false }));
                }
                Here::Entry(input, Entry::File { blob, executable, .. }) if todo.is_empty() => {
                    let (host, executable) = (input.files.location(*blob)?, *executable);
                    return Ok(Some(Found { real: here, links, host, executable, of_input: true }));
                }
                Here::File { .. } | Here::Entry(..) => return Ok(None),
                Here::HostLink(target) => {
                    links.push((here, target.clone()));
                    target
                }
                Here::Link(target) => target,
            };
            followed += 1;
            if followed > MAX_LINKS {
                return Ok(None);
            }
            if target.starts_with('/') {
                done.clear();
            }
            todo.extend(components(&target));
        }
        Ok(None)
    }

    fn look(&self, path: &str) -> io::Result<Here<'a>> {
        for (at, input) in &self.inputs {
            let Some(rest) = path.strip_prefix(at.as_str()) else { continue };
            if input.single_file {
                if rest.is_empty() {
                    let entry = input.tree.iter().map(|(_, e)| e).find(|e| matches!(e, Entry::File { .. }));
                    return Ok(entry.map_or(Here::Nothing, |e| Here::Entry(input, e)));
                }
                continue;
            }
            let Some(below) = rest.strip_prefix('/') else {
                if rest.is_empty() {
                    return Ok(Here::Folder);
                }
                continue;
            };
            return Ok(match input.tree.at(below) {
                Some(Entry::EmptyDir) => Here::Folder,
                Some(Entry::Link { target }) => match std::str::from_utf8(target) {
                    Ok(t) => Here::Link(t.to_owned()),
                    Err(_) => Here::Nothing,
                },
                Some(e) => Here::Entry(input, e),
                None if input.tree.iter().any(|(p, _)| is_below(p, below)) => Here::Folder,
                None => Here::Nothing,
            });
        }
        let meta = match fs::symlink_metadata(path) {
            Ok(m) => m,
            Err(_) if self.leads_to_input(path) => return Ok(Here::Folder),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Here::Nothing);
            }
            Err(e) => return Err(e),
        };
        if meta.is_symlink() {
            let target = fs::read_link(path)?;
            return Ok(target.to_str().map_or(Here::Nothing, |t| Here::HostLink(t.to_owned())));
        }
        if meta.is_dir() {
            return Ok(Here::Folder);
        }
        if !meta.is_file() {
            return Ok(Here::Nothing);
        }
        Ok(Here::File { host: PathBuf::from(path), executable: meta.permissions().mode() & 0o111 != 0 })
    }
}

// Last one first: the next one is popped.
fn components(path: &str) -> Vec<String> {
    path.split('/').rev().filter(|p| !p.is_empty() && *p != ".").map(str::to_owned).collect()
}

fn is_below(path: &RelPath, folder: &str) -> bool {
    path.as_bytes().strip_prefix(folder.as_bytes()).is_some_and(|r| r.first() == Some(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_the_sandbox_and_odd_ones_are_refused() {
        for bad in ["/", "/proc", "/dev/null", "/tmp/x", "/out", "/in.json", "/in", "x", "/a/../b", "/a/", "/a//b", ""]
        {
            assert!(free_place("a", bad).is_err(), "{bad}");
        }
        for good in ["/in/a", "/usr/lib/python3.11", "/outer", "/tmpfiles"] {
            assert_eq!(free_place("a", good).unwrap(), good);
        }
        for alias in ["", ".", "..", "a/b"] {
            assert!(free_place(alias, "/in/a").is_err(), "{alias}");
        }
    }

    #[test]
    fn folders_that_are_links_are_followed() {
        let links = [("/lib".to_owned(), "usr/lib".to_owned()), ("/usr/lib/a".to_owned(), "../share/b".to_owned())];
        let links = links.into();
        assert_eq!(resolve_links("/lib/python3", &links), "/usr/lib/python3");
        assert_eq!(resolve_links("/lib/a/x", &links), "/usr/share/b/x");
        assert_eq!(resolve_links("/library/x", &links), "/library/x");
        let around = [("/a".to_owned(), "b".to_owned()), ("/b".to_owned(), "a".to_owned())].into();
        resolve_links("/a/x", &around);
    }
}
