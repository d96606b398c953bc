//! A command and everything that it sees, ready to run.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::digest::BlobId;
use crate::exec::ExecError;
use crate::exec::inside::{free_place, resolve_links};
use crate::exec::tools::Tools;
use crate::fsx;
use crate::kinds::command::{Layout, Text, manifest};
use crate::kinds::{Input, ProcessStep};
use crate::model::path::RelPath;
use crate::model::run::Isolation;
use crate::model::tree::Entry;

/// The search path of a step, unless it declares another.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Folders and files of the host that belong to one attempt.
#[derive(Debug, Clone)]
pub struct Places {
    /// An empty folder that becomes `/out`.
    pub out: PathBuf,
    /// An empty folder for everything else that the attempt needs: `/tmp`, the manifest, a mount point.
    pub scratch: PathBuf,
    /// The log that is written: stdout and stderr, whole.
    pub log: PathBuf,
}

/// Something of the host that is seen inside.
#[derive(Debug, Clone, PartialEq)]
pub enum MountSource {
    /// A file.
    File {
        /// Where it is on the host.
        host: PathBuf,
        /// Whether it must be executable inside.
        executable: bool,
    },
    /// A folder that already looks right, links in it included (a link to an absolute path leads nowhere inside). One
    /// mount, whatever it holds.
    Dir(PathBuf),
    /// A folder to be built from files at various places: a mount a file.
    Tree(Vec<(RelPath, TreeEntry)>),
}

/// An entry of a folder to be built.
#[derive(Debug, Clone, PartialEq)]
pub enum TreeEntry {
    /// A file.
    File {
        /// Where it is on the host.
        host: PathBuf,
        /// Whether it must be executable inside.
        executable: bool,
    },
    /// A link with this target.
    Link(Vec<u8>),
    /// A folder with nothing in it.
    EmptyDir,
}

/// A command and everything that it sees. Fields may be changed before it is run.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    /// The program: a path inside, or the host's where there is no isolation.
    pub program: String,
    /// Arguments, the program's name first.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub workdir: String,
    /// Whether the host's network is there.
    pub network: bool,
    /// Path inside → what is seen there, read-only.
    pub mounts: BTreeMap<String, MountSource>,
    /// Links inside: path → target.
    pub links: BTreeMap<String, String>,
    /// Text of the manifest.
    pub manifest: String,
    /// The host's folders.
    pub places: Places,
    /// Ended after this time, if there is a limit.
    pub timeout: Option<Duration>,
    /// How long a step that is asked to end may take before it is killed.
    pub grace: Duration,
    /// Namespaces, a container, or none at all.
    pub isolation: Isolation,
    /// The names of the variables that the step declares.
    pub declared_env: std::collections::BTreeSet<String>,
    /// Where the step's things are.
    pub layout: Layout,
    /// Variables that hold secrets: set inside, by our own program, and nowhere else.
    pub secret_env: BTreeMap<String, Text>,
    /// The program to start as helper: `graftwerk` itself.
    pub helper: PathBuf,
    aliases: BTreeMap<String, String>,
}

