//! `run`: any script. Inputs read-only at `/in/NAME`, an empty `/out`, nothing else.
//!
//! ```toml
//! [node.tokens]
//! kind = "run"
//! inputs = { scripts = "scripts", rows = "calib", pylib = "pylib" }
//! argv = ["python3", "{in.scripts}/render.py", "--rows={param.rows}", "{in.rows}", "{out}/rows.jsonl"]
//! params = { rows = 512 }
//! env = { OMP_NUM_THREADS = "1" }
//! tools = ["sh"]
//! ```
//!
//! `argv[0]` is a path in an input or a program of the host; the host's programs are covered by the recipe, with
//! their interpreters and shared libraries (`exec::tools`). Whatever else a program needs is a source, or stands in
//! `tools`: another program by its name, a library that a module of an input loads (Python's `_ssl` needs libssl.so.3)
//! by its path.

use std::collections::BTreeMap;

use crate::canon::Value;
use crate::kinds::command::{Part, Text, parse};
use crate::kinds::container::{CONTAINER_KEYS, container};
use crate::kinds::{
    Action, Input, KeySpec, KeyType, Kind, Output, ParamError, Params, ProcessStep, Report, Step, StepError,
};
use crate::near::did_you_mean;

/// The kind `run`.
pub struct Run;

/// The keys of a command, for every kind that runs one.
pub const COMMAND_KEYS: &[KeySpec] = &{
    let [image, user, secrets, memory, cpus, pids, shm, ipc, gpu, window] = CONTAINER_KEYS;
    [
        KeySpec::required(
            "argv",
            KeyType::StrList,
            "program and arguments, with placeholders such as {in.NAME} and {out}",
        ),
        KeySpec::optional("params", KeyType::Map, "values for {param.X} and for the manifest"),
        KeySpec::optional("env", KeyType::StrMap, "environment of the program, with placeholders"),
        KeySpec::optional("workdir", KeyType::Str, "directory that it starts in, /tmp where none is given"),
        KeySpec::optional("network", KeyType::Bool, "whether it may use the host's network"),
        KeySpec::optional("tools", KeyType::StrList, "further programs or libraries of the host that it needs"),
        KeySpec::asserted("timeout", KeyType::Int, "seconds after which it is ended"),
        image,
        user,
        secrets,
        memory,
        cpus,
        pids,
        shm,
        ipc,
        gpu,
        window,
    ]
};

impl Kind for Run {
    fn name(&self) -> &'static str {
        "run"
    }

    fn revision(&self) -> u32 {
        1
    }

    fn about(&self) -> &'static str {
        "runs a script that sees its inputs and an empty /out, nothing else"
    }

    fn keys(&self) -> &'static [KeySpec] {
        COMMAND_KEYS
    }

    fn check(&self, params: &Params, aliases: &[&str]) -> Result<(), ParamError> {
        command(params, aliases).map(|_| ())
    }

    fn action(&self, params: &Params, inputs: &BTreeMap<String, Input>) -> Result<Action, StepError> {
        command_action(params, inputs)
    }

    fn run(&self, _: &Step<'_>, _: &mut Output) -> Result<Report, StepError> {
        Err(StepError::invalid("a `run` step is a process", "this is a fault of graftwerk, please report it"))
    }

    fn accept(&self, _: &Step<'_>, out: &Input) -> Result<Report, StepError> {
        something_written(out)?;
        Ok(Report::default())
    }
}

/// [`command`] as the action of a step. Errors: [`StepError::Invalid`].
pub fn command_action(params: &Params, inputs: &BTreeMap<String, Input>) -> Result<Action, StepError> {
    let aliases: Vec<&str> = inputs.keys().map(String::as_str).collect();
    let step = command(params, &aliases).map_err(|e| StepError::Invalid { what: e.what, hint: e.hint })?;
    Ok(Action::Process(Box::new(step)))
}

