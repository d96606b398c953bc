//! The manifest: what was exported, and every object of the archive in its order.
//!
//! ```text
//! graftwerk archive 1
//! export "quant-a" b3:5f0c… 1 b3:91c4…
//! export - - - b3:10e5…
//! source "base" b3:1776…
//! objects 12 40960
//! 712 b3:77d0… recipes/ab/cdef…
//! …
//! sum b3:04cf…
//! ```
//!
//! An export is a node, its recipe, the number of its run and its tree, or a tree alone. `objects` has their number and
//! the sum of their sizes. One line an object, sorted by [`ObjectName`]: size, digest of its bytes, name. The sum is the
//! digest of all lines before it.

use std::fmt;
use std::io::BufRead;

use crate::audit::archive::error::{ArchiveError, Result};
use crate::audit::archive::{MAX_RUN, MAX_TABLE, MAX_TEXT};
use crate::canon::{quote, unquote_prefix};
use crate::digest::{BlobId, Digest, RecipeId, TreeId};

/// The name of the manifest's own entry.
pub const MANIFEST: &str = "graftwerk-archive";
const FIRST: &str = "graftwerk archive 1";

/// What every manifest starts with.
pub(crate) const FIRST_LINE: &[u8] = b"graftwerk archive 1\n";

// Lines that are kept in memory: more exports and sources than a graph has by hand.
const MOST_HEAD_LINES: usize = 10_000;
const MOST_LINE: usize = 1024;

/// The largest number of a run that is taken in: some room is left to count on.
pub const MOST_SEQ: u64 = 999_999_999;

/// What an object of an archive is, in the archive's order: texts before bytes, so that a reader knows what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// `recipes/ab/cdef…`
    Recipe(RecipeId),
    /// `trees/ab/cdef…`
    Tree(TreeId),
    /// `tensors/ab/cdef…`
    Table(BlobId),
    /// `runs/<recipe>/<n>.json`
    Run(RecipeId, u64),
    /// `blobs/ab/cdef…`, with `.x` where it is executable.
    Blob(BlobId, bool),
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sharded = |f: &mut fmt::Formatter<'_>, folder: &str, d: &Digest| {
            let hex = d.hex();
            write!(f, "{folder}/{}/{}", &hex[..2], &hex[2..])
        };
        match self {
            ObjectName::Recipe(id) => sharded(f, "recipes", &id.0),
            ObjectName::Tree(id) => sharded(f, "trees", &id.0),
            ObjectName::Table(blob) => sharded(f, "tensors", &blob.0),
            ObjectName::Run(recipe, seq) => write!(f, "runs/{}/{seq:06}.json", recipe.hex()),
            ObjectName::Blob(blob, executable) => {
                sharded(f, "blobs", &blob.0)?;
                f.write_str(if *executable { ".x" } else { "" })
            }
        }
    }
}

impl ObjectName {
    /// Reads a name; `None` for any text that is not exactly one.
    pub fn parse(text: &str) -> Option<Self> {
        let (folder, rest) = text.split_once('/')?;
        let (first, second) = rest.split_once('/')?;
        let sharded = |tail: &str| Digest::from_hex(&format!("{first}{tail}")).ok();
        let name = match folder {
            "recipes" => ObjectName::Recipe(RecipeId(sharded(second)?)),
            "trees" => ObjectName::Tree(TreeId(sharded(second)?)),
            "tensors" => ObjectName::Table(BlobId(sharded(second)?)),
            "blobs" => match second.strip_suffix(".x") {
                Some(stem) => ObjectName::Blob(BlobId(sharded(stem)?), true),
                None => ObjectName::Blob(BlobId(sharded(second)?), false),
            },
            "runs" => {
                let seq = second.strip_suffix(".json")?.parse().ok().filter(|n| (1..=MOST_SEQ).contains(n))?;
                ObjectName::Run(RecipeId(Digest::from_hex(first).ok()?), seq)
            }
            _ => return None,
        };
        // One object has one name: no other split, sign or zero.
        (name.to_string() == text).then_some(name)
    }

