//! Process steps: from inputs in the store to mounts, through the executor, to an isolation level.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::digest::Digest;
use crate::kinds::{Input, ProcessStep, StepError};
use crate::model::run::Isolation;
use crate::plan::HostTools;
use crate::sched::{ProcessFailure, ProcessRequest, Processes};
use crate::store::Store;

/// Runs process steps on this host.
pub struct HostProcesses {
    _store: Arc<Store>,
    _unsandboxed: bool,
}

impl HostProcesses {
    /// Over a store; with `unsandboxed`, without isolation.
    pub fn new(store: Arc<Store>, unsandboxed: bool) -> Self {
        Self { _store: store, _unsandboxed: unsandboxed }
    }
}

impl HostTools for HostProcesses {
    fn resolve(
        &self,
        _step: &ProcessStep,
        _inputs: &BTreeMap<String, Input>,
    ) -> Result<BTreeMap<String, Digest>, StepError> {
        Ok(BTreeMap::new())
    }
}

impl Processes for HostProcesses {
    fn run(&self, _request: &ProcessRequest<'_>) -> Result<Isolation, ProcessFailure> {
        Err(ProcessFailure::Failed { error: "no executor".to_owned(), hint: None, tail: Vec::new() })
    }
}
