//! `verify` against a signature, or against a list of digests of another tool: of a folder that no store knows, too.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;

use crate::attest::files::{Difference, Expected, Held, hold};
use crate::attest::key::{Algorithm, PublicKey, is_pem};
use crate::attest::statement::{Signed, Statement};
use crate::attest::subjects::Watch;
use crate::attest::{AttestError, manifest, oms};
use crate::audit::verify::{Finding, Subject, Verified, escaped};
use crate::digest::TreeId;
use crate::front::Location;
use crate::front::error::{FrontError, Result};
use crate::front::verify::Place;
use crate::sched::{Event, Events};
use crate::store::survey::Part;

/// What files are held against.
#[derive(Debug, Clone)]
pub enum Claims {
    /// A signature, and the public key of whoever should have made it.
    Signature {
        /// The signature's file.
        file: PathBuf,
        /// The public key's file.
        key: PathBuf,
    },
    /// A list of digests.
    Manifest(PathBuf),
}

/// Who says what of the files.
#[derive(Debug, Clone, Serialize)]
pub struct SignedBy {
    /// `provenance`, `oms`, or `in-toto` for any other predicate.
    pub format: &'static str,
    /// The type of the predicate.
    pub predicate: String,
    /// What it was signed with.
    pub algorithm: Algorithm,
    /// The fingerprint of the public key.
    pub key: String,
    /// The tree that the folder is said to be, where it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeId>,
}

/// What `verify` answers of files that are signed or listed.
#[derive(Debug, Clone)]
pub struct VerifiedFiles {
    /// The folder or file that was looked at.
    pub path: PathBuf,
    /// What was found.
    pub found: Verified,
    /// Who signed it; none for a list.
    pub signed: Option<SignedBy>,
}

impl Serialize for VerifiedFiles {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let found = &self.found;
        let mut s = to.serialize_struct("VerifiedFiles", 9)?;
        s.serialize_field("ok", &found.ok)?;
        s.serialize_field("path", &escaped(&self.path))?;
        s.serialize_field("signed", &self.signed)?;
        s.serialize_field("files", &found.files)?;
        s.serialize_field("hashed_bytes", &found.hashed_bytes)?;
        s.serialize_field("seconds", &((found.seconds.as_secs_f64() * 1000.0).round() / 1000.0))?;
        s.serialize_field("changed", &found.changed)?;
        s.serialize_field("missing", &found.missing)?;
        s.serialize_field("extra", &found.extra)?;
        s.end()
    }
}

// A signature over a million files has some hundred MiB.
const MOST_OF_A_LIST: u64 = 1 << 30;

/// Holds a node's folder, or any folder or file, against what is signed or listed. Errors: Attest where the signature is
/// not the key's or can't be read; NotBuilt; Argument for a target that is nothing.
pub fn verify_files(
    location: &Location,
    target: &str,
    claims: &Claims,
    events: &Events,
    cancel: &AtomicBool,
) -> Result<VerifiedFiles> {
    let begun = Instant::now();
    let at = |path: &Path| location.dir.join(path);
    let (expected, statement, signed, file) = match claims {
        Claims::Signature { file, key } => {
            if is_pem(&key.to_string_lossy()) {
                let hint = "name the file that holds it";
                return Err(AttestError::bad("--key", "is given a key itself, and takes the path of one", hint).into());
            }
            let (key_file, file) = (at(key), at(file));
            let key = PublicKey::parse(&text(&key_file)?, &escaped(&key_file))?;
            let place = escaped(&file);
            let statement = Signed::parse(&read(&file)?, &place)?.open(&key, &place)?;
            let signed = signed_by(&statement, &key);
            (statement.expected(&place)?, Some(statement), Some(signed), file)
        }
        Claims::Manifest(file) => {
            let file = at(file);
            (manifest::parse(&read(&file)?, &escaped(&file))?, None, None, file)
        }
    };
    let (top, node) = place_of(location, target)?;
    let to = Mutex::new(events.clone());
    let progress = |done: u64, total: u64| {
        if let Ok(to) = to.lock() {
            let _ = to.send(Event::Progress { node: "verify".to_owned(), done, total });
        }
    };
    let watch = Watch { progress: &progress, cancelled: &|| cancel.load(Ordering::Relaxed) };
    // The links of a view lead to sources: that is the store's affair.
    let expected = Expected { refuses_links: expected.refuses_links && node.is_none(), ..expected };
    let held = hold(&top, &expected, &[file], &watch)?;
    let mut found = verified(held);
    if let (Some(node), Some(said)) = (node, statement.as_ref().and_then(Statement::tree))
        && node != said
    {
        let what = format!("is the tree {node}, and {said} was signed");
        found.changed.insert(0, finding(top.clone(), what));
    }
    found.seconds = begun.elapsed();
    found.close();
    Ok(VerifiedFiles { path: top, found, signed })
}

fn signed_by(statement: &Statement, key: &PublicKey) -> SignedBy {
    let format = match statement.predicate_type.as_str() {
        oms::PREDICATE => "oms",
        crate::attest::provenance::PREDICATE => "provenance",
        _ => "in-toto",
    };
    SignedBy {
        format,
        predicate: statement.predicate_type.clone(),
        algorithm: key.algorithm(),
        key: key.fingerprint(),
        tree: statement.tree(),
    }
}

// A node's view and its tree, or a path. No project is needed for a path.
fn place_of(location: &Location, target: &str) -> Result<(PathBuf, Option<TreeId>)> {
    let path = location.dir.join(target);
    let there = path.symlink_metadata().is_ok();
    match Place::find(location) {
        Ok(place) if place.is_node(target) => {
            let tree = place.node(target)?;
            let view = place.plain.view_path(tree);
            if !view.is_dir() {
                let what = format!("{target} has no folder at {}", escaped(&view));
                let hint = format!("`graftwerk path {target}` makes it");
                return Err(FrontError::Argument { what, hint: Some(hint) });
            }
            Ok((view, Some(tree)))
        }
        _ if there => Ok((path, None)),
        Ok(_) => Err(FrontError::Argument {
            what: format!("{target} is neither a node nor a file or folder that is there"),
            hint: Some("paths count from where -C says".to_owned()),
        }),
        Err(e) => Err(e),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read as _;
    let unreadable = |e: std::io::Error| {
        AttestError::bad(
            escaped(path),
            format!("can't be read: {e}"),
            "name a file that is there; paths count from where -C says",
        )
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MOST_OF_A_LIST).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn text(path: &Path) -> Result<String> {
    let bytes = read(path)?;
    String::from_utf8(bytes).map_err(|_| {
        let hint = "convert it: `openssl pkey -pubin -inform DER -in key.der -out key.pub`";
        AttestError::bad(escaped(path), "is no key in PEM: it is no text", hint).into()
    })
}

fn finding(path: PathBuf, what: String) -> Finding {
    Finding::new(path, Part::Path, what, Subject::Other)
}

fn verified(held: Held) -> Verified {
    let mut found = Verified { files: held.files, hashed_bytes: held.hashed_bytes, ..Verified::default() };
    for (difference, path, what) in held.differences {
        match difference {
            Difference::Changed => found.changed.push(finding(path, what)),
            Difference::Missing => found.missing.push(finding(path, what)),
            Difference::Extra => found.extra.push(finding(path, what)),
        }
    }
    found
}
