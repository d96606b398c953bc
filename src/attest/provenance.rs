//! How a tree came to be, as a SLSA provenance v1 predicate.
//!
//! Source: slsa.dev/spec/v1.0/provenance. What each field holds is the table in docs/provenance.md.
//!
//! Nothing in it tells of the machine: no host, no user, no path of its file system. A parameter that holds such a path is
//! replaced by its digest.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::attest::hex;
use crate::attest::statement::{STATEMENT, TREE_DIGEST, WHOLE};
use crate::attest::subjects::{Digests, Subjects};
use crate::digest::{Digest, TreeId};
use crate::model::recipe::{Class, Fields};
use crate::model::run::{Isolation, RunRecord};

/// The type of the predicate.
pub const PREDICATE: &str = "https://slsa.dev/provenance/v1";
/// How a build of this program is described: docs/provenance.md.
pub const BUILD_TYPE: &str = "graftwerk:build/v1";

/// Something that went into a tree.
#[derive(Debug, Clone, PartialEq)]
pub enum Dependency {
    /// A source that the graph names.
    Source {
        /// Its name.
        name: String,
        /// What it was.
        tree: TreeId,
        /// What else is known of it: its kind, its revision where it has one.
        facts: BTreeMap<String, Value>,
    },
    /// What a node above made.
    Node {
        /// Its name.
        name: String,
        /// What it is.
        kind: String,
        /// The run that made its tree.
        run: Box<RunRecord>,
    },
    /// The image of a step in a container.
    Image {
        /// What the graph calls it; none where the lock does not know it any more.
        name: Option<String>,
        /// The engine's id, `sha256:…`, where the lock has it.
        id: Option<String>,
        /// The digest of what a step can see of it.
        identity: Digest,
    },
}

/// What is known of a tree.
pub struct Facts<'a> {
    /// The node that made it.
    pub node: &'a str,
    /// What the node is.
    pub kind: &'a str,
    /// The tree.
    pub tree: TreeId,
    /// The run that made it.
    pub run: &'a RunRecord,
    /// The fields of its recipe.
    pub fields: &'a Fields,
    /// Alias → the source or node that it was taken from.
    pub inputs: &'a BTreeMap<String, String>,
    /// Everything above it.
    pub dependencies: &'a [Dependency],
    /// The log of the run, as it is kept.
    pub log: Option<Digests>,
    /// Who built it, where the user says so.
    pub builder: Option<&'a str>,
    /// Paths of this machine, which must not be told.
    pub private: &'a [String],
}

/// The statement about the tree's files.
pub fn statement(facts: &Facts<'_>, subjects: &Subjects) -> Value {
    let whole = json!({"name": WHOLE, "digest": tree_digest(facts.tree)});
    let file = |(name, digests): (&String, &Digests)| json!({"name": name, "digest": file_digest(digests)});
    let subject: Vec<Value> = std::iter::once(whole).chain(subjects.files.iter().map(file)).collect();
    json!({
        "_type": STATEMENT,
        "subject": subject,
        "predicateType": PREDICATE,
        "predicate": {"buildDefinition": definition(facts), "runDetails": details(facts)},
    })
}

fn tree_digest(tree: TreeId) -> Value {
    json!({ TREE_DIGEST: tree.hex() })
}

fn file_digest(digests: &Digests) -> Value {
    json!({"sha256": hex(&digests.sha256), "blake3": digests.blake3.hex()})
}

fn definition(facts: &Facts<'_>) -> Value {
    let of = |class: Class| {
        let fields = facts.fields.iter().filter(move |(n, _)| n.class == class);
        fields.map(|(n, v)| (n.name.clone(), told(v, facts.private))).collect::<Map<String, Value>>()
    };
    let mut external = json!({"node": facts.node, "kind": facts.kind, "parameters": of(Class::Param)});
    let mut internal = json!({"recipe": facts.run.recipe, "isolation": facts.run.isolation});
    if let (Some(external), Some(internal)) = (external.as_object_mut(), internal.as_object_mut()) {
        external.insert("inputs".to_owned(), json!(facts.inputs));
        let mounts = of(Class::At);
        if !mounts.is_empty() {
            external.insert("mounts".to_owned(), Value::Object(mounts));
        }
        for (name, value) in of(Class::Step) {
            match name.as_str() {
                // The image is a dependency, and the kind stands above.
                "kind" | "image" => {}
                "revision" => drop(internal.insert("kindRevision".to_owned(), value)),
                _ => drop(external.insert(name, value)),
            }
        }
    }
    json!({
        "buildType": BUILD_TYPE,
        "externalParameters": external,
        "internalParameters": internal,
        "resolvedDependencies": dependencies(facts),
    })
}

