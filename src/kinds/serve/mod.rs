//! `serve`: a seat. A model, the engine's image, its arguments, environment and mounts become one closed tree:
//!
//! | in the tree | what it is |
//! | --- | --- |
//! | `compose.yaml` | the service, for Docker Compose (JSON, which is YAML) |
//! | `args.json`, `env.json` | launch arguments and environment exactly as declared, for machines |
//! | `launch.sh` | the same for a shell: `launch.sh vllm serve` |
//! | `seat.env` | a guard: Compose stops where `GRAFTWERK_SEAT` is not this folder |
//! | `model/` | what is served |
//! | `mounts/` | the files that are mounted beside it |
//!
//! No path of the host stands in it: `GRAFTWERK_SEAT` is where the tree lies, `GRAFTWERK_GPUS` which GPUs it may use.
//! So a seat has one TreeId on every machine. Why the text looks as it does: `docs/design/001-compose-text.md`.

mod compose;
mod inputs;
mod rules;
mod seat;
mod shell;

use std::collections::BTreeMap;

use crate::kinds::{KeySpec, KeyType, Kind, Output, ParamError, Params, Report, Step, StepError};
use crate::model::path::RelPath;

use inputs::{Placed, place_model, place_mounts};
use seat::Seat;

/// The kind `serve`.
pub struct Serve;

const KEYS: &[KeySpec] = &[
    KeySpec::required("image", KeyType::Str, "the engine's image, with a tag or, better, a digest"),
    KeySpec::optional("args", KeyType::StrList, "arguments of the engine, each exactly as it arrives"),
    KeySpec::optional("entrypoint", KeyType::StrList, "what runs instead of the image's own entry point"),
    KeySpec::optional("env", KeyType::StrMap, "environment variables, values exactly as they arrive"),
    KeySpec::optional("mounts", KeyType::StrMap, "path inside → \"ALIAS\" or \"ALIAS/path\" of one file, read-only"),
    KeySpec::optional("name", KeyType::Str, "the name under which clients ask for the model; must stand among `args`"),
    KeySpec::optional("ports", KeyType::StrList, "published ports, \"[ADDRESS:]HOST:INSIDE\""),
    KeySpec::optional("gpus", KeyType::Int, "how many GPUs it takes (0); which ones is said when it starts"),
    KeySpec::optional("shm_size", KeyType::Str, "size of /dev/shm, such as \"8g\""),
    KeySpec::optional("ipc", KeyType::Str, "the IPC namespace, such as \"host\""),
    KeySpec::optional("network_mode", KeyType::Str, "the network, such as \"host\" or \"none\""),
    KeySpec::optional("user", KeyType::Str, "the user inside, such as \"1000:1000\""),
    KeySpec::optional("restart", KeyType::Str, "\"no\", \"always\", \"on-failure[:N]\" or \"unless-stopped\""),
    KeySpec::optional(
        "health",
        KeyType::Map,
        "`test` (a list that starts with CMD or CMD-SHELL, or a shell line), `interval`, `timeout`, `retries`, \
         `start_period` (600s: a first start takes minutes)",
    ),
    KeySpec::asserted("in_image", KeyType::StrList, "folders on PYTHONPATH that the image itself has"),
];

impl Kind for Serve {
    fn name(&self) -> &'static str {
        "serve"
    }

    fn revision(&self) -> u32 {
        1
    }

    fn about(&self) -> &'static str {
        "makes a seat: compose file, launch arguments, environment, mounts and the served model in one tree"
    }

    fn keys(&self) -> &'static [KeySpec] {
        KEYS
    }

    fn check(&self, params: &Params, aliases: &[&str]) -> Result<(), ParamError> {
        let seat = Seat::read(params)?;
        if !aliases.contains(&"model") {
            return Err(ParamError::new("inputs", "a seat serves its input `model`, and there is none")
                .hint(crate::kinds::read::needs("model", aliases)));
        }
        for (target, source) in &seat.mounts {
            if !aliases.contains(&source.alias.as_str()) {
                let near = crate::near::did_you_mean(&source.alias, aliases.iter().copied());
                return Err(ParamError::new(
                    "mounts",
                    format!("{target:?} is taken from `{}`, which is no input", source.alias),
                )
                .hint(near.unwrap_or_else(|| format!("add inputs.{} = \"NAME\"", source.alias))));
            }
        }
        let mounted = |alias: &str| seat.mounts.values().any(|m| m.alias == alias);
        if let Some(idle) = aliases.iter().find(|a| **a != "model" && !mounted(a)) {
            return Err(ParamError::new(format!("inputs.{idle}"), format!("nothing of the input `{idle}` is mounted"))
                .hint(format!("mount a file of it (mounts = {{ \"/inside\" = \"{idle}/FILE\" }}), or leave it out")));
        }
        rules::check_params(&seat)
    }

    fn closed(&self) -> bool {
        true
    }

    fn run(&self, step: &Step<'_>, out: &mut Output) -> Result<Report, StepError> {
        let seat = Seat::read(step.params).map_err(as_step_error)?;
        let model = step.input("model")?;
        let notes = rules::check_model(&seat, model)?;
        let mut placed = place_model(model, out)?;
        placed.extend(place_mounts(&seat, step.inputs, out)?);
        inputs::refuse_conflicts(&placed)?;
        step.go_on()?;

        write(out, "compose.yaml", &compose::text(&seat, &placed), false)?;
        write(out, "args.json", &json(&seat.args), false)?;
        write(out, "env.json", &json(&seat.env), false)?;
        write(out, "launch.sh", &shell::launch_script(&seat), true)?;
        write(out, "seat.env", compose::GUARD, false)?;

        let facts = BTreeMap::from([
            ("served_bytes".to_owned(), model.tree.total_bytes().into()),
            ("mounts".to_owned(), placed.iter().map(|p: &Placed| p.target.clone()).collect()),
        ]);
        Ok(Report { verdict: None, notes, facts })
    }
}

fn as_step_error(e: ParamError) -> StepError {
    StepError::Invalid { what: format!("{}: {}", e.key, e.what), hint: e.hint }
}

fn write(out: &mut Output, name: &str, text: &str, executable: bool) -> Result<(), StepError> {
    let path = RelPath::try_from(name).map_err(|e| StepError::invalid(e.to_string(), ""))?;
    out.write_as(path, executable, text.as_bytes()).map_err(StepError::io(format!("writing {name}")))
}

fn json<T: serde::Serialize>(value: &T) -> String {
    // Strings, lists of them and maps of them always have a JSON text.
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}
