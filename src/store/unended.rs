//! `roots/build-<project>-<session>.txt`: what a build has made and its project's roots do not name yet. Each realisation is
//! written there before its record, durably, and holds its tree; so what a build made that was killed is kept until the
//! project's next build ends, which takes it into the roots.
//!
//! A line each, which begins with the BLAKE3 of the rest. A last line without its end was being written when the process
//! died, and then there is no record either.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, RecipeId, TreeId};
use crate::fsx;
use crate::model::run::RunRecord;
use crate::store::Store;
use crate::store::error::{Result, StoreError};
use crate::store::objects::read_plain;
use crate::store::roots::{Root, Roots};
use crate::store::session;

/// How the names of such files begin.
pub(crate) const PREFIX: &str = "build-";

/// What a build has made so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unended {
    /// Its graph, for people.
    pub graph: PathBuf,
    /// Its realisations, in the order in which they were made.
    pub made: Vec<Made>,
}

/// One realisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The node.
    pub node: String,
    /// The recipe.
    pub recipe: RecipeId,
    /// The tree it gave.
    pub tree: TreeId,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Made(Made),
    Graph { graph: String },
}

// A build that is going on: where it says what it makes, and its graph.
#[derive(Debug, Default)]
pub(super) struct Building(Option<(PathBuf, PathBuf)>);

impl Unended {
    /// Reads such a file. Errors: what is wrong with it, to be read behind its path.
    pub(crate) fn read(bytes: &[u8]) -> std::result::Result<Self, String> {
        let mut all = Self::default();
        for line in bytes.split_inclusive(|b| *b == b'\n') {
            let Some(line) = line.strip_suffix(b"\n") else { break };
            let line = std::str::from_utf8(line).map_err(|_| "is no UTF-8 text".to_owned())?;
            let (sum, text) = line.split_once(' ').ok_or_else(|| "has a line without a sum".to_owned())?;
            let found = Digest::of(text.as_bytes()).to_string();
            if found != sum {
                return Err(format!("has a line that hashes to {found}, but says {sum}"));
            }
            match serde_json::from_str(text).map_err(|e| format!("does not read: {e}"))? {
                Line::Made(made) => all.made.push(made),
                Line::Graph { graph } => all.graph = graph.into(),
            }
        }
        Ok(all)
    }
}

fn put(text: &mut String, line: &Line) -> std::io::Result<()> {
    let json = serde_json::to_string(line)?;
    // Writing to a string never fails.
    let _ = writeln!(text, "{} {json}", Digest::of(json.as_bytes()));
    Ok(())
}

impl Store {
    /// From now on, what is [recorded](Self::record) is a build's of this graph file (absolute path).
    pub fn build_begins(&self, graph: &Path) {
        let session = self.temp_dir().file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{PREFIX}{}-{session}.txt", self.plain().project_key(graph));
        let building = Building(Some((self.dir.join("roots").join(name), graph.to_owned())));
        *self.building.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = building;
    }

    // Before the record is written that says so.
    pub(super) fn note_made(&self, run: &RunRecord) -> Result<()> {
        // Locked until it is written: two steps may end at once.
        let building = self.building.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (Some((file, graph)), Some(tree)) = (&building.0, run.tree()) else { return Ok(()) };
        let new = !file.exists();
        let mut text = String::new();
        let made = Made { node: run.node.clone(), recipe: run.recipe, tree };
        let written =
            if new { put(&mut text, &Line::Graph { graph: graph.to_string_lossy().into_owned() }) } else { Ok(()) };
        written.and_then(|()| put(&mut text, &Line::Made(made))).map_err(fsx::at("write", file))?;
        fsx::append(file, text.as_bytes())?;
        fsx::fsync(file)?;
        if new {
            fsx::fsync(&self.dir.join("roots"))?;
        }
        Ok(())
    }

    /// Takes into `roots` what builds of this graph file made that did not end, as older than what is entered behind it.
    /// Comes back: the files that said so, for [`Store::builds_ended`] once the roots are written. Errors: Damaged.
    pub fn take_unended(&self, graph: &Path, roots: &mut Roots) -> Result<Vec<PathBuf>> {
        let top = self.dir.join("roots");
        let begin = format!("{PREFIX}{}-", self.plain().project_key(graph));
        let mut taken = Vec::new();
        for name in fsx::names(&top)? {
            let text = name.to_string_lossy();
            let Some(session) = text.strip_prefix(&begin).and_then(|t| t.strip_suffix(".txt")) else { continue };
            let path = top.join(&name);
            let own = self.temp_dir().file_name().is_some_and(|n| n == session);
            if !own && session::lives(&self.dir.join("tmp"), session) {
                continue;
            }
            let Some(bytes) = read_plain(&path)? else { continue };
            let unended = Unended::read(&bytes).map_err(|what| StoreError::Damaged { path: path.clone(), what })?;
            for made in unended.made {
                // Where it was killed before the record, there is nothing to keep.
                let seq = self.runs(made.recipe)?.iter().rev().find(|r| r.tree() == Some(made.tree)).map(|r| r.seq);
                if let Some(seq) = seq {
                    roots.enter(&made.node, Root { recipe: made.recipe, tree: made.tree, seq });
                }
            }
            taken.push(path);
        }
        Ok(taken)
    }

    /// Removes what [`Store::take_unended`] has taken.
    pub fn builds_ended(&self, taken: &[PathBuf]) -> Result<()> {
        for path in taken {
            fsx::remove_file(path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_being_written_is_none_and_a_flipped_bit_is_seen() {
        let id = Digest::of(b"x");
        let made = Made { node: "quant".to_owned(), recipe: RecipeId(id), tree: TreeId(id) };
        let mut text = String::new();
        put(&mut text, &Line::Graph { graph: "/p/graph.toml".to_owned() }).unwrap();
        put(&mut text, &Line::Made(made.clone())).unwrap();
        let all = Unended { graph: "/p/graph.toml".into(), made: vec![made] };
        assert_eq!(Unended::read(text.as_bytes()), Ok(all));
        for cut in 0..text.len() {
            assert!(Unended::read(&text.as_bytes()[..cut]).unwrap().made.is_empty(), "cut at {cut}");
        }
        for i in 0..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[i] ^= 1;
            assert!(Unended::read(&bytes).is_err(), "byte {i}");
        }
    }
}
