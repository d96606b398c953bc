//! What all commands share: where the project is, whom to tell, and how an error is told.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::cli::args::{Global, How};
use crate::cli::diagnostics;
use crate::cli::exit::Exit;
use crate::cli::interrupt;
use crate::cli::screen::{Screen, Told};
use crate::cli::terminal::Terminal;
use crate::front::{FrontError, Location, Looking, Project};
use crate::graph::lock::LockError;
use crate::graph::{Diagnostics, SelectError};
use crate::sched::Events;

/// A command's surroundings.
pub(crate) struct Shell {
    pub(crate) terminal: Terminal,
    location: Location,
    cancel: Arc<AtomicBool>,
}

/// How a command ends: what keeps it from its answer is told by [`Shell::fail`].
pub(crate) type Ended = Result<Exit, FrontError>;

impl Shell {
    pub(crate) fn new(global: &Global) -> Self {
        let terminal = Terminal::here(global.json, global.quiet, global.verbose);
        let location = Location {
            dir: global.directory.clone().unwrap_or_default(),
            graph: Some(global.graph.clone()),
            store: global.store.clone(),
        };
        Self { terminal, location, cancel: interrupt::watch(terminal) }
    }

    /// Where the project is.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Opens the project and asks it something, with a screen that shows what happens meanwhile.
    pub(crate) fn ask<T>(
        &self,
        question: impl FnOnce(&Project, &Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        self.ask_of(Project::open(&self.location)?, question)
    }

    /// As [`Shell::ask`], about nodes or ids: where all are ids, a store is enough.
    pub(crate) fn ask_about<T>(
        &self,
        what: &[&str],
        question: impl FnOnce(&Project, &Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        let ids = what.iter().all(|w| w.starts_with("b3:"));
        let project = if ids { Project::open_for_ids(&self.location) } else { Project::open(&self.location) };
        self.ask_of(project?, question)
    }

    fn ask_of<T>(
        &self,
        project: Project,
        question: impl FnOnce(&Project, &Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        self.watch(|events, cancel| question(&project, events, cancel))
    }

    /// Asks something of a place where no project may be opened: its store may be damaged.
    pub(crate) fn look<T>(
        &self,
        question: impl FnOnce(&Location, &Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        self.watch(|events, cancel| question(&self.location, events, cancel))
    }

    /// A path of the command line: it counts from where `-C` says.
    pub(crate) fn below(&self, path: &Path) -> PathBuf {
        self.location.dir.join(path)
    }

    /// Does something, with a screen that shows what happens meanwhile.
    pub(crate) fn watch<T>(
        &self,
        question: impl FnOnce(&Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        let (events, heard) = mpsc::channel();
        let terminal = self.terminal;
        let (answer, told) = std::thread::scope(|scope| {
            let screen = scope.spawn(move || Screen::new(terminal).run(&heard));
            let answer = question(&events, &self.cancel);
            // The screen ends when nobody can tell it anything any more.
            drop(events);
            (answer, screen.join().unwrap_or_default())
        });
        Ok((answer?, told))
    }

    /// Tells what kept a command from its answer.
    pub(crate) fn fail(&self, error: &FrontError) -> Exit {
        let t = &self.terminal;
        let text = match in_a_text(error) {
            Some(d) => diagnostics::render(d, t.err),
            None => match error {
                FrontError::Select { errors } => errors.iter().map(|e| self.select_error(e)).collect(),
                other => diagnostics::line(&other.to_string(), other.hint().as_deref(), t.err),
            },
        };
        t.say(&text);
        if t.json {
            t.print_json(&error_json(error));
        }
        Exit::Error(error.exit_code())
    }

    fn select_error(&self, e: &SelectError) -> String {
        diagnostics::line(&e.to_string(), Some(&e.hint()), self.terminal.err)
    }

    /// Tells of something that is wrong beside the answer.
    pub(crate) fn error(&self, error: &str, hint: Option<&str>) {
        self.terminal.say(&diagnostics::line(error, hint, self.terminal.err));
    }

    /// Tells of sources that can't be taken.
    pub(crate) fn source_errors<'e>(&self, errors: impl IntoIterator<Item = (&'e str, Option<&'e str>)>) {
        for (error, hint) in errors {
            self.terminal.say(&diagnostics::line(error, hint, self.terminal.err));
        }
    }

    /// Prints an answer for machines. One that can't be written as JSON is a bug, and told as such.
    pub(crate) fn answer_json(&self, answer: &impl serde::Serialize) {
        let value = serde_json::to_value(answer);
        self.terminal
            .print_json(&value.unwrap_or_else(|e| json!({"ok": false, "error": format!("internal error: {e}")})));
    }
}

/// The errors that can be shown in their text.
fn in_a_text(error: &FrontError) -> Option<&Diagnostics> {
    match error {
        FrontError::Graph(d) | FrontError::Lock(LockError::Damaged(d)) => Some(d),
        _ => None,
    }
}

fn error_json(error: &FrontError) -> Value {
    let mut object = json!({"ok": false, "error": error.to_string(), "hint": error.hint()});
    if let (Some(d), Some(o)) = (in_a_text(error), object.as_object_mut()) {
        o.insert("diagnostics".to_owned(), Value::from(diagnostics::to_json(d)));
    }
    object
}

impl From<&How> for Looking {
    fn from(h: &How) -> Self {
        Looking { check_content: h.check_content, locked: h.locked, unsandboxed: h.unsandboxed }
    }
}
