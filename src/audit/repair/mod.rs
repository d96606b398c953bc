//! Putting a store right: for each thing that a look found damaged, where right bytes are, and what to do where there are
//! none. Nothing is deleted or overwritten: what is damaged goes to `quarantine/`, with a text beside it.

mod find;
mod roots;
mod views;

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

pub use find::{Elsewhere, recovered};

use crate::audit::verify::{Finding, NodeUse, Subject, escaped, is_right};
use crate::store::plain::{Plain, Ref, Version};
use crate::store::survey::Part;
use crate::store::{Result, Store, StoreError};

/// Where right bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// A copy of this file.
    File(PathBuf),
    /// The tree that the view there shows.
    View(PathBuf),
    /// The blob that the table describes.
    Blob,
    /// A look at the sources of the graph.
    Sources,
    /// The graph's own plan; else whatever `else` says.
    Plan,
    /// It is made again from the rest.
    Rest,
    /// What its objects prove.
    Proof(&'static str),
    /// It is set aside, and the rest does without it.
    Aside,
    /// Nothing needs it.
    Unneeded,
    /// It is the user's own.
    Yours,
    /// Nothing but running the nodes again.
    Build,
    /// Running them again as they once were.
    Older,
    /// Nothing at all.
    None,
}

/// How a repair ended, or would.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is right again.
    Restored,
    /// The damaged file is out of the way, and nothing is missing for it.
    SetAside,
    /// The nodes must be built again.
    Rebuild,
    /// It is not coming back.
    Lost,
}

/// One thing that was damaged.
#[derive(Debug, Clone, Serialize)]
pub struct Repair {
    /// The file or folder.
    #[serde(serialize_with = "escaped_text")]
    pub path: PathBuf,
    /// What it is one of.
    pub part: Part,
    /// What was wrong.
    pub what: String,
    /// How that ended, or would.
    pub outcome: Outcome,
    /// From where, or what it means.
    pub how: String,
    /// Where the damaged file is now.
    #[serde(serialize_with = "optional_text", skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<PathBuf>,
    /// The nodes that need it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeUse>,
    /// What it is about.
    #[serde(skip)]
    pub subject: Subject,
    /// Where right bytes come from.
    #[serde(skip)]
    pub way: Way,
    /// Whether there is a file to set aside.
    #[serde(skip)]
    pub there: bool,
}

/// Every repair of a store.
#[derive(Debug, Clone, Serialize)]
pub struct Repaired {
    /// Whether everything is right again.
    pub ok: bool,
    /// The store's folder.
    #[serde(serialize_with = "escaped_text")]
    pub store: PathBuf,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// One by one.
    pub repairs: Vec<Repair>,
    /// What a person should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Repaired {
    /// Says whether everything is right.
    pub fn close(&mut self) {
        self.ok = self.repairs.iter().all(|r| matches!(r.outcome, Outcome::Restored | Outcome::SetAside));
    }
}

fn escaped_text<S: Serializer>(path: &Path, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_str(&escaped(path))
}

fn optional_text<S: Serializer>(path: &Option<PathBuf>, to: S) -> std::result::Result<S::Ok, S::Error> {
    match path {
        Some(p) => to.serialize_some(&escaped(p)),
        None => to.serialize_none(),
    }
}

impl Repair {
    /// What would be done about a finding.
    pub fn new(f: Finding, way: Way) -> Self {
        let (outcome, how) = find::told(&f, &way);
        // Sources are never touched; a view goes as a whole.
        let ours = !matches!(f.part, Part::Source | Part::View | Part::Index);
        let there = ours && f.path.symlink_metadata().is_ok();
        let Finding { path, part, what, nodes, subject, .. } = f;
        Self { path, part, what, outcome, how, set_aside: None, nodes, subject, way, there }
    }

    /// Writes down that it is not coming back, so that nobody looks for it again.
    pub fn give_up(&self, plain: &Plain) -> Result<()> {
        plain.note_lost(&self.path, &self.name(), &self.what)
    }

    // What the damaged file is called in quarantine/.
    fn name(&self) -> String {
        if let Some(name) = self.subject.quarantine_name() {
            return name;
        }
        if self.part == Part::Version {
            return "VERSION".to_owned();
        }
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let folder = self.path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        format!("{folder}-{name}")
    }

    /// Moves what is damaged out of the way; looks at it once more before, since a build may have put right what a long
    /// look had found.
    pub fn put_aside(&mut self, plain: &Plain) -> Result<()> {
        if self.there && !self.file_is_right(plain)? {
            self.set_aside = plain.set_aside(&self.path, &self.name(), &self.what)?;
        }
        Ok(())
    }

