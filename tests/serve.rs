//! The kind `serve`. Every declared value arrives in the container exactly as it was declared; a mount that would not
//! be a file is refused before anything starts; and what is known to make a seat fail is said while it is built.
//!
//! The container test needs a docker engine, Compose and a static busybox (`scripts/test` sees to them).

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output as Done};

use graftwerk::kinds::serve::Serve;
use graftwerk::kinds::{Input, Kind as _, Output, ParamError, Report, StepError};
use graftwerk::model::path::RelPath;
use graftwerk::model::tree::Entry;
use support::{Shelf, params, run_step, safetensors};

const TEXT_ONLY: &str = "args = [\"--language-model-only\"]\n";

fn model(shelf: &Shelf) -> Input {
    let weights = safetensors(&["model.language_model.embed_tokens.weight", "model.visual.x", "mtp.fc.weight"]);
    let config = br#"{"text_config": {"mtp_num_hidden_layers": 1}, "vision_config": {"depth": 2}}"#;
    shelf.input(
        "model",
        &[("config.json", config), ("model.safetensors", &weights), ("preprocessor_config.json", b"{}")],
    )
}

fn scripts(shelf: &Shelf) -> Input {
    shelf.input("scripts", &[("sitecustomize.py", b"# shim $x\n"), ("lib/a.py", b"a"), ("lib/b.py", b"b")])
}

fn serve(text: &str, inputs: Vec<Input>) -> Result<(Output, Report, tempfile::TempDir), String> {
    let params = params(text);
    let aliases: Vec<&str> = inputs.iter().map(|i| i.alias.as_str()).collect();
    Serve.check(&params, &aliases).map_err(|e| said(&e))?;
    run_step(&Serve, &params, inputs).map_err(|e| match e {
        StepError::Invalid { what, hint } => format!("{what} | {}", hint.unwrap_or_default()),
        e => e.to_string(),
    })
}

fn said(e: &ParamError) -> String {
    format!("{}: {} | {}", e.key, e.what, e.hint.clone().unwrap_or_default())
}

fn refusal(text: &str, inputs: Vec<Input>) -> String {
    match serve(text, inputs) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(e) => e,
    }
}

fn read(out: &Output, name: &str) -> String {
    fs::read_to_string(out.scratch().join(name)).unwrap()
}

fn compose(out: &Output) -> serde_json::Value {
    serde_json::from_str(&read(out, "compose.yaml")).unwrap()
}

/// Values that one layer or another is known to change: variables, quotes, YAML's words and numbers, white space, line
/// breaks of every kind, text that looks like an option, and text that is no ASCII.
const ODD: [&str; 24] = [
    "a$b${c}$$d$",
    "${HOME}",
    "$",
    "yes",
    "~",
    "0755",
    "1e3",
    "",
    " two  spaces ",
    "trailing ",
    "tab\tand\r\nline\n",
    "\n",
    "it's \"quoted\" `so` \\ and \\n",
    "{\"method\":\"m\",\"n\":[1,\"$x\"]}",
    "--flag=value",
    "-",
    "#comment",
    "a: b",
    "*.safetensors",
    "é ü 日本語 😀",
    "nel\u{85}ls\u{2028}ps\u{2029}bom\u{feff}",
    "del\u{7f}esc\u{1b}[0m\u{1}",
    "!important",
    "%d @x & | > ; (y)",
];

fn odd_seat(image: &str) -> String {
    let quoted = |s: &str| serde_json::to_string(s).unwrap().replace('\u{7f}', "\\u007f");
    let mut text = format!("image = {image:?}\nnetwork_mode = \"none\"\n");
    text += "mounts = { \"/shim $d/si:te'c.py\" = \"scripts/sitecustomize.py\" }\n";
    text += &format!("args = [{}]\n", ODD.map(quoted).join(", "));
    text += "[env]\nMOUNTED = \"/shim $d/si:te'c.py\"\n";
    for (i, value) in ODD.iter().enumerate() {
        text += &format!("ODD_{i} = {}\n", quoted(value));
    }
    text
}

fn text_model(shelf: &Shelf) -> Input {
    shelf.input("model", &[("config.json", b"{}"), ("weights.gguf", b"GGUF")])
}

