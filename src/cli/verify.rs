//! `graftwerk verify`.

use std::collections::BTreeSet;

use crate::audit::verify::{Finding, Verified, escaped};
use crate::cli::args::Verify;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::words;
use crate::front::{self, Claims, FrontError};

pub(crate) fn run(shell: &Shell, args: &Verify) -> Ended {
    if let Some(claims) = claims(args) {
        return files(shell, args, &claims);
    }
    let what = front::Verify { targets: args.what.clone(), against: args.against.clone(), quick: args.quick };
    let (found, _) = shell.look(|location, events, cancel| front::verify(location, &what, events, cancel))?;
    if shell.terminal.json {
        shell.answer_json(&found);
    } else {
        shell.terminal.print(&text(&found, shell.terminal.verbose, shell.terminal.quiet));
    }
    Ok(match found.exit_code() {
        0 => Exit::Done,
        code => Exit::Error(code),
    })
}

fn claims(args: &Verify) -> Option<Claims> {
    match (&args.signature, &args.key, &args.manifest) {
        (Some(file), Some(key), _) => Some(Claims::Signature { file: file.clone(), key: key.clone() }),
        (_, _, Some(file)) => Some(Claims::Manifest(file.clone())),
        _ => None,
    }
}

fn files(shell: &Shell, args: &Verify, claims: &Claims) -> Ended {
    let [target] = args.what.as_slice() else {
        let what = format!("a signature or a list is of one folder, and {} stand here", args.what.len());
        let hint = "verify them one after the other".to_owned();
        return Err(FrontError::Argument { what, hint: Some(hint) });
    };
    let (answer, _) =
        shell.look(|location, events, cancel| front::verify_files(location, target, claims, events, cancel))?;
    if shell.terminal.json {
        shell.answer_json(&answer);
    } else {
        let mut s = text(&answer.found, shell.terminal.verbose, shell.terminal.quiet);
        if let (Some(by), false) = (&answer.signed, shell.terminal.quiet) {
            let key = if shell.terminal.verbose { by.key.as_str() } else { by.key.get(..12).unwrap_or_default() };
            s.push_str(&format!("signed by the {} key {key}: {}\n", by.algorithm, words::plain(&by.predicate)));
        }
        shell.terminal.print(&s);
    }
    Ok(match answer.found.exit_code() {
        0 => Exit::Done,
        code => Exit::Error(code),
    })
}

/// How many names a line holds.
const MOST: usize = 5;

fn text(found: &Verified, verbose: bool, quiet: bool) -> String {
    let mut s = String::new();
    for (title, list) in [("changed", &found.changed), ("missing", &found.missing), ("extra", &found.extra)] {
        if !list.is_empty() {
            s.push_str(&format!("{title}\n"));
            s.extend(list.iter().map(|f| finding(f, verbose)));
        }
    }
    if !quiet {
        s.push_str(&collected(found, verbose));
        s.extend(found.notes.iter().map(|n| format!("note: {n}\n")));
    }
    s.extend(found.not_built.iter().map(|n| format!("not built: {n} is known, and its bytes are not there\n")));
    let hints: BTreeSet<&str> = found.changed.iter().chain(&found.missing).filter_map(|f| f.hint.as_deref()).collect();
    s.extend(hints.iter().map(|h| format!("hint: {h}\n")));
    if !quiet {
        s.push_str(&summary(found));
    }
    s
}

fn collected(found: &Verified, verbose: bool) -> String {
    if found.collected.is_empty() {
        return String::new();
    }
    if !verbose {
        let trees = words::count(found.collected.len(), "tree");
        return format!("{trees} whose bytes gc freed: -v names them\n");
    }
    found.collected.iter().fold("collected\n".to_owned(), |s, f| s + &finding(f, verbose))
}

fn finding(f: &Finding, verbose: bool) -> String {
    let mut s = format!("  {} {} {}\n", f.part.name(), escaped(&f.path), f.what);
    if !f.tensors.is_empty() {
        let one = if f.tensors.len() == 1 { "tensor" } else { "tensors" };
        s.push_str(&format!("    {one} {}\n", listed(f.tensors.iter().cloned(), f.tensors.len(), verbose)));
    }
    // Of something in a folder it is said already.
    if !f.nodes.is_empty() || !f.derived.is_empty() {
        let ids = |list: &[crate::digest::TreeId]| {
            let text = list.iter().map(|t| if verbose { t.to_string() } else { t.short() });
            listed(text, list.len(), verbose)
        };
        if !f.trees.is_empty() {
            s.push_str(&format!("    in {}\n", ids(&f.trees)));
        }
        if !f.derived.is_empty() {
            s.push_str(&format!("    from which {} made\n", are(f.derived.len(), &ids(&f.derived))));
        }
        let nodes: BTreeSet<&str> = f.nodes.iter().map(|n| n.node.as_str()).collect();
        if !nodes.is_empty() {
            let of = listed(nodes.iter().map(|n| (*n).to_owned()), nodes.len(), verbose);
            s.push_str(&format!("    needed by {of}{}\n", projects(f)));
        }
    }
    s
}

fn are(n: usize, what: &str) -> String {
    format!("{what} {}", if n == 1 { "is" } else { "are" })
}

fn projects(f: &Finding) -> String {
    let all: BTreeSet<String> = f.nodes.iter().filter_map(|n| n.project.as_deref()).map(escaped).collect();
    if all.is_empty() { String::new() } else { format!(" of {}", all.into_iter().collect::<Vec<_>>().join(", ")) }
}

fn listed(items: impl Iterator<Item = String>, n: usize, all: bool) -> String {
    let most = if all { n } else { MOST };
    let mut list: Vec<String> = items.take(most).collect();
    if n > most {
        list.push(format!("and {} more", n - most));
    }
    list.join(", ")
}

fn summary(found: &Verified) -> String {
    let looked = format!(
        "{}, {} hashed, in {}",
        words::count(usize::try_from(found.files).unwrap_or(usize::MAX), "file"),
        words::bytes(found.hashed_bytes),
        words::seconds(found.seconds.as_secs_f64())
    );
    if found.ok {
        return format!("all is right: {looked}\n");
    }
    let (changed, missing, extra) = (found.changed.len(), found.missing.len(), found.extra.len());
    format!("{changed} changed, {missing} missing, {extra} extra: {looked}\n")
}