// A value as canonical text, or its digest where it tells of the machine.
fn told(value: &str, private: &[String]) -> Value {
    if private.iter().any(|p| value.contains(p.as_str())) {
        json!({"withheld": "it holds a path of the machine", "blake3": Digest::of(value.as_bytes()).hex()})
    } else {
        Value::from(value)
    }
}

fn dependencies(facts: &Facts<'_>) -> Vec<Value> {
    let mut list = Vec::new();
    for (name, value) in facts.fields.iter().filter(|(n, _)| n.class == Class::Input) {
        if let Some(tree) = value.strip_prefix("tree ").and_then(|t| t.parse().ok()) {
            let from = facts.inputs.get(&name.name);
            list.push(json!({
                "name": format!("input/{}", name.name),
                "digest": tree_digest(TreeId(tree)),
                "annotations": {"from": from},
            }));
        }
    }
    for dependency in facts.dependencies {
        list.push(match dependency {
            Dependency::Source { name, tree, facts } => {
                json!({"name": format!("source/{name}"), "digest": tree_digest(*tree), "annotations": facts})
            }
            Dependency::Node { name, kind, run } => json!({
                "name": format!("node/{name}"),
                "digest": run.tree().map(tree_digest),
                "annotations": {"kind": kind, "recipe": run.recipe, "invocationId": invocation(run)},
            }),
            Dependency::Image { name, id, identity } => {
                let mut digest = json!({"graftwerkImage": identity.hex()});
                if let (Some(sha256), Some(set)) =
                    (id.as_ref().and_then(|i| i.strip_prefix("sha256:")), digest.as_object_mut())
                {
                    set.insert("sha256".to_owned(), Value::from(sha256));
                }
                let name = name.as_ref().map_or_else(|| "image".to_owned(), |n| format!("image/{n}"));
                json!({"name": name, "digest": digest})
            }
        });
    }
    // A path of the host stays here; what it held is what counts.
    let tools: BTreeSet<(&str, &str)> = facts
        .fields
        .iter()
        .filter(|(n, _)| n.class == Class::Tool)
        .map(|(n, v)| (n.name.rsplit('/').next().unwrap_or_default(), v.trim_start_matches("b3:")))
        .collect();
    list.extend(
        tools.into_iter().map(|(name, digest)| json!({"name": format!("tool/{name}"), "digest": {"blake3": digest}})),
    );
    list
}

fn invocation(run: &RunRecord) -> String {
    format!("{}/{}", run.recipe, run.seq)
}

fn details(facts: &Facts<'_>) -> Value {
    let run = facts.run;
    // A way to build that protects less is another builder.
    let by_itself = match run.isolation {
        Isolation::None => "graftwerk:builder/v1/none",
        Isolation::Namespaces => "graftwerk:builder/v1/namespaces",
        Isolation::Container => "graftwerk:builder/v1/container",
        Isolation::Builtin => "graftwerk:builder/v1/builtin",
    };
    let mut details = json!({
        "builder": {"id": facts.builder.unwrap_or(by_itself), "version": {"graftwerk": run.version}},
        "metadata": {"invocationId": invocation(run), "startedOn": run.started, "finishedOn": finished(run)},
    });
    if let (Some(log), Some(all)) = (facts.log, details.as_object_mut()) {
        let log = json!({"name": "log", "digest": file_digest(&log), "mediaType": "text/plain"});
        all.insert("byproducts".to_owned(), json!([log]));
    }
    details
}