/// A process that exits 0 and leaves nothing has failed. Errors: [`StepError::Invalid`].
pub fn something_written(out: &Input) -> Result<(), StepError> {
    if out.tree.is_empty() {
        return Err(StepError::invalid("the step exited 0 but left nothing in its output folder", "write to {out}"));
    }
    Ok(())
}

/// Reads the keys of [`COMMAND_KEYS`] into a process step. Errors: [`ParamError`] at the key: a wrong type, an empty
/// `argv`, an unknown placeholder (with near names), a variable's name that can't be one, a timeout that is not
/// positive, a NUL character.
pub fn command(params: &Params, aliases: &[&str]) -> Result<ProcessStep, ParamError> {
    let none = BTreeMap::new();
    let values = match params.get("params") {
        None => &none,
        Some(v) => v.as_map().ok_or_else(|| wrong("params", "a table", v))?,
    };
    let text = |key: &str, s: &str| -> Result<Text, ParamError> {
        if s.contains('\0') {
            return Err(ParamError::new(key, format!("a NUL character in {s:?}")));
        }
        parse(key, s, aliases, values)
    };
    let argv = string_list(params, "argv")?.iter().map(|s| text("argv", s)).collect::<Result<Vec<_>, _>>()?;
    if argv.is_empty() {
        return Err(ParamError::new("argv", "`argv` is empty").hint("its first item is the program"));
    }
    if argv[0] == Text::literal("") {
        return Err(ParamError::new("argv", "the program's name is empty"));
    }
    let mut env = BTreeMap::new();
    if let Some(v) = params.get("env") {
        for (name, value) in v.as_map().ok_or_else(|| wrong("env", "a table of strings", v))? {
            let key = format!("env.{name}");
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(ParamError::new(key, format!("{name:?} can't be a variable's name")));
            }
            let value = value.as_str().ok_or_else(|| wrong(&key, "a string", value))?;
            env.insert(name.clone(), text(&key, value)?);
        }
    }
    let workdir = match params.get("workdir") {
        None => None,
        Some(v) => {
            let s = v.as_str().ok_or_else(|| wrong("workdir", "a string", v))?;
            if !s.starts_with('/') && !s.starts_with("{in.") && !s.starts_with("{out}") {
                return Err(ParamError::new("workdir", format!("{s:?} is no absolute path"))
                    .hint("start it with /, {in.NAME} or {out}"));
            }
            Some(text("workdir", s)?)
        }
    };
    let network = match params.get("network") {
        None => false,
        Some(v) => v.as_bool().ok_or_else(|| wrong("network", "a boolean", v))?,
    };
    let tools = if params.contains_key("tools") { string_list(params, "tools")? } else { Vec::new() };
    for tool in &tools {
        if tool.is_empty() || tool.contains('\0') || (tool.contains('/') && !tool.starts_with('/')) {
            return Err(ParamError::new("tools", format!("{tool:?} is neither a program's name nor an absolute path")));
        }
    }
    let timeout_seconds = match params.get("timeout") {
        None => None,
        Some(v) => {
            let n = v.as_int().ok_or_else(|| wrong("timeout", "an integer", v))?;
            let positive = u64::try_from(n).ok().filter(|n| *n > 0);
            Some(positive.ok_or_else(|| ParamError::new("timeout", format!("a timeout of {n} s is not positive")))?)
        }
    };
    let container = container(params)?;
    let secrets = container.as_ref().map(|c| c.secrets.as_slice()).unwrap_or_default();
    for (name, text) in &env {
        for part in &text.0 {
            if let Part::Secret(secret) = part
                && !secrets.contains(secret)
            {
                return Err(ParamError::new(
                    format!("env.{name}"),
                    format!("{secret} is not among the step's secrets"),
                )
                .hint(format!("add secrets = [{secret:?}]")));
            }
        }
    }
    Ok(ProcessStep { argv, env, workdir, network, tools, params: values.clone(), timeout_seconds, container })
}

