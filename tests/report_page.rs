//! The page that `diff --html` writes, opened in headless Chromium: what it shows, how it is walked by keyboard, and that
//! the console stays empty. `scripts/test` installs the browser.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Project, repository};
use serde_json::{Value, json};

struct Seen {
    milliseconds: f64,
    values: Vec<Value>,
}

// Opens the page and takes steps; fails where the console has an error.
fn browse(page: &Path, steps: &str) -> Seen {
    let python = repository().join("target/venv/bin/python");
    let mut child = Command::new(&python)
        .arg(repository().join("tests/data/browse.py"))
        .arg(page)
        .args(["1300", "900"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}; scripts/test makes it", python.display()));
    child.stdin.take().unwrap().write_all(steps.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{text}\n{}", String::from_utf8_lossy(&done.stderr));
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error ")).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let mut lines = text.lines();
    let milliseconds = lines.next().unwrap().parse().unwrap();
    Seen { milliseconds, values: lines.map(|l| serde_json::from_str(l).unwrap()).collect() }
}

fn lineage(name: &str) -> String {
    repository().join("tests/data/lineage").join(name).to_str().unwrap().to_owned()
}

#[test]
fn the_page_shows_weights_files_and_a_map_that_is_walked_by_keyboard() {
    let p = Project::new("");
    let ran = p.run(&["diff", &lineage("finetune"), &lineage("quant-ct-right"), "--html", "report.html"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let again = p.run(&["diff", &lineage("finetune"), &lineage("quant-ct-right"), "--html", "report.html"]);
    assert_eq!(again.code, Some(2), "it is never overwritten");
    let seen = browse(
        &p.path("report.html"),
        "eval document.querySelectorAll('#weights tbody tr').length\n\
         eval document.querySelectorAll('.heat .cell').length\n\
         eval document.querySelector('#files summary').textContent\n\
         eval document.querySelector('.heat .cell').focus()\n\
         key ArrowRight\n\
         key ArrowDown\n\
         eval [document.activeElement.dataset.row, document.activeElement.dataset.column]\n\
         key End\n\
         eval document.activeElement.dataset.column\n\
         key Home\n\
         eval document.getElementById('cell').textContent.includes('SNR 20.')\n\
         key Enter\n\
         eval document.querySelectorAll('#weights tbody tr').length\n\
         eval document.activeElement.tagName\n\
         eval (document.getElementById('filter').value = '', document.getElementById('filter').dispatchEvent(new Event('input')), 0)\n\
         eval document.querySelector('#weights th[data-key=snr_db] button').focus()\n\
         key Enter\n\
         key Enter\n\
         eval document.querySelector('#weights th[data-key=snr_db]').getAttribute('aria-sort')\n\
         eval [...document.querySelectorAll('#weights tbody tr')].map(r => +r.children[6].textContent).every((x, i, all) => !i || all[i - 1] <= x)\n\
         eval (document.getElementById('theme').click(), document.documentElement.dataset.theme)\n",
    );
    assert_eq!(
        seen.values,
        [
            json!(36),
            json!(56),
            json!("config.json config"),
            Value::Null,
            json!(["1", "1"]),
            json!("3"),
            json!(true),
            json!(1),
            json!("TR"),
            json!(0),
            Value::Null,
            json!("ascending"),
            json!(true),
            json!("dark"),
        ]
    );
}

// Two checkpoints of so many tensors each, all of them changed.
fn many(p: &Project, tensors: usize) {
    for (side, byte) in [("one", 0u8), ("two", 1)] {
        let (mut header, mut data) = (String::from("{"), Vec::new());
        for i in 0..tensors {
            let (layer, module) = (i / 20, i % 20);
            let _ = write!(
                header,
                "{}\"model.layers.{layer}.block.module_{module}.weight\":{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[{},{}]}}",
                if i > 0 { "," } else { "" },
                i * 4,
                i * 4 + 4
            );
            data.extend([byte + 1, 2, 3, u8::try_from(i % 200).unwrap()]);
        }
        header.push('}');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.into_bytes());
        bytes.extend(data);
        fs::create_dir(p.path(side)).unwrap();
        fs::write(p.path(side).join("model.safetensors"), bytes).unwrap();
    }
}

#[test]
fn a_page_of_1967_tensors_shows_them_all() {
    let p = Project::new("");
    many(&p, 1967);
    let ran = p.run(&["diff", "./one", "./two", "--html", "report.html"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let seen = browse(
        &p.path("report.html"),
        "eval new Promise(done => { const look = () => document.querySelectorAll('#weights tbody tr').length === 1967 \
         ? done(1967) : setTimeout(look, 10); look(); })\n\
         eval document.querySelectorAll('.heat .cell:not(.none)').length\n",
    );
    assert_eq!(seen.values, [json!(1967), json!(1967)]);
    // A figure for docs/diff.md, and no bound: the machine may be busy.
    println!("1,967 tensors are on the screen after {:.0} ms", seen.milliseconds);
}
