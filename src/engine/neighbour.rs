//! Containers that are not ours: looked at, stopped and started, and never removed.

use std::time::{Duration, Instant};

use bollard::models::HealthStatusEnum;
use bollard::query_parameters::{LogsOptionsBuilder, StopContainerOptionsBuilder};
use futures_util::TryStreamExt as _;

use crate::engine::{Engine, EngineError};

/// What a container's own check says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Not yet known.
    Starting,
    /// It is well.
    Healthy,
    /// It is not.
    Unhealthy,
}

/// A container as the engine sees it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub running: bool,
    /// Whether the engine is about to start it again by itself.
    pub restarting: bool,
    /// What its check says, where it has one.
    pub health: Option<Health>,
    /// When it was last started, as the engine writes it.
    pub started_at: String,
    /// Its last exit code.
    pub exit_code: i64,
    /// The number of its first process on the engine's host; 0 where it does not run.
    pub pid: u32,
}

const LOOK: Duration = Duration::from_millis(100);
// Beyond its grace a container is killed, which takes as long as the kernel needs for its memory.
const KILLED: Duration = Duration::from_secs(120);

impl Engine {
    /// What tells this engine from every other, as far as it says so; else where it is.
    pub fn identity(&self) -> Result<String, EngineError> {
        let info = self.ask("say who it is", self.client().info())?;
        Ok(info.id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.address().to_string()))
    }

    /// A container, by name or id; `None` where there is none. Errors: as [`Engine::connect`].
    pub fn see(&self, container: &str) -> Result<Option<Seen>, EngineError> {
        let asked = self.ask(&format!("look at {container}"), self.client().inspect_container(container, None));
        let found = match asked {
            Err(EngineError::Refused { status: 404, .. }) => return Ok(None),
            other => other?,
        };
        let state = found.state.unwrap_or_default();
        let health = state.health.and_then(|h| h.status).and_then(|s| match s {
            HealthStatusEnum::STARTING => Some(Health::Starting),
            HealthStatusEnum::HEALTHY => Some(Health::Healthy),
            HealthStatusEnum::UNHEALTHY => Some(Health::Unhealthy),
            HealthStatusEnum::NONE | HealthStatusEnum::EMPTY => None,
        });
        let name = found.name.unwrap_or_default();
        Ok(Some(Seen {
            id: found.id.unwrap_or_default(),
            name: name.trim_start_matches('/').to_owned(),
            running: state.running.unwrap_or(false),
            restarting: state.restarting.unwrap_or(false),
            health,
            started_at: state.started_at.map(|t| t.to_string()).unwrap_or_default(),
            exit_code: state.exit_code.unwrap_or_default(),
            pid: state.pid.and_then(|p| u32::try_from(p).ok()).unwrap_or_default(),
        }))
    }

    /// Stops a container, which has `grace` to end by itself, and waits until it has. One that does not run, or is gone,
    /// is no error. Errors: [`EngineError::Refused`], and [`EngineError::Silent`] where it runs on.
    pub fn stop(&self, container: &str, grace: Duration) -> Result<(), EngineError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::default().t(seconds).build();
        let begun = Instant::now();
        match self.ask(&format!("stop {container}"), self.client().stop_container(container, Some(options))) {
            Ok(()) => {}
            Err(EngineError::Refused { status: 304 | 404, .. }) => return Ok(()),
            Err(e @ EngineError::Refused { .. }) => return Err(e),
            // The client's patience may be shorter than the grace.
            Err(e) => {
                if begun.elapsed() < Duration::from_secs(1) {
                    return Err(e);
                }
            }
        }
        let limit = grace + KILLED;
        while self.see(container)?.is_some_and(|c| c.running) {
            if begun.elapsed() > limit {
                return Err(EngineError::Silent { address: self.address().clone(), after: limit });
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Starts a container that is there. One that runs is no error. Errors: [`EngineError::Refused`].
    pub fn start(&self, container: &str) -> Result<(), EngineError> {
        match self.ask(&format!("start {container}"), self.client().start_container(container, None)) {
            Err(EngineError::Refused { status: 304, .. }) => Ok(()),
            other => other,
        }
    }

    /// The last lines that a container wrote, at most so many; none where they can't be read.
    pub fn last_lines(&self, container: &str, most: usize) -> Vec<String> {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail(&most.to_string()).build();
        let log = self.client().logs(container, Some(options));
        let text = self.ask(
            "show a log",
            log.try_fold(Vec::new(), |mut all: Vec<u8>, chunk| {
                all.extend_from_slice(chunk.as_ref());
                std::future::ready(Ok(all))
            }),
        );
        let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(most)..].iter().map(|l| (*l).to_owned()).collect()
    }

    /// The numbers of a running container's processes on the engine's host; none where they can't be asked.
    pub fn processes_of(&self, container: &str) -> Vec<u32> {
        let Ok(top) = self.ask("list processes", self.client().top_processes(container, None)) else {
            return Vec::new();
        };
        let column = top.titles.unwrap_or_default().iter().position(|t| t.eq_ignore_ascii_case("pid"));
        let Some(column) = column else { return Vec::new() };
        let rows = top.processes.unwrap_or_default();
        rows.iter().filter_map(|row| row.get(column)?.parse().ok()).collect()
    }
}
