//! `attest`: what a node's tree holds and how it came to be, signed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::attest::key::{Algorithm, PrivateKey, is_pem};
use crate::attest::provenance::{Dependency, Facts};
use crate::attest::subjects::{self, Digests, Watch};
use crate::attest::{AttestError, dsse, oms, provenance};
use crate::audit::verify::escaped;
use crate::digest::{RecipeId, TreeId};
use crate::front::error::{FrontError, Result};
use crate::front::{Project, Sources};
use crate::fsx::part::{Begun, Part};
use crate::fsx::{self, Placed};
use crate::graph::{Name, Ref};
use crate::model::recipe::{Class, FieldName, Fields, parse_fields};
use crate::model::run::RunRecord;
use crate::sched::{Event, Events};
use crate::store::StoreError;

/// The variable that holds a private key, or the path of one.
pub const KEY_VARIABLE: &str = "GRAFTWERK_KEY";
// A key has some hundred bytes; a larger file is another one.
const MOST_OF_A_KEY: u64 = 64 << 10;

/// How a node is attested.
#[derive(Debug, Clone, Default)]
pub struct AttestOptions {
    /// The private key's file; without it, what [`KEY_VARIABLE`] says.
    pub key: Option<PathBuf>,
    /// The file to write, which must not be there; none gives only the text.
    pub out: Option<PathBuf>,
    /// In the OpenSSF model signing format, in place of provenance.
    pub oms: bool,
    /// Who built it, as a URI.
    pub builder: Option<String>,
}

/// What `attest` answers.
#[derive(Debug, Clone, Serialize)]
pub struct AttestReport {
    /// The node.
    pub node: String,
    /// Its recipe.
    pub recipe: RecipeId,
    /// The number of the run that made the tree.
    pub run: u64,
    /// Its tree.
    pub tree: TreeId,
    /// `provenance` or `oms`.
    pub format: &'static str,
    /// What it was signed with.
    pub algorithm: Algorithm,
    /// The fingerprint of the public key.
    pub key: String,
    /// The file that was written.
    #[serde(serialize_with = "fsx::optional_path_text")]
    pub signature: Option<PathBuf>,
    /// The number of files that are signed.
    pub files: usize,
    /// The sum of their sizes.
    pub bytes: u64,
    /// Files that the format leaves out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsigned: Vec<String>,
    /// Files that are links: in the tree, or to a source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
    /// The signature's text.
    #[serde(skip)]
    pub text: String,
}

impl Project {
    /// Signs what a node's tree holds, as it is used now. Errors: NotBuilt; Attest for a key that can't be used; Argument
    /// for a target that is there or lies in the store.
    pub fn attest(
        &self,
        node: &str,
        options: &AttestOptions,
        events: &Events,
        cancel: &Arc<AtomicBool>,
    ) -> Result<AttestReport> {
        let _listening = self.listen(events, cancel);
        // The key and the target first: nobody waits for hashing to hear of them.
        let (key, key_place) = private_key(options.key.as_deref(), events)?;
        let out = options.out.as_deref().map(|path| self.begin(path)).transpose()?;
        let (runs, sources) = self.runs_for(&[node.to_owned()], events, cancel)?;
        let runs: BTreeMap<String, RunRecord> = runs.into_iter().collect();
        let not_built = || FrontError::NotBuilt { node: node.to_owned(), why: "no run made its tree".to_owned() };
        let run = runs.get(node).ok_or_else(not_built)?;
        let (id, tree) = self.tree_of(run)?;
        self.store.hold_trees([id])?;
        let place = |blob, executable| {
            use crate::store::Presence;
            match self.store.presence(blob, executable)? {
                Presence::Stored(path) => Ok((path, false)),
                Presence::Referenced(path) => Ok((path, true)),
                Presence::Absent => Err(self.store.gone(blob)),
            }
        };
        // `Sender` is not shared between threads.
        let to = Mutex::new(events.clone());
        let progress = |done: u64, total: u64| {
            if let Ok(to) = to.lock() {
                let _ = to.send(Event::Progress { node: "attest".to_owned(), done, total });
            }
        };
        let watch = Watch { progress: &progress, cancelled: &|| cancel.load(Ordering::Relaxed) };
        let mut found = subjects::of_tree(&tree, &place, &watch)?;
        let public = key.public();
        let text = if options.oms {
            oms::bundle(node, &found, &key, &key_place)?
        } else {
            let statement = self.provenance(node, run, &runs, &sources, options.builder.as_deref(), &found)?;
            let envelope = dsse::sign(statement.to_string().as_bytes(), dsse::IN_TOTO, &key, public.fingerprint());
            serde_json::to_string(&envelope).unwrap_or_default()
        };
        let mut unsigned = std::mem::take(&mut found.other_links);
        if options.oms {
            unsigned.extend(found.files.keys().filter(|f| oms::leaves_out(f)).cloned());
            found.files.retain(|f, _| !oms::leaves_out(f));
        }
        let signature = match out {
            Some((part, path)) => Some(finish(part, path, &text)?),
            None => None,
        };
        self.tell_notes(events);
        Ok(AttestReport {
            node: node.to_owned(),
            recipe: run.recipe,
            run: run.seq,
            tree: id,
            format: if options.oms { "oms" } else { "provenance" },
            algorithm: public.algorithm(),
            key: public.fingerprint(),
            signature,
            files: found.files.len(),
            bytes: found.files.values().map(|d| d.size).sum(),
            unsigned,
            links: found.links,
            text,
        })
    }

