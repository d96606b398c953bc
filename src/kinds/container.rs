//! What a step in a container asks of its engine and its host. Only what can change the output is hashed: the user and
//! the names of secrets; the image stands in the recipe by its layers and configuration.

use crate::canon::Value;
use crate::gpu::{BadRequest, Request};
use crate::kinds::{KeySpec, KeyType, ParamError, Params};
use crate::size;

/// The keys that go with `image`.
pub const CONTAINER_KEYS: [KeySpec; 10] = [
    KeySpec::asserted(
        "image",
        KeyType::Str,
        "runs in a container of this image: a name in the engine, or an `image` node",
    ),
    KeySpec::optional(
        "user",
        KeyType::Str,
        "user inside, such as \"1000:1000\" or \"root\"; the caller where none is given",
    ),
    KeySpec::optional("secrets", KeyType::StrList, "variables of the caller that are handed over as /run/secrets/NAME"),
    KeySpec::asserted("memory", KeyType::Any, "most memory, such as \"64GiB\""),
    KeySpec::asserted("cpus", KeyType::Any, "most CPUs, such as 8 or 0.5"),
    KeySpec::asserted("pids", KeyType::Int, "most processes, 4096 where none is given"),
    KeySpec::asserted("shm", KeyType::Any, "size of /dev/shm, such as \"16GiB\""),
    KeySpec::asserted("ipc", KeyType::Str, "\"private\" or \"host\""),
    KeySpec::asserted("gpu", KeyType::Any, "GPUs: { count, memory, device, capability }, or \"none\""),
    KeySpec::asserted("window", KeyType::Str, "the window whose neighbours are stopped while it runs"),
];

/// What a step in a container asks for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ContainerStep {
    /// The image, as graph.toml names it.
    pub image: String,
    /// The user inside; `None` for the caller.
    pub user: Option<String>,
    /// Names of variables of the caller that are handed over as files.
    pub secrets: Vec<String>,
    /// Most bytes of memory.
    pub memory: Option<u64>,
    /// Most CPUs, in thousandths.
    pub millicpus: Option<u64>,
    /// Most processes.
    pub pids: Option<u64>,
    /// Bytes of /dev/shm.
    pub shm: Option<u64>,
    /// `private` or `host`.
    pub ipc: Option<String>,
    /// What `gpu` says; `None` where it asks for none.
    pub gpu: Option<Value>,
    /// The window.
    pub window: Option<String>,
}

/// Reads the keys of [`CONTAINER_KEYS`]. `None` without `image`. Errors: [`ParamError`] at the key, also for one that
/// goes with `image` where there is none.
pub fn container(params: &Params) -> Result<Option<ContainerStep>, ParamError> {
    let Some(image) = params.get("image") else {
        return match CONTAINER_KEYS.iter().find(|k| params.contains_key(k.name)) {
            None => Ok(None),
            Some(k) => Err(ParamError::new(k.name, format!("`{}` goes with `image`: only a container has it", k.name))
                .hint("add image = \"NAME\", or leave it out")),
        };
    };
    let text = |key: &str| params.get(key).and_then(Value::as_str).map(str::to_owned);
    let image = image.as_str().unwrap_or_default();
    if image.is_empty() || image.starts_with('-') || image.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(ParamError::new("image", format!("{image:?} can't be an image's name")));
    }
    if params.contains_key("tools") {
        return Err(ParamError::new("tools", "`tools` are programs of the host, and a container sees none of them")
            .hint("the image must hold what the step needs"));
    }
    let sized = |key: &str| params.get(key).map(|v| bytes(key, v)).transpose();
    let user = text("user");
    if user.as_deref().is_some_and(|u| u.is_empty() || u.contains(|c: char| c.is_whitespace() || c.is_control())) {
        return Err(ParamError::new("user", "it is no user").hint("write \"UID:GID\", or a name that the image knows"));
    }
    let ipc = text("ipc");
    if ipc.as_deref().is_some_and(|i| i != "private" && i != "host") {
        return Err(ParamError::new("ipc", format!("{:?} is no way of sharing memory", ipc.unwrap_or_default()))
            .hint("it is \"private\" or \"host\""));
    }
    let pids = match params.get("pids").and_then(Value::as_int) {
        None => None,
        Some(n) if n > 0 => u64::try_from(n).ok(),
        Some(n) => return Err(ParamError::new("pids", format!("{n} is no number of processes"))),
    };
    let gpu = match params.get("gpu") {
        None => None,
        Some(v) => Request::parse(v).map_err(bad_request)?.map(|_| v.clone()),
    };
    let memory = sized("memory")?;
    // Below this, no engine starts anything.
    if memory.is_some_and(|m| m < 6 << 20) {
        return Err(ParamError::new("memory", "no container runs in less than 6 MiB"));
    }
    Ok(Some(ContainerStep {
        image: image.to_owned(),
        user,
        secrets: secrets(params)?,
        memory,
        millicpus: params.get("cpus").map(millicpus).transpose()?,
        pids,
        shm: sized("shm")?,
        ipc,
        gpu,
        window: text("window"),
    }))
}