/// A seat that says all that a seat can say.
const FULL: &str = r#"
        image = "vllm/vllm-openai:v1"
        name = "org/M"
        args = ["--served-model-name", "org/M", "--language-model-only", "--x", "$1"]
        env.PYTHONPATH = "/shim"
        mounts = { "/shim/sitecustomize.py" = "scripts/sitecustomize.py" }
        ports = ["127.0.0.1:8018:8018"]
        gpus = 2
        shm_size = "8g"
        restart = "unless-stopped"
        ipc = "private"
        user = "0:0"
        network_mode = "bridge"
        health = { test = "curl -fsS http://127.0.0.1:8018/health" }
    "#;

#[test]
fn the_tree_of_a_seat_is_fixed_text_without_a_path_of_this_machine() {
    let shelf = Shelf::new();
    let (out, report, scratch) = serve(FULL, vec![model(&shelf), scripts(&shelf)]).unwrap();
    let paths: Vec<String> = out.entries().keys().map(ToString::to_string).collect();
    insta::assert_snapshot!(paths.join("\n"), @r"
    args.json
    compose.yaml
    env.json
    launch.sh
    model/config.json
    model/model.safetensors
    model/preprocessor_config.json
    mounts/shim/sitecustomize.py
    seat.env
    ");
    insta::assert_snapshot!("compose", read(&out, "compose.yaml"));
    insta::assert_snapshot!("launch", read(&out, "launch.sh"));
    for name in ["compose.yaml", "args.json", "env.json", "launch.sh", "seat.env"] {
        assert!(!read(&out, name).contains(scratch.path().to_str().unwrap()), "{name}");
    }
    assert_eq!(report.notes, Vec::<String>::new());
}

#[test]
fn declared_values_read_back_from_the_texts_exactly() {
    let shelf = Shelf::new();
    let (out, _, _scratch) = serve(&odd_seat("x"), vec![text_model(&shelf), scripts(&shelf)]).unwrap();
    let args: Vec<String> = serde_json::from_str(&read(&out, "args.json")).unwrap();
    assert_eq!(args, ODD);
    let env: BTreeMap<String, String> = serde_json::from_str(&read(&out, "env.json")).unwrap();
    for (i, value) in ODD.iter().enumerate() {
        assert_eq!(env[&format!("ODD_{i}")], *value);
    }
    let command = &compose(&out)["services"]["seat"]["command"];
    let undone: Vec<String> =
        command.as_array().unwrap().iter().map(|a| a.as_str().unwrap().replace("$$", "$")).collect();
    assert_eq!(undone, ODD);
}

#[test]
fn the_launch_script_gives_a_program_the_arguments_and_environment_exactly() {
    let shelf = Shelf::new();
    let (out, _, scratch) = serve(&odd_seat("x"), vec![text_model(&shelf), scripts(&shelf)]).unwrap();
    let show = "for a in \"$@\"; do printf '%s\\0' \"$a\"; done; printf '%s\\0' \"$ODD_0\" \"$ODD_10\"";
    let done =
        Command::new("sh").arg(scratch.path().join("launch.sh")).args(["sh", "-c", show, "sh"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let seen: Vec<&[u8]> = done.stdout.strip_suffix(b"\0").unwrap().split(|b| *b == 0).collect();
    let wanted: Vec<&[u8]> = ODD.iter().chain([&ODD[0], &ODD[10]]).map(|s| s.as_bytes()).collect();
    assert_eq!(seen, wanted);
    assert!(out.entries().keys().any(|p| p.to_string() == "launch.sh"));
    let bare = Command::new("sh").arg(scratch.path().join("launch.sh")).output().unwrap();
    assert_eq!(bare.status.code(), Some(2), "without a program it says how it is used");
}

#[test]
fn a_shim_that_is_not_there_is_refused_with_near_names() {
    let shelf = Shelf::new();
    let text = "image = \"x\"\nmounts = { \"/m.py\" = \"scripts/sitecustomise.py\" }\n".to_owned() + TEXT_ONLY;
    let e = refusal(&text, vec![model(&shelf), scripts(&shelf)]);
    assert_eq!(
        e,
        "/m.py is to be sitecustomise.py of the input `scripts`, which has no such file | \
         did you mean `sitecustomize.py`?"
    );
}

#[test]
fn a_folder_where_a_file_is_to_be_mounted_is_refused() {
    let shelf = Shelf::new();
    for source in ["scripts/lib", "scripts"] {
        let text = format!("image = \"x\"\nmounts = {{ \"/m.py\" = {source:?} }}\n{TEXT_ONLY}");
        let e = refusal(&text, vec![model(&shelf), scripts(&shelf)]);
        assert!(e.contains("which is a folder: only files are mounted | name a file"), "{e}");
        assert!(e.contains("\"scripts/lib/a.py\""), "{e}");
    }
}

#[test]
fn a_link_where_a_file_is_to_be_mounted_is_refused() {
    let shelf = Shelf::new();
    let mut tree = (*scripts(&shelf).tree).clone();
    tree.insert(RelPath::try_from("l.py").unwrap(), Entry::Link { target: b"lib/a.py".to_vec() }).unwrap();
    let text = "image = \"x\"\nmounts = { \"/m.py\" = \"scripts/l.py\" }\n".to_owned() + TEXT_ONLY;
    let e = refusal(&text, vec![model(&shelf), shelf.input_of("scripts", tree)]);
    assert!(e.contains("is a link to \"lib/a.py\""), "{e}");
}

#[test]
fn a_file_source_is_mounted_by_its_alias_and_a_single_file_is_served_as_one() {
    let shelf = Shelf::new();
    let single = |alias: &str, name: &str| Input { single_file: true, ..shelf.input(alias, &[(name, b"x")]) };
    let weights = Input { at: Some("/weights.gguf".into()), ..single("model", "some-name.gguf") };
    let text = "image = \"x\"\nmounts = { \"/m.py\" = \"shim\" }\n";
    let (out, _, _scratch) = serve(text, vec![weights, single("shim", "whatever.py")]).unwrap();
    let paths: Vec<String> = out.entries().keys().map(ToString::to_string).collect();
    assert_eq!(paths, ["args.json", "compose.yaml", "env.json", "launch.sh", "model", "mounts/m.py", "seat.env"]);
    assert_eq!(compose(&out)["services"]["seat"]["volumes"][0]["target"], "/weights.gguf");
}

#[test]
fn two_mounts_of_which_one_lies_below_the_other_are_refused() {
    let shelf = Shelf::new();
    for mounts in [
        "{ \"/model/x.py\" = \"scripts/sitecustomize.py\" }",
        "{ \"/model\" = \"scripts/sitecustomize.py\" }",
        "{ \"/a\" = \"scripts/lib/a.py\", \"/a/b\" = \"scripts/lib/b.py\" }",
    ] {
        let text = format!("image = \"x\"\nmounts = {mounts}\n{TEXT_ONLY}");
        let e = refusal(&text, vec![model(&shelf), scripts(&shelf)]);
        assert!(e.contains("mounted below"), "{mounts}: {e}");
    }
    let text = format!("image = \"x\"\nmounts = {{ \"/model2/x.py\" = \"scripts/lib/a.py\" }}\n{TEXT_ONLY}");
    serve(&text, vec![model(&shelf), scripts(&shelf)]).unwrap();
}

#[test]
fn wrong_parameters_are_refused_at_their_key() {
    let shelf = Shelf::new();
    for (text, wanted) in [
        ("args = []", "image: a seat needs an image"),
        ("image = \"a b\"", "image: \"a b\" is no image name"),
        (
            "image = \"x\"\nenv = { A = 1 }",
            "env.A: env.A takes a string, not an integer | write it in quotes: A = \"1\"",
        ),
        ("image = \"x\"\nenv = { \"A B\" = \"\" }", "env: \"A B\" is no name of an environment variable"),
        ("image = \"x\"\nargs = [\"a\\u0000b\"]", "args: \"a\\0b\" holds a NUL byte"),
        ("image = \"x\"\nargs = [1]", "args: args takes a list of strings, not a list"),
        ("image = \"x\"\nports = [\"8018:x\"]", "ports: \"8018:x\" is no published port"),
        (
            "image = \"x\"\nmounts = { \"rel\" = \"scripts/lib/a.py\" }",
            "mounts: \"rel\" is no path inside: it is not absolute",
        ),
        ("image = \"x\"\nmounts = { \"/a/../b\" = \"scripts/lib/a.py\" }", "it has a `.` or `..` component"),
        ("image = \"x\"\nmounts = { \"/a\" = \"scripts/../b\" }", "is no path inside a tree"),
        (
            "image = \"x\"\nmounts = { \"/a\" = \"script/a.py\" }",
            "taken from `script`, which is no input | did you mean `scripts`?",
        ),
        ("image = \"x\"\nrestart = \"never\"", "restart: \"never\" is no restart policy"),
        ("image = \"x\"\nshm_size = \"8 gigs\"", "shm_size: \"8 gigs\" is no size"),
        ("image = \"x\"\ngpus = -1", "gpus: gpus = -1 is no number of GPUs"),
        ("image = \"x\"\nhealth = { test = \"x\", start_perod = \"1s\" }", "did you mean `start_period`?"),
        ("image = \"x\"\nhealth = { test = [\"curl\"] }", "health.test: a test starts with \"CMD\""),
        ("image = \"x\"\nhealth = { test = \"x\", interval = \"10\" }", "health.interval: \"10\" is no duration"),
        ("image = \"x\"\nentrypoint = []", "entrypoint: an empty entry point starts nothing"),
        ("image = \"x\"", "inputs.scripts: nothing of the input `scripts` is mounted"),
    ] {
        let e = refusal(text, vec![model(&shelf), scripts(&shelf)]);
        assert!(e.contains(wanted), "{text}\n   {e}\n   {wanted}");
    }
    let e = refusal("image = \"x\"\nmounts = { \"/a\" = \"scripts/lib/a.py\" }", vec![scripts(&shelf)]);
    assert!(e.starts_with("inputs: a seat serves its input `model`"), "{e}");
}

#[test]
fn a_shim_without_pythonpath_and_pythonpath_without_a_shim_are_refused() {
    let shelf = Shelf::new();
    let inputs = || vec![model(&shelf), scripts(&shelf)];
    let shim = "image = \"x\"\nmounts = { \"/shim/sitecustomize.py\" = \"scripts/sitecustomize.py\" }\n";
    let e = refusal(&format!("{shim}{TEXT_ONLY}"), inputs());
    assert!(e.contains("PYTHONPATH is \"\": Python will not find it | env.PYTHONPATH = \"/shim\""), "{e}");
    let e = refusal(&format!("{shim}{TEXT_ONLY}env.PYTHONPATH = \"/shims:/opt\""), inputs());
    assert!(e.contains("Python will not find it"), "{e}");
    let e = refusal(&format!("image = \"x\"\n{TEXT_ONLY}env.PYTHONPATH = \"/shim\""), vec![model(&shelf)]);
    assert!(e.contains("env.PYTHONPATH: PYTHONPATH names /shim, and nothing is mounted there"), "{e}");
    serve(&format!("{shim}{TEXT_ONLY}env.PYTHONPATH = \"/shim/:/opt\"\nin_image = [\"/opt\"]"), inputs()).unwrap();
}

#[test]
fn drafts_from_a_head_that_is_not_in_the_weights_are_refused() {
    let shelf = Shelf::new();
    let bare = safetensors(&["model.language_model.embed_tokens.weight"]);
    let config = br#"{"text_config": {"mtp_num_hidden_layers": 1}}"#;
    let headless = || shelf.input("model", &[("config.json", config), ("model.safetensors", &bare)]);
    let with = |spec: &str| format!("image = \"x\"\nargs = ['--language-model-only', {spec}]");
    for spec in [
        "'--speculative-config', '{\"method\":\"qwen3_5_mtp\",\"num_speculative_tokens\":3}'",
        "'--speculative-config={\"method\":\"mtp\"}'",
        "'--speculative-config.method', 'mtp'",
    ] {
        let e = refusal(&with(spec), vec![headless()]);
        assert!(e.contains("none of the model's 1 tensors is named mtp.*"), "{e}");
        serve(&with(spec), vec![model(&shelf)]).unwrap();
    }
    let other = "'--speculative-config', '{\"method\":\"mtp\",\"model\":\"/draft\"}'";
    serve(&with(other), vec![headless()]).unwrap();
    let e = refusal(&with("'--speculative-config', '{method: mtp}'"), vec![model(&shelf)]);
    assert!(e.starts_with("args: --speculative-config \"{method: mtp}\" is no JSON"), "{e}");
}

#[test]
fn a_multimodal_model_needs_its_processor_and_its_tower_unless_it_serves_text_only() {
    let shelf = Shelf::new();
    let config: &[u8] = br#"{"vision_config": {"depth": 2}}"#;
    let sighted = safetensors(&["model.visual.blocks.0.w"]);
    let blind = safetensors(&["model.language_model.w"]);
    let no_processor = || shelf.input("model", &[("config.json", config), ("model.safetensors", &sighted)]);
    let no_tower = || {
        shelf.input(
            "model",
            &[("config.json", config), ("model.safetensors", &blind), ("preprocessor_config.json", b"{}")],
        )
    };
    let e = refusal("image = \"x\"", vec![no_processor()]);
    assert!(e.contains("preprocessor_config.json is not there: vision would not load"), "{e}");
    let e = refusal("image = \"x\"", vec![no_tower()]);
    assert!(e.contains("none of its 1 tensors is of a vision tower"), "{e}");
    for input in [no_processor(), no_tower()] {
        serve(&format!("image = \"x\"\n{TEXT_ONLY}"), vec![input]).unwrap();
    }
    serve("image = \"x\"", vec![model(&shelf)]).unwrap();
}

#[test]
fn a_name_that_the_engine_is_not_told_is_refused() {
    let shelf = Shelf::new();
    let e = refusal(
        "image = \"x\"\nname = \"M\"\nargs = [\"--served-model-name\", \"org/M\", \"--language-model-only\"]",
        vec![model(&shelf)],
    );
    assert!(e.starts_with("name: the seat's name is \"M\", and its engine is told \"org/M\""), "{e}");
}

// ---- In a real container ----

/// Runs a command to its end; it must succeed.
fn sh(program: &str, args: &[&str], env: &[(&str, &str)]) -> Done {
    let done = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e} (scripts/test installs what is missing)"));
    assert!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    done
}

/// Compose, in whichever form this machine has it.
fn compose_command() -> Vec<&'static str> {
    let plugin = Command::new("docker").args(["compose", "version"]).output();
    if plugin.is_ok_and(|d| d.status.success()) { vec!["docker", "compose"] } else { vec!["docker-compose"] }
}

/// An image that is gone when this is.
struct Image(String);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", "-f", &self.0]).output();
    }
}

