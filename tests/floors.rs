//! The floors of `src/lib.rs`'s table: a module uses only modules of lower floors. Test code is exempt, since a test
//! may set up what stands above it.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Module → floor, read from the table in lib.rs's opening comment.
fn floors() -> BTreeMap<String, u32> {
    let text = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let mut floors = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_start_matches("//!").split('|').map(str::trim).collect();
        let [_, floor, modules, _] = cells.as_slice() else { continue };
        let Ok(floor) = floor.parse::<u32>() else { continue };
        for module in modules.split(',') {
            let module = module.trim().trim_start_matches("[`").trim_end_matches("`]");
            assert!(floors.insert(module.to_owned(), floor).is_none(), "{module} stands on two floors");
        }
    }
    floors
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The top module of a file below src; `None` for lib.rs and main.rs, which stand above all floors.
fn module_of(path: &Path) -> Option<String> {
    let below = path.strip_prefix(root().join("src")).unwrap();
    let first = below.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
    (first != "lib" && first != "main").then_some(first)
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|c| {
        let c = c.as_os_str().to_str().unwrap_or("").trim_end_matches(".rs");
        c == "tests" || c.ends_with("_tests") || c == "testing"
    })
}

/// The file without comments and without items under `#[cfg(test)]`, line by line, with line numbers from 1. A group of
/// imports that is broken over lines is one line.
fn shipped_lines(text: &str) -> Vec<(usize, String)> {
    let mut out: Vec<(usize, String)> = Vec::new();
    let mut open_group = false;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((i, line)) = lines.next() {
        let bare = line.trim_start();
        if bare.starts_with("//") {
            continue;
        }
        if bare.starts_with("#[cfg(test)]") {
            let indent = line.len() - bare.len();
            // The item ends at the first line that closes at its own indent, or at once where it has no body.
            for (_, l) in lines.by_ref() {
                let b = l.trim_start();
                let at_indent = l.len() - b.len() == indent;
                if at_indent && (b.starts_with('}') || b.ends_with(';') || (b.ends_with('}') && b.contains('{'))) {
                    break;
                }
            }
            continue;
        }
        match out.last_mut() {
            Some((_, last)) if open_group => last.push_str(bare),
            _ => out.push((i + 1, line.to_owned())),
        }
        if let Some((_, last)) = out.last() {
            open_group = last.trim_start().starts_with("use ") && !last.ends_with(';');
        }
    }
    out
}

/// Every module that is named behind `crate::`, groups (`crate::{a, b::c}`) included.
fn used_modules(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        if line[..at].ends_with('$') || line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &line[at + "crate::".len()..];
        let names: Vec<&str> = match rest.strip_prefix('{') {
            Some(group) => {
                let mut depth = 0i32;
                let mut names = vec![];
                let mut start = 0;
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => {
                            names.push(&group[start..i]);
                            break;
                        }
                        '}' => depth -= 1,
                        ',' if depth == 0 => {
                            names.push(&group[start..i]);
                            start = i + 1;
                        }
                        _ => {}
                    }
                }
                names
            }
            None => vec![rest],
        };
        for name in names {
            let name: String = name.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if !name.is_empty() {
                found.push(name);
            }
        }
    }
    found
}

#[test]
fn the_table_of_floors_names_every_module_and_no_other() {
    let floors = floors();
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let declared: Vec<&str> = lib
        .lines()
        .filter_map(|l| l.strip_prefix("pub mod ").or_else(|| l.strip_prefix("mod ")))
        .map(|l| l.trim_end_matches(';'))
        .collect();
    assert!(declared.len() > 10, "lib.rs was not read: {declared:?}");
    for module in &declared {
        assert!(floors.contains_key(*module), "{module} stands on no floor of lib.rs's table");
    }
    for module in floors.keys() {
        assert!(declared.contains(&module.as_str()), "lib.rs's table names {module}, which is no module");
    }
}

