//! The whole store, read from its plain files: what is there, what names what, and what of it does not read. Nothing is
//! changed, and no blob's bytes are read. For those who must know everything before they act: gc, verify, repair, roots.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::digest::{BlobId, Digest, RecipeId, TreeId};
use crate::fsx::{self, at};
use crate::kinds;
use crate::model::path::RelPath;
use crate::model::recipe::{Class, parse_fields};
use crate::model::run::RunRecord;
use crate::model::tree::Tree;
use crate::store::Store;
use crate::store::error::Result;
use crate::store::gclog;
use crate::store::links::{self, HeldLink};
use crate::store::objects::read_plain;
use crate::store::plain::Plain;
use crate::store::roots::Roots;
use crate::store::sealed::unseal;
use crate::store::unended::{self, Unended};

/// Something in the store that is not what its name or its format says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// What it is one of.
    pub part: Part,
    /// What is wrong, to be read behind the path.
    pub what: String,
}

/// The parts of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// `blobs/`.
    Blob,
    /// `trees/`.
    Tree,
    /// `tensors/`.
    Table,
    /// `recipes/`.
    Recipe,
    /// `runs/`.
    Run,
    /// `refs/`.
    Ref,
    /// `roots/`.
    Roots,
    /// What a collector took, in `logs/`.
    Log,
    /// `VERSION`.
    Version,
    /// `index/`.
    Index,
    /// `artifacts/`.
    View,
    /// A file of a source that the store relies on.
    Source,
    /// Something outside of the store that is held against a tree.
    Path,
}

impl Part {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Part::Blob => "blob",
            Part::Tree => "tree",
            Part::Table => "tensor table",
            Part::Recipe => "recipe",
            Part::Run => "run record",
            Part::Ref => "ref",
            Part::Roots => "roots",
            Part::Log => "log",
            Part::Version => "version",
            Part::Index => "index",
            Part::View => "view",
            Part::Source => "source",
            Part::Path => "file",
        }
    }
}

/// One stored blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlob {
    /// Bytes.
    pub size: u64,
    /// Bytes that the file system has set aside for it.
    pub allocated: u64,
}

/// A tree of the store, as far as those who keep or free it need to know.
#[derive(Debug, Clone, Default)]
pub struct SurveyedTree {
    /// Its files: blob, executable, size in bytes.
    pub files: Vec<(BlobId, bool, u64)>,
    /// Those that are named as safetensors files.
    pub shards: Vec<BlobId>,
}

/// What a store holds.
#[derive(Debug, Default)]
pub struct Survey {
    /// Every listing that reads.
    pub trees: HashMap<TreeId, SurveyedTree>,
    /// Every recipe that reads, with its inputs: alias and tree.
    pub recipes: HashMap<RecipeId, Vec<(String, TreeId)>>,
    /// The recipes whose trees are closed: nothing of them may be a mere reference to a source.
    pub closed: HashSet<RecipeId>,
    /// Every attempt whose record reads, by recipe and number.
    pub runs: BTreeMap<RecipeId, Vec<RunRecord>>,
    /// Every file in `blobs/` with a blob's name; its bytes were not looked at.
    pub blobs: HashMap<(BlobId, bool), StoredBlob>,
    /// The blobs that have a tensor table.
    pub tables: HashSet<BlobId>,
    /// The blobs that a source is known to have had.
    pub refs: HashSet<BlobId>,
    /// The trees that have a view.
    pub views: HashSet<TreeId>,
    /// What projects want kept, by file name in `roots/`.
    pub roots: BTreeMap<String, Roots>,
    /// Links elsewhere that hold a tree, by file name in `roots/`.
    pub links: BTreeMap<String, HeldLink>,
    /// What builds have made that did not end, by file name in `roots/`.
    pub unended: BTreeMap<String, Unended>,
    /// What is not what its name or format says.
    pub damage: Vec<Damage>,
    /// Files and folders that have no business where they are.
    pub strangers: Vec<PathBuf>,
}

