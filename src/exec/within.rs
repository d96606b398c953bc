//! This program inside a step's container: it sets what the engine must not be told, looks for the GPU, and becomes the
//! step. It comes with its own loader and libraries, so that any image will do.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde::{Deserialize, Serialize};

use crate::exec::tools::{FileDigests, ToolError};
use crate::exec::{RECLAIM_ARGUMENT, WITHIN_ARGUMENT, tools};
use crate::fsx;
use crate::kinds::command::{Layout, Part, Text};

/// Where our program, its loader and its libraries are inside.
pub const PLACE: &str = "/.graftwerk";
/// Where a step's secrets are inside.
pub const SECRETS: &str = "/run/secrets";
// What the step's container ends with where the step could not be begun.
const NOT_BEGUN: u8 = 125;

/// What is to be done before the step begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// Variables whose values hold secrets, piece by piece.
    pub env: BTreeMap<String, Vec<Piece>>,
    /// How many GPUs must be there and let themselves be opened.
    pub gpus: u32,
}

/// A piece of a variable's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// As it stands.
    Text(String),
    /// What this secret's file holds.
    Secret(String),
}

impl Orders {
    /// With these variables.
    pub fn new(secret_env: &BTreeMap<String, Text>, layout: &Layout, gpus: u32) -> Self {
        let piece = |part: &Part| match part {
            Part::Secret(name) => Piece::Secret(name.clone()),
            other => Piece::Text(Text(vec![other.clone()]).render(layout)),
        };
        let env = secret_env.iter().map(|(k, text)| (k.clone(), text.0.iter().map(piece).collect()));
        Self { env: env.collect(), gpus }
    }

    /// Whether there is anything to do.
    pub fn is_empty(&self) -> bool {
        self.env.is_empty() && self.gpus == 0
    }
}

/// Our program for a container: what is mounted, and how it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Companion {
    /// File of the host → place inside.
    pub files: Vec<(PathBuf, String)>,
    /// The words before its arguments.
    pub call: Vec<String>,
}

impl Companion {
    /// This program with everything that it needs of the host. Errors: [`ToolError`].
    pub fn find(digests: &dyn FileDigests) -> Result<Self, ToolError> {
        let own = std::fs::canonicalize("/proc/self/exe")
            .map_err(|source| ToolError::Io { path: "/proc/self/exe".to_owned(), source })?;
        let found = tools::of_host(&own, digests)?;
        let program = format!("{PLACE}/graftwerk");
        let (mut files, mut loader) = (vec![(own.clone(), program.clone())], None);
        for (at, file) in &found.files {
            let name = Path::new(at).file_name().unwrap_or_default().to_string_lossy().into_owned();
            if file.host == own {
                continue;
            }
            let place = format!("{PLACE}/lib/{name}");
            if name.starts_with("ld-") {
                loader = Some(place.clone());
            }
            files.push((file.host.clone(), place));
        }
        // A library is asked for by its link's name.
        for (link, target) in &found.links {
            let (link, target) = (Path::new(link), Path::new(target));
            let Some(name) = link.file_name().filter(|n| n.to_string_lossy().contains(".so")) else { continue };
            let real = link.parent().unwrap_or(Path::new("/")).join(target);
            if let Ok(real) = std::fs::canonicalize(real).or_else(|_| std::fs::canonicalize(link))
                && real.is_file()
            {
                let place = format!("{PLACE}/lib/{}", name.to_string_lossy());
                if files.iter().all(|f| f.1 != place) {
                    files.push((real, place));
                }
            }
        }
        let call = match loader {
            Some(l) => vec![l, "--library-path".to_owned(), format!("{PLACE}/lib"), program],
            None => vec![program],
        };
        Ok(Self { files, call })
    }

    /// The command that runs `argv` after the orders in the file at [`PLACE`]`/orders.json` were followed.
    pub fn before(&self, argv: &[String]) -> Vec<String> {
        let mut all = self.call.clone();
        all.push(WITHIN_ARGUMENT.to_owned());
        all.extend_from_slice(argv);
        all
    }

    /// The command that gives everything below `folders` to a user.
    pub fn reclaim(&self, uid: u32, gid: u32, folders: &[&str]) -> Vec<String> {
        let mut all = self.call.clone();
        all.extend([RECLAIM_ARGUMENT.to_owned(), uid.to_string(), gid.to_string()]);
        all.extend(folders.iter().map(|f| (*f).to_owned()));
        all
    }
}

