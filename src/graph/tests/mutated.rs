//! Texts that somebody's cat walked over.

use super::{KINDS, plain};
use crate::graph::Graph;
use crate::kinds;

/// A small generator with a fixed seed (SplitMix64), so that every run sees the same texts.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n.max(1)).unwrap()).unwrap()
    }
}

const SEED_TEXT: &str = include_str!("../../../tests/data/graph/lineage.toml");

const PIECES: [&str; 24] = [
    "[",
    "]",
    "{",
    "}",
    "=",
    ".",
    ",",
    "\"",
    "'",
    "\"\"\"",
    "\n",
    "\r",
    "\t",
    "\0",
    "é",
    "\u{feff}",
    "\u{202e}",
    "#",
    "-",
    "9223372036854775808",
    "1e999",
    "[node.x]",
    "inputs",
    "@weights",
];

fn mutate(r: &mut Random) -> Vec<u8> {
    let mut bytes = SEED_TEXT.as_bytes().to_vec();
    for _ in 0..=r.below(6) {
        let at = r.below(bytes.len());
        let len = r.below(40).min(bytes.len() - at);
        match r.below(6) {
            0 => drop(bytes.drain(at..at + len)),
            1 => bytes.truncate(at),
            2 => drop(bytes.splice(at..at, PIECES[r.below(PIECES.len())].bytes())),
            3 => {
                let piece = bytes[at..at + len].to_vec();
                let to = r.below(bytes.len());
                drop(bytes.splice(to..to, piece));
            }
            4 => {
                if let Some(b) = bytes.get_mut(at) {
                    *b = u8::try_from(r.below(256)).unwrap();
                }
            }
            _ => {
                // Whole lines out of their order.
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let mut lines: Vec<&str> = text.split('\n').collect();
                let (a, b) = (r.below(lines.len()), r.below(lines.len()));
                lines.swap(a, b);
                bytes = lines.join("\n").into_bytes();
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[test]
fn five_hundred_mutated_graphs_give_an_error_with_a_place_or_a_graph() {
    let mut r = Random(2026);
    let mut wrong = 0;
    for i in 0..500 {
        let bytes = mutate(&mut r);
        for kinds in [KINDS, kinds::all()] {
            let text = String::from_utf8_lossy(&bytes);
            let results =
                [Graph::parse_with("graph.toml", &text, kinds).err(), Graph::parse_bytes("graph.toml", &bytes).err()];
            for d in results.into_iter().flatten() {
                wrong += 1;
                assert!(!d.list.is_empty(), "{i}");
                let lines = d.text().split('\n').count();
                for e in &d.list {
                    assert!(!e.message.is_empty() && !e.message.contains('\n'), "{i}: {e}");
                    assert!((1..=lines).contains(&e.line) && e.column >= 1, "{i}: {e}");
                }
                assert!(!plain(&d).contains("OUT OF THE TEXT"), "{i}: {}", plain(&d));
            }
        }
    }
    assert!(wrong > 500, "the mutations are too tame: {wrong}");
}