    /// The digest that its bytes must have because of its name; `None` where the name says nothing of them.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            ObjectName::Recipe(id) => Some(id.0),
            ObjectName::Tree(id) => Some(id.0),
            ObjectName::Blob(id, _) => Some(id.0),
            ObjectName::Table(_) | ObjectName::Run(..) => None,
        }
    }

    /// The most bytes that such an object may have.
    pub fn most(&self) -> u64 {
        match self {
            ObjectName::Recipe(_) | ObjectName::Tree(_) => MAX_TEXT,
            ObjectName::Table(_) => MAX_TABLE,
            ObjectName::Run(..) => MAX_RUN,
            ObjectName::Blob(..) => u64::MAX,
        }
    }
}

/// An object of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub name: ObjectName,
    /// Its bytes.
    pub size: u64,
    /// Their digest.
    pub digest: Digest,
}

/// The run that made an exported tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MadeBy {
    /// The node's name, for people.
    pub node: String,
    /// The recipe.
    pub recipe: RecipeId,
    /// The run's number in the store that exported it.
    pub seq: u64,
}

/// A tree that was exported with its bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Export {
    /// What made it; `None` where it is known as a tree alone.
    pub made_by: Option<MadeBy>,
    /// The tree.
    pub tree: TreeId,
}

/// What a manifest says before its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// What was exported, sorted.
    pub exports: Vec<Export>,
    /// What the sources were, by name, sorted.
    pub sources: Vec<(String, TreeId)>,
    /// The number of objects.
    pub objects: u64,
    /// The sum of their sizes in bytes.
    pub bytes: u64,
}

/// The text of a manifest.
pub fn to_text(exports: &[Export], sources: &[(String, TreeId)], items: &[Item]) -> String {
    use std::fmt::Write as _;
    let mut s = format!("{FIRST}\n");
    for e in exports {
        let _ = match &e.made_by {
            Some(m) => writeln!(s, "export {} {} {} {}", quote(m.node.as_bytes()), m.recipe, m.seq, e.tree),
            None => writeln!(s, "export - - - {}", e.tree),
        };
    }
    for (name, tree) in sources {
        let _ = writeln!(s, "source {} {tree}", quote(name.as_bytes()));
    }
    let bytes = items.iter().fold(0u64, |n, i| n.saturating_add(i.size));
    let _ = writeln!(s, "objects {} {bytes}", items.len());
    for i in items {
        let _ = writeln!(s, "{} {} {}", i.size, i.digest, i.name);
    }
    let sum = Digest::of(s.as_bytes());
    let _ = writeln!(s, "sum {sum}");
    s
}

/// Reads a manifest line by line: it may be longer than one would hold in memory.
pub struct Reader<R> {
    from: R,
    line: usize,
    hasher: blake3::Hasher,
    head: Head,
    left: u64,
    bytes: u64,
    last: Option<ObjectName>,
}

