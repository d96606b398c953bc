//! What a step most likely lacked, by its last words: a program that it did not declare, or Python's own library folder,
//! are the two things that nobody thinks of before.

/// What to declare, where one of these lines says that something is not there. The last such line counts.
pub fn missing_inside(lines: &[String]) -> Option<String> {
    lines.iter().rev().find_map(|line| hint(line.trim()))
}

fn hint(line: &str) -> Option<String> {
    if let Some(module) = between(line, "No module named '", "'") {
        return Some(if module == "encodings" { python() } else { no_module(module) });
    }
    // Of a shell: `sh: 1: ls: not found`, `x.sh: line 3: ls: command not found`.
    if let Some(before) = line.strip_suffix(": command not found").or_else(|| line.strip_suffix(": not found")) {
        return no_program(last_part(before));
    }
    if let Some(rest) = line.split("error while loading shared libraries: ").nth(1) {
        let library = rest.split(':').next().unwrap_or(rest);
        return Some(format!(
            "{library} is not inside: give its absolute path in `tools` (what a program loads while it runs can't be seen \
             before)"
        ));
    }
    // Of Python: `FileNotFoundError: [Errno 2] No such file or directory: 'ls'`; of most others: `cat: x: No such …`.
    if let Some(name) = between(line, "No such file or directory: '", "'") {
        return no_file(name);
    }
    let before = line.strip_suffix(": No such file or directory")?;
    no_file(last_part(before).trim_matches(['\'', '"', '‘', '’', '`']))
}

fn between<'a>(line: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let rest = line.get(line.find(start)? + start.len()..)?;
    rest.get(..rest.find(end)?)
}

fn last_part(text: &str) -> &str {
    text.rsplit(": ").next().unwrap_or(text).trim()
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn python() -> String {
    "Python's own library folder is not inside: declare it as a source (`python3 -c 'import os; print(os.path.dirname(os.__file__))'` \
     says where it is), and give it to the step with `at` at that very path: inputs.pylib = { node = \"pylib\", at = \"/usr/lib/python3.…\" }"
        .to_owned()
}

fn no_module(module: &str) -> String {
    format!(
        "the module {module} is not inside: declare the folder that holds it (a venv's site-packages) as a source, give it to \
         the step as an input, and name it in env.PYTHONPATH = \"{{in.ALIAS}}\""
    )
}

fn no_program(name: &str) -> Option<String> {
    (is_word(name) && !name.contains('/')).then(|| format!("`{name}` is not inside: add it to `tools` of the node"))
}

fn no_file(name: &str) -> Option<String> {
    let own = ["/in/", "/out", "/tmp", "./", "../"].iter().any(|p| name.starts_with(p));
    match is_word(name) && !own {
        true if name.starts_with('/') => Some(format!(
            "{name} is not inside: a step sees only its inputs. Declare what it needs as a source, with `at` where it must lie \
             there; a program or library goes into `tools`"
        )),
        true if !name.contains('/') => {
            Some(format!("if `{name}` is a program, add it to `tools` of the node: a step sees only what is declared"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> String {
        missing_inside(&["before".to_owned(), line.to_owned(), String::new()]).unwrap_or_default()
    }

    #[test]
    fn a_program_that_was_not_declared_is_named_with_the_key_for_it() {
        for line in ["sh: 1: ls: not found", "/in/scripts/q.sh: line 3: ls: command not found", "sh: ls: not found"] {
            assert_eq!(of(line), "`ls` is not inside: add it to `tools` of the node", "{line}");
        }
        for line in [
            "FileNotFoundError: [Errno 2] No such file or directory: 'ls'",
            "env: ‘ls’: No such file or directory",
            "env: can't execute 'x': ls: No such file or directory",
        ] {
            assert!(of(line).starts_with("if `ls` is a program, add it to `tools`"), "{line}");
        }
        let library =
            "q: error while loading shared libraries: libx.so.1: cannot open shared object file: No such file";
        assert!(of(library).starts_with("libx.so.1 is not inside: give its absolute path in `tools`"));
    }

    #[test]
    fn pythons_own_folder_is_told_from_a_module_that_is_elsewhere() {
        assert!(of("ModuleNotFoundError: No module named 'encodings'").starts_with("Python's own library folder"));
        assert!(of("ModuleNotFoundError: No module named 'torch'").starts_with("the module torch is not inside"));
    }

    #[test]
    fn a_file_of_the_host_is_no_program_and_a_step_s_own_files_are_its_own_affair() {
        assert!(of("cat: /etc/passwd: No such file or directory").starts_with("/etc/passwd is not inside"));
        for line in ["cat: /in/model/x: No such file or directory", "cp: a b: No such file or directory", "all is well"]
        {
            assert_eq!(of(line), "", "{line}");
        }
    }
}
