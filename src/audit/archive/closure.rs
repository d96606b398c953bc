//! What belongs to an export: the trees with their bytes, and how they came to be, down to the sources.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::audit::archive::error::{ArchiveError, Result};
pub use crate::audit::archive::manifest::Export;
use crate::audit::archive::manifest::{self, Item, MadeBy, ObjectName};
use crate::digest::{BlobId, Digest, RecipeId, TreeId};
use crate::model::recipe::{Class, parse_fields};
use crate::model::run::RunRecord;
use crate::model::tree::Tree;
use crate::store::{Store, StoreError, intake};

/// What is to be exported.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The trees that go with their bytes.
    pub exports: Vec<Export>,
    /// The trees of the nodes above them: their provenance goes too.
    pub above: Vec<TreeId>,
    /// What the sources were, by name.
    pub sources: BTreeMap<String, TreeId>,
    /// Whether the bytes of all inputs go too, down to the sources.
    pub with_inputs: bool,
}

/// Everything that an archive holds.
#[derive(Debug)]
pub struct Closure {
    exports: Vec<Export>,
    sources: Vec<(String, TreeId)>,
    items: Vec<Item>,
}

impl Closure {
    /// Works out the closure. Errors: TooLarge; the store's where something that belongs to it is damaged or gone.
    pub fn of(store: &Store, wanted: &Wanted) -> Result<Self> {
        let mut g = Gathering::new(store, wanted)?;
        g.walk()?;
        let mut exports = wanted.exports.clone();
        exports.sort();
        exports.dedup();
        let items = g.items()?;
        Ok(Self { exports, sources: wanted.sources.clone().into_iter().collect(), items })
    }

    /// What is exported, sorted.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// The objects, in the archive's order.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// The manifest's text.
    pub fn manifest(&self) -> String {
        manifest::to_text(&self.exports, &self.sources, &self.items)
    }

    /// The bytes of an object that is a text.
    pub(crate) fn text(&self, store: &Store, name: ObjectName) -> Result<Vec<u8>> {
        text(store, name)
    }
}

// What the store keeps under a name. Errors: Damaged where it is not there.
fn text(store: &Store, name: ObjectName) -> Result<Vec<u8>> {
    let found = match name {
        ObjectName::Recipe(id) => store.recipe(id)?.map(String::into_bytes),
        ObjectName::Tree(id) => store.tree(id)?.map(|t| t.to_text().into_bytes()),
        ObjectName::Table(blob) => Some(intake::table_text(&store.table_of(blob)?).into_bytes()),
        ObjectName::Run(recipe, seq) => store.run_text(recipe, seq)?,
        ObjectName::Blob(..) => None,
    };
    found.ok_or_else(|| missing(store, name).into())
}

fn missing(store: &Store, name: ObjectName) -> StoreError {
    StoreError::Damaged {
        path: store.dir().join(name.to_string()),
        what: "is not there, but something names it".to_owned(),
    }
}

struct Gathering<'a> {
    store: &'a Store,
    wanted: &'a Wanted,
    // Every attempt, by what it made; failures by recipe alone.
    made: HashMap<TreeId, Vec<RunRecord>>,
    failed: HashMap<RecipeId, Vec<RunRecord>>,
    recipes: BTreeMap<RecipeId, Vec<TreeId>>,
    // Listings that go, and whether the files of a tree go with it.
    trees: BTreeMap<TreeId, Tree>,
    with_bytes: BTreeSet<TreeId>,
    runs: BTreeSet<(RecipeId, u64)>,
    todo: Vec<TreeId>,
}

impl<'a> Gathering<'a> {
    fn new(store: &'a Store, wanted: &'a Wanted) -> Result<Self> {
        let mut g = Self {
            store,
            wanted,
            made: HashMap::new(),
            failed: HashMap::new(),
            recipes: BTreeMap::new(),
            trees: BTreeMap::new(),
            with_bytes: BTreeSet::new(),
            runs: BTreeSet::new(),
            todo: Vec::new(),
        };
        for run in store.all_runs()? {
            match run.tree() {
                Some(tree) => g.made.entry(tree).or_default().push(run),
                None => g.failed.entry(run.recipe).or_default().push(run),
            }
        }
        Ok(g)
    }

    fn walk(&mut self) -> Result<()> {
        for e in &self.wanted.exports {
            self.with_bytes.insert(e.tree);
            self.todo.push(e.tree);
        }
        self.todo.extend(&self.wanted.above);
        self.todo.extend(self.wanted.sources.values());
        let sources: BTreeSet<TreeId> = self.wanted.sources.values().copied().collect();
        while let Some(id) = self.todo.pop() {
            if self.trees.contains_key(&id) {
                continue;
            }
            let tree = self.store.tree(id)?.ok_or_else(|| missing(self.store, ObjectName::Tree(id)))?;
            let makers = self.makers(id, &tree)?;
            // A source's listing is told for people; what steps took of it are trees of their own.
            if self.wanted.with_inputs && !sources.contains(&id) {
                self.with_bytes.insert(id);
            }
            self.trees.insert(id, tree);
            for run in makers {
                self.runs.insert((run.recipe, run.seq));
                self.enter_recipe(run.recipe)?;
                self.todo.extend(run.tree());
            }
        }
        Ok(())
    }

