//! A container from its making to its removal.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use bollard::container::AttachContainerResults;
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountType, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder,
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
    WaitContainerOptionsBuilder,
};
use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::engine::gpu::{GpuAccess, NO_GPU};
use crate::engine::{Engine, EngineError};

// How often the caller is asked whether to go on.
const LOOK: Duration = Duration::from_millis(50);
// How long what a dead container wrote may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(10);
// How long an engine that went away may take to come back.
const COME_BACK: Duration = Duration::from_secs(30);

/// Something of the host that is seen inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// Where it is on the engine's host, absolute.
    pub host: PathBuf,
    /// Where it is inside.
    pub inside: String,
    /// Whether it may be written.
    pub writable: bool,
}

/// What a container is made of. Everything that is not said here is locked: no capability, no new privileges, a
/// read-only root, no network.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ContainerSpec {
    /// Its name in the engine.
    pub name: String,
    /// The image's id.
    pub image: String,
    /// Program and arguments; the image's own entry point is not used.
    pub argv: Vec<String>,
    /// Variables, over the image's own.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub workdir: String,
    /// `UID:GID`, or a name that the image knows.
    pub user: String,
    /// Capabilities that it has, for our own use: a step has none.
    pub capabilities: Vec<String>,
    /// Whether it has the engine's usual network.
    pub network: bool,
    /// What it sees of the host.
    pub binds: Vec<Bind>,
    /// Folders in memory: path inside → mount options.
    pub tmpfs: BTreeMap<String, String>,
    /// Most bytes of memory, swap included.
    pub memory: Option<u64>,
    /// Most CPUs, in thousandths.
    pub millicpus: Option<u64>,
    /// Most processes.
    pub pids: Option<u64>,
    /// Bytes of /dev/shm.
    pub shm: Option<u64>,
    /// `private` or `host`.
    pub ipc: Option<String>,
    /// How it gets at GPUs.
    pub gpu: Option<GpuAccess>,
    /// Labels, by which it is found again.
    pub labels: BTreeMap<String, String>,
}

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; 128 and a signal's number where one killed it.
    pub code: i64,
    /// Whether the kernel ended a process of it for want of memory.
    pub out_of_memory: bool,
    /// Whether the engine went away meanwhile, so that output may lack.
    pub engine_left: bool,
}

/// What the caller wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// To go on.
    GoOn,
    /// To end it: asked first, killed after so many seconds.
    Stop(Duration),
}

/// A container of ours that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: String,
    /// The image that it was made from.
    pub image: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A container that was made. It is removed when this is dropped.
pub struct Container<'e> {
    engine: &'e Engine,
    id: String,
    gone: bool,
}