fn finished(run: &RunRecord) -> Option<String> {
    let started: jiff::Timestamp = run.started.parse().ok()?;
    let took = jiff::SignedDuration::try_from_secs_f64(run.seconds).ok()?;
    let finished = started.checked_add(took).ok()?;
    Some(finished.round(jiff::Unit::Millisecond).unwrap_or(finished).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_holds_a_path_of_the_machine_is_told_by_its_digest() {
        let private = ["/home/somebody".to_owned()];
        assert_eq!(told("[\"mtp.*\"]", &private), json!("[\"mtp.*\"]"));
        let hidden = told("\"/home/somebody/x\"", &private);
        assert_eq!(hidden["blake3"], Digest::of(b"\"/home/somebody/x\"").hex());
        assert!(!hidden.to_string().contains("somebody"));
    }

    #[test]
    fn the_statement_of_a_step_in_a_container_is_fixed() {
        use crate::canon::Value as Canon;
        use crate::model::recipe::{Ingredients, parse_fields};
        use crate::model::run::Outcome;
        let id = |text: &str| Digest::of(text.as_bytes());
        let ingredients = Ingredients {
            kind: "run".into(),
            revision: 2,
            platform: Some("sm_120".into()),
            image: Some(id("image")),
            params: [("argv".to_owned(), Canon::List(vec![Canon::Str("sh".into())]))].into(),
            inputs: [("scripts".to_owned(), TreeId(id("scripts")))].into(),
            at: [("scripts".to_owned(), "/opt/scripts".to_owned())].into(),
            tools: [("/usr/bin/sh".to_owned(), id("sh")), ("/bin/sh".to_owned(), id("sh"))].into(),
        };
        let recipe = ingredients.recipe();
        let run = RunRecord {
            recipe: recipe.id,
            seq: 3,
            outcome: Outcome::Success { tree: TreeId(id("tree")), verdict: None },
            isolation: Isolation::Container,
            started: "2026-11-30T19:22:00.25Z".into(),
            seconds: 1.5004,
            host: "a-host".into(),
            node: "step".into(),
            version: "0.1.0".into(),
            reasons: Vec::new(),
            facts: BTreeMap::new(),
            log: None,
        };
        let source = Dependency::Source {
            name: "scripts".into(),
            tree: TreeId(id("all scripts")),
            facts: [("kind".to_owned(), json!("folder"))].into(),
        };
        let image =
            Dependency::Image { name: Some("busybox:1".into()), id: Some("sha256:01".into()), identity: id("image") };
        let facts = Facts {
            node: "step",
            kind: "run",
            tree: TreeId(id("tree")),
            run: &run,
            fields: &parse_fields(&recipe.text).unwrap(),
            inputs: &[("scripts".to_owned(), "source/scripts".to_owned())].into(),
            dependencies: &[source, image],
            log: Some(Digests::of(b"abc")),
            builder: None,
            private: &[],
        };
        let subjects = Subjects { files: [("out.txt".to_owned(), Digests::of(b"abc"))].into(), ..Subjects::default() };
        let text = serde_json::to_string_pretty(&statement(&facts, &subjects)).unwrap();
        insta::assert_snapshot!(text, @r#"
        {
          "_type": "https://in-toto.io/Statement/v1",
          "subject": [
            {
              "name": ".",
              "digest": {
                "graftwerkTree": "6baa6c9f461fe834a9da0ebb62e0f6fb8c11988a58cbc51b8da8040aea19bc3a"
              }
            },
            {
              "name": "out.txt",
              "digest": {
                "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                "blake3": "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
              }
            }
          ],
          "predicateType": "https://slsa.dev/provenance/v1",
          "predicate": {
            "buildDefinition": {
              "buildType": "graftwerk:build/v1",
              "externalParameters": {
                "node": "step",
                "kind": "run",
                "parameters": {
                  "argv": "[\"sh\"]"
                },
                "inputs": {
                  "scripts": "source/scripts"
                },
                "mounts": {
                  "scripts": "\"/opt/scripts\""
                },
                "platform": "\"sm_120\""
              },
              "internalParameters": {
                "recipe": "b3:6244c947eaca783c950d86c3c87b816bcf7a5c0e184f281a80266f7b783df927",
                "isolation": "container",
                "kindRevision": "2"
              },
              "resolvedDependencies": [
                {
                  "name": "input/scripts",
                  "digest": {
                    "graftwerkTree": "d62d313f5241a68f70642167ea90f12bf9d76c203e26070df9df4456b9403d00"
                  },
                  "annotations": {
                    "from": "source/scripts"
                  }
                },
                {
                  "name": "source/scripts",
                  "digest": {
                    "graftwerkTree": "38de96cee991dac4babb9a460383aa0881bc3e87ec2fc56dc66bb22db601caf5"
                  },
                  "annotations": {
                    "kind": "folder"
                  }
                },
                {
                  "name": "image/busybox:1",
                  "digest": {
                    "graftwerkImage": "0229ff7dec8a365f7300835d175494866d46e56fec330dad33cd3dc93df3c16d",
                    "sha256": "01"
                  }
                },
                {
                  "name": "tool/sh",
                  "digest": {
                    "blake3": "83c092532c37a47356e0d173908c07a589d7d441d86fbbd99e978a048956df16"
                  }
                }
              ]
            },
            "runDetails": {
              "builder": {
                "id": "graftwerk:builder/v1/container",
                "version": {
                  "graftwerk": "0.1.0"
                }
              },
              "metadata": {
                "invocationId": "b3:6244c947eaca783c950d86c3c87b816bcf7a5c0e184f281a80266f7b783df927/3",
                "startedOn": "2026-11-30T19:22:00.25Z",
                "finishedOn": "2026-11-30T19:22:01.75Z"
              },
              "byproducts": [
                {
                  "name": "log",
                  "digest": {
                    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                    "blake3": "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
                  },
                  "mediaType": "text/plain"
                }
              ]
            }
          }
        }
        "#);
    }
}