    fn begin(&self, path: &Path) -> Result<(Part, PathBuf)> {
        let refuse = |what: String, hint: &str| FrontError::Argument { what, hint: Some(hint.to_owned()) };
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if folder.canonicalize().is_ok_and(|f| f.starts_with(self.store.dir())) {
            let what = format!("{} lies in the store, where only graftwerk's own files belong", escaped(path));
            return Err(refuse(what, "name a file elsewhere: `out/NODE` is a part of the store, too"));
        }
        match Part::file(path).map_err(StoreError::from)? {
            Begun::Part(part) => Ok((part, path.to_owned())),
            Begun::Busy => {
                let what = format!("another process is making {} at this moment", escaped(path));
                Err(refuse(what, "wait for it, or choose another name"))
            }
            Begun::Existed => Err(exists(path)),
        }
    }

    fn provenance(
        &self,
        node: &str,
        run: &RunRecord,
        runs: &BTreeMap<String, RunRecord>,
        sources: &Sources,
        builder: Option<&str>,
        found: &subjects::Subjects,
    ) -> Result<Value> {
        let mut above = Above { project: self, runs, sources, seen: BTreeSet::new(), list: Vec::new() };
        above.walk(node)?;
        let fields = self.fields(run.recipe)?;
        let spec = self.graph.nodes.get(node);
        let inputs: BTreeMap<String, String> = spec
            .map(|s| s.inputs.iter().map(|(alias, i)| (alias.clone(), of_ref(&i.from))).collect())
            .unwrap_or_default();
        let log = match &run.log {
            Some(name) => self.store.log_text(name)?.map(|text| Digests::of(&text)),
            None => None,
        };
        let facts = Facts {
            node,
            kind: spec.map_or("", |s| s.kind.name()),
            tree: run.tree().unwrap_or_else(|| TreeId(crate::digest::Digest::of(b""))),
            run,
            fields: &fields,
            inputs: &inputs,
            dependencies: &above.list,
            log,
            builder,
            private: &self.private_paths(),
        };
        Ok(provenance::statement(&facts, found))
    }

    fn fields(&self, recipe: RecipeId) -> Result<Fields> {
        let path = || self.store.plain().object_path("recipes", &recipe.0);
        let text = self.store.recipe(recipe)?;
        let text = text.ok_or_else(|| StoreError::Damaged { path: path(), what: "is not there".to_owned() })?;
        Ok(parse_fields(&text).map_err(|e| StoreError::Damaged { path: path(), what: e.to_string() })?)
    }

    // What tells of this machine where it stands in a parameter.
    fn private_paths(&self) -> Vec<String> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let all = [Some(self.root.clone()), Some(self.store.dir().to_owned()), home];
        let is_telling = |p: &PathBuf| p.is_absolute() && p.components().count() > 1;
        all.into_iter().flatten().filter(is_telling).map(|p| p.to_string_lossy().into_owned()).collect()
    }
}

fn of_ref(from: &Ref) -> String {
    match from {
        Ref::Source(name) => format!("source/{name}"),
        Ref::Node(name) => format!("node/{name}"),
    }
}

// Goes up from a node to the first inputs; what is shared is met once.
struct Above<'a> {
    project: &'a Project,
    runs: &'a BTreeMap<String, RunRecord>,
    sources: &'a Sources,
    seen: BTreeSet<Ref>,
    list: Vec<Dependency>,
}