    fn enter_recipe(&mut self, id: RecipeId) -> Result<()> {
        if self.recipes.contains_key(&id) {
            return Ok(());
        }
        let inputs = self.inputs_of(id)?;
        self.todo.extend(&inputs);
        if self.wanted.with_inputs {
            self.with_bytes.extend(&inputs);
        }
        self.recipes.insert(id, inputs);
        // What was tried in vain belongs to how it came to be.
        self.runs.extend(self.failed.get(&id).into_iter().flatten().map(|r| (r.recipe, r.seq)));
        Ok(())
    }

    fn inputs_of(&self, id: RecipeId) -> Result<Vec<TreeId>> {
        let text = self.store.recipe(id)?.ok_or_else(|| missing(self.store, ObjectName::Recipe(id)))?;
        let damaged = |what: String| {
            let path = self.store.dir().join(ObjectName::Recipe(id).to_string());
            ArchiveError::from(StoreError::Damaged { path, what })
        };
        recipe_inputs(&text).map_err(damaged)
    }

    // The runs that made a tree; of a tree that is a part of one (an input that is filtered), those that made the whole.
    fn makers(&self, id: TreeId, tree: &Tree) -> Result<Vec<RunRecord>> {
        if let Some(runs) = self.made.get(&id) {
            return Ok(runs.clone());
        }
        let known = self.wanted.above.iter().chain(self.wanted.sources.values());
        let known = known.chain(self.wanted.exports.iter().map(|e| &e.tree));
        let known: BTreeSet<TreeId> = known.copied().collect();
        for whole in &known {
            if *whole == id || self.is_part(tree, *whole)? {
                // It is walked by itself.
                return Ok(Vec::new());
            }
        }
        let mut makers = Vec::new();
        for (whole, runs) in &self.made {
            if self.is_part(tree, *whole)? {
                makers.extend(runs.iter().cloned());
            }
        }
        Ok(makers)
    }

    fn is_part(&self, part: &Tree, whole: TreeId) -> Result<bool> {
        // One that is damaged or gone is not known to be the whole of anything.
        let read;
        let whole = match self.trees.get(&whole) {
            Some(t) => t,
            None => match self.store.tree(whole) {
                Ok(Some(t)) => {
                    read = t;
                    &read
                }
                Ok(None) | Err(StoreError::Damaged { .. }) => return Ok(false),
                Err(e) => return Err(e.into()),
            },
        };
        Ok(!part.is_empty() && part.iter().all(|(path, entry)| whole.get(path) == Some(entry)))
    }

    fn items(&self) -> Result<Vec<Item>> {
        // Before anybody looks whether their bytes are there.
        self.store.hold_trees(self.with_bytes.iter().copied())?;
        let mut items = Vec::new();
        let mut blobs: BTreeMap<(BlobId, bool), u64> = BTreeMap::new();
        let mut tables: HashSet<BlobId> = HashSet::new();
        for id in &self.with_bytes {
            let Some(tree) = self.trees.get(id) else { continue };
            for (path, blob, size, executable) in tree.files() {
                blobs.insert((blob, executable), size);
                if path.file_name().ends_with(b".safetensors") {
                    tables.insert(blob);
                }
            }
        }
        for ((blob, executable), size) in blobs {
            if self.store.presence(blob, executable)?.path().is_none() {
                return Err(self.store.gone(blob).into());
            }
            items.push(Item { name: ObjectName::Blob(blob, executable), size, digest: blob.0 });
        }
        let mut names: Vec<ObjectName> = Vec::new();
        names.extend(self.recipes.keys().map(|id| ObjectName::Recipe(*id)));
        names.extend(self.trees.keys().map(|id| ObjectName::Tree(*id)));
        names.extend(self.runs.iter().map(|(recipe, seq)| ObjectName::Run(*recipe, *seq)));
        for name in names {
            items.push(item(name, &text(self.store, name)?)?);
        }
        for blob in tables {
            let name = ObjectName::Table(blob);
            match text(self.store, name) {
                Ok(t) => items.extend(item(name, &t).ok()),
                // A file of a source may be called so and be none.
                Err(ArchiveError::Store(StoreError::Source { .. })) => {}
                Err(e) => return Err(e),
            }
        }
        items.sort_by_key(|i| i.name);
        Ok(items)
    }
}

fn item(name: ObjectName, text: &[u8]) -> Result<Item> {
    let size = text.len() as u64;
    if size > name.most() {
        return Err(ArchiveError::TooLarge { name: name.to_string(), size, most: name.most() });
    }
    Ok(Item { name, size, digest: Digest::of(text) })
}

/// The trees that a recipe's text names as inputs. Errors: what is wrong with the text.
pub(crate) fn recipe_inputs(text: &str) -> std::result::Result<Vec<TreeId>, String> {
    let fields = parse_fields(text).map_err(|e| e.to_string())?;
    let inputs = fields.iter().filter(|(f, _)| f.class == Class::Input);
    let tree = |v: &str| v.strip_prefix("tree ").and_then(|t| t.parse().ok());
    inputs.map(|(f, v)| tree(v).ok_or_else(|| format!("its {f} is no tree: {v}"))).collect()
}

/// A tree as an export, with the first of the runs that made it; none where no run did.
pub fn exports_of(store: &Store, tree: TreeId) -> Result<Vec<Export>> {
    let mut exports: Vec<Export> = store
        .all_runs()?
        .into_iter()
        .filter(|r| r.tree() == Some(tree))
        .map(|r| Export { made_by: Some(MadeBy { node: r.node, recipe: r.recipe, seq: r.seq }), tree })
        .collect();
    exports.sort();
    exports.truncate(1);
    Ok(exports)
}
