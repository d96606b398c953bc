//! The host's programs that a command needs: each with its links, its interpreter and its shared libraries, by digest.
//!
//! They are the `tools` of a recipe, and the only files of the host inside besides the inputs. Nothing is executed to
//! find them: scripts are read for their `#!` line, ELF files for their interpreter and libraries, which are looked for
//! as the loader does (RPATH, LD_LIBRARY_PATH, RUNPATH, the loader's cache, its own folders), each path as it will mean
//! inside: an input's file wins over the host's.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::digest::Digest;
use crate::exec::ExecError;
use crate::exec::closure::Closure;
use crate::exec::inside::Inside;
use crate::exec::spec::PATH;
use crate::fsx::stat::FileStat;
use crate::kinds::command::{Layout, Text};
use crate::kinds::{Input, ProcessStep};

/// Hashes files of the host. The engine puts its stat cache behind it.
pub trait FileDigests {
    /// BLAKE3 of the file's bytes.
    fn digest(&self, path: &Path) -> io::Result<Digest>;
}

/// Hashes each file once, as long as its stat stays what it was.
#[derive(Default)]
pub struct MemoryDigests(Mutex<BTreeMap<(u64, u64), (FileStat, Digest)>>);

impl FileDigests for MemoryDigests {
    fn digest(&self, path: &Path) -> io::Result<Digest> {
        let stat = FileStat::of(&std::fs::metadata(path)?);
        let lock = || self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((old, digest)) = lock().get(&(stat.dev, stat.ino))
            && *old == stat
        {
            return Ok(*digest);
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(std::fs::File::open(path)?)?;
        let digest = Digest::from(hasher.finalize());
        lock().insert((stat.dev, stat.ino), (stat, digest));
        Ok(digest)
    }
}

/// A file of the host that is seen inside at its own path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFile {
    /// Where it is on the host.
    pub host: PathBuf,
    /// BLAKE3 of its bytes.
    pub digest: Digest,
    /// Whether it is executable.
    pub executable: bool,
}

/// Everything of the host that a command needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tools {
    /// The path inside of the program to execute.
    pub program: String,
    /// Path inside → file.
    pub files: BTreeMap<String, ToolFile>,
    /// Path inside → target of a link.
    pub links: BTreeMap<String, String>,
}

impl Tools {
    /// The fields of a recipe: path inside → digest; a link has its target in its name too.
    pub fn fields(&self) -> BTreeMap<String, Digest> {
        let files = self.files.iter().map(|(at, f)| (at.clone(), f.digest));
        let links = self.links.iter().map(|(at, t)| (format!("{at} -> {t}"), Digest::of(t.as_bytes())));
        files.chain(links).collect()
    }
}

/// Why a program can't be made available inside.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It is nowhere.
    #[error("the program `{name}` is neither in an input nor in {path}")]
    NotFound {
        /// Its name.
        name: String,
        /// The search path.
        path: String,
    },
    /// It is at no such path.
    #[error("there is no file {path} inside{}", because(.of.as_deref()))]
    NoFile {
        /// The path inside.
        path: String,
        /// What names it.
        of: Option<String>,
    },
    /// A library is nowhere.
    #[error("the library {name} is nowhere, and {of} needs it")]
    NoLibrary {
        /// Its name.
        name: String,
        /// What needs it.
        of: String,
    },
    /// It can't be executed.
    #[error("{path} {what}")]
    NotExecutable {
        /// The path inside.
        path: String,
        /// Why not.
        what: &'static str,
    },
    /// It is where the sandbox has something of its own.
    #[error("{path} can't be seen inside: the sandbox has a folder of its own there")]
    Hidden {
        /// The path on the host.
        path: String,
    },
    /// The disk said no.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// An input wants an impossible place.
    #[error(transparent)]
    Place(#[from] ExecError),
}

fn because(of: Option<&str>) -> String {
    of.map_or_else(String::new, |of| format!(", and {of} needs it"))
}

impl ToolError {
    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotFound { .. } => "install it there, name it by its absolute path, or declare its folder as a source".into(),
            Self::NoFile { .. } => "only inputs and declared tools exist inside".to_owned(),
            Self::NoLibrary { .. } => "install it, or declare its folder as a source with `at`".to_owned(),
            Self::NotExecutable { .. } => {
                "a script needs `chmod +x` and a first line such as #!/usr/bin/env python3, or name its interpreter first"
                    .to_owned()
            }
            Self::Hidden { .. } => "declare its folder as a source".to_owned(),
            Self::Io { .. } => return None,
            Self::Place(e) => return e.hint(),
        })
    }
}

/// Finds everything of the host that a step needs: its program, the programs in `tools`, and for each the links,
/// interpreters and libraries. Errors: [`ToolError`].
pub fn resolve(
    step: &ProcessStep,
    inputs: &BTreeMap<String, Input>,
    digests: &dyn FileDigests,
) -> Result<Tools, ToolError> {
    let layout = Layout::inside(inputs);
    let variable = |name: &str| step.env.get(name).map(|t: &Text| t.render(&layout));
    let library_path = variable("LD_LIBRARY_PATH").unwrap_or_default();
    let path = variable("PATH").unwrap_or_else(|| PATH.to_owned());
    let mut closure = Closure::new(Inside::new(inputs)?, digests, path, &library_path);
    let name = step.argv.first().map(|t| t.render(&layout)).unwrap_or_default();
    let program = closure.program(&name)?;
    for tool in &step.tools {
        closure.tool(tool)?;
    }
    Ok(Tools { program, ..closure.finish()? })
}

/// A program of the host with its interpreter and libraries, wherever it lies: it will be seen at a place of its own.
/// Errors: [`ToolError`].
pub(super) fn of_host(program: &Path, digests: &dyn FileDigests) -> Result<Tools, ToolError> {
    let none = BTreeMap::new();
    let mut closure = Closure::new(Inside::new(&none)?, digests, PATH.to_owned(), "").seen_elsewhere();
    let program = closure.program(&program.to_string_lossy())?;
    Ok(Tools { program, ..closure.finish()? })
}