impl<R: BufRead> Reader<R> {
    /// Reads as far as the objects. Errors: Bad at the first line that [`to_text`] would not have written.
    pub fn new(from: R) -> Result<Self> {
        let head = Head { exports: Vec::new(), sources: Vec::new(), objects: 0, bytes: 0 };
        let mut r = Self { from, line: 0, hasher: blake3::Hasher::new(), head, left: 0, bytes: 0, last: None };
        if r.next_line()? != FIRST {
            return Err(r.bad(format!("expected {FIRST:?}")));
        }
        loop {
            let line = r.next_line()?;
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "export" if r.head.sources.is_empty() => {
                    let e = parse_export(rest).ok_or_else(|| r.bad("is no export"))?;
                    if r.head.exports.last().is_some_and(|l| *l >= e) {
                        return Err(r.bad("exports are not sorted"));
                    }
                    r.head.exports.push(e);
                }
                "source" => {
                    let s = parse_source(rest).ok_or_else(|| r.bad("is no source"))?;
                    if r.head.sources.last().is_some_and(|l| *l >= s) {
                        return Err(r.bad("sources are not sorted"));
                    }
                    r.head.sources.push(s);
                }
                "objects" => {
                    let both = rest.split_once(' ').and_then(|(n, b)| Some((number(n)?, number(b)?)));
                    (r.head.objects, r.head.bytes) = both.ok_or_else(|| r.bad("expected two numbers"))?;
                    r.left = r.head.objects;
                    return Ok(r);
                }
                _ => return Err(r.bad("expected `export`, `source` or `objects`")),
            }
            if r.line > MOST_HEAD_LINES {
                return Err(r.bad("more exports and sources than any graph has"));
            }
        }
    }

    /// What it says before its objects.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next object; `None` behind the last, once the sums are found right and nothing follows.
    pub fn item(&mut self) -> Result<Option<Item>> {
        if self.left == 0 {
            return self.end().map(|()| None);
        }
        let line = self.next_line()?;
        let mut words = line.splitn(3, ' ');
        let item = (|| {
            let size = number(words.next()?)?;
            let digest = words.next()?.parse().ok()?;
            Some(Item { size, digest, name: ObjectName::parse(words.next()?)? })
        })();
        let item = item.ok_or_else(|| self.bad("expected size, digest and the name of an object"))?;
        if self.last.is_some_and(|l| l >= item.name) {
            return Err(self.bad(format!("{} stands twice or is not in order", item.name)));
        }
        if item.name.digest().is_some_and(|d| d != item.digest) {
            return Err(self.bad(format!("{} is said to hash to {}", item.name, item.digest)));
        }
        if item.size > item.name.most() {
            return Err(self.bad(format!(
                "{} has {} bytes, at most {} may be",
                item.name,
                item.size,
                item.name.most()
            )));
        }
        self.bytes = self.bytes.checked_add(item.size).ok_or_else(|| self.bad("more bytes than can be counted"))?;
        self.last = Some(item.name);
        self.left -= 1;
        Ok(Some(item))
    }

    fn end(&mut self) -> Result<()> {
        if self.bytes != self.head.bytes {
            return Err(self.bad(format!("the objects have {} bytes, not {}", self.bytes, self.head.bytes)));
        }
        let found = Digest::from(self.hasher.finalize());
        let line = self.next_line()?;
        if line != format!("sum {found}") {
            return Err(self.bad(format!("expected its sum, {found}")));
        }
        match self.from.fill_buf() {
            Ok([]) => Ok(()),
            Ok(_) => Err(self.bad("text behind the sum")),
            Err(e) => Err(ArchiveError::Read(e)),
        }
    }

    fn next_line(&mut self) -> Result<String> {
        use std::io::Read as _;
        self.line += 1;
        let mut line = Vec::new();
        // One byte more than allowed tells a line that is too long from one that just fits.
        let mut some = (&mut self.from).take(MOST_LINE as u64 + 1);
        some.read_until(b'\n', &mut line).map_err(ArchiveError::Read)?;
        if line.last() != Some(&b'\n') {
            return Err(self.bad(if line.len() > MOST_LINE { "the line is too long" } else { "it is cut off" }));
        }
        self.hasher.update(&line);
        line.pop();
        String::from_utf8(line).map_err(|_| self.bad("is no UTF-8 text"))
    }

    fn bad(&self, what: impl Into<String>) -> ArchiveError {
        ArchiveError::bad(format!("{MANIFEST}, line {}", self.line), what)
    }
}

// As it is written: no sign, no leading zero.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n: &u64| n.to_string() == text)
}

fn parse_export(rest: &str) -> Option<Export> {
    if let Some(tree) = rest.strip_prefix("- - - ") {
        return Some(Export { made_by: None, tree: tree.parse().ok()? });
    }
    let (node, rest) = unquote_prefix(rest).ok()?;
    let mut words = rest.strip_prefix(' ')?.splitn(3, ' ');
    let recipe = words.next()?.parse().ok()?;
    let seq = words.next().and_then(number).filter(|n| (1..=MOST_SEQ).contains(n))?;
    let made_by = MadeBy { node: String::from_utf8(node).ok()?, recipe, seq };
    Some(Export { made_by: Some(made_by), tree: words.next()?.parse().ok()? })
}

