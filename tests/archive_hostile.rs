//! Archives that were made to do harm, or were harmed: each is refused with the entry's name, and nothing of it is placed,
//! inside or outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod hostile;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use graftwerk::audit::archive::{ArchiveError, Closure, Export, Wanted, import, write};
use graftwerk::digest::{BlobId, Digest, RecipeId};
use graftwerk::model::recipe::Ingredients;
use graftwerk::model::run::{Isolation, Outcome, RunRecord};
use graftwerk::model::tree::{Entry, Tree};
use graftwerk::store::Store;
use hostile::{Part, count, find, good, manifest, packed, part, parts_of, relist, replace, sealed, sharded, tar_bytes};

/// A store in a folder with things around it that must stay as they are.
struct Target {
    holder: tempfile::TempDir,
    store: Arc<Store>,
}

impl Target {
    fn new() -> Self {
        let holder = tempfile::tempdir().unwrap();
        fs::create_dir(holder.path().join("outside")).unwrap();
        fs::write(holder.path().join("outside/f"), "mine").unwrap();
        let store = Store::open(&holder.path().join("store")).unwrap();
        Self { holder, store }
    }

    fn import(&self, mut bytes: &[u8]) -> Result<(), ArchiveError> {
        import(&self.store, &mut bytes, &mut |_, _| {}, &|| false).map(drop)
    }