/// An image with nothing in it but busybox.
fn busybox_image(name: &str) -> Image {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from).into_iter().find(|p| p.exists());
    fs::copy(busybox.expect("a static busybox (apt-get install busybox-static)"), bin.join("busybox")).unwrap();
    let tar = root.path().join("image.tar");
    sh("tar", &["-C", root.path().to_str().unwrap(), "-cf", tar.to_str().unwrap(), "bin"], &[]);
    sh("docker", &["import", tar.to_str().unwrap(), name], &[]);
    Image(name.to_owned())
}

/// Takes a project down whatever happens.
struct Project<'a> {
    name: String,
    file: &'a Path,
    seat: &'a Path,
}

impl Project<'_> {
    fn run(&self, args: &[&str]) -> Done {
        let compose = compose_command();
        let mut all = compose[1..].to_vec();
        all.extend(["-p", &self.name, "-f", self.file.to_str().unwrap()]);
        all.extend(args);
        sh(compose[0], &all, &[("GRAFTWERK_SEAT", self.seat.to_str().unwrap())])
    }
}

impl Drop for Project<'_> {
    fn drop(&mut self) {
        let container = format!("label=com.docker.compose.project={}", self.name);
        let found = Command::new("docker").args(["ps", "-aq", "--filter", &container]).output();
        for id in String::from_utf8_lossy(&found.map(|d| d.stdout).unwrap_or_default()).split_whitespace() {
            let _ = Command::new("docker").args(["rm", "-f", id]).output();
        }
    }
}