impl Above<'_> {
    fn walk(&mut self, goal: &str) -> Result<()> {
        let mut todo = vec![goal.to_owned()];
        while let Some(node) = todo.pop() {
            let Some(spec) = self.project.graph.nodes.get(node.as_str()) else { continue };
            if let Some(run) = self.runs.get(&node) {
                self.image(run.recipe)?;
            }
            for input in spec.inputs.values() {
                if !self.seen.insert(input.from.clone()) {
                    continue;
                }
                match &input.from {
                    Ref::Source(name) => self.source(name),
                    Ref::Node(name) => {
                        todo.push(name.to_string());
                        let kind = self.project.graph.nodes.get(name.as_str()).map_or("", |s| s.kind.name());
                        if let Some(run) = self.runs.get(name.as_str()) {
                            let (name, kind) = (name.to_string(), kind.to_owned());
                            self.list.push(Dependency::Node { name, kind, run: Box::new(run.clone()) });
                        }
                    }
                }
            }
        }
        self.list.sort_by_key(|d| match d {
            Dependency::Source { name, .. } => (0, name.clone()),
            Dependency::Node { name, .. } => (1, name.clone()),
            Dependency::Image { identity, .. } => (2, identity.hex()),
        });
        self.list.dedup();
        Ok(())
    }

    fn source(&mut self, name: &Name) {
        let Some(Ok((tree, listing))) = self.sources.states.get(name) else { return };
        let mut facts: BTreeMap<String, Value> = BTreeMap::new();
        if let Some(spec) = self.project.graph.source(name.as_str()) {
            facts.insert("kind".to_owned(), Value::from(spec.kind.key()));
        }
        facts.insert("files".to_owned(), Value::from(listing.files().count()));
        facts.insert("bytes".to_owned(), Value::from(listing.total_bytes()));
        self.list.push(Dependency::Source { name: name.to_string(), tree: *tree, facts });
    }

    fn image(&mut self, recipe: RecipeId) -> Result<()> {
        let fields = self.project.fields(recipe)?;
        let field = FieldName { class: Class::Step, name: "image".to_owned() };
        let Some(identity) = fields.get(&field).and_then(|v| v.parse().ok()) else { return Ok(()) };
        let known = self.project.lock.images.iter().find(|(_, i)| i.identity == identity);
        let (name, id) = known.map_or((None, None), |(name, i)| (Some(name.clone()), Some(i.id.clone())));
        self.list.push(Dependency::Image { name, id, identity });
        Ok(())
    }
}

fn exists(path: &Path) -> FrontError {
    let what = format!("{} is there already", escaped(path));
    let hint = "choose another name, or move it away: graftwerk never replaces what is there".to_owned();
    FrontError::Argument { what, hint: Some(hint) }
}

fn finish(mut part: Part, path: PathBuf, text: &str) -> Result<PathBuf> {
    part.write_all(format!("{text}\n").as_bytes()).map_err(fsx::at("write", &path)).map_err(StoreError::from)?;
    match part.finish().map_err(StoreError::from)? {
        Placed::Placed => Ok(path),
        Placed::Existed => Err(exists(&path)),
    }
}

// The private key, and what to call the place that it came from. What is no path is never shown: it may be a key.
fn private_key(file: Option<&Path>, events: &Events) -> Result<(PrivateKey, String)> {
    let bad = |place: &str, what: &str, hint: &str| FrontError::from(AttestError::bad(place, what, hint));
    if let Some(path) = file {
        if is_pem(&path.to_string_lossy()) {
            let hint = format!("name its file, or put it into {KEY_VARIABLE}: a command line can be read by others");
            return Err(bad("--key", "is given a key itself, and takes the path of one", &hint));
        }
        return key_file(path, &escaped(path), events);
    }
    let Some(value) = std::env::var_os(KEY_VARIABLE).filter(|v| !v.is_empty()) else {
        let what = format!("no key to sign with: neither --key nor {KEY_VARIABLE} says where one is");
        let hint = "`openssl genpkey -algorithm ed25519 -out key.pem` makes one".to_owned();
        return Err(FrontError::Argument { what, hint: Some(hint) });
    };
    let text = Zeroizing::new(value.to_string_lossy().into_owned());
    if is_pem(&text) {
        return Ok((PrivateKey::parse(&text, KEY_VARIABLE)?, KEY_VARIABLE.to_owned()));
    }
    let path = Path::new(&value);
    if path.symlink_metadata().is_err() {
        let what = "holds neither a key in PEM nor the path of a file that is there";
        return Err(bad(KEY_VARIABLE, what, "set it to a key's text, or to its path"));
    }
    let place = format!("the file that {KEY_VARIABLE} names");
    key_file(path, &place, events)
}

fn key_file(path: &Path, place: &str, events: &Events) -> Result<(PrivateKey, String)> {
    let unreadable = |e: std::io::Error| AttestError::bad(place, format!("can't be read: {e}"), "name a key's file");
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    if meta.is_file() && meta.mode() & 0o044 != 0 {
        let mode = meta.mode() & 0o777;
        let what = format!("{place} can be read by others (mode {mode:04o}): chmod 600 keeps the key yours");
        let _ = events.send(Event::Notice(what));
    }
    let mut text = Zeroizing::new(String::new());
    // Of a text that is no UTF-8 nothing is said, not even where.
    let read = file.take(MOST_OF_A_KEY + 1).read_to_string(&mut text);
    match read {
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
            Err(AttestError::bad(place, "is no key in PEM: it is no text", "convert it: `openssl pkey -inform DER`")
                .into())
        }
        Err(e) => Err(unreadable(e).into()),
        Ok(n) if n as u64 > MOST_OF_A_KEY => {
            Err(AttestError::bad(place, "is no key: it has more than 64 KiB", "name a key's file").into())
        }
        Ok(_) => Ok((PrivateKey::parse(&text, place)?, place.to_owned())),
    }
}