#[test]
fn a_module_uses_only_modules_of_lower_floors() {
    let floors = floors();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in files.iter().filter(|f| !is_test_file(f)) {
        let Some(module) = module_of(file) else { continue };
        let Some(own) = floors.get(&module) else { continue };
        let text = fs::read_to_string(file).unwrap();
        for (number, line) in shipped_lines(&text) {
            for used in used_modules(&line) {
                let Some(floor) = floors.get(&used) else { continue };
                seen += 1;
                if used != module && floor >= own {
                    let place = file.strip_prefix(root()).unwrap().display();
                    wrong.push(format!("{place}:{number}: {module} (floor {own}) uses {used} (floor {floor})"));
                }
            }
        }
    }
    assert!(seen > 10, "only {seen} uses were found: the walk is broken");
    assert!(wrong.is_empty(), "floors are broken:\n{}", wrong.join("\n"));
}

#[test]
fn only_the_command_line_prints() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let mut wrong = Vec::new();
    for file in files.iter().filter(|f| !is_test_file(f) && module_of(f).is_some_and(|m| m != "cli")) {
        let text = fs::read_to_string(file).unwrap();
        for (number, line) in shipped_lines(&text) {
            let prints = ["println!(", "print!(", "dbg!("].iter().any(|m| line.contains(m));
            if prints {
                wrong.push(format!("{}:{number}: {}", file.strip_prefix(root()).unwrap().display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "printing outside cli/:\n{}", wrong.join("\n"));
}

#[test]
fn the_walk_sees_groups_and_nested_paths_and_skips_tests() {
    assert_eq!(used_modules("use crate::{store, graph::{self, Node}, plan};"), ["store", "graph", "plan"]);
    assert_eq!(used_modules("fn f(x: &crate::sched::Report) -> crate::cli::X {"), ["sched", "cli"]);
    assert_eq!(used_modules("$crate::x mycrate::y"), Vec::<String>::new());
    let text = "use a;\n#[cfg(test)]\nmod tests {\n    use crate::cli;\n}\nuse b;\n#[cfg(test)]\nuse c;\nuse crate::{\n    x,\n    y::Z,\n};\n";
    let left: Vec<String> = shipped_lines(text).into_iter().map(|l| l.1).collect();
    assert_eq!(left, ["use a;", "use b;", "use crate::{x,y::Z,};"]);
}

/// Files that may change the disk by themselves: the floor for it; a step's own mount namespace, which ends with it; and
/// what only tries out what a machine can.
const BY_THEMSELVES: [&str; 5] = ["fsx/", "exec/rootfs.rs", "exec/namespaces.rs", "exec/probe.rs", "front/doctor.rs"];

#[test]
fn every_call_that_changes_the_disk_passes_the_file_system_floor() {
    let calls = [
        "fs::write(",
        "fs::rename(",
        "fs::remove_",
        "fs::create_dir",
        "fs::copy(",
        "fs::hard_link(",
        "fs::set_permissions(",
        "File::create",
        "create_new(true)",
        ".create(true)",
        "unix::fs::symlink(",
        ".persist",
        "tempfile_in(",
        ".set_len(",
    ];
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let mut bad = Vec::new();
    for path in files.iter().filter(|p| !is_test_file(p)) {
        let name = path.strip_prefix(root().join("src")).unwrap().to_str().unwrap();
        if BY_THEMSELVES.iter().any(|f| name.starts_with(f)) {
            continue;
        }
        for (n, line) in shipped_lines(&fs::read_to_string(path).unwrap()) {
            let passes = line.contains("fsx::") || line.contains("change(Call::");
            if calls.iter().any(|c| line.contains(c)) && !passes {
                bad.push(format!("{name}:{n}: {}", line.trim()));
            }
        }
    }
    assert!(bad.is_empty(), "calls that no fail point stands before:\n{}", bad.join("\n"));
}