fn parse_source(rest: &str) -> Option<(String, TreeId)> {
    let (name, rest) = unquote_prefix(rest).ok()?;
    Some((String::from_utf8(name).ok()?, rest.strip_prefix(' ')?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<Export>, Vec<(String, TreeId)>, Vec<Item>) {
        let d = |t: &str| Digest::of(t.as_bytes());
        let recipe = RecipeId(d("r"));
        let made_by = Some(MadeBy { node: "a \"b\"".to_owned(), recipe, seq: 3 });
        let exports = vec![Export { made_by: None, tree: TreeId(d("s")) }, Export { made_by, tree: TreeId(d("t")) }];
        let mut items: Vec<Item> = [
            ObjectName::Recipe(recipe),
            ObjectName::Tree(TreeId(d("t"))),
            ObjectName::Table(BlobId(d("b"))),
            ObjectName::Run(recipe, 3),
            ObjectName::Blob(BlobId(d("b")), false),
            ObjectName::Blob(BlobId(d("b")), true),
        ]
        .map(|name| Item { name, size: 5, digest: name.digest().unwrap_or(d("x")) })
        .into();
        items.sort_by_key(|i| i.name);
        (exports, vec![("base".to_owned(), TreeId(d("u")))], items)
    }

    fn read(text: &[u8]) -> Result<(Head, Vec<Item>)> {
        let mut r = Reader::new(text)?;
        let mut items = Vec::new();
        while let Some(i) = r.item()? {
            items.push(i);
        }
        Ok((r.head, items))
    }

    #[test]
    fn a_manifest_reads_back() {
        let (exports, sources, items) = sample();
        let text = to_text(&exports, &sources, &items);
        let (head, found) = read(text.as_bytes()).unwrap();
        assert_eq!((head.exports, head.sources, found), (exports, sources, items));
        assert_eq!((head.objects, head.bytes), (6, 30));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let (exports, sources, items) = sample();
        let text = to_text(&exports, &sources, &items).into_bytes();
        for i in 0..text.len() {
            assert!(read(&text[..i]).is_err(), "cut at {i}");
            for bit in 0..8 {
                let mut t = text.clone();
                t[i] ^= 1 << bit;
                assert!(read(&t).is_err(), "bit {bit} of byte {i}");
            }
        }
        assert!(read(&[text.as_slice(), b"\n"].concat()).is_err());
        assert!(read(&vec![b'g'; 1 << 20]).is_err());
    }

    #[test]
    fn only_the_stores_own_names_are_names() {
        let hex = Digest::of(b"x").hex();
        let (a, b) = hex.split_at(2);
        for good in [
            format!("blobs/{a}/{b}"),
            format!("blobs/{a}/{b}.x"),
            format!("trees/{a}/{b}"),
            format!("runs/{hex}/000001.json"),
            format!("runs/{hex}/1000000.json"),
        ] {
            assert_eq!(ObjectName::parse(&good).map(|n| n.to_string()), Some(good));
        }
        for bad in [
            format!("/blobs/{a}/{b}"),
            format!("../blobs/{a}/{b}"),
            format!("blobs/../blobs/{a}/{b}"),
            format!("blobs/{a}/{b}.x.x"),
            format!("blobs/{a}//{b}"),
            format!("trees/{a}/{b}.x"),
            format!("blobs/{}/{}", &hex[..3], &hex[3..]),
            format!("blobs/{a}/{}", b.to_uppercase()),
            format!("runs/{hex}/1.json"),
            format!("runs/{hex}/+00001.json"),
            format!("runs/{hex}/000000.json"),
            format!("runs/{hex}/18446744073709551615.json"),
            format!("logs/{a}/{b}"),
            "VERSION".to_owned(),
            String::new(),
        ] {
            assert_eq!(ObjectName::parse(&bad), None, "{bad}");
        }
    }
}
