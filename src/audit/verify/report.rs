//! What a look at a store, or at a folder, found.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::canon::plain_or_quoted;
use crate::digest::{BlobId, RecipeId, TreeId};
use crate::store::survey::Part;

/// What a finding is about, for whoever puts it right.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A blob, and whether it is the executable one.
    Blob(BlobId, bool),
    /// A listing.
    Tree(TreeId),
    /// A recipe's text.
    Recipe(RecipeId),
    /// A recipe's record; its number where that is known.
    Run(RecipeId, Option<u64>),
    /// A tensor table.
    Table(BlobId),
    /// A ref.
    Ref(BlobId),
    /// A view.
    View(TreeId),
    /// Anything else.
    Other,
}

impl Subject {
    /// What it is called in `quarantine/`, without the number behind it; `None` where its path says more.
    pub fn quarantine_name(&self) -> Option<String> {
        Some(match self {
            Subject::Blob(b, false) => b.hex(),
            Subject::Blob(b, true) => format!("{}.x", b.hex()),
            Subject::Tree(t) => format!("trees-{}", t.hex()),
            Subject::Recipe(r) => format!("recipes-{}", r.hex()),
            Subject::Run(r, Some(seq)) => format!("runs-{}-{seq:06}", r.hex()),
            Subject::Table(b) => format!("tensors-{}", b.hex()),
            Subject::Ref(b) => format!("refs-{}", b.hex()),
            Subject::Run(_, None) | Subject::View(_) | Subject::Other => return None,
        })
    }
}

/// A node that needs something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NodeUse {
    /// The project's folder; none where only a run's record names the node.
    #[serde(serialize_with = "optional_escaped")]
    pub project: Option<PathBuf>,
    /// The node.
    pub node: String,
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The file or folder.
    #[serde(serialize_with = "escaped_text")]
    pub path: PathBuf,
    /// What it is one of.
    pub part: Part,
    /// What is wrong, to be read behind the path.
    pub what: String,
    /// The tensors whose bytes are not what they were.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<String>,
    /// The artifacts that contain it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<TreeId>,
    /// The artifacts that were made from those.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub derived: Vec<TreeId>,
    /// The nodes that need any of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeUse>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What it is about.
    #[serde(skip)]
    pub subject: Subject,
}

impl Finding {
    /// A finding of which nothing else is known yet.
    pub fn new(path: PathBuf, part: Part, what: impl Into<String>, subject: Subject) -> Self {
        Self {
            path,
            part,
            what: what.into(),
            tensors: Vec::new(),
            trees: Vec::new(),
            derived: Vec::new(),
            nodes: Vec::new(),
            hint: None,
            subject,
        }
    }
}

/// The findings of one look, in lists.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verified {
    /// Whether there is nothing in `changed`, `missing`, `extra` and `not_built`.
    pub ok: bool,
    /// The store's folder.
    #[serde(serialize_with = "escaped_text")]
    pub store: PathBuf,
    /// Whether blobs were only looked at from outside.
    pub quick: bool,
    /// Files that were looked at.
    pub files: u64,
    /// Bytes that were hashed.
    pub hashed_bytes: u64,
    /// How long it took.
    #[serde(serialize_with = "seconds")]
    pub seconds: Duration,
    /// What is not what it was.
    pub changed: Vec<Finding>,
    /// What is named by something, and is nowhere.
    pub missing: Vec<Finding>,
    /// What has no business where it is.
    pub extra: Vec<Finding>,
    /// What is gone and may be: collected, in a source that has changed since, or set aside before.
    pub collected: Vec<Finding>,
    /// Nodes and artifacts that were asked for, and are known, but not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_built: Vec<String>,
    /// What a person should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Verified {
    /// Adds what another look found.
    pub fn add(&mut self, other: Verified) {
        self.files += other.files;
        self.hashed_bytes += other.hashed_bytes;
        self.changed.extend(other.changed);
        self.missing.extend(other.missing);
        self.extra.extend(other.extra);
        self.collected.extend(other.collected);
        self.not_built.extend(other.not_built);
        self.notes.extend(other.notes);
    }

    /// Sorts the lists, drops what stands in one twice, and says whether all is well.
    pub fn close(&mut self) {
        for list in [&mut self.changed, &mut self.missing, &mut self.extra, &mut self.collected] {
            list.sort_by(|a, b| (a.part, &a.path, &a.what).cmp(&(b.part, &b.path, &b.what)));
            list.dedup_by(|a, b| a.path == b.path && a.what == b.what);
        }
        self.notes.sort();
        self.notes.dedup();
        self.ok = self.exit_code() == 0;
    }

    /// What is changed or missing in the store, not in a folder held against it.
    pub fn damage(&self) -> impl Iterator<Item = &Finding> {
        self.changed.iter().chain(&self.missing).filter(|f| f.part != Part::Path)
    }

    /// 0 right, 1 changed or missing in a folder or not built, 3 the store is damaged, 4 only extra.
    pub fn exit_code(&self) -> u8 {
        if self.damage().next().is_some() {
            3
        } else if !self.changed.is_empty() || !self.missing.is_empty() || !self.not_built.is_empty() {
            1
        } else if !self.extra.is_empty() {
            4
        } else {
            0
        }
    }
}

/// A path as text that shows every byte: as it is where it is plain, else in quotes and escaped.
pub fn escaped(path: &Path) -> String {
    plain_or_quoted(path.as_os_str().as_encoded_bytes())
}

fn escaped_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&escaped(path))
}

fn optional_escaped<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(p) => to.serialize_some(&escaped(p)),
        None => to.serialize_none(),
    }
}

fn seconds<S: Serializer>(d: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64((d.as_secs_f64() * 1000.0).round() / 1000.0)
}
