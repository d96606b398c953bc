//! Runs a step in a container of an engine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::engine::container::{Bind, ContainerSpec, Ended, Wish};
use crate::engine::gpu::GpuAccess;
use crate::engine::image::Found;
use crate::engine::{Engine, EngineError};
use crate::exec::ExecError;
use crate::exec::process::{Ending, Exit};
use crate::exec::secret::{HandedOver, Masked, Secrets};
use crate::exec::spec::{MountSource, PATH, ProcessSpec, TreeEntry};
use crate::exec::tail::Tail;
use crate::exec::within::{Companion, Orders, PLACE, SECRETS, belongs_to, give_to};
use crate::fsx::{self, Call, change};
use crate::kinds::container::ContainerStep;
use crate::model::run::Isolation;

const PIDS: u64 = 4096;

/// A step in a container, ready to run.
pub struct Boxed<'a> {
    /// What it sees and how it is called.
    pub spec: &'a ProcessSpec,
    /// What it asks of the engine.
    pub step: &'a ContainerStep,
    /// The image.
    pub image: &'a Found,
    /// Its secrets.
    pub secrets: &'a Secrets,
    /// How it gets at GPUs, and how many must be there inside.
    pub gpu: Option<(GpuAccess, u32)>,
    /// Its name in the engine.
    pub name: String,
    /// By which it is found again.
    pub labels: BTreeMap<String, String>,
    /// Our own program for inside, where it is needed.
    pub companion: &'a Companion,
}

/// Runs a step to its end, and removes its container. What it wrote belongs to the caller afterwards. Errors:
/// [`ExecError`]; a step that ran and failed is an [`Exit`].
pub fn run(
    engine: &Engine,
    step: &Boxed<'_>,
    cancelled: &dyn Fn() -> bool,
    on_line: &dyn Fn(&str),
) -> Result<Exit, ExecError> {
    let handed = if step.secrets.is_empty() { None } else { Some(step.secrets.hand_over()?) };
    let container = prepare(step, handed.as_ref())?;
    let spec = step.spec;
    let log = change(Call::Create(&spec.places.log), || File::create(&spec.places.log))
        .map_err(ExecError::io(format!("cannot write the log {}", spec.places.log.display())))?;
    let mut tail = Tail::default();
    let mut masked = Masked::new(step.secrets);
    let mut write = |bytes: &[u8]| {
        tail.push(bytes, on_line);
        fsx::write_all(&log, bytes)
    };
    let begun = Instant::now();
    let mut why = None;
    let mut wish = || {
        why = if cancelled() {
            Some(Ending::Cancelled)
        } else {
            spec.timeout.filter(|t| begun.elapsed() >= *t).map(Ending::TimedOut)
        };
        why.map_or(Wish::GoOn, |_| Wish::Stop(spec.grace))
    };
    let made = engine.create(&container).map_err(|e| not_made(engine, e))?;
    let ended = made.run(&mut |bytes| write(&masked.push(bytes)), &mut wish);
    let written = write(&masked.finish());
    let seconds = begun.elapsed().as_secs_f64();
    // Before anything is said of its output: nothing of it may run any longer.
    let removed = made.remove();
    drop(handed);
    // However it ended: what can't be removed by the caller would stay for ever.
    let taken_back = take_back(engine, step);
    let ended = ended.map_err(|e| ExecError::Engine { source: e, begun: true })?;
    removed.map_err(|e| ExecError::Engine { source: e, begun: true })?;
    written.map_err(ExecError::io(format!("cannot write the log {}", spec.places.log.display())))?;
    taken_back?;
    let ending = why.unwrap_or_else(|| ending_of(ended, step.step.memory));
    Ok(Exit { ending, seconds, isolation: Isolation::Container, last_lines: tail.finish(on_line) })
}

