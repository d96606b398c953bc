//! `[engine]`: which container engine, and how it gives GPUs, where the usual is not wanted.

use toml::de::DeValue;

use crate::graph::diagnostic::{Problem, Problems, Span};
use crate::graph::document::{Entry, check_type, entries, shown, wrong_type};
use crate::kinds::KeyType;
use crate::near::did_you_mean;

/// What graph.toml says of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineSpec {
    /// Where it is; `DOCKER_HOST` wins.
    pub host: Option<String>,
    /// How it gives a container a GPU: a word of [`GPU_WAYS`].
    pub gpu: Option<String>,
    /// Where `host` stands.
    pub host_span: Span,
}

/// The ways of giving a container a GPU.
pub const GPU_WAYS: [&str; 4] = ["auto", "request", "cdi", "nodes"];

/// The keys, with what each is.
pub(crate) const KEYS: [(&str, KeyType, &str); 2] = [
    ("host", KeyType::Str, "unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST; DOCKER_HOST wins"),
    ("gpu", KeyType::Str, "how a container gets a GPU: \"auto\", \"request\", \"cdi\" or \"nodes\""),
];

/// Reads the table, if there is one.
pub(crate) fn read(declared: Option<&Entry<'_, '_>>, problems: &mut Problems) -> EngineSpec {
    let mut spec = EngineSpec::default();
    let Some(declared) = declared else { return spec };
    let DeValue::Table(table) = declared.item.get_ref() else {
        problems.push(|| {
            wrong_type("engine", "a table", declared.item.get_ref(), declared.value_span())
                .hint("write [engine], and below it `host` or `gpu`")
        });
        return spec;
    };
    for e in entries(table) {
        let Some((key, ty, _)) = KEYS.iter().find(|k| k.0 == e.name) else {
            problems.push(|| {
                let hint = did_you_mean(e.name, KEYS.map(|k| k.0));
                Problem::new(e.span, format!("unknown key {} of the engine", shown(e.name)), "unknown")
                    .hint(hint.unwrap_or_else(|| "the engine takes `host` and `gpu`".to_owned()))
            });
            continue;
        };
        if let Err(p) = check_type(key, *ty, e.item) {
            problems.push(|| p);
            continue;
        }
        let text = e.item.get_ref().as_str().unwrap_or_default().to_owned();
        match *key {
            "host" => {
                if !["unix://", "tcp://", "ssh://"].iter().any(|s| text.starts_with(s)) {
                    problems.push(|| {
                        Problem::new(
                            e.value_span(),
                            format!("{} is no address of an engine", shown(&text)),
                            "no address",
                        )
                        .hint("write unix:///var/run/docker.sock, tcp://HOST:PORT or ssh://USER@HOST")
                    });
                }
                (spec.host, spec.host_span) = (Some(text), e.value_span());
            }
            _ => {
                if !GPU_WAYS.contains(&text.as_str()) {
                    problems.push(|| {
                        let all = || "it is \"auto\", \"request\", \"cdi\" or \"nodes\"".to_owned();
                        let what = format!("{} is no way of giving a GPU", shown(&text));
                        Problem::new(e.value_span(), what, "unknown")
                            .hint(did_you_mean(&text, GPU_WAYS).unwrap_or_else(all))
                    });
                }
                spec.gpu = Some(text);
            }
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use crate::graph::Graph;

    #[test]
    fn the_engine_is_read_and_what_is_wrong_has_its_place() {
        let graph = Graph::parse("graph.toml", "[engine]\nhost = \"tcp://h:1\"\ngpu = \"nodes\"\n").unwrap();
        assert_eq!((graph.engine.host.as_deref(), graph.engine.gpu.as_deref()), (Some("tcp://h:1"), Some("nodes")));
        let wrong = |text: &str| Graph::parse("graph.toml", text).unwrap_err().to_string();
        let text = "[engine]\nhost = \"h:1\"\ngpu = \"node\"\nhots = 1\n";
        insta::assert_snapshot!(wrong(text), @r#"
        graph.toml:2:8: `h:1` is no address of an engine
        graph.toml:3:7: `node` is no way of giving a GPU
        graph.toml:4:1: unknown key `hots` of the engine
        "#);
        assert!(wrong("engine = 1").contains("`engine` must be a table"));
    }
}