#[test]
fn inside_a_container_every_value_is_the_declared_one_and_compose_warns_of_nothing() {
    let tag = format!("graftwerk-test-{}", std::process::id());
    let image = format!("{tag}:1");
    let _image = busybox_image(&image);
    let shelf = Shelf::new();
    // The shell shows what it was given itself: argv and environment as the kernel has them, and the mounted file.
    let show = "/bin/busybox cat /proc/$$/cmdline; /bin/busybox printf '\\0=\\0'; /bin/busybox cat /proc/$$/environ; \
                /bin/busybox printf '\\0=\\0'; /bin/busybox cat \"$MOUNTED\" /model/config.json";
    let entry = ["/bin/busybox", "sh", "-c", show, "sh"];
    let text = odd_seat(&image).replace("[env]", &format!("entrypoint = {entry:?}\n[env]"));
    let (out, _, _scratch) = serve(&text, vec![text_model(&shelf), scripts(&shelf)]).unwrap();

    // A seat at a path with a space and a dollar: nothing in its texts may depend on where it lies.
    let dir = tempfile::tempdir().unwrap();
    let seat = dir.path().join("a $eat");
    fs::create_dir(&seat).unwrap();
    shelf.lay_out(&out, &seat);
    let file = seat.join("compose.yaml");
    let project = Project { name: tag.clone(), file: &file, seat: &seat };

    let config = project.run(&["config"]);
    assert_eq!(String::from_utf8_lossy(&config.stderr), "", "compose config has something to say");
    let up = project.run(&["up", "--no-start"]);
    let heard = String::from_utf8_lossy(&up.stderr).to_lowercase();
    assert!(!heard.contains("warn") && !heard.contains("not set"), "{heard}");
    let filter = format!("label=com.docker.compose.project={tag}");
    let ids = sh("docker", &["ps", "-aq", "--no-trunc", "--filter", &filter], &[]).stdout;
    let id = String::from_utf8(ids).unwrap().trim().to_owned();
    let shown = sh("docker", &["start", "-a", &id], &[]).stdout;
    drop(project);

    let parts: Vec<&[u8]> = split_at(&shown, b"\0=\0");
    assert_eq!(parts.len(), 3, "{}", String::from_utf8_lossy(&shown));
    let mut argv: Vec<String> = entry[1..].iter().map(|s| (*s).to_owned()).collect();
    argv.insert(0, "/bin/busybox".to_owned());
    argv.extend(ODD.map(str::to_owned));
    assert_eq!(strings(parts[0]), argv);
    let env = strings(parts[1]);
    for (i, value) in ODD.iter().enumerate() {
        let wanted = format!("ODD_{i}={value}");
        assert!(env.contains(&wanted), "{wanted:?} is not in {env:?}");
    }
    assert_eq!(String::from_utf8_lossy(parts[2]), "# shim $x\n{}");
}

