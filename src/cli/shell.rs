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
use crate::cli::screen::{Screen, Told, verb_line};
use crate::cli::terminal::{Terminal, Tone};
use crate::front::{FrontError, IfNoStore, Location, Looking, Project, restore_windows};
use crate::graph::lock::LockError;
use crate::graph::{Diagnostics, SelectError};
use crate::sched::Events;

/// A command's surroundings.
pub(crate) struct Shell {
    pub(crate) terminal: Terminal,
    location: Location,
    cancel: Arc<AtomicBool>,
    // Something went wrong that the command itself is not about.
    beside: std::cell::Cell<bool>,
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
        Self { terminal, location, cancel: interrupt::watch(terminal), beside: std::cell::Cell::new(false) }
    }

    /// Where the project is.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Opens a project that was built and asks it something, with a screen that shows what happens meanwhile.
    pub(crate) fn ask<T>(
        &self,
        question: impl FnOnce(&Project, &Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        self.restore_windows();
        self.ask_of(Project::open_built(&self.location)?, question)
    }

    /// As [`Shell::ask`], for what learns of sources: a store is made where there is none.
    pub(crate) fn make<T>(
        &self,
        question: impl FnOnce(&Project, &Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        self.restore_windows();
        self.ask_of(Project::open(&self.location)?, question)
    }

    /// As [`Shell::ask`], about nodes or ids: where all are ids, a store is enough.
    pub(crate) fn ask_about<T>(
        &self,
        what: &[&str],
        question: impl FnOnce(&Project, &Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        self.restore_windows();
        let ids = what.iter().all(|w| w.starts_with("b3:"));
        let project = if ids {
            Project::open_for_ids(&self.location, IfNoStore::Refuse)
        } else {
            Project::open_built(&self.location)
        };
        self.ask_of(project?, question)
    }

    fn ask_of<T>(
        &self,
        project: Project,
        question: impl FnOnce(&Project, &Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        self.watch(|events, cancel| question(&project, events, cancel))
    }

    /// Whether something went wrong that the command itself is not about, and that was told.
    pub(crate) fn went_wrong_beside(&self) -> bool {
        self.beside.get()
    }

    // Whoever was stopped for a step that a crash ended comes first, whatever the command is.
    fn restore_windows(&self) {
        if !crate::window::any_left() {
            return;
        }
        let Ok((report, _)) = self.watch(|events, cancel| Ok(restore_windows(events, cancel))) else { return };
        for e in report.errors {
            self.beside.set(true);
            self.error(&e.error, e.hint.as_deref());
        }
    }

    /// Asks something of a place where no project may be opened: its store may be damaged.
    pub(crate) fn look<T>(
        &self,
        question: impl FnOnce(&Location, &Events, &Arc<AtomicBool>) -> Result<T, FrontError>,
    ) -> Result<(T, Told), FrontError> {
        self.restore_windows();
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
                FrontError::Sources { errors } => {
                    errors.iter().map(|e| diagnostics::line(&e.to_string(), e.hint().as_deref(), t.err)).collect()
                }
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

    /// Says so where a graph has no node: then every answer is empty.
    pub(crate) fn empty_graph(&self, nodes: usize) {
        if nodes == 0 {
            let what = format!(
                "{} names no node: there is nothing to build",
                self.location.graph.as_deref().unwrap_or(Path::new("graph.toml")).display()
            );
            let hint = "`graftwerk init` writes one to begin with, where there is none: move this one away, or see docs/tutorial.md";
            self.notice_with(&what, hint);
        }
    }

    fn notice_with(&self, what: &str, hint: &str) {
        if !self.terminal.quiet {
            self.terminal
                .say(&(verb_line(self.terminal, Tone::Quiet, "notice", what, "") + &format!("    hint: {hint}\n")));
        }
    }

    /// Says that nothing was built yet, for answers that need no store.
    pub(crate) fn no_store(&self, path: &Path) {
        self.notice_with(
            &format!("there is no store yet at {}: nothing is built", path.display()),
            "the first `graftwerk build` makes it; one that lies elsewhere is named by --store DIR",
        );
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