fn bad_request(e: BadRequest) -> ParamError {
    let key = e.key.as_ref().map_or_else(|| "gpu".to_owned(), |k| format!("gpu.{k}"));
    ParamError { key, what: e.what, hint: e.hint }
}

fn bytes(key: &str, value: &Value) -> Result<u64, ParamError> {
    let n = size::of_value(value).map_err(|e| ParamError::new(key, e))?;
    if n == 0 { Err(ParamError::new(key, format!("`{key}` is 0"))) } else { Ok(n) }
}

fn millicpus(value: &Value) -> Result<u64, ParamError> {
    let n = match value {
        Value::Int(n) => *n as f64,
        Value::Float(f) => *f,
        other => return Err(ParamError::new("cpus", format!("`cpus` takes a number, found {}", other.type_name()))),
    };
    if (0.01..=4096.0).contains(&n) {
        Ok((n * 1000.0).round() as u64)
    } else {
        Err(ParamError::new("cpus", format!("{n} is no number of CPUs")))
    }
}

fn secrets(params: &Params) -> Result<Vec<String>, ParamError> {
    let list = params.get("secrets").and_then(Value::as_str_list).unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for name in list {
        let fine = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !fine {
            return Err(ParamError::new("secrets", format!("{name:?} is no name of a variable"))
                .hint("name the variable that holds it; its value never stands in graph.toml"));
        }
        if names.iter().any(|n| n == name) {
            return Err(ParamError::new("secrets", format!("{name} stands twice")));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(items: &[(&str, Value)]) -> Params {
        items.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()
    }

    fn text(s: &str) -> Value {
        Value::Str(s.to_owned())
    }

    #[test]
    fn everything_that_a_container_asks_for_is_read() {
        let gpu = Value::Map([("count".to_owned(), Value::Int(1))].into());
        let read = container(&params(&[
            ("image", text("a/b:1")),
            ("user", text("0:0")),
            ("secrets", Value::List(vec![text("HF_TOKEN")])),
            ("memory", text("64GiB")),
            ("cpus", Value::Float(1.5)),
            ("pids", Value::Int(9)),
            ("shm", Value::Int(4096)),
            ("ipc", text("host")),
            ("gpu", gpu.clone()),
        ]))
        .unwrap()
        .unwrap();
        assert_eq!(
            (read.memory, read.millicpus, read.pids, read.shm),
            (Some(64 << 30), Some(1500), Some(9), Some(4096))
        );
        assert_eq!(
            (read.secrets, read.gpu, read.ipc.as_deref()),
            (vec!["HF_TOKEN".to_owned()], Some(gpu), Some("host"))
        );
        assert_eq!(container(&params(&[])).unwrap(), None);
        let none = container(&params(&[("image", text("a")), ("gpu", text("none"))])).unwrap().unwrap();
        assert_eq!(none.gpu, None);
    }

    #[test]
    fn what_is_wrong_is_an_error_at_its_key() {
        let image = ("image", text("a"));
        let at = |items: &[(&str, Value)]| container(&params(items)).unwrap_err().key;
        assert_eq!(at(&[("memory", text("1GiB"))]), "memory");
        assert_eq!(at(&[("image", text("a b"))]), "image");
        for (key, value) in [
            ("tools", Value::List(vec![text("sh")])),
            ("memory", text("lots")),
            ("memory", text("1MiB")),
            ("cpus", Value::Int(0)),
            ("pids", Value::Int(0)),
            ("shm", Value::Int(0)),
            ("ipc", text("shared")),
            ("gpu", text("all")),
            ("user", text("")),
            ("secrets", Value::List(vec![text("A=B")])),
            ("secrets", Value::List(vec![text("A"), text("A")])),
        ] {
            assert_eq!(at(&[image.clone(), (key, value)]), key);
        }
    }

    #[test]
    fn what_the_step_gets_of_the_host_is_not_hashed_and_what_it_sees_is() {
        let hashed: Vec<&str> = CONTAINER_KEYS.iter().filter(|k| k.hashed).map(|k| k.name).collect();
        assert_eq!(hashed, ["user", "secrets"]);
    }
}