#[test]
fn compose_takes_a_seat_that_says_all_that_a_seat_can_say() {
    let shelf = Shelf::new();
    let (out, _, _scratch) = serve(FULL, vec![model(&shelf), scripts(&shelf)]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    shelf.lay_out(&out, dir.path());
    let compose = compose_command();
    let file = dir.path().join("compose.yaml");
    let args = [&compose[1..], &["-f", file.to_str().unwrap(), "config"]].concat();
    let at = [("GRAFTWERK_SEAT", dir.path().to_str().unwrap()), ("GRAFTWERK_GPUS", "0,1")];
    let done = sh(compose[0], &args, &at);
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    let shown = String::from_utf8(done.stdout).unwrap();
    for line in ["- 0,1", "start_period: 10m", "restart: unless-stopped", "graftwerk.served-name: org/M"] {
        assert!(shown.contains(line), "{line:?} is not in\n{shown}");
    }
}

fn split_at<'a>(bytes: &'a [u8], mark: &[u8]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(mark.len()).position(|w| w == mark) {
        parts.push(&rest[..at]);
        rest = &rest[at + mark.len()..];
    }
    parts.push(rest);
    parts
}

/// NUL-ended strings.
fn strings(bytes: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(bytes).unwrap();
    text.strip_suffix('\0').unwrap_or(text).split('\0').map(str::to_owned).collect()
}

#[test]
fn compose_stops_where_the_seat_is_not_told_or_not_there_and_creates_nothing() {
    let shelf = Shelf::new();
    let (out, _, _scratch) = serve(&odd_seat("x"), vec![text_model(&shelf), scripts(&shelf)]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let seat = dir.path().join("seat");
    fs::create_dir(&seat).unwrap();
    shelf.lay_out(&out, &seat);
    let nowhere = dir.path().join("nowhere");
    let compose = compose_command();
    let file = seat.join("compose.yaml");
    let mut command = Command::new(compose[0]);
    command.args(&compose[1..]).args(["-p", "graftwerk-test-nowhere", "-f", file.to_str().unwrap()]);
    command.args(["up", "--no-start"]).env_remove("GRAFTWERK_SEAT");
    let untold = command.output().unwrap();
    assert!(!untold.status.success());
    assert!(String::from_utf8_lossy(&untold.stderr).contains("set GRAFTWERK_SEAT to the folder that holds this file"));
    let absent = command.env("GRAFTWERK_SEAT", &nowhere).output().unwrap();
    assert!(!absent.status.success());
    assert!(String::from_utf8_lossy(&absent.stderr).contains("seat.env"), "{absent:?}");
    assert!(!nowhere.exists(), "something was created");
}