    fn assert_untouched(&self, what: &str) {
        for folder in ["blobs", "trees", "tensors", "recipes", "runs", "roots", "refs", "quarantine", "logs"] {
            let left = count(&self.store.dir().join(folder));
            assert_eq!(left, 0, "{what}: {folder} holds something");
        }
        let left = fs::read_dir(self.store.temp_dir()).unwrap().map(|e| e.unwrap().file_name());
        // What a living process says that it relies on.
        assert_eq!(left.filter(|n| n != "holds").count(), 0, "{what}: something is left in tmp");
        let names: Vec<_> = fs::read_dir(self.holder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{what}: {names:?}");
        assert_eq!(count(&self.holder.path().join("outside")), 1, "{what}");
        assert_eq!(fs::read(self.holder.path().join("outside/f")).unwrap(), b"mine", "{what}");
    }
}

#[test]
fn the_archive_that_the_others_are_made_from_is_good() {
    let (t, good) = (Target::new(), good());
    assert_eq!(packed(&tar_bytes(&parts_of(&good))).len(), packed(&tar_bytes(&parts_of(&good))).len());
    t.import(&packed(&tar_bytes(&parts_of(&good)))).unwrap();
    let mut parts = parts_of(&good);
    relist(&mut parts);
    Target::new().import(&packed(&tar_bytes(&parts))).unwrap();
}

type Change = Box<dyn Fn(&mut Vec<Part>)>;

fn case(
    name: &'static str,
    told: &'static str,
    change: impl Fn(&mut Vec<Part>) + 'static,
) -> (&'static str, &'static str, Change) {
    (name, told, Box::new(change))
}

/// Archives whose tar is not what the manifest says, or which hold what no export writes.
fn cases() -> Vec<(&'static str, &'static str, Change)> {
    vec![
        case("a link and a file below it", "\"s\": is a symbolic link", |p| {
            let link = part("s", b"").with(|h| {
                h.set_entry_type(tar::EntryType::Symlink);
                h.set_link_name("../outside").unwrap();
            });
            p.splice(1..1, [link, part("s/f", b"evil")]);
        }),
        case("a name that leads out", "\"../outside/f\": the manifest has", |p| {
            p.insert(1, part("x", b"evil").named("../outside/f"));
        }),
        case("a name that leads out, in the manifest too", "line", |p| {
            p.push(part("x", b"evil").named("blobs/../../outside/f"));
            relist(p);
        }),
        case("an absolute name", "\"/tmp/f\": the manifest has", |p| p.insert(1, part("x", b"evil").named("/tmp/f"))),
        case("an absolute name, in the manifest too", "line", |p| {
            p.push(part("x", b"evil").named("/tmp/f"));
            relist(p);
        }),
        case("a hard link", "is a hard link", |p| {
            let i = p.len() - 1;
            p[i] = p[i].clone().with(|h| {
                h.set_entry_type(tar::EntryType::Link);
                h.set_link_name("/etc/passwd").unwrap();
            });
        }),
        case("a link under a good name", "is a symbolic link", |p| {
            let i = p.len() - 1;
            p[i] = p[i].clone().with(|h| {
                h.set_entry_type(tar::EntryType::Symlink);
                h.set_link_name("/etc/passwd").unwrap();
            });
        }),
        case("a device", "is a device", |p| {
            p.insert(1, part("null", b"").with(|h| h.set_entry_type(tar::EntryType::Char)))
        }),
        case("a block device", "is a device", |p| {
            p.insert(1, part("sda", b"").with(|h| h.set_entry_type(tar::EntryType::Block)));
        }),
        case("a pipe", "is a pipe", |p| p.insert(1, part("p", b"").with(|h| h.set_entry_type(tar::EntryType::Fifo)))),
        case("a folder", "is a folder", |p| {
            p.insert(1, part("d", b"").with(|h| h.set_entry_type(tar::EntryType::Directory)))
        }),
        case("a sparse file", "is a sparse file", |p| {
            p.insert(1, part("d", b"").with(|h| h.set_entry_type(tar::EntryType::GNUSparse)));
        }),
        case("a header of extensions", "is a header of extensions", |p| {
            p.insert(1, part("pax", b"20 path=../../etc/x\n").with(|h| h.set_entry_type(tar::EntryType::XHeader)));
        }),
        case("extensions for all", "is a header of extensions", |p| {
            p.insert(
                0,
                part("pax", b"20 path=../../etc/x\n").with(|h| h.set_entry_type(tar::EntryType::XGlobalHeader)),
            );
        }),
        case("a long name", "is a long name", |p| {
            p.insert(1, part("././@LongLink", b"../../x").with(|h| h.set_entry_type(tar::EntryType::GNULongName)));
        }),
        case("a type that nobody knows", "is of no type that is known", |p| {
            p.insert(1, part("d", b"").with(|h| h.set_entry_type(tar::EntryType::new(b'!'))));
        }),
        case("a setuid file", "setuid", |p| {
            let i = p.len() - 1;
            p[i] = p[i].clone().with(|h| h.set_mode(0o4755));
        }),
        case("a file of another user", "its header is not the one", |p| {
            let i = p.len() - 1;
            p[i] = p[i].clone().with(|h| h.set_uid(1000));
        }),
        case("a header with a wrong sum", "its header is not the one", |p| {
            let i = p.len() - 1;
            p[i].header.as_mut_bytes()[150] ^= 1;
        }),
        case("something behind the name in the header", "its header is not the one", |p| {
            let i = p.len() - 1;
            p[i] = p[i].clone().with(|h| h.as_mut_bytes()[99] = b'x');
        }),
        case("two entries of one name", "the manifest has", |p| p.insert(2, p[1].clone())),
        case("two entries of one name, in the manifest too", "stands twice", |p| {
            p.insert(2, p[1].clone());
            relist(p);
        }),
        case("an entry that the manifest does not have", "is not in the manifest", |p| {
            p.push(part(&sharded("blobs", &Digest::of(b"new")), b"new"));
        }),
        case("an entry in between", "the manifest has", |p| {
            p.insert(2, part(&sharded("recipes", &Digest::of(b"new")), b"new"));
        }),
        case("an entry too few", "the archive ends before this entry", |p| drop(p.pop())),
        case("two entries the other way round", "the manifest has", |p| p.swap(1, 2)),
        case("a size that the manifest does not have", "bytes, the manifest says", |p| {
            let last = p.pop().unwrap();
            p.push(part(&last.name(), &[last.bytes.as_slice(), b"more"].concat()));
        }),
        case("other bytes of the same size", "hashes to", |p| {
            let i = p.len() - 1;
            p[i].bytes[0] ^= 1;
        }),
        case("other bytes and a manifest that says so", "is said to hash to", |p| {
            let i = p.len() - 1;
            p[i].bytes[0] ^= 1;
            relist(p);
        }),
        case("another name in the store", "line", |p| {
            p.push(part("VERSION", b"graftwerk store 9\n"));
            relist(p);
        }),
        case("no manifest", "the manifest has", |p| drop(p.remove(0))),
        case("another version", "not one of this version", |p| {
            manifest(p, |l| l[0] = "graftwerk archive 2".to_owned())
        }),
        case("an object that is said to be immense", "bytes are needed", |p| {
            manifest(p, |l| {
                let last = l.pop().unwrap();
                let (_, rest) = last.split_once(' ').unwrap();
                l.push(format!("{} {rest}", 1u64 << 60));
                let n = l.iter().position(|l| l.starts_with("objects")).unwrap();
                let sum: u64 = l[n + 1..].iter().map(|l| l.split(' ').next().unwrap().parse::<u64>().unwrap()).sum();
                l[n] = format!("objects {} {sum}", l.len() - n - 1);
            });
        }),
        case("sizes that can't be added", "more bytes than can be counted", |p| {
            manifest(p, |l| {
                for _ in 0..2 {
                    let i =
                        l.iter().rposition(|x| x.contains("blobs/") && !x.starts_with("18446744073709551615")).unwrap();
                    l[i] = format!("18446744073709551615 {}", l[i].split_once(' ').unwrap().1);
                }
            });
        }),
    ]
}

#[test]
fn an_archive_that_is_not_exactly_what_an_export_writes_is_refused_by_name_and_nothing_is_placed() {
    let good = parts_of(&good());
    let t = Target::new();
    for (name, told, change) in cases() {
        let mut parts = good.clone();
        change(&mut parts);
        let e = t.import(&packed(&tar_bytes(&parts))).expect_err(name);
        assert!(e.to_string().contains(told), "{name}: {e}");
        let bad = matches!(e, ArchiveError::Bad { .. });
        assert!(bad || matches!(e, ArchiveError::NoRoom { .. }), "{name}: {e:?}");
        t.assert_untouched(name);
    }
    // After all of it, a good one is still taken.
    t.import(&packed(&tar_bytes(&good))).unwrap();
}

fn run_text(recipe: RecipeId, change: impl FnOnce(&mut RunRecord), tree: &Tree) -> Vec<u8> {
    let mut run = RunRecord {
        recipe,
        seq: 1,
        outcome: Outcome::Success { tree: tree.id(), verdict: None },
        isolation: Isolation::Builtin,
        started: "2026-11-30T19:22:00Z".to_owned(),
        seconds: 0.5,
        host: "h".to_owned(),
        node: "n".to_owned(),
        version: "0.1.0".to_owned(),
        reasons: Vec::new(),
        facts: Default::default(),
        log: None,
    };
    change(&mut run);
    let text = serde_json::to_string_pretty(&run).unwrap();
    let sum = Digest::of(text.as_bytes());
    format!("{},\n  \"sum\": \"{sum}\"\n}}\n", text.strip_suffix("\n}").unwrap()).into_bytes()
}

/// Objects whose digests are right and whose content would harm the store.
#[test]
fn an_object_that_is_none_is_refused_although_its_digest_is_right() {
    let good = parts_of(&good());
    let (run, tree) = (find(&good, "runs/"), find(&good, "trees/"));
    let table = find(&good, "tensors/");
    let recipe = find(&good, "recipes/");
    let id = RecipeId(Digest::of(&recipe.bytes));
    let export = String::from_utf8(good[0].bytes.clone()).unwrap();
    let export = export.lines().find(|l| l.starts_with("export")).unwrap().to_owned();
    let made = export.rsplit(' ').next().unwrap().parse().unwrap();
    let made_text = good.iter().find(|p| p.name() == sharded("trees", &made)).unwrap().clone();
    let the_tree = Tree::parse(std::str::from_utf8(&made_text.bytes).unwrap()).unwrap();
    let rerun = |change: &dyn Fn(&mut RunRecord)| {
        let bytes = run_text(id, change, &the_tree);
        let (name, mut parts) = (run.name(), good.clone());
        replace(&mut parts, &name, &name, &bytes);
        parts
    };
    let instead = |old: &Part, folder: &str, bytes: &[u8]| {
        let mut parts = good.clone();
        replace(&mut parts, &old.name(), &sharded(folder, &Digest::of(bytes)), bytes);
        parts
    };
    let mut loose = Tree::new();
    let absent = Entry::File { blob: BlobId(Digest::of(b"nowhere")), size: 7, executable: false };
    loose.insert("f".try_into().unwrap(), absent).unwrap();
    let mut liar = Tree::new();
    let (path, blob, size, _) = the_tree.files().next().map(|f| (f.0.clone(), f.1, f.2, f.3)).unwrap();
    liar.insert(path, Entry::File { blob, size: size + 1, executable: false }).unwrap();
    let exported = |tree: &Tree| {
        let mut parts = good.clone();
        parts.push(part(&sharded("trees", &tree.id().0), tree.to_text().as_bytes()));
        manifest(&mut parts, |l| l.insert(1, format!("export - - - {}", tree.id())));
        let mut lines = String::from_utf8(parts[0].bytes.clone()).unwrap();
        // Exports stand sorted: the one without a run comes first.
        assert!(lines.find("export - - -").unwrap() < lines.find("export \"n\"").unwrap());
        lines.clear();
        relist(&mut parts);
        parts
    };
    let mut without = good.clone();
    without.retain(|p| !p.name().starts_with("blobs/"));
    relist(&mut without);
    let mut other_table = good.clone();
    let text = String::from_utf8(table.bytes.clone()).unwrap();
    let body = text[..text.rfind("sum ").unwrap()].replace("\"w\"", "\"v\"");
    let text = format!("{body}sum {}\n", Digest::of(body.as_bytes()));
    replace(&mut other_table, &table.name(), &table.name(), text.as_bytes());
    let mut no_recipe = good.clone();
    no_recipe.retain(|p| !p.name().starts_with("recipes/"));
    relist(&mut no_recipe);
    let other = Ingredients { kind: "edit".to_owned(), revision: 9, ..Ingredients::default() }.recipe();
    let cases: Vec<(&str, &str, Vec<Part>)> = vec![
        ("a log that leads out", "log is no plain name", rerun(&|r| r.log = Some("../../outside/f".to_owned()))),
        ("an absolute log", "log is no plain name", rerun(&|r| r.log = Some("/etc/passwd".to_owned()))),
        ("a log that is the folder above", "log is no plain name", rerun(&|r| r.log = Some("..".to_owned()))),
        ("a name that moves the cursor", "control characters", rerun(&|r| r.node = "\u{1b}[2J".to_owned())),
        ("a run of another recipe", "is run 1 of", rerun(&|r| r.recipe = other.id)),
        ("a run of another number", "is run 2 of", rerun(&|r| r.seq = 2)),
        ("a run whose tree is not there", "not in the archive", {
            rerun(&|r| r.outcome = Outcome::Success { tree: loose.id(), verdict: None })
        }),
        ("an export that its run did not make", "made another tree", {
            rerun(&|r| r.outcome = Outcome::Failure { error: "no".to_owned() })
        }),
        ("a run that is no JSON", "does not end with its sum", {
            let mut parts = good.clone();
            replace(&mut parts, &run.name(), &run.name(), b"{}");
            parts
        }),
        (
            "a listing in another order",
            "listing",
            instead(&tree, "trees", b"graftwerk tree 1\nd - - \"b\"\nd - - \"a\"\n"),
        ),
        (
            "a listing that leads out",
            "leads out of its tree",
            instead(&tree, "trees", b"graftwerk tree 1\nl 5 - \"a\" -> \"../..\"\n"),
        ),
        ("a listing that is no text", "UTF-8", instead(&tree, "trees", &[0xff, 0xfe])),
        ("a recipe that is none", "recipe", instead(&recipe, "recipes", b"rm -rf /\n")),
        ("a recipe whose input is no tree", "is no tree", {
            instead(&recipe, "recipes", b"graftwerk recipe 1\nkind = \"edit\"\nrevision = 1\ninput \"a\" = tree b3:0\n")
        }),
        ("a table that lies about its blob", "does not say what its blob holds", other_table),
        ("runs without their recipe", "its recipe is not in the archive", no_recipe),
        ("an export without its bytes", "are not in the archive", exported(&loose)),
        ("a listing with a wrong size", "bytes, not", exported(&liar)),
        ("no bytes at all", "not in the archive", without),
    ];
    let t = Target::new();
    for (name, told, parts) in cases {
        let e = t.import(&packed(&tar_bytes(&parts))).expect_err(name);
        assert!(matches!(&e, ArchiveError::Bad { .. }) && e.to_string().contains(told), "{name}: {e}");
        t.assert_untouched(name);
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_seen() {
    let good = good();
    let t = Target::new();
    // Every eighth byte here, every bit of a frame in the frame's own test.
    for i in (0..good.len()).step_by(8).chain(good.len() - 45..good.len()) {
        let mut bad = good.clone();
        bad[i] ^= 1 << (i / 8 % 8);
        let e = t.import(&bad).expect_err("a flipped bit was not seen");
        assert!(matches!(e, ArchiveError::Bad { .. }), "byte {i}: {e:?}");
        let e = t.import(&good[..i]).expect_err("a cut was not seen");
        assert!(matches!(e, ArchiveError::Bad { .. }), "cut at {i}: {e:?}");
    }
    t.assert_untouched("all of them");
    for extra in [b"x".as_slice(), &good, &[0; 4096]] {
        t.import(&[good.as_slice(), extra].concat()).expect_err("something behind it");
    }
    let tar = tar_bytes(&parts_of(&good));
    for extra in [b"x".as_slice(), &[0; 512], &tar] {
        let e = t.import(&packed(&[tar.as_slice(), extra].concat())).expect_err("something behind the last entry");
        assert!(e.to_string().contains("behind"), "{e}");
    }
    let two = [zstd::stream::encode_all(tar.as_slice(), 3).unwrap(), zstd::stream::encode_all(&b"x"[..], 3).unwrap()];
    let e = t.import(&sealed(two.concat())).expect_err("two frames");
    assert!(e.to_string().contains("behind its frame"), "{e}");
    let mut hidden = tar.clone();
    let at = hidden.windows(9).position(|w| w == b"some text").unwrap() + 9;
    hidden[at + 5] = 1;
    let e = t.import(&packed(&hidden)).expect_err("hidden bytes");
    assert!(e.to_string().contains("hidden"), "{e}");
    t.assert_untouched("all of these");
}

fn import_by_program(store: &Path, archive: &Path) -> (i32, String) {
    let args = ["import", archive.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let o = std::process::Command::new(common::GRAFTWERK).args(args).current_dir(store.parent().unwrap()).output();
    let o = o.unwrap();
    (o.status.code().unwrap(), String::from_utf8_lossy(&o.stderr).into_owned())
}

#[test]
fn a_file_that_is_no_archive_exits_2_and_says_so() {
    let t = tempfile::tempdir().unwrap();
    let store = t.path().join("store");
    let path = t.path().join("x");
    for bytes in [b"".as_slice(), b"not an archive", &[0; 5000], &tar_bytes(&[part("a", b"b")])] {
        fs::write(&path, bytes).unwrap();
        let (code, said) = import_by_program(&store, &path);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("archive"), "{said}");
    }
    let (code, said) = import_by_program(&store, &t.path().join("absent"));
    assert!(code == 2 && said.contains("absent"), "{said}");
}

#[test]
fn a_listing_of_a_hundred_thousand_names_is_carried() {
    let t = tempfile::tempdir().unwrap();
    let from = Store::open(&t.path().join("from")).unwrap();
    let mut tree = Tree::new();
    for i in 0..100_000 {
        tree.insert(format!("some/folder/number-{i:06}").as_str().try_into().unwrap(), Entry::EmptyDir).unwrap();
    }
    let id = from.put_tree(&tree).unwrap();
    let wanted = Wanted { exports: vec![Export { made_by: None, tree: id }], ..Wanted::default() };
    let closure = Closure::of(&from, &wanted).unwrap();
    let mut out = Vec::new();
    write(&from, &closure, &mut out, &mut |_, _| {}, &|| false).unwrap();
    let path = t.path().join("a");
    fs::write(&path, out).unwrap();
    let (code, said) = import_by_program(&t.path().join("to"), &path);
    assert_eq!(code, 0, "{said}");
    let to = Store::open(&t.path().join("to")).unwrap();
    assert_eq!(to.tree(id).unwrap(), Some(tree));
}