fn ending_of(ended: Ended, limit: Option<u64>) -> Ending {
    match ended.code {
        0 => Ending::Code(0),
        _ if ended.out_of_memory => Ending::OutOfMemory(limit),
        code if ended.engine_left => Ending::EngineLeft(code),
        // The first process inside passes a signal on like this.
        code @ 129..=159 => Ending::Signal(i32::try_from(code - 128).unwrap_or(0)),
        code => Ending::Code(i32::try_from(code).unwrap_or(-1)),
    }
}

fn not_made(engine: &Engine, e: EngineError) -> ExecError {
    match e {
        EngineError::Refused { said, .. } if said.contains("bind source path does not exist") => ExecError::Elsewhere {
            address: engine.address().to_string(),
            said: said.rsplit("invalid mount config for type \"bind\": ").next().unwrap_or(&said).to_owned(),
        },
        source => ExecError::Engine { source, begun: false },
    }
}

/// Looks through a mount whether the engine sees this host's files: a file of ours with an unguessable path and text.
/// Nothing runs. Errors: [`ExecError::Elsewhere`].
pub fn sees_our_files(engine: &Engine, image: &str, scratch: &Path) -> Result<(), ExecError> {
    let path = absolute(&scratch.join("nonce"))?;
    let nonce = format!("{} {}", fsx::stat::now_ns(), path.display());
    let written = fsx::write_new(&path, nonce.as_bytes(), 0o444).map_err(|e| e.source);
    written.map_err(ExecError::io(format!("cannot write {}", path.display())))?;
    let spec = ContainerSpec {
        image: image.to_owned(),
        argv: vec!["/nonce".to_owned()],
        name: format!("graftwerk-look-{}-{}", std::process::id(), fsx::stat::now_ns()),
        binds: vec![Bind { host: path.clone(), inside: "/nonce".to_owned(), writable: false }],
        workdir: "/".to_owned(),
        ..ContainerSpec::default()
    };
    let made = engine.create(&spec).map_err(|e| not_made(engine, e))?;
    let seen = made.read("/nonce").map_err(|source| ExecError::Engine { source, begun: false })?;
    made.remove().map_err(|source| ExecError::Engine { source, begun: false })?;
    if seen == nonce.as_bytes() {
        return Ok(());
    }
    let said = format!("{} is another file there", path.display());
    Err(ExecError::Elsewhere { address: engine.address().to_string(), said })
}