impl Engine {
    /// Makes a container; nothing of it runs yet. Errors: [`EngineError::Refused`], such as for a path that the engine's
    /// host does not have.
    pub fn create(&self, spec: &ContainerSpec) -> Result<Container<'_>, EngineError> {
        let options = CreateContainerOptionsBuilder::default().name(&spec.name).build();
        let made =
            self.ask("make the step's container", self.client().create_container(Some(options), body_of(spec)))?;
        Ok(Container { engine: self, id: made.id, gone: false })
    }

    /// The containers with this label, running or not. Errors: as [`Engine::connect`].
    pub fn containers_with(&self, label: &str) -> Result<Vec<Listed>, EngineError> {
        let filters = std::collections::HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let all = self.ask("list its containers", self.client().list_containers(Some(options)))?;
        let listed = all.into_iter().map(|c| Listed {
            id: c.id.unwrap_or_default(),
            image: c.image_id.unwrap_or_default(),
            labels: c.labels.unwrap_or_default().into_iter().collect(),
        });
        Ok(listed.collect())
    }

    /// Ends and removes a container with its anonymous volumes. One that is gone is no error. Errors:
    /// [`EngineError::Refused`].
    pub fn remove(&self, id: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match self.ask("remove a container", self.client().remove_container(id, Some(options))) {
            Err(EngineError::Refused { status: 404, .. }) | Ok(()) => Ok(()),
            // Somebody else is removing it.
            Err(EngineError::Refused { status: 409, .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl Container<'_> {
    /// The engine's id for it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A file as it would be seen inside. Errors: [`EngineError::Refused`], such as for one that is not there.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, EngineError> {
        let options = DownloadFromContainerOptionsBuilder::default().path(path).build();
        let download = self.engine.client().download_from_container(&self.id, Some(options));
        let archive: Vec<u8> = self.engine.ask(
            &format!("read {path} in the step's container"),
            download.try_fold(Vec::new(), |mut all, chunk| {
                all.extend_from_slice(&chunk);
                std::future::ready(Ok(all))
            }),
        )?;
        let mut bytes = Vec::new();
        let mut archive = tar::Archive::new(archive.as_slice());
        if let Some(entry) = archive.entries().ok().and_then(|mut e| e.next()).and_then(Result::ok) {
            // Cut off, it is not what was looked for.
            let _ = io::Read::take(entry, 1 << 26).read_to_end(&mut bytes);
        }
        Ok(bytes)
    }

    /// Runs it to its end, with all that it started. `on_output` gets every byte of both streams as it comes; `wish` is
    /// asked several times a second. Errors: [`EngineError::Refused`] where it can't be started,
    /// [`EngineError::Unreachable`] where the engine went away and did not come back; `on_output`'s.
    pub fn run(
        &self,
        on_output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
        wish: &mut dyn FnMut() -> Wish,
    ) -> Result<Ended, EngineError> {
        self.engine
            .runtime
            .block_on(self.run_to_end(on_output, wish))
            .map_err(|e| self.engine.refusal("run the step", e))
    }

    async fn run_to_end(
        &self,
        on_output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
        wish: &mut dyn FnMut() -> Wish,
    ) -> Result<Ended, bollard::errors::Error> {
        // Before the start, so that its first words are heard.
        let mut attached = self.attach().await?;
        self.engine.client().start_container(&self.id, None).await?;
        let mut engine_left = false;
        let code = loop {
            match self.watch(attached, on_output, wish).await {
                Ok(code) => break code,
                Err(Broken::Output(e)) => return Err(e.into()),
                Err(Broken::Engine(e)) => {
                    engine_left = true;
                    match self.after_a_loss(e).await? {
                        Some(code) => break code,
                        None => attached = self.attach().await?,
                    }
                }
            }
        };
        let state = self.engine.client().inspect_container(&self.id, None).await?.state.unwrap_or_default();
        Ok(Ended { code, out_of_memory: state.oom_killed.unwrap_or(false), engine_left })
    }

    async fn attach(&self) -> Result<AttachContainerResults, bollard::errors::Error> {
        let options = AttachContainerOptionsBuilder::default().stdout(true).stderr(true).stream(true).build();
        self.engine.client().attach_container(&self.id, Some(options)).await
    }

    async fn watch(
        &self,
        attached: AttachContainerResults,
        on_output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
        wish: &mut dyn FnMut() -> Wish,
    ) -> Result<i64, Broken> {
        // Its other half must live: dropping it would close the connection.
        let AttachContainerResults { mut output, input: _input } = attached;
        let client = self.engine.client();
        let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
        let mut wait = client.wait_container(&self.id, Some(options));
        let mut tick = tokio::time::interval(LOOK);
        let mut open = true;
        let mut asked_to_stop = false;
        let code = loop {
            tokio::select! {
                chunk = output.next(), if open => match chunk {
                    Some(Ok(chunk)) => on_output(chunk.as_ref()).map_err(Broken::Output)?,
                    Some(Err(_)) | None => open = false,
                },
                end = wait.next() => match end {
                    Some(Ok(end)) => break end.status_code,
                    Some(Err(bollard::errors::Error::DockerContainerWaitError { code, .. })) => break code,
                    Some(Err(e)) => return Err(Broken::Engine(e)),
                    None => return Err(Broken::Engine(io::Error::from(io::ErrorKind::UnexpectedEof).into())),
                },
                _ = tick.tick(), if !asked_to_stop => if let Wish::Stop(grace) = wish() {
                    asked_to_stop = true;
                    let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
                    let options = StopContainerOptionsBuilder::default().t(seconds).build();
                    let client = client.clone();
                    let id = self.id.clone();
                    // Whoever does not stop is removed by force afterwards.
                    tokio::spawn(async move { client.stop_container(&id, Some(options)).await });
                },
            }
        };
        let rest = async {
            while open && let Some(Ok(chunk)) = output.next().await {
                on_output(chunk.as_ref())?;
            }
            Ok(())
        };
        match tokio::time::timeout(LAST_WORDS, rest).await {
            Ok(done) => done.map_err(Broken::Output)?,
            Err(_) => drop(on_output(b"\n[the end of the output did not arrive]\n")),
        }
        Ok(code)
    }

    // What became of it while nobody could ask: its exit code, or nothing where it still runs.
    async fn after_a_loss(&self, lost: bollard::errors::Error) -> Result<Option<i64>, bollard::errors::Error> {
        let begun = std::time::Instant::now();
        loop {
            match self.engine.client().inspect_container(&self.id, None).await {
                Ok(found) => {
                    let state = found.state.unwrap_or_default();
                    let running = state.running.unwrap_or(false);
                    return Ok((!running).then(|| state.exit_code.unwrap_or(-1)));
                }
                Err(e @ bollard::errors::Error::DockerResponseServerError { .. }) => return Err(e),
                Err(_) if begun.elapsed() < COME_BACK => tokio::time::sleep(LOOK * 10).await,
                Err(_) => return Err(lost),
            }
        }
    }

    /// Removes it. Errors: [`EngineError::Refused`].
    pub fn remove(mut self) -> Result<(), EngineError> {
        self.gone = true;
        self.engine.remove(&self.id)
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if !self.gone {
            // What can't be removed now is found by its labels later.
            let _ = self.engine.remove(&self.id);
        }
    }
}

enum Broken {
    Output(io::Error),
    Engine(bollard::errors::Error),
}

fn body_of(spec: &ContainerSpec) -> ContainerCreateBody {
    let (program, arguments) = spec.argv.split_first().map_or((String::new(), &[][..]), |(p, a)| (p.clone(), a));
    let mut env: Vec<String> = spec.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let mut host = host_of(spec);
    match &spec.gpu {
        Some(access) => access.apply(&mut host, &mut env),
        None if spec.env.contains_key("NVIDIA_VISIBLE_DEVICES") => {}
        None => env.push(NO_GPU.to_owned()),
    }
    ContainerCreateBody {
        image: Some(spec.image.clone()),
        hostname: Some("graftwerk".to_owned()),
        user: Some(spec.user.clone()),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        env: Some(env),
        entrypoint: Some(vec![program]),
        cmd: Some(arguments.to_vec()),
        working_dir: Some(spec.workdir.clone()),
        labels: Some(spec.labels.clone().into_iter().collect()),
        // The image's own would run beside the step.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..Default::default() }),
        host_config: Some(host),
        ..Default::default()
    }
}

fn host_of(spec: &ContainerSpec) -> HostConfig {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let memory = spec.memory.map(signed);
    HostConfig {
        network_mode: (!spec.network).then(|| "none".to_owned()),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: (!spec.capabilities.is_empty()).then(|| spec.capabilities.clone()),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        init: Some(true),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), ..Default::default() }),
        // Its output comes to us alone: the engine would write it into a file of its own, secrets and all.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        mounts: Some(spec.binds.iter().map(mount_of).collect()),
        tmpfs: (!spec.tmpfs.is_empty()).then(|| spec.tmpfs.clone().into_iter().collect()),
        memory,
        // No swap beyond it: a step that swaps is a step that never ends.
        memory_swap: memory,
        nano_cpus: spec.millicpus.map(|m| signed(m).saturating_mul(1_000_000)),
        pids_limit: spec.pids.map(signed),
        shm_size: spec.shm.map(signed),
        ipc_mode: spec.ipc.clone(),
        ulimits: Some(vec![ResourcesUlimits { name: Some("core".to_owned()), soft: Some(0), hard: Some(0) }]),
        ..Default::default()
    }
}

// Mounts, not `binds`: for a source that is not there those make a folder.
fn mount_of(bind: &Bind) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(bind.host.to_string_lossy().into_owned()),
        target: Some(bind.inside.clone()),
        read_only: Some(!bind.writable),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..Default::default()
        }),
        ..Default::default()
    }
}
