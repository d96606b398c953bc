//! Process steps: the host's programs for the recipe, and a run through the executor.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::digest::Digest;
use crate::exec::missing::missing_inside;
use crate::exec::{self, Ending, ExecError, Exit, Places, ProcessSpec, Tools, check_output};
use crate::graph::{Name, WindowSpec};
use crate::kinds::{Input, ProcessStep, StepError};
use crate::model::run::Isolation;
use crate::plan::HostTools;
use crate::sched::container::Containers;
use crate::sched::images::Images;
use crate::sched::{ProcessFailure, ProcessRequest, Processes, Ran, Trouble};
use crate::store::{Presence, Store};

/// Runs process steps on this host.
pub struct HostProcesses {
    store: Arc<Store>,
    unsandboxed: bool,
    containers: Containers,
}

impl HostProcesses {
    /// Over a store; with `unsandboxed`, without isolation. `images` says what image names mean, `windows` which
    /// neighbours give way.
    pub fn new(store: Arc<Store>, unsandboxed: bool, images: Images, windows: BTreeMap<Name, WindowSpec>) -> Self {
        Self { store, unsandboxed, containers: Containers::new(images, windows) }
    }

    /// What image names mean.
    pub fn images(&self) -> &Images {
        &self.containers.images
    }

    fn tools(&self, step: &ProcessStep, inputs: &BTreeMap<String, Input>) -> Result<Tools, exec::tools::ToolError> {
        exec::resolve(step, inputs, &StoreDigests(&self.store))
    }
}

struct StoreDigests<'a>(&'a Store);

impl exec::tools::FileDigests for StoreDigests<'_> {
    fn digest(&self, path: &Path) -> io::Result<Digest> {
        self.0.host_file_digest(path)
    }
}

impl HostTools for HostProcesses {
    fn resolve(
        &self,
        step: &ProcessStep,
        inputs: &BTreeMap<String, Input>,
    ) -> Result<BTreeMap<String, Digest>, StepError> {
        let tools = self.tools(step, inputs);
        tools.map(|t| t.fields()).map_err(|e| StepError::Invalid { hint: e.hint(), what: e.to_string() })
    }

    fn image(&self, reference: &str) -> Result<Digest, StepError> {
        self.containers.images.identity(reference)
    }
}

impl Processes for HostProcesses {
    fn close_windows(
        &self,
        name: Option<&str>,
        tell: &(dyn Fn(&str) + Sync),
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Vec<Trouble> {
        self.containers.close_windows(name, tell, cancelled)
    }

    fn run(&self, request: &ProcessRequest<'_>) -> Result<Ran, ProcessFailure> {
        let places =
            Places { out: request.out.to_owned(), scratch: request.scratch.join("box"), log: request.log.to_owned() };
        crate::fsx::create_dir(&places.scratch).map_err(|e| ProcessFailure::Store(e.into()))?;
        let (exit, facts) = match &request.step.container {
            None => (self.run_process(request, places)?, BTreeMap::new()),
            Some(container) => {
                let spec = self.spec(request, &Tools::default(), places, Isolation::Container)?;
                self.containers.run(request, container, &spec, &StoreDigests(&self.store))?
            }
        };
        match exit.ending {
            Ending::Code(0) => {}
            Ending::Cancelled => return Err(ProcessFailure::Cancelled),
            ending => {
                return Err(ProcessFailure::Failed {
                    error: format!("the step {ending}"),
                    // Without isolation everything of the host is there; a container has its image.
                    hint: if exit.isolation == Isolation::Namespaces { missing_inside(&exit.last_lines) } else { None },
                    tail: exit.last_lines,
                });
            }
        }
        // A step may end well and still have said what went wrong: its last lines stand with these errors too.
        let tail = exit.last_lines;
        if crate::fsx::names(request.out).map_err(|e| ProcessFailure::Store(e.into()))?.is_empty() {
            return Err(ProcessFailure::Failed {
                error: "the step exited with 0 and wrote nothing to its output folder".to_owned(),
                hint: Some("write to /out, or to the path that {out} stands for".to_owned()),
                tail,
            });
        }
        match check_output(request.out) {
            Ok(_) => Ok(Ran { isolation: exit.isolation, facts }),
            Err(e) => Err(ProcessFailure::Failed { error: e.to_string(), hint: e.hint().map(str::to_owned), tail }),
        }
    }
}

impl HostProcesses {
    fn run_process(&self, request: &ProcessRequest<'_>, places: Places) -> Result<Exit, ProcessFailure> {
        let isolation = if self.unsandboxed { Isolation::None } else { Isolation::Namespaces };
        let tools = self.tools(request.step, request.inputs).map_err(|e| failed(e.to_string(), e.hint()))?;
        // Time has passed since the recipe was made: an upgrade of the host in between must not run under its name.
        let now = tools.fields();
        if let Some((path, _)) = now.iter().find(|(path, digest)| request.tools.get(*path) != Some(*digest)) {
            let hint = "build again: the step then has the recipe of what is installed now".to_owned();
            return Err(failed(format!("{path} of the host changed since the build began"), Some(hint)));
        }
        let spec = self.spec(request, &tools, places, isolation)?;
        exec::run(&spec, request.cancelled, request.on_line).map_err(|e| {
            // What this program writes while a step runs is its log.
            let full = match &e {
                ExecError::Io { source, .. } => crate::fsx::hint_if_full(source, request.log),
                _ => None,
            };
            failed(e.to_string(), e.hint().or(full))
        })
    }

    fn spec(
        &self,
        request: &ProcessRequest<'_>,
        tools: &Tools,
        places: Places,
        isolation: Isolation,
    ) -> Result<ProcessSpec, ProcessFailure> {
        let mut spec =
            ProcessSpec::new(request.step, request.inputs, tools, places, isolation).map_err(could_not_run)?;
        for (alias, input) in request.inputs {
            if let Some(view) = self.whole_view(input)? {
                spec.use_folder(alias, &view);
            }
        }
        Ok(spec)
    }

    // An input that lies wholly in the store is mounted as its view: one mount, however many files. One that is only
    // referenced has links to absolute paths in its view, which lead nowhere inside.
    fn whole_view(&self, input: &Input) -> Result<Option<std::path::PathBuf>, ProcessFailure> {
        if input.single_file || input.tree.is_empty() {
            return Ok(None);
        }
        for (_, blob, _, executable) in input.tree.files() {
            let presence = self.store.presence(blob, executable).map_err(ProcessFailure::Store)?;
            if !matches!(presence, Presence::Stored(_)) {
                return Ok(None);
            }
        }
        self.store.view(input.tree.id(), &input.tree).map(Some).map_err(ProcessFailure::Store)
    }
}

pub(super) fn failed(error: String, hint: Option<String>) -> ProcessFailure {
    ProcessFailure::Failed { error, hint, tail: Vec::new() }
}

pub(super) fn could_not_run(e: ExecError) -> ProcessFailure {
    failed(e.to_string(), e.hint())
}