fn prepare(step: &Boxed<'_>, handed: Option<&HandedOver>) -> Result<ContainerSpec, ExecError> {
    let spec = step.spec;
    let scratch = absolute(&spec.places.scratch)?;
    let tmp = scratch.join("tmp");
    make_folder(&tmp)?;
    let manifest = scratch.join("in.json");
    write(&manifest, spec.manifest.as_bytes())?;
    let out = absolute(&spec.places.out)?;
    let mut binds = vec![
        Bind { host: manifest, inside: "/in.json".to_owned(), writable: false },
        Bind { host: out.clone(), inside: "/out".to_owned(), writable: true },
    ];
    let mut tmpfs = BTreeMap::new();
    if handed.is_some() {
        // What a step with secrets leaves lying about must not reach a disk.
        tmpfs.insert("/tmp".to_owned(), "rw,exec,nosuid,nodev,mode=1777".to_owned());
    } else {
        binds.push(Bind { host: tmp.clone(), inside: "/tmp".to_owned(), writable: true });
    }
    if step.step.user.is_some() {
        // Whoever that is must be able to write there. Nobody else reaches them: the folder above is closed.
        for dir in [&out, &tmp] {
            fsx::set_mode(dir, 0o777)
                .map_err(|e| e.source)
                .map_err(ExecError::io(format!("cannot open {}", dir.display())))?;
        }
    }
    for (number, (inside, source)) in spec.mounts.iter().enumerate() {
        match source {
            MountSource::File { host, .. } => binds.push(read_only(host, inside)?),
            MountSource::Dir(host) => binds.push(read_only(host, inside)?),
            MountSource::Tree(entries) => tree(&scratch.join(format!("tree-{number}")), inside, entries, &mut binds)?,
        }
    }
    let orders = Orders::new(&spec.secret_env, &spec.layout, step.gpu.as_ref().map_or(0, |g| g.1));
    let mut argv = spec.argv.clone();
    if !orders.is_empty() {
        let file = scratch.join("orders.json");
        write(&file, &serde_json::to_vec(&orders).unwrap_or_default())?;
        binds.push(Bind { host: file, inside: format!("{PLACE}/orders.json"), writable: false });
        binds.extend(companion_binds(step.companion)?);
        argv = step.companion.before(&argv);
    }
    if let Some(handed) = handed {
        for (name, host) in handed.files() {
            binds.push(Bind { host, inside: format!("{SECRETS}/{name}"), writable: false });
        }
    }
    let mut env = spec.env.clone();
    // What the image says of its own programs counts, unless the step says otherwise.
    for (name, _) in step.image.env.iter().filter_map(|e| e.split_once('=')) {
        if !spec.declared_env.contains(name) {
            env.remove(name);
        }
    }
    if !step.image.env.iter().any(|e| e.starts_with("PATH=")) {
        env.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
    }
    // The driver's folder is put before the image's, which our variable would else replace.
    if step.gpu.is_some()
        && let Some(of_image) = step.image.env.iter().find_map(|e| e.strip_prefix("LD_LIBRARY_PATH="))
    {
        env.entry("LD_LIBRARY_PATH".to_owned()).or_insert_with(|| of_image.to_owned());
    }
    let (uid, gid) = caller();
    Ok(ContainerSpec {
        name: step.name.clone(),
        image: step.image.id.clone(),
        argv,
        env,
        workdir: spec.workdir.clone(),
        user: step.step.user.clone().unwrap_or_else(|| format!("{uid}:{gid}")),
        capabilities: Vec::new(),
        network: spec.network,
        binds,
        tmpfs,
        memory: step.step.memory,
        millicpus: step.step.millicpus,
        pids: Some(step.step.pids.unwrap_or(PIDS)),
        shm: step.step.shm,
        ipc: step.step.ipc.clone(),
        gpu: step.gpu.as_ref().map(|g| g.0.clone()),
        labels: step.labels.clone(),
    })
}

// A folder whose files lie at various places: a frame of folders, links and empty files, each covered by its file.
fn tree(
    frame: &Path,
    inside: &str,
    entries: &[(crate::model::path::RelPath, TreeEntry)],
    binds: &mut Vec<Bind>,
) -> Result<(), ExecError> {
    make_folder(frame)?;
    binds.push(Bind { host: frame.to_owned(), inside: inside.to_owned(), writable: false });
    for (path, entry) in entries {
        let here = frame.join(path.as_path());
        if let Some(parent) = here.parent() {
            make_folder(parent)?;
        }
        match entry {
            TreeEntry::EmptyDir => make_folder(&here)?,
            TreeEntry::Link(target) => {
                let made = fsx::symlink(Path::new(std::ffi::OsStr::from_bytes(target)), &here).map_err(|e| e.source);
                made.map_err(ExecError::io(format!("cannot make the link {}", here.display())))?;
            }
            TreeEntry::File { host, .. } => {
                write(&here, b"")?;
                let path = path.as_path().to_str().ok_or_else(|| not_text(path.as_path()))?;
                binds.push(read_only(host, &format!("{inside}/{path}"))?);
            }
        }
    }
    Ok(())
}

fn companion_binds(companion: &Companion) -> Result<Vec<Bind>, ExecError> {
    companion.files.iter().map(|(host, inside)| read_only(host, inside)).collect()
}

fn read_only(host: &Path, inside: &str) -> Result<Bind, ExecError> {
    let host = absolute(host)?;
    if host.to_str().is_none() {
        return Err(not_text(&host));
    }
    Ok(Bind { host, inside: inside.to_owned(), writable: false })
}