impl ProcessSpec {
    /// Puts a step together. With [`Isolation::None`] nothing is mounted: places are real ones of the host, below the
    /// scratch folder. Errors: [`ExecError::Place`] where two inputs want one
    /// place or one that is not free; [`ExecError::Io`] where a blob is nowhere.
    pub fn new(
        step: &ProcessStep,
        inputs: &BTreeMap<String, Input>,
        tools: &Tools,
        places: Places,
        isolation: Isolation,
    ) -> Result<Self, ExecError> {
        let isolation = match isolation {
            Isolation::Builtin => Isolation::Namespaces,
            other => other,
        };
        let layout = match isolation {
            Isolation::None => bare_layout(inputs, &places)?,
            _ => Layout::inside(inputs),
        };
        let mut mounts = BTreeMap::new();
        let mut aliases = BTreeMap::new();
        for (alias, input) in inputs {
            let declared = layout.inputs.get(alias).cloned().unwrap_or_default();
            let at = match isolation {
                Isolation::None => declared,
                _ => resolve_links(&free_place(alias, &declared)?, &tools.links),
            };
            aliases.insert(alias.clone(), at.clone());
            if mounts.insert(at.clone(), source_of(input)?).is_some() {
                return Err(ExecError::Place {
                    what: format!("two inputs want to be at {at} inside, `{alias}` is the second"),
                    hint: "give one of them another `at`".to_owned(),
                });
            }
        }
        nesting(&mounts)?;
        let mut links = BTreeMap::new();
        if isolation != Isolation::None {
            for (at, file) in &tools.files {
                let source = MountSource::File { host: file.host.clone(), executable: file.executable };
                mounts.entry(at.clone()).or_insert(source);
            }
            links.clone_from(&tools.links);
        }
        let render = |t: &Text| t.render(&layout);
        let argv: Vec<String> = step.argv.iter().map(render).collect();
        let mut env = fixed_environment(&layout.tmp);
        let (secret_env, plain): (BTreeMap<_, _>, BTreeMap<_, _>) =
            step.env.clone().into_iter().partition(|(_, text)| text.is_secret());
        env.extend(plain.iter().map(|(k, v)| (k.clone(), render(v))));
        let program = match isolation {
            Isolation::None => bare_program(&argv, &env),
            // Which of the image's programs that is, is found inside.
            Isolation::Container => argv.first().cloned().unwrap_or_default(),
            _ => tools.program.clone(),
        };
        Ok(Self {
            program,
            workdir: step.workdir.as_ref().map_or_else(|| layout.tmp.clone(), render),
            argv,
            env,
            network: step.network,
            mounts,
            links,
            manifest: manifest(inputs, &step.params, &layout),
            layout,
            places,
            timeout: step.timeout_seconds.map(Duration::from_secs),
            grace: Duration::from_secs(10),
            isolation,
            declared_env: step.env.keys().cloned().collect(),
            secret_env,
            helper: PathBuf::from("/proc/self/exe"),
            aliases,
        })
    }

    /// Takes a folder of the host that already looks like the input, instead of building one: a single mount.
    pub fn use_folder(&mut self, alias: &str, dir: &Path) {
        if let Some(at) = self.aliases.get(alias) {
            self.mounts.insert(at.clone(), MountSource::Dir(dir.to_path_buf()));
        }
    }
}

/// The environment of every step: the same on every machine, for every user.
pub fn fixed_environment(tmp: &str) -> BTreeMap<String, String> {
    [
        ("PATH", PATH),
        ("HOME", tmp),
        ("TMPDIR", tmp),
        ("LANG", "C.UTF-8"),
        ("LC_ALL", "C.UTF-8"),
        ("TZ", "UTC"),
        ("USER", "graftwerk"),
        ("LOGNAME", "graftwerk"),
        ("HOSTNAME", "graftwerk"),
    ]
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .into()
}

fn source_of(input: &Input) -> Result<MountSource, ExecError> {
    let at = |blob: BlobId, path: &RelPath| {
        let what = format!("cannot find {path} of the input `{}` ({})", input.alias, blob.short());
        input.files.location(blob).map_err(ExecError::io(what))
    };
    if input.single_file {
        let mut files = input.tree.files();
        let (Some((path, blob, _, executable)), None) = (files.next(), files.next()) else {
            return Err(ExecError::Place {
                what: format!(
                    "the input `{}` is to be a single file and its tree holds {}",
                    input.alias,
                    input.tree.len()
                ),
                hint: "declare it as a folder".to_owned(),
            });
        };
        return Ok(MountSource::File { host: at(blob, path)?, executable });
    }
    let entry = |(path, e): (&RelPath, &Entry)| {
        let e = match e {
            Entry::File { blob, executable, .. } => TreeEntry::File { host: at(*blob, path)?, executable: *executable },
            Entry::Link { target } => TreeEntry::Link(target.clone()),
            Entry::EmptyDir => TreeEntry::EmptyDir,
        };
        Ok((path.clone(), e))
    };
    Ok(MountSource::Tree(input.tree.iter().map(entry).collect::<Result<_, ExecError>>()?))
}