/// The hidden command that becomes the step.
pub(super) fn main() -> ExitCode {
    let mut argv = std::env::args_os().skip(2);
    let Some(program) = argv.next() else { return give_up("no program is given") };
    let orders: Orders = match std::fs::read(format!("{PLACE}/orders.json")).map(|b| serde_json::from_slice(&b)) {
        Ok(Ok(o)) => o,
        Ok(Err(e)) => return give_up(&format!("its orders can't be read: {e}")),
        Err(e) => return give_up(&format!("its orders can't be read: {e}")),
    };
    if let Err(e) = gpus_are_there(orders.gpus) {
        return give_up(&e);
    }
    let mut step = Command::new(&program);
    step.args(argv);
    for (name, pieces) in orders.env {
        match value_of(&pieces) {
            Ok(value) => step.env(name, value),
            Err(e) => return give_up(&format!("a secret can't be read: {e}")),
        };
    }
    let e = step.exec();
    give_up(&format!("{} {}: {e}", program.to_string_lossy(), why_not(&program, &e)))
}

// A program whose interpreter or loader lacks is told as missing itself.
fn why_not(program: &OsStr, e: &io::Error) -> String {
    if e.kind() != io::ErrorKind::NotFound {
        return "can't be executed".to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).map(|d| d.join(program));
    match places.chain([PathBuf::from(program)]).find(|p| p.is_file()) {
        Some(there) => {
            format!("is in the image at {}, but the interpreter or loader that it names is not", there.display())
        }
        None => "is not in the image".to_owned(),
    }
}

fn value_of(pieces: &[Piece]) -> io::Result<OsString> {
    let mut value = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Text(t) => value.extend_from_slice(t.as_bytes()),
            Piece::Secret(name) => value.extend(std::fs::read(format!("{SECRETS}/{name}"))?),
        }
    }
    Ok(OsString::from_vec(value))
}

// An engine may give none and say nothing; a step would then run on the CPU for a week.
fn gpus_are_there(wanted: u32) -> Result<(), String> {
    if wanted == 0 {
        return Ok(());
    }
    let entries = std::fs::read_dir("/dev").map_err(|e| format!("/dev can't be read: {e}"))?;
    let mut opened = 0;
    let mut refused = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(number) = name.as_bytes().strip_prefix(b"nvidia") else { continue };
        if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
            continue;
        }
        match std::fs::File::options().read(true).write(true).open(entry.path()) {
            Ok(_) => opened += 1,
            Err(e) => refused.push(format!("{}: {e}", entry.path().display())),
        }
    }
    if opened >= wanted {
        return Ok(());
    }
    let more = if refused.is_empty() { String::new() } else { format!(" ({})", refused.join("; ")) };
    Err(format!(
        "the step was promised {wanted} GPU{}, and the engine gave it {opened}{more}",
        if wanted == 1 { "" } else { "s" }
    ))
}

fn give_up(why: &str) -> ExitCode {
    tell(&format!("graftwerk: the step was not begun: {why}"));
    ExitCode::from(NOT_BEGUN)
}

fn tell(line: &str) {
    // Into the step's log; where that is gone, nobody is left to hear.
    let _ = io::Write::write_all(&mut io::stderr(), format!("{line}\n").as_bytes());
}

/// The hidden command that gives what a step wrote to the caller: `UID GID FOLDER…`.
pub(super) fn reclaim() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(2).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.to_str()).and_then(|a| a.parse::<u32>().ok());
    let (Some(uid), Some(gid)) = (number(0), number(1)) else { return give_up("no user is given") };
    for folder in args.iter().skip(2) {
        if let Err(e) = give_to(Path::new(folder), uid, gid) {
            tell(&format!("graftwerk: {e}"));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Gives everything below a folder to a user, who can read, write and enter it afterwards. Links are not followed.
/// Errors: the disk's, with the path.
pub fn give_to(top: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let named = |p: &Path| {
        let p = p.display().to_string();
        move |e: io::Error| io::Error::new(e.kind(), format!("{p}: {e}"))
    };
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let meta = std::fs::symlink_metadata(&path).map_err(named(&path))?;
        if meta.uid() != uid || meta.gid() != gid {
            std::os::unix::fs::lchown(&path, Some(uid), Some(gid)).map_err(named(&path))?;
        }
        // A setuid bit stays: it is looked for afterwards, and refused.
        let wanted = if meta.is_dir() { 0o700 } else { 0o600 };
        if !meta.is_symlink() && meta.mode() & wanted != wanted {
            fsx::set_mode(&path, meta.mode() & 0o7777 | wanted).map_err(|e| named(&path)(e.source))?;
        }
        if meta.is_dir() {
            for entry in std::fs::read_dir(&path).map_err(named(&path))? {
                left.push(entry.map_err(named(&path))?.path());
            }
        }
    }
    Ok(())
}

/// Whether everything below a folder belongs to this user and lets itself be read. What can't be looked at does not.
pub fn belongs_to(top: &Path, uid: u32) -> bool {
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { return false };
        if meta.uid() != uid {
            return false;
        }
        if meta.is_dir() {
            let entries = std::fs::read_dir(&path);
            match entries {
                Ok(entries) => left.extend(entries.filter_map(Result::ok).map(|e| e.path())),
                // Its owner can open it again.
                Err(_) if meta.mode() & 0o500 != 0o500 => return false,
                Err(_) => return false,
            }
        }
    }
    true
}