fn wrong(key: &str, wanted: &str, found: &Value) -> ParamError {
    ParamError::new(key, format!("`{key}` takes {wanted}, found {}", found.type_name()))
}

fn string_list(params: &Params, key: &str) -> Result<Vec<String>, ParamError> {
    let Some(v) = params.get(key) else {
        let hint = did_you_mean(key, params.keys().map(String::as_str));
        let e = ParamError::new(key, format!("`{key}` is missing"));
        return Err(match hint {
            Some(h) => e.hint(h),
            None => e,
        });
    };
    let list = v.as_str_list().ok_or_else(|| wrong(key, "a list of strings", v))?;
    Ok(list.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::command::Layout;

    fn params(items: &[(&str, Value)]) -> Params {
        items.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()
    }

    fn list(items: &[&str]) -> Value {
        Value::List(items.iter().map(|s| Value::Str((*s).to_owned())).collect())
    }

    #[test]
    fn a_command_is_read_with_everything_that_it_may_have() {
        let p = params(&[
            ("argv", list(&["python3", "{in.s}/a.py", "{param.rows}"])),
            ("params", Value::Map([("rows".to_owned(), Value::Int(2))].into())),
            ("env", Value::Map([("PYTHONPATH".to_owned(), Value::Str("{in.s}".into()))].into())),
            ("workdir", Value::Str("{in.s}".into())),
            ("network", Value::Bool(true)),
            ("tools", list(&["sh"])),
            ("timeout", Value::Int(60)),
        ]);
        let step = command(&p, &["s"]).unwrap();
        let layout = Layout {
            inputs: [("s".to_owned(), "/in/s".to_owned())].into(),
            out: "/out".into(),
            manifest: "/in.json".into(),
            tmp: "/tmp".into(),
        };
        let argv: Vec<String> = step.argv.iter().map(|t| t.render(&layout)).collect();
        assert_eq!(argv, ["python3", "/in/s/a.py", "2"]);
        assert_eq!(step.env["PYTHONPATH"].render(&layout), "/in/s");
        assert_eq!(step.workdir.unwrap().render(&layout), "/in/s");
        assert!(step.network);
        assert_eq!((step.tools, step.timeout_seconds), (vec!["sh".to_owned()], Some(60)));
    }

    #[test]
    fn what_is_wrong_is_said_at_its_key() {
        let good = ("argv", list(&["true"]));
        let at = |items: &[(&str, Value)]| command(&params(items), &[]).unwrap_err().key;
        assert_eq!(at(&[]), "argv");
        assert_eq!(at(&[("argv", list(&[]))]), "argv");
        assert_eq!(at(&[("argv", list(&[""]))]), "argv");
        assert_eq!(at(&[("argv", Value::Str("true".into()))]), "argv");
        assert_eq!(at(&[("argv", list(&["a\0b"]))]), "argv");
        let env = Value::Map([("A=B".to_owned(), Value::Str(String::new()))].into());
        assert_eq!(at(&[good.clone(), ("env", env)]), "env.A=B");
        let env = Value::Map([("A".to_owned(), Value::Int(1))].into());
        assert_eq!(at(&[good.clone(), ("env", env)]), "env.A");
        assert_eq!(at(&[good.clone(), ("workdir", Value::Str("sub".into()))]), "workdir");
        assert_eq!(at(&[good.clone(), ("timeout", Value::Int(0))]), "timeout");
        assert_eq!(at(&[good.clone(), ("tools", list(&["bin/x"]))]), "tools");
        assert_eq!(at(&[good, ("network", Value::Str("yes".into()))]), "network");
    }

    #[test]
    fn of_a_process_only_the_timeout_is_not_hashed() {
        for key in COMMAND_KEYS.iter().filter(|k| CONTAINER_KEYS.iter().all(|c| c.name != k.name)) {
            assert_eq!(key.hashed, key.name != "timeout", "{}", key.name);
        }
    }
}