fn nesting(mounts: &BTreeMap<String, MountSource>) -> Result<(), ExecError> {
    for at in mounts.keys() {
        let mut up = Path::new(at).parent();
        while let Some(p) = up {
            if p.to_str().is_some_and(|p| mounts.contains_key(p)) {
                return Err(ExecError::Place {
                    what: format!("an input wants to be at {at}, inside another one at {}", p.display()),
                    hint: "give one of them another `at`".to_owned(),
                });
            }
            up = p.parent();
        }
    }
    Ok(())
}

// Without a mount namespace an input can't be at /in/NAME, nor at its `at`: it is below the scratch folder.
fn bare_layout(inputs: &BTreeMap<String, Input>, places: &Places) -> Result<Layout, ExecError> {
    let text = |p: &Path| -> Result<String, ExecError> {
        let p = std::path::absolute(p).map_err(ExecError::io(format!("cannot find {}", p.display())))?;
        p.to_str().map(str::to_owned).ok_or_else(|| ExecError::Place {
            what: format!("{} is not UTF-8, and a step without isolation has to be told of it", p.display()),
            hint: "use a store whose path is UTF-8".to_owned(),
        })
    };
    let scratch = text(&places.scratch)?;
    let mut at = BTreeMap::new();
    for alias in inputs.keys() {
        free_place(alias, &format!("/in/{alias}"))?;
        at.insert(alias.clone(), format!("{scratch}/in/{alias}"));
    }
    Ok(Layout {
        inputs: at,
        out: text(&places.out)?,
        manifest: format!("{scratch}/in.json"),
        tmp: format!("{scratch}/tmp"),
    })
}

// As execvp does it. What is found nowhere keeps its name, and the error names it.
fn bare_program(argv: &[String], env: &BTreeMap<String, String>) -> String {
    let name = argv.first().cloned().unwrap_or_default();
    if name.contains('/') {
        return name;
    }
    let path = env.get("PATH").map_or(PATH, String::as_str);
    let found = path.split(':').map(|d| format!("{d}/{name}")).find(|p| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(p).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    });
    found.unwrap_or(name)
}

/// Puts the inputs of a step without isolation in place: links below `scratch/in`.
pub(super) fn link_inputs(mounts: &BTreeMap<String, MountSource>) -> Result<(), ExecError> {
    let symlink = |from: &Path, to: &Path| fsx::symlink(from, to).map_err(|e| e.source);
    let link = |from: &Path, to: &Path| {
        let from = std::path::absolute(from).unwrap_or_else(|_| from.to_path_buf());
        symlink(&from, to).map_err(ExecError::io(format!("cannot link {} at {}", from.display(), to.display())))
    };
    let folder = |p: &Path| {
        let made = fsx::create_dir_all(p).map_err(|e| e.source);
        made.map_err(ExecError::io(format!("cannot make the folder {}", p.display())))
    };
    for (at, source) in mounts {
        let at = Path::new(at);
        if let Some(parent) = at.parent() {
            folder(parent)?;
        }
        match source {
            MountSource::File { host, .. } => link(host, at)?,
            MountSource::Dir(dir) => link(dir, at)?,
            MountSource::Tree(entries) => {
                folder(at)?;
                for (path, entry) in entries {
                    let here = at.join(path.as_path());
                    if let Some(parent) = here.parent() {
                        folder(parent)?;
                    }
                    match entry {
                        TreeEntry::File { host, .. } => link(host, &here)?,
                        TreeEntry::Link(target) => {
                            symlink(Path::new(std::ffi::OsStr::from_bytes(target)), &here)
                                .map_err(ExecError::io(format!("cannot make the link {}", here.display())))?;
                        }
                        TreeEntry::EmptyDir => folder(&here)?,
                    }
                }
            }
        }
    }
    Ok(())
}
