//! What a build tells of its progress, through the library's front.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use common::Project;
use graftwerk::front::{self, BuildOptions, Location, Looking};
use graftwerk::sched::{self, Event};

#[test]
fn bytes_done_grow_to_the_total_and_never_beyond_it() {
    let p = Project::new(
        "[source]\ndata = { folder = \"data\" }\n[node.n]\nkind = \"edit\"\ninputs.model = \"data\"\nset.\"c.json\" = { \"/n\" = 1 }\n",
    );
    p.write("data/c.json", format!("{{\"n\": 0, \"long\": \"{}\"}}", "x".repeat(9 << 20)));
    // Several pieces each, and more of them than are hashed at once.
    for i in 0..7u8 {
        p.write(&format!("data/{i}"), vec![i; (5 << 20) + usize::from(i)]);
    }
    let project = front::Project::open(&Location { dir: p.dir.clone(), ..Location::default() }).unwrap();
    let (events, heard) = mpsc::channel();
    let options = BuildOptions {
        looking: Looking::default(),
        run: sched::Options { jobs: 2, keep_going: false, keep_failed: false },
    };
    let report = project.build(&[], &options, &events, &Arc::new(AtomicBool::new(false))).unwrap();
    assert!(report.ok);
    drop(events);
    let (mut scanned, mut hashed) = (Vec::new(), Vec::new());
    for e in heard {
        match e {
            Event::Scanning { done, total, .. } => scanned.push((done, total)),
            Event::Progress { done, total, .. } => hashed.push((done, total)),
            _ => {}
        }
    }
    for told in [scanned, hashed] {
        let total = told.last().unwrap().1;
        assert!(told.iter().all(|(done, t)| *done <= total && *t == total), "{told:?}");
        assert!(told.iter().any(|(done, _)| *done == total), "{told:?}");
        assert!(told.len() > 1);
    }
}