// A text object: its name, its text, its path.
type Text = (Digest, String, PathBuf);

// What stands at the top of a store.
const TOP: &[&str] = &[
    "VERSION",
    "blobs",
    "trees",
    "tensors",
    "recipes",
    "runs",
    "refs",
    "artifacts",
    "roots",
    "quarantine",
    "failed",
    "logs",
    "tmp",
    "locks",
    "index",
    "seats",
    "README.md",
    ".gitignore",
    ".gitkeep",
];

impl Store {
    /// Reads the whole store. Errors: only where the disk says no; damage is in the survey.
    pub fn survey(&self) -> Result<Survey> {
        self.plain().survey()
    }
}

impl Plain {
    /// Reads the whole store. Errors: only where the disk says no; damage is in the survey.
    pub fn survey(&self) -> Result<Survey> {
        let mut s = Survey::default();
        s.strangers.extend(fsx::names(&self.dir)?.iter().filter(|n| !is_one_of(n, TOP)).map(|n| self.dir.join(n)));
        self.survey_blobs(&mut s)?;
        self.survey_trees(&mut s)?;
        self.survey_recipes(&mut s)?;
        self.survey_runs(&mut s)?;
        self.survey_names(&mut s)?;
        self.survey_roots(&mut s)?;
        self.survey_gc_logs(&mut s)?;
        s.damage.sort();
        s.strangers.sort();
        Ok(s)
    }

    // Files named by a digest below `folder`: path, name and what stands behind the 62 digits.
    fn named(&self, folder: &str, strangers: &mut Vec<PathBuf>) -> Result<Vec<(PathBuf, Digest, String)>> {
        let top = self.dir.join(folder);
        let shards = fsx::names(&top)?;
        let found: Vec<Result<(Vec<_>, Vec<PathBuf>)>> = shards
            .par_iter()
            .map(|shard| {
                let dir = top.join(shard);
                let (mut good, mut odd) = (Vec::new(), Vec::new());
                let is_shard = shard.len() == 2 && is_hex(shard);
                if !is_shard || !fs::symlink_metadata(&dir).is_ok_and(|m| m.is_dir()) {
                    return Ok((good, vec![dir]));
                }
                for name in fsx::names(&dir)? {
                    let path = dir.join(&name);
                    let text = name.to_string_lossy();
                    let (stem, rest) = text.split_at_checked(62).unwrap_or((&*text, ""));
                    match Digest::from_hex(&format!("{}{stem}", shard.to_string_lossy())) {
                        Ok(d) => good.push((path, d, rest.to_owned())),
                        Err(_) => odd.push(path),
                    }
                }
                Ok((good, odd))
            })
            .collect();
        let mut all = Vec::new();
        for one in found {
            let (good, odd) = one?;
            all.extend(good);
            strangers.extend(odd);
        }
        Ok(all)
    }

    fn survey_blobs(&self, s: &mut Survey) -> Result<()> {
        let files = self.named("blobs", &mut s.strangers)?;
        let looked: Vec<Result<_>> = files
            .into_par_iter()
            .map(|(path, digest, rest)| match fs::symlink_metadata(&path) {
                Ok(m) => Ok(Some((path, digest, rest, m))),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(at("look at", &path)(e).into()),
            })
            .collect();
        for one in looked {
            let Some((path, digest, rest, m)) = one? else { continue };
            let executable = match rest.as_str() {
                "" => false,
                ".x" => true,
                _ => {
                    s.strangers.push(path);
                    continue;
                }
            };
            if m.is_file() {
                let blob = StoredBlob { size: m.len(), allocated: m.blocks().saturating_mul(512) };
                s.blobs.insert((BlobId(digest), executable), blob);
            } else {
                s.damage.push(Damage { path, part: Part::Blob, what: "is no regular file".to_owned() });
            }
        }
        Ok(())
    }