fn not_text(path: &Path) -> ExecError {
    ExecError::Place {
        what: format!("{} is not UTF-8, and an engine can't be told of it", path.display()),
        hint: "rename it, or leave it out with `uses`".to_owned(),
    }
}

fn make_folder(dir: &Path) -> Result<(), ExecError> {
    let made = fsx::create_dir_all(dir).map_err(|e| e.source);
    made.map_err(ExecError::io(format!("cannot make the folder {}", dir.display())))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ExecError> {
    let written = fsx::write_new(path, bytes, 0o644).map_err(|e| e.source);
    written.map_err(ExecError::io(format!("cannot write {}", path.display())))
}

fn absolute(path: &Path) -> Result<PathBuf, ExecError> {
    std::path::absolute(path).map_err(ExecError::io(format!("cannot find {}", path.display())))
}

fn caller() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

// Whoever wrote it, what is there belongs to the caller and can be read. Where the caller may not say so, root says it,
// in a container that sees nothing else.
fn take_back(engine: &Engine, step: &Boxed<'_>) -> Result<(), ExecError> {
    let out = absolute(&step.spec.places.out)?;
    let tmp = absolute(&step.spec.places.scratch.join("tmp"))?;
    for dir in [&out, &tmp] {
        let open = std::fs::symlink_metadata(dir).map(|m| m.permissions().mode() & 0o7777).unwrap_or(0);
        if open & 0o002 != 0 && std::fs::symlink_metadata(dir).is_ok_and(|m| m.uid() == caller().0) {
            let closed = fsx::set_mode(dir, 0o755).map_err(|e| e.source);
            closed.map_err(ExecError::io(format!("cannot close {}", dir.display())))?;
        }
    }
    reclaim(engine, &step.image.id, step.companion, &[out, tmp])
}

/// Makes everything below these folders the caller's. Errors: [`ExecError::Io`] and [`ExecError::Engine`].
pub fn reclaim(engine: &Engine, image: &str, companion: &Companion, folders: &[PathBuf]) -> Result<(), ExecError> {
    let (uid, gid) = caller();
    let foreign: Vec<&PathBuf> = folders.iter().filter(|f| f.exists() && !belongs_to(f, uid)).collect();
    if foreign.is_empty() {
        return Ok(());
    }
    let what = || format!("cannot make {} this user's again", foreign[0].display());
    if foreign.iter().all(|f| give_to(f, uid, gid).is_ok()) {
        return Ok(());
    }
    let mut binds = companion_binds(companion)?;
    let mut places = Vec::new();
    for (n, folder) in foreign.iter().enumerate() {
        places.push(format!("/folder-{n}"));
        binds.push(Bind { host: (*folder).clone(), inside: format!("/folder-{n}"), writable: true });
    }
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let spec = ContainerSpec {
        name: format!("graftwerk-reclaim-{}-{}", std::process::id(), fsx::stat::now_ns()),
        image: image.to_owned(),
        argv: companion.reclaim(uid, gid, &places),
        workdir: "/".to_owned(),
        user: "0:0".to_owned(),
        capabilities: ["CHOWN", "DAC_OVERRIDE", "FOWNER"].map(str::to_owned).to_vec(),
        binds,
        ..ContainerSpec::default()
    };
    let engine_error = |source| ExecError::Engine { source, begun: false };
    let made = engine.create(&spec).map_err(engine_error)?;
    let mut said = Vec::new();
    let mut listen = |bytes: &[u8]| {
        said.extend_from_slice(bytes);
        Ok(())
    };
    let ended = made.run(&mut listen, &mut || Wish::GoOn).map_err(engine_error)?;
    made.remove().map_err(engine_error)?;
    if ended.code == 0 {
        return Ok(());
    }
    let source = io::Error::other(String::from_utf8_lossy(&said).trim().to_owned());
    Err(ExecError::Io { what: what(), source })
}

/// How long a step that is asked to end may take.
pub const GRACE: Duration = Duration::from_secs(10);
