//! Taking an archive in. Everything is read to its end into a scratch folder of this process, hashed while it is written;
//! only when all of it was found right is anything placed, content before what names it. An import that is killed
//! before has placed nothing, one that is killed while it places goes on when it is done again.

use std::fs::{self, File};
use std::io::{BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

use crate::audit::archive::closure::recipe_inputs;
use crate::audit::archive::error::{ArchiveError, Result};
use crate::audit::archive::manifest::{Export, FIRST_LINE, Head, Item, MANIFEST, ObjectName, Reader};
use crate::audit::archive::read::Entries;
use crate::digest::{BlobId, Digest, RecipeId, TreeId};
use crate::fsx::{self, Call, Placed, at, change};
use crate::model::recipe::Recipe;
use crate::model::run::RunRecord;
use crate::model::tree::Tree;
use crate::store::intake::{read_run, read_table};
use crate::store::{Store, StoreError};
use crate::tensors::hash::hash_file;
use crate::tensors::table::TensorTable;

/// What an import did.
#[derive(Debug, Clone)]
pub struct Imported {
    /// What had been exported.
    pub exports: Vec<Export>,
    /// What the sources were there.
    pub sources: Vec<(String, TreeId)>,
    /// The number of objects in the archive.
    pub objects: u64,
    /// The sum of their sizes.
    pub bytes: u64,
    /// Bytes among them that the store did not have.
    pub new_bytes: u64,
    /// Runs among them that the store did not have.
    pub new_runs: u64,
    /// The runs that made the exports, under the numbers that they have here.
    pub made_by: Vec<(String, RunRecord)>,
    /// The digest of the manifest: names the archive, whatever its file is called.
    pub archive: Digest,
}

// A header that is larger is not read to hold a table against it: as tensors it takes many times that.
const MOST_HEADER: u64 = 8 << 20;

const HELD_AT_ONCE: usize = 10_000;

/// Reads an archive and takes it in. `progress` hears of bytes read, of all. Errors: Bad, with the entry, for whatever is
/// not exactly what an export writes; then nothing was placed.
pub fn import(
    store: &Store,
    from: &mut dyn Read,
    progress: &mut dyn FnMut(u64, u64),
    cancelled: &dyn Fn() -> bool,
) -> Result<Imported> {
    let stage = Stage { store, dir: store.scratch()? };
    let archive = stage.fill(from, progress, cancelled)?;
    stage.check()?;
    if cancelled() {
        return Err(StoreError::Cancelled.into());
    }
    stage.place(archive)
}

// The scratch folder, with every object of the archive that the store did not have.
struct Stage<'s> {
    store: &'s Store,
    dir: PathBuf,
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        let _ = fsx::remove_tree(&self.dir);
    }
}