    // Whether the very file that was damaged is right now.
    fn file_is_right(&self, plain: &Plain) -> Result<bool> {
        Ok(match &self.subject {
            Subject::Blob(b, _) => is_right(&self.path, *b),
            Subject::Run(r, Some(seq)) => plain.run_reads(*r, *seq)?,
            Subject::Tree(_) | Subject::Recipe(_) | Subject::Table(_) | Subject::Ref(_) => self.is_right(plain)?,
            Subject::Run(_, None) | Subject::View(_) | Subject::Other => false,
        })
    }

    /// Puts right what can be by the store alone. What needs the graph is left as it is.
    pub fn act(&mut self, store: &Store) -> Result<()> {
        let plain = store.plain();
        match (&self.way, &self.subject) {
            (Way::File(from), Subject::Blob(blob, x)) => {
                let right = store.restore_blob(*blob, *x, from)?;
                if !right {
                    self.ended(Outcome::Rebuild, format!("the copy at {} was not right", escaped(from)));
                }
            }
            (Way::File(from), _) => {
                let bytes = std::fs::read(from).map_err(crate::fsx::at("read", from))?;
                store.restore_text(&self.path, &self.name(), &bytes)?;
            }
            (Way::View(view), Subject::Tree(id)) => match find::tree_of_view(view)? {
                Some(tree) if tree.id() == *id => drop(store.put_tree(&tree)?),
                _ => self.ended(Outcome::Rebuild, "its view changed meanwhile"),
            },
            (Way::Blob, Subject::Table(blob)) => {
                match store.table_of(*blob) {
                    // A disk that says no now may say yes the next time.
                    Err(e @ StoreError::Fs(_)) => return Err(e),
                    Err(e) => self.ended(Outcome::Lost, format!("its blob could not be read: {e}")),
                    Ok(_) => {}
                }
            }
            (Way::Rest, Subject::View(id)) => match plain.tree(*id) {
                Ok(Some(tree)) => match store.view(*id, &tree) {
                    Ok(_) => self.ended(Outcome::Restored, "made again from the rest"),
                    // It is disposable: made again once its bytes are there.
                    Err(e @ StoreError::Gone { .. }) => {
                        self.ended(Outcome::SetAside, format!("not made again yet: {e}"));
                    }
                    Err(e) => return Err(e),
                },
                _ => self.ended(Outcome::SetAside, views::WITHOUT_LISTING),
            },
            (Way::Aside, Subject::Run(..)) if !self.there => {
                plain.note_lost(&self.path, &self.name(), &self.what)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Says how it ended.
    pub fn ended(&mut self, outcome: Outcome, how: impl Into<String>) {
        self.outcome = outcome;
        self.how = how.into();
    }

    /// Whether it is right now.
    pub fn is_right(&self, plain: &Plain) -> Result<bool> {
        Ok(match &self.subject {
            Subject::Blob(b, x) => {
                [*x, !*x].iter().any(|x| is_right(&plain.blob_path(*b, *x), *b)) || plain.source_of(*b)?.is_some()
            }
            Subject::Tree(t) => matches!(plain.tree(*t), Ok(Some(_))),
            Subject::Recipe(r) => plain.recipe_reads(*r)?,
            Subject::Table(b) => matches!(plain.table(*b)?, Some(Ok(_))),
            Subject::Ref(b) => matches!(plain.places(*b)?, Ref::Places(_)),
            Subject::Run(r, _) => plain.has_realisation(*r)?,
            _ if self.part == Part::Version => plain.version()? == Version::Right,
            _ => true,
        })
    }
}

/// What would be done about each finding. Changes nothing.
pub fn plan(plain: &Plain, found: &[Finding], elsewhere: &Elsewhere<'_>) -> Result<Vec<Repair>> {
    let mut all = Vec::new();
    for f in found.iter().filter(|f| f.part != Part::Path) {
        let way = find::way(plain, f, elsewhere)?;
        all.push(Repair::new(f.clone(), way));
    }
    // Each view once, whatever of it is wrong.
    let mut views = Vec::new();
    all.retain(|r| match (&r.part, &r.subject) {
        (Part::View, Subject::View(id)) if views.contains(id) => false,
        (Part::View, Subject::View(id)) => {
            views.push(*id);
            true
        }
        _ => true,
    });
    views::foresee(plain, &mut all, elsewhere)?;
    // The format first; then what other repairs need: listings before views, blobs before tables.
    let order = |p: Part| match p {
        Part::Version => 0,
        Part::Roots => 1,
        Part::Blob => 2,
        Part::Tree => 3,
        Part::Run => 5,
        Part::Recipe => 6,
        Part::View => 8,
        _ => 7,
    };
    all.sort_by_key(|r| order(r.part));
    Ok(all)
}