    // Text objects by name; each is held against its digest.
    fn texts(&self, folder: &str, part: Part, s: &mut Survey) -> Result<Vec<Text>> {
        let files = self.named(folder, &mut s.strangers)?;
        let (files, odd): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, _, rest)| rest.is_empty());
        s.strangers.extend(odd.into_iter().map(|(path, _, _)| path));
        let read: Vec<Result<std::result::Result<Option<Text>, Damage>>> = files
            .into_par_iter()
            .map(|(path, digest, _)| {
                let bytes = match read_plain(&path) {
                    Err(crate::store::StoreError::Damaged { path, what }) => {
                        return Ok(Err(Damage { path, part, what }));
                    }
                    Err(e) => return Err(e),
                    Ok(None) => return Ok(Ok(None)),
                    Ok(Some(bytes)) => bytes,
                };
                let found = Digest::of(&bytes);
                if found != digest {
                    let what = format!("hashes to {found}, not to its name");
                    return Ok(Err(Damage { path, part, what }));
                }
                Ok(match String::from_utf8(bytes) {
                    Ok(text) => Ok(Some((digest, text, path))),
                    Err(_) => Err(Damage { path, part, what: "is no UTF-8 text".to_owned() }),
                })
            })
            .collect();
        let mut all = Vec::new();
        for one in read {
            match one? {
                Ok(found) => all.extend(found),
                Err(damage) => s.damage.push(damage),
            }
        }
        Ok(all)
    }

    fn survey_trees(&self, s: &mut Survey) -> Result<()> {
        let texts = self.texts("trees", Part::Tree, s)?;
        let parsed: Vec<_> =
            texts.into_par_iter().map(|(digest, text, path)| (digest, path, Tree::parse(&text))).collect();
        for (digest, path, tree) in parsed {
            match tree {
                Ok(tree) => {
                    let files = tree.files().map(|(_, blob, size, x)| (blob, x, size)).collect();
                    let shard = |path: &RelPath| path.file_name().ends_with(b".safetensors");
                    let shards = tree.files().filter(|f| shard(f.0)).map(|f| f.1).collect();
                    s.trees.insert(TreeId(digest), SurveyedTree { files, shards });
                }
                Err(e) => s.damage.push(Damage { path, part: Part::Tree, what: e.to_string() }),
            }
        }
        Ok(())
    }

    fn survey_recipes(&self, s: &mut Survey) -> Result<()> {
        for (digest, text, path) in self.texts("recipes", Part::Recipe, s)? {
            match read_recipe(&text) {
                Ok((closed, inputs)) => {
                    s.recipes.insert(RecipeId(digest), inputs);
                    if closed {
                        s.closed.insert(RecipeId(digest));
                    }
                }
                Err(what) => s.damage.push(Damage { path, part: Part::Recipe, what }),
            }
        }
        Ok(())
    }

    fn survey_runs(&self, s: &mut Survey) -> Result<()> {
        let top = self.dir.join("runs");
        let folders = fsx::names(&top)?;
        let read: Vec<Result<Found>> = folders.par_iter().map(|name| read_runs(&top, name)).collect();
        for one in read {
            let found = one?;
            s.damage.extend(found.damage);
            s.strangers.extend(found.strangers);
            if let Some((recipe, runs)) = found.runs {
                s.runs.insert(recipe, runs);
            }
        }
        Ok(())
    }

    /// Every attempt whose record reads.
    pub(crate) fn survey_of_runs(&self) -> Result<Vec<RunRecord>> {
        let mut s = Survey::default();
        self.survey_runs(&mut s)?;
        Ok(s.runs.into_values().flatten().collect())
    }

    fn survey_names(&self, s: &mut Survey) -> Result<()> {
        for (path, digest, rest) in self.named("tensors", &mut s.strangers)? {
            if rest.is_empty() {
                s.tables.insert(BlobId(digest));
            } else {
                s.strangers.push(path);
            }
        }
        for (path, digest, rest) in self.named("refs", &mut s.strangers)? {
            if rest.is_empty() {
                s.refs.insert(BlobId(digest));
            } else {
                s.strangers.push(path);
            }
        }
        let top = self.dir.join("artifacts");
        for name in fsx::names(&top)? {
            match Digest::from_hex(&name.to_string_lossy()) {
                Ok(d) => {
                    s.views.insert(TreeId(d));
                }
                Err(_) => s.strangers.push(top.join(name)),
            }
        }
        Ok(())
    }

    // What they say is of no use here; whether they can be read is.
    fn survey_gc_logs(&self, s: &mut Survey) -> Result<()> {
        let top = self.dir.join("logs");
        for name in fsx::names(&top)?.iter().filter(|n| gclog::is_one(n)) {
            let path = top.join(name);
            let what = match read_plain(&path) {
                Ok(None) => continue,
                Ok(Some(bytes)) => gclog::read(&bytes).err(),
                Err(crate::store::StoreError::Damaged { what, .. }) => Some(what),
                Err(e) => return Err(e),
            };
            s.damage.extend(what.map(|what| Damage { path, part: Part::Log, what }));
        }
        Ok(())
    }

    /// Reads what is to be kept, and nothing else.
    pub(crate) fn survey_roots(&self, s: &mut Survey) -> Result<()> {
        let top = self.dir.join("roots");
        for name in fsx::names(&top)? {
            let path = top.join(&name);
            let bytes = match read_plain(&path) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => continue,
                Err(crate::store::StoreError::Damaged { path, what }) => {
                    s.damage.push(Damage { path, part: Part::Roots, what });
                    continue;
                }
                Err(e) => return Err(e),
            };
            let key = name.to_string_lossy().into_owned();
            let read = if key.starts_with(links::PREFIX) {
                unseal::<HeldLink>(&bytes).map(|link| drop(s.links.insert(key, link)))
            } else if key.starts_with(unended::PREFIX) {
                Unended::read(&bytes).map(|made| drop(s.unended.insert(key, made)))
            } else {
                unseal::<Roots>(&bytes).map(|roots| drop(s.roots.insert(key, roots)))
            };
            match read {
                Ok(()) => {}
                Err(what) => s.damage.push(Damage { path, part: Part::Roots, what }),
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Found {
    runs: Option<(RecipeId, Vec<RunRecord>)>,
    damage: Vec<Damage>,
    strangers: Vec<PathBuf>,
}

fn read_runs(top: &Path, name: &OsString) -> Result<Found> {
    let folder = top.join(name);
    let mut found = Found::default();
    let Ok(digest) = Digest::from_hex(&name.to_string_lossy()) else {
        found.strangers.push(folder);
        return Ok(found);
    };
    if !fs::symlink_metadata(&folder).is_ok_and(|m| m.is_dir()) {
        found.damage.push(Damage { path: folder, part: Part::Run, what: "is no folder".to_owned() });
        return Ok(found);
    }
    let recipe = RecipeId(digest);
    let mut runs = Vec::new();
    for file in fsx::names(&folder)? {
        let path = folder.join(&file);
        let bytes = match read_plain(&path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => continue,
            Err(crate::store::StoreError::Damaged { path, what }) => {
                found.damage.push(Damage { path, part: Part::Run, what });
                continue;
            }
            Err(e) => return Err(e),
        };
        match unseal::<RunRecord>(&bytes) {
            Ok(run) if run.recipe == recipe && file == *format!("{:06}.json", run.seq) => runs.push(run),
            Ok(run) if run.recipe == recipe => {
                let what = format!("says that it is run {}", run.seq);
                found.damage.push(Damage { path, part: Part::Run, what });
            }
            Ok(run) => {
                let what = format!("is a run of {}, not of {recipe}", run.recipe);
                found.damage.push(Damage { path, part: Part::Run, what });
            }
            Err(what) => found.damage.push(Damage { path, part: Part::Run, what }),
        }
    }
    runs.sort_by_key(|r| r.seq);
    found.runs = Some((recipe, runs));
    Ok(found)
}

// Whether its tree is closed, and its inputs.
fn read_recipe(text: &str) -> std::result::Result<(bool, Vec<(String, TreeId)>), String> {
    let fields = parse_fields(text).map_err(|e| e.to_string())?;
    let mut inputs = Vec::new();
    let mut closed = false;
    for (field, value) in fields {
        if field.class == Class::Step && field.name == "kind" {
            closed = kinds::by_name(value.trim_matches('"')).is_some_and(|k| k.closed());
        }
        if field.class == Class::Input {
            let tree = value.strip_prefix("tree ").and_then(|t| t.parse().ok());
            inputs.push((field.name.clone(), tree.ok_or_else(|| format!("its {field} is no tree: {value}"))?));
        }
    }
    Ok((closed, inputs))
}

fn is_hex(name: &OsStr) -> bool {
    name.as_encoded_bytes().iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_one_of(name: &OsStr, known: &[&str]) -> bool {
    known.iter().any(|k| name == *k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::recipe::Ingredients;
    use crate::model::run::{Isolation, Outcome};
    use crate::model::tree::Entry;

    #[test]
    fn a_survey_finds_everything_and_names_what_does_not_read() {
        let t = tempfile::tempdir().unwrap();
        let store = Store::open(t.path()).unwrap();
        let mut tree = Tree::new();
        let blob = BlobId(Digest::of(b"x"));
        let path = RelPath::try_from("f").unwrap();
        tree.insert(path, Entry::File { blob, size: 1, executable: true }).unwrap();
        let id = store.put_tree(&tree).unwrap();
        let recipe =
            Ingredients { kind: "k".into(), inputs: [("in".into(), id)].into(), ..Default::default() }.recipe();
        store.put_recipe(&recipe).unwrap();
        let run = RunRecord {
            recipe: recipe.id,
            seq: 0,
            outcome: Outcome::Success { tree: id, verdict: None },
            isolation: Isolation::Builtin,
            started: String::new(),
            seconds: 1.0,
            host: String::new(),
            node: "n".into(),
            version: String::new(),
            reasons: Vec::new(),
            facts: BTreeMap::new(),
            log: None,
        };
        store.record(run.clone()).unwrap();
        store.put_roots(Path::new("/p/graph.toml"), &Roots::default()).unwrap();
        let s = store.survey().unwrap();
        assert_eq!(s.trees[&id].files, [(blob, true, 1)]);
        assert_eq!(s.recipes[&recipe.id], [("in".to_owned(), id)]);
        assert_eq!(s.runs[&recipe.id], [RunRecord { seq: 1, ..run }]);
        assert_eq!((s.roots.len(), s.damage.len(), s.strangers.len()), (1, 0, 0), "{:?} {:?}", s.damage, s.strangers);

        let spoil = |dir: &str| {
            let mut path = t.path().join(dir);
            while path.is_dir() {
                path = path.join(&fsx::names(&path).unwrap()[0]);
            }
            let mut bytes = fs::read(&path).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        };
        let spoilt = ["trees", "recipes", "runs", "roots"].map(spoil);
        fs::write(t.path().join("blobs/notes.txt"), "x").unwrap();
        let s = store.survey().unwrap();
        let mut named: Vec<_> = s.damage.iter().map(|d| d.path.clone()).collect();
        named.sort();
        let mut expected = spoilt.map(|p| p.canonicalize().unwrap()).to_vec();
        expected.sort();
        assert_eq!(named, expected);
        assert_eq!(s.strangers, [store.dir().join("blobs/notes.txt")]);
    }
}