impl Stage<'_> {
    fn manifest_path(&self) -> PathBuf {
        self.dir.join("manifest")
    }

    fn manifest(&self) -> Result<Reader<BufReader<File>>> {
        let path = self.manifest_path();
        Reader::new(BufReader::new(File::open(&path).map_err(at("open", &path))?))
    }

    fn path(&self, name: ObjectName) -> PathBuf {
        self.dir.join(name.to_string().replace('/', "-"))
    }

    fn has(&self, name: ObjectName) -> bool {
        self.path(name).exists()
    }

    // Reads the whole archive.
    fn fill(
        &self,
        from: &mut dyn Read,
        progress: &mut dyn FnMut(u64, u64),
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Digest> {
        let mut entries = Entries::new(from)?;
        let mut manifest = Target::create(&self.manifest_path())?;
        let mut begun = false;
        entries.manifest(&mut |bytes| {
            if !std::mem::replace(&mut begun, true) && !bytes.starts_with(FIRST_LINE) {
                return Err(ArchiveError::bad(MANIFEST, "it is not one of this version"));
            }
            manifest.take(bytes)
        })?;
        let archive = manifest.digest();
        let head = self.look_through()?;
        let mut items = self.manifest()?;
        let mut done = 0;
        while let Some(item) = items.item()? {
            let here = match item.name {
                ObjectName::Blob(blob, executable) => self.store.has_blob(blob, executable)?,
                _ => false,
            };
            let path = self.path(item.name);
            let mut to = if here { Target::nowhere(&path) } else { Target::create(&path)? };
            let name = item.name.to_string();
            entries.entry(&name, item.size, &mut |bytes| {
                if cancelled() {
                    return Err(StoreError::Cancelled.into());
                }
                to.take(bytes)?;
                done += bytes.len() as u64;
                progress(done, head.bytes);
                Ok(())
            })?;
            let found = to.digest();
            if found != item.digest {
                return Err(ArchiveError::bad(name, format!("hashes to {found}, not to {}", item.digest)));
            }
        }
        entries.finish()?;
        Ok(archive)
    }

    // The manifest alone, to its end: so that nothing is written for one that is wrong, or for which there is no room.
    fn look_through(&self) -> Result<Head> {
        let mut items = self.manifest()?;
        let mut needed = 0u64;
        let mut blobs = Vec::new();
        while let Some(item) = items.item()? {
            let here = match item.name {
                ObjectName::Blob(blob, executable) => {
                    blobs.push(blob);
                    self.store.blob_path(blob, executable).exists()
                }
                _ => false,
            };
            if blobs.len() == HELD_AT_ONCE {
                self.store.hold_blobs(blobs.drain(..))?;
            }
            // Every file takes a block, too.
            needed = needed.saturating_add(if here { 0 } else { item.size.saturating_add(4096) });
        }
        // From here on nobody takes away what is found to be there.
        self.store.hold_blobs(blobs)?;
        let free = fsx::free_bytes(&self.dir)?;
        if needed > free {
            return Err(ArchiveError::NoRoom { needed, free, path: self.store.dir().to_owned() });
        }
        Ok(items.head().clone())
    }

    fn each(&self, f: &mut dyn FnMut(Item) -> Result<()>) -> Result<()> {
        let mut items = self.manifest()?;
        while let Some(item) = items.item()? {
            f(item)?;
        }
        Ok(())
    }

    fn read(&self, name: ObjectName) -> Result<Vec<u8>> {
        let path = self.path(name);
        Ok(fs::read(&path).map_err(at("read", &path))?)
    }

    fn read_text(&self, name: ObjectName) -> Result<String> {
        String::from_utf8(self.read(name)?).map_err(|_| ArchiveError::bad(name, "is no UTF-8 text"))
    }

    fn tree(&self, id: TreeId) -> Result<Tree> {
        let name = ObjectName::Tree(id);
        Tree::parse(&self.read_text(name)?).map_err(|e| ArchiveError::bad(name, e.to_string()))
    }

    fn recipe(&self, id: RecipeId) -> Result<Recipe> {
        let name = ObjectName::Recipe(id);
        let text = self.read_text(name)?;
        recipe_inputs(&text).map_err(|what| ArchiveError::bad(name, what))?;
        Ok(Recipe { id, text })
    }

    fn table(&self, blob: BlobId) -> Result<TensorTable> {
        let name = ObjectName::Table(blob);
        read_table(&self.read_text(name)?).ok_or_else(|| ArchiveError::bad(name, "is no tensor table"))
    }

    fn run(&self, recipe: RecipeId, seq: u64) -> Result<RunRecord> {
        let name = ObjectName::Run(recipe, seq);
        let bad = |what: String| ArchiveError::bad(name, what);
        let run = read_run(&self.read(name)?).map_err(bad)?;
        if (run.recipe, run.seq) != (recipe, seq) {
            return Err(bad(format!("is run {} of {}", run.seq, run.recipe)));
        }
        // The log's name is joined to a folder, and the others are printed.
        let plain = |t: &str| !t.contains(|c: char| c == '/' || c.is_control()) && t != "." && t != "..";
        if !run.log.as_deref().is_none_or(|l| plain(l) && !l.is_empty()) {
            return Err(bad("its log is no plain name".to_owned()));
        }
        if [&run.node, &run.host, &run.version, &run.started].into_iter().any(|t| t.contains(char::is_control)) {
            return Err(bad("it holds control characters".to_owned()));
        }
        Ok(run)
    }

    // Holds every object against its format, and against what it names.
    fn check(&self) -> Result<()> {
        self.each(&mut |item| match item.name {
            ObjectName::Recipe(id) => self.recipe(id).map(drop),
            ObjectName::Tree(id) => self.tree(id).map(drop),
            ObjectName::Table(blob) => self.check_table(blob),
            ObjectName::Run(recipe, seq) => self.check_run(recipe, seq),
            ObjectName::Blob(..) => Ok(()),
        })?;
        for e in &self.manifest()?.head().exports {
            self.check_export(e)?;
        }
        Ok(())
    }

    fn check_table(&self, blob: BlobId) -> Result<()> {
        let name = ObjectName::Table(blob);
        let table = self.table(blob)?;
        let staged = [false, true].map(|x| self.path(ObjectName::Blob(blob, x))).into_iter().find(|p| p.exists());
        if staged.is_none() && !self.store.has_blob(blob, false)? && !self.store.has_blob(blob, true)? {
            return Err(ArchiveError::bad(name, "describes a blob that is not in the archive"));
        }
        // One that is not held against its blob here is not taken: it is made again when somebody asks for it.
        let Some(path) = staged.filter(|_| table.data_start <= MOST_HEADER) else {
            return Ok(fsx::remove_file(&self.path(name))?);
        };
        let file = File::open(&path).map_err(at("open", &path))?;
        let size = file.metadata().map_err(at("look at", &path))?.len();
        let found = hash_file(&file, size, true, &mut |_| {}, &|| false);
        match found.map(|h| h.table) {
            Ok(Some(t)) if t == table => Ok(()),
            Ok(_) => Err(ArchiveError::bad(name, "does not say what its blob holds")),
            Err(e) => Err(ArchiveError::bad(name, format!("describes a blob that is no safetensors file: {e}"))),
        }
    }

    fn check_run(&self, recipe: RecipeId, seq: u64) -> Result<()> {
        let name = ObjectName::Run(recipe, seq);
        let run = self.run(recipe, seq)?;
        if !self.has(ObjectName::Recipe(recipe)) {
            return Err(ArchiveError::bad(name, "its recipe is not in the archive"));
        }
        match run.tree() {
            Some(tree) if !self.has(ObjectName::Tree(tree)) => {
                Err(ArchiveError::bad(name, format!("the listing of its tree {tree} is not in the archive")))
            }
            _ => Ok(()),
        }
    }

    fn check_export(&self, export: &Export) -> Result<()> {
        let id = export.tree;
        let bad = |what: String| Err(ArchiveError::bad(format!("the export {id}"), what));
        if !self.has(ObjectName::Tree(id)) {
            return bad("its listing is not in the archive".to_owned());
        }
        if let Some(m) = &export.made_by {
            if !self.has(ObjectName::Run(m.recipe, m.seq)) {
                return bad(format!("run {} of {} is not in the archive", m.seq, m.recipe));
            }
            if self.run(m.recipe, m.seq)?.tree() != Some(id) {
                return bad(format!("run {} of {} made another tree", m.seq, m.recipe));
            }
        }
        let tree = self.tree(id)?;
        // What the archive does not have itself.
        let relied_on = tree.files().filter(|f| !self.has(ObjectName::Blob(f.1, f.3))).map(|f| f.1);
        self.store.hold_blobs(relied_on)?;
        for (path, blob, size, executable) in tree.files() {
            let staged = self.path(ObjectName::Blob(blob, executable));
            let at_path = if staged.exists() { staged } else { self.store.blob_path(blob, executable) };
            match fs::metadata(&at_path).map(|m| m.len()) {
                Ok(n) if n == size => {}
                Ok(n) => return bad(format!("its file {path} has {n} bytes, not {size}")),
                Err(_) => return bad(format!("the bytes of its file {path} ({blob}) are not in the archive")),
            }
        }
        Ok(())
    }

    // Content before what names it.
    fn place(&self, archive: Digest) -> Result<Imported> {
        let head = self.manifest()?.head().clone();
        let mut done = Imported {
            exports: head.exports,
            sources: head.sources,
            objects: head.objects,
            bytes: head.bytes,
            new_bytes: 0,
            new_runs: 0,
            made_by: Vec::new(),
            archive,
        };
        let mut intake = self.store.intake();
        self.each(&mut |item| {
            let ObjectName::Blob(blob, executable) = item.name else { return Ok(()) };
            if self.has(item.name) {
                intake.blob(blob, executable, &self.path(item.name))?;
                done.new_bytes += item.size;
            } else {
                intake.blob_that_is_there(blob, executable);
            }
            Ok(())
        })?;
        self.each(&mut |item| match item.name {
            ObjectName::Table(blob) if self.has(item.name) => Ok(intake.table(blob, &self.table(blob)?)?),
            _ => Ok(()),
        })?;
        self.each(&mut |item| match item.name {
            ObjectName::Tree(id) => Ok(intake.tree(&self.tree(id)?)?),
            _ => Ok(()),
        })?;
        self.each(&mut |item| match item.name {
            ObjectName::Recipe(id) => Ok(intake.recipe(&self.recipe(id)?)?),
            _ => Ok(()),
        })?;
        intake.flush()?;
        let exports = done.exports.clone();
        self.each(&mut |item| {
            let ObjectName::Run(recipe, seq) = item.name else { return Ok(()) };
            let (run, placed) = intake.run(&self.run(recipe, seq)?)?;
            done.new_runs += u64::from(placed == Placed::Placed);
            for m in exports.iter().filter_map(|e| e.made_by.as_ref()) {
                if (m.recipe, m.seq) == (recipe, seq) {
                    done.made_by.push((m.node.clone(), run.clone()));
                }
            }
            Ok(())
        })?;
        Ok(done)
    }
}

// Where an entry's bytes go, hashed as they come.
struct Target {
    path: PathBuf,
    file: Option<File>,
    hasher: blake3::Hasher,
}

impl Target {
    fn create(path: &Path) -> Result<Self> {
        let opened = change(Call::Create(path), || File::options().write(true).create_new(true).open(path));
        let file = Some(opened.map_err(at("create", path))?);
        Ok(Self { path: path.to_owned(), file, hasher: blake3::Hasher::new() })
    }

    // For bytes that are there already, and are only held against their digest.
    fn nowhere(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, hasher: blake3::Hasher::new() }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        if let Some(file) = &mut self.file {
            change(Call::Write(&self.path), || file.write_all(bytes)).map_err(at("write", &self.path))?;
        }
        Ok(())
    }

    fn digest(&self) -> Digest {
        self.hasher.finalize().into()
    }
}
