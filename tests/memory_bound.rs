//! How much memory a hostile file can make its reader ask for: held by an allocator that counts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod fuzz_bodies;
mod hostile;
mod mutations;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use fuzz_bodies::TARGETS;
use mutations::{Random, mutated, seeds, with_length};

/// The system's allocator, with the bytes in use and the most that there were.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn more(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

fn less(bytes: usize) {
    IN_USE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came, which keeps the contract; only numbers are kept beside.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        less(layout.size());
        // SAFETY: `at` came from `alloc` above with this layout, as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may be there at one time.
        more(size);
        // SAFETY: `at` came from `alloc` above with this layout, as the caller promises.
        let new = unsafe { System.realloc(at, layout, size) };
        less(if new.is_null() { size } else { layout.size() });
        new
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BOUND: usize = 50 << 20;

/// Does something, and says how many bytes more than before were in use at one time.
fn most_in(body: impl FnOnce()) -> usize {
    let before = IN_USE.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    body();
    MOST.load(Ordering::Relaxed).saturating_sub(before)
}

// Each target's body holds that what comes is an error or the right result, and that it neither panics nor differs from
// the reference.
fn hold(target: &str, count: usize, change: impl Fn(usize, Vec<u8>) -> Vec<u8>) {
    let body = TARGETS.iter().find(|t| t.0 == target).unwrap().1;
    let seeds = seeds(target);
    let mut random = Random::of("memory");
    for n in 0..count {
        let bytes = change(n, mutated(&mut random, &seeds));
        let most = most_in(|| body(&bytes));
        assert!(most < BOUND, "mutation {n} of {target} took {most} bytes: {:?}", String::from_utf8_lossy(&bytes));
    }
}

// Lengths and offsets that somebody would allocate who believed them.
const HUGE: [&str; 6] =
    ["4294967296", "99999999", "9223372036854775807", "18446744073709551615", "1099511627776", "2147483648"];

// Every number of some headers is a huge one.
fn with_huge_numbers(bytes: Vec<u8>, n: usize) -> Vec<u8> {
    let (length, text) = bytes.split_at(bytes.len().min(8));
    let mut out = length.to_vec();
    let mut in_number = false;
    for b in text {
        if b.is_ascii_digit() {
            if !in_number {
                out.extend(HUGE[n % HUGE.len()].as_bytes());
            }
            in_number = true;
        } else {
            in_number = false;
            out.push(*b);
        }
    }
    out
}

// One test: what another one did at the same time would be counted too.
#[test]
fn ten_thousand_mutated_headers_and_five_hundred_mutated_graphs_take_less_than_fifty_mib_each() {
    hold("header", 10_000, |n, bytes| match n % 4 {
        0 => bytes,
        1 => with_length(with_huge_numbers(bytes, n)),
        // A length that the file does not have.
        2 if bytes.len() > 8 => {
            let claim = HUGE[n / 4 % HUGE.len()].parse::<u64>().unwrap();
            [&claim.to_le_bytes()[..], &bytes[8..]].concat()
        }
        _ => with_length(bytes),
    });
    hold("graph", 500, |_, bytes| bytes);
    hold("index", 500, |_, bytes| bytes);
    let deep = format!("{{\"a\":{}", "[".repeat(1 << 20));
    let deep = [&(deep.len() as u64).to_le_bytes()[..], deep.as_bytes()].concat();
    let header = TARGETS.iter().find(|t| t.0 == "header").unwrap().1;
    let most = most_in(|| header(&deep));
    assert!(most < BOUND, "a header of brackets took {most} bytes");
}
