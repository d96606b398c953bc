//! The command line as types; their comments are the help.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::cli::{examples, gc};

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    a step or a check failed, or what was asked for is not built
  2    the command line, graph.toml or graph.lock is wrong
  3    the store is damaged or inconsistent
  4    verify found only something extra
  130  interrupted

With --json, one object goes to stdout and everything else to stderr.";

/// A build graph for model artifacts.
///
/// graph.toml says how a checkpoint comes to be: what is grafted from where, how it is quantised, spliced, checked and
/// served. graftwerk makes every step a hashed node, rebuilds only what a change invalidates, and keeps every output.
#[derive(Debug, Parser)]
#[command(name = "graftwerk", version, after_help = EXIT_CODES, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Work as if started in DIR.
    #[arg(short = 'C', value_name = "DIR", global = true, help_heading = "Everywhere")]
    pub(crate) directory: Option<PathBuf>,
    /// The graph to read.
    #[arg(long, value_name = "FILE", default_value = "graph.toml", global = true, help_heading = "Everywhere")]
    pub(crate) graph: PathBuf,
    /// The store's folder, in place of what the graph says (`store` beside it).
    #[arg(long, value_name = "DIR", global = true, help_heading = "Everywhere")]
    pub(crate) store: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// Say only what is wrong.
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Everywhere")]
    pub(crate) quiet: bool,
    /// Say more: every line of a step, full digests.
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub(crate) verbose: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a graph.toml to begin with.
    Init(Init),
    /// Build nodes, and of what they need only what is not built yet.
    Build(Build),
    /// Show what a build would do and why, and do nothing.
    Plan(Plan),
    /// Show every node: whether it is built, and where.
    Status(Status),
    /// Say why a node would run, or why it did.
    Why(One),
    /// Show a node's recipe, inputs, runs and files, or what an ID (`b3:…`) names.
    Show(Show),
    /// Print the log of a node's last run.
    Log(One),
    /// Print the absolute path of a node's tree.
    Path(One),
    /// Resolve sources and images anew and note them in graph.lock; all without a name.
    Update(Update),
    /// Fix which of several trees of a node is used.
    Pin(Pin),
    /// Free the bytes of trees that nobody holds.
    ///
    /// A project holds the newest five generations of each node, and what its sources were; pins, links in `out/` and
    /// elsewhere, seats and running builds hold their trees. Recipes, records, listings and logs stay in any case.
    Gc(Gc),
    /// Show who holds what in the store.
    Roots(Roots),
    /// Draw the graph with the state of every node.
    Graph(Draw),
    /// Look at what of this machine works for graftwerk, what does not, and how to mend it.
    Doctor,
    /// Print the JSON schema of graph.toml, for editors.
    Schema,
    /// Print a completion script for a shell.
    Completions(Completions),
    /// Say what differs between two checkpoints, and by how much.
    ///
    /// A and B are nodes (`NODE@N` for the N-th of its realisations), sources, IDs, folders or safetensors files; a name
    /// with a `/` in it is a path. Weights of quantised checkpoints are compared by the values that they stand for.
    /// Exits 0 where nothing differs, 1 where something does, 2 where it can't be told.
    Diff(Diff),
    /// Hold the store, or a folder, against its digests, and change nothing.
    ///
    /// Without an argument: the whole store. Every blob is hashed again, and every listing, recipe, record, tensor table,
    /// root, ref and view looked at. With a NODE or an ID: what that needs. With a PATH: the folder or file is held
    /// against the tree that it is a view of, or against the one that --against says.
    ///
    /// With --signature or --manifest: one NODE or PATH is held against what is signed or listed. For a PATH, neither a
    /// graph nor a store is needed.
    Verify(Verify),
    /// Sign what a node's tree holds, and how it came to be.
    ///
    /// Without --oms: an in-toto statement with SLSA provenance in a DSSE envelope. It names every file with its digests,
    /// and everything that it was made of, down to the sources; nothing of the machine.
    Attest(Attest),
    /// Copy a node's tree to a folder, or nodes with all that they come from to one file.
    Export(Export),
    /// Take in what `export --archive` wrote.
    Import(Import),
    /// Put right what verify finds damaged in the store, and say what could not be.
    ///
    /// Right bytes come from the other blob of the same bytes, sources, views, other stores, the graph's own plan. What is
    /// damaged goes to the store's quarantine/, and is never deleted.
    Repair(Repair),
    /// Show containers that are stopped for steps; bring back what a crash left stopped.
    ///
    /// Every command that opens a project brings them back first; this is for when none is to be run.
    Window(Window),
}

/// `gc`.
#[derive(Debug, Args)]
#[command(after_help = examples::GC)]
pub(crate) struct Gc {
    /// Say what would be freed, and free nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Free only what was made longer ago than this: `30d`, `12h`.
    #[arg(long, value_name = "AGE", value_parser = gc::duration)]
    pub(crate) older_than: Option<f64>,
    /// Let only the newest N generations of each node hold their trees; without it, the five that are kept.
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<NonZeroUsize>,
    /// Free only until the store's files fit: `200G`, `1.5TiB`. What is cheapest to make again per byte goes first.
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub(crate) max_size: Option<u64>,
    /// Say what keeps a node's trees, a tree, a blob, or what a path is part of, and free nothing.
    #[arg(long, value_name = "ID|NODE|PATH", conflicts_with_all = ["dry_run", "older_than", "keep", "max_size"])]
    pub(crate) explain: Option<String>,
}

/// `roots`.
#[derive(Debug, Args)]
#[command(after_help = examples::ROOTS)]
pub(crate) struct Roots {
    /// Let go of a project, by its graph or folder, or of a registered link: what it held is held by it no more.
    #[arg(long, value_name = "PROJECT|LINK")]
    pub(crate) forget: Option<PathBuf>,
}

/// How a step may run.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// Hash every source again, whatever its time and size say.
    #[arg(long)]
    pub(crate) check_content: bool,
    /// Refuse to run where sources are not what graph.lock says.
    #[arg(long)]
    pub(crate) locked: bool,
    /// Run process steps even where they can't be isolated, and accept what such runs made.
    #[arg(long)]
    pub(crate) unsandboxed: bool,
}

fn jobs(text: &str) -> Result<NonZeroUsize, String> {
    let number: usize = text.parse().map_err(|_| format!("{text:?} is no number of steps"))?;
    NonZeroUsize::new(number)
        .ok_or_else(|| "at least one step must run; without -j, as many as suit this machine".to_owned())
}

/// `build`.
#[derive(Debug, Args)]
#[command(after_help = examples::BUILD)]
pub(crate) struct Build {
    /// The nodes to build; without any, all of them. `quant-*` matches names, `+NODE` adds what it needs, `NODE+` what
    /// depends on it.
    #[arg(value_name = "NODE")]
    pub(crate) nodes: Vec<String>,
    /// How many steps run at once; without it, a number that suits this machine. Steps that ask for a GPU wait for one,
    /// and are not counted.
    #[arg(short, long, value_name = "N", value_parser = jobs)]
    pub(crate) jobs: Option<NonZeroUsize>,
    /// After a failure, go on with what does not depend on it.
    #[arg(short, long)]
    pub(crate) keep_going: bool,
    /// Keep the scratch folder of a failed step, and say where it is.
    #[arg(long)]
    pub(crate) keep_failed: bool,
    #[command(flatten)]
    pub(crate) how: How,
}

/// `plan`.
#[derive(Debug, Args)]
#[command(after_help = examples::PLAN)]
pub(crate) struct Plan {
    /// The nodes to plan for, as in `build`; without any, all of them.
    #[arg(value_name = "NODE")]
    pub(crate) nodes: Vec<String>,
    #[command(flatten)]
    pub(crate) how: How,
}

/// `init`.
#[derive(Debug, Args)]
#[command(after_help = examples::INIT)]
pub(crate) struct Init {
    /// What the graph is for.
    #[arg(value_enum, default_value_t = Template::Accelerate)]
    pub(crate) template: Template,
}

/// A graph to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Template {
    /// Graft, quant, splice, check and serve: a fast seat for a finetune.
    Accelerate,
    /// Two finetunes in four bits, weights only.
    Quantise,
    /// One base, several finetunes, several formats.
    Family,
    /// A seat that is replaced, and put back.
    Replace,
}

/// `status`.
#[derive(Debug, Args)]
#[command(after_help = examples::STATUS)]
pub(crate) struct Status {
    /// The nodes to show, as in `build`; without any, all of them.
    #[arg(value_name = "NODE")]
    pub(crate) nodes: Vec<String>,
}

/// `graph`.
#[derive(Debug, Args)]
#[command(after_help = examples::DRAW)]
pub(crate) struct Draw {
    /// The nodes to draw, as in `build`, with what they need; without any, all of them.
    #[arg(value_name = "NODE")]
    pub(crate) nodes: Vec<String>,
    /// The language of the picture.
    #[arg(long, value_enum, default_value_t = Format::Dot)]
    pub(crate) format: Format,
}

/// How a graph is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For Graphviz.
    Dot,
    /// For Markdown pages.
    Mermaid,
    /// For programs.
    Json,
    /// For browsers.
    Svg,
}

/// `completions`.
#[derive(Debug, Args)]
#[command(after_help = examples::COMPLETIONS)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// A command about one node.
#[derive(Debug, Args)]
pub(crate) struct One {
    /// The node.
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// `show`.
#[derive(Debug, Args)]
#[command(after_help = examples::SHOW)]
pub(crate) struct Show {
    /// A node's name, or the ID of a recipe, tree or blob; `b3:` and at least four digits will do.
    #[arg(value_name = "NODE|ID")]
    pub(crate) what: String,
}

/// `update`.
#[derive(Debug, Args)]
#[command(after_help = examples::UPDATE)]
pub(crate) struct Update {
    /// The sources and images to resolve.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// `pin`.
#[derive(Debug, Args)]
#[command(after_help = examples::PIN)]
pub(crate) struct Pin {
    /// The node.
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// The tree to use; without it, the one in use now.
    #[arg(value_name = "TREE", conflicts_with = "remove")]
    pub(crate) tree: Option<String>,
    /// Take the pin away.
    #[arg(long)]
    pub(crate) remove: bool,
}

/// `verify`.
#[derive(Debug, Args)]
#[command(after_help = VERIFY_CODES)]
pub(crate) struct Verify {
    /// Nodes, ids (`b3:` and at least four digits), files and folders; without any, the whole store.
    #[arg(value_name = "NODE|ID|PATH")]
    pub(crate) what: Vec<String>,
    /// The tree that the given paths should be.
    #[arg(long, value_name = "NODE|ID", requires = "what")]
    pub(crate) against: Option<String>,
    /// Look at blobs only from outside (size, time, inode); hash only those that look other than they did.
    #[arg(long)]
    pub(crate) quick: bool,
    /// A signature over the files: what `attest` wrote, or another tool (a DSSE envelope, a Sigstore bundle).
    #[arg(long, value_name = "FILE", requires_all = ["key", "what"], conflicts_with_all = ["against", "quick"])]
    pub(crate) signature: Option<PathBuf>,
    /// The public key of whoever should have signed: PEM, or a line `ssh-ed25519 …`.
    #[arg(long, value_name = "PUBLIC", requires = "signature", allow_hyphen_values = true)]
    pub(crate) key: Option<PathBuf>,
    /// A list of digests of the files, as `sha256sum` and `b3sum` write it.
    #[arg(long, value_name = "FILE", requires = "what", conflicts_with_all = ["against", "quick", "signature"])]
    pub(crate) manifest: Option<PathBuf>,
}

/// `attest`.
#[derive(Debug, Args)]
#[command(after_help = examples::ATTEST)]
pub(crate) struct Attest {
    /// The node; its tree is the one in use.
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// The private key: ed25519 or ECDSA P-256 in PEM, or an ed25519 key of OpenSSH, unencrypted. Without it, the variable
    /// GRAFTWERK_KEY holds the key's text or its path.
    // A key itself begins with dashes: it is refused without being shown.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) key: Option<PathBuf>,
    /// The file to write. It must not be there. Without it, the signature goes to standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Make a model signature as the OpenSSF format has it (`model_signing verify key`), with an ECDSA key.
    #[arg(long)]
    pub(crate) oms: bool,
    /// Who built it, in place of graftwerk's own `builder.id`.
    #[arg(long, value_name = "URI", conflicts_with = "oms")]
    pub(crate) builder: Option<String>,
}

/// `repair`.
#[derive(Debug, Args)]
#[command(after_help = REPAIR_CODES)]
pub(crate) struct Repair {
    /// Say what would be done, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also build again what is nowhere else.
    #[arg(long)]
    pub(crate) rebuild: bool,
    /// Another store, from which right bytes may be taken; may be given more than once.
    #[arg(long, value_name = "STORE")]
    pub(crate) from: Vec<PathBuf>,
}

const REPAIR_CODES: &str = "\
Exit codes:
  0  everything is right again
  1  something must be built again, or is lost
  3  the store can't be opened: nothing proves its format";

const VERIFY_CODES: &str = "\
Exit codes:
  0  all is right
  1  something is changed or missing in a PATH, a node is not built, or a signature is not the key's
  2  a key, a signature or a list can't be read
  3  the store is damaged
  4  there is only something extra";

/// `window`.
#[derive(Debug, Args)]
#[command(after_help = examples::WINDOW)]
pub(crate) struct Window {
    /// What to do.
    #[arg(value_enum)]
    pub(crate) what: WindowDo,
}

/// What `window` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WindowDo {
    /// Show every window that is open, or that a crash left open.
    Status,
    /// Close what a crash left open: end what is left of the step, start the containers that ran before, and wait until
    /// they are healthy.
    Restore,
}

/// `export`.
#[derive(Debug, Args)]
#[command(
    after_help = examples::EXPORT,
    override_usage = "graftwerk export [OPTIONS] <NODE|ID> <DIR>\n       graftwerk export [OPTIONS] --archive <FILE> <NODE|ID>..."
)]
pub(crate) struct Export {
    /// What to export: a node's name, or the ID of a tree or recipe. Without --archive, one, and behind it the folder
    /// to make, which must not be there.
    #[arg(value_name = "NODE|ID", required = true)]
    pub(crate) what: Vec<String>,
    /// Write one file (tar, zstd) with the bytes of the trees, and with the recipes, runs and listings of all that they
    /// come from. It must not be there; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) archive: Option<PathBuf>,
    /// Also the bytes of all inputs, down to the sources.
    #[arg(long, requires = "archive")]
    pub(crate) with_inputs: bool,
    /// Make hard links to the store's files in place of copies. They are read-only, and must stay so.
    #[arg(long, conflicts_with = "archive")]
    pub(crate) link: bool,
}

/// `import`.
#[derive(Debug, Args)]
#[command(after_help = examples::IMPORT)]
pub(crate) struct Import {
    /// The archive; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// What `diff` takes.
#[derive(Debug, Args)]
#[command(after_help = examples::DIFF)]
pub(crate) struct Diff {
    /// The one that is compared to: figures are relative to it.
    pub(crate) a: String,
    /// The other one.
    pub(crate) b: String,
    /// Compare the files.
    #[arg(long)]
    pub(crate) files: bool,
    /// Compare the tensors.
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Write the report as a page for a browser, too: one new file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent_and_documents_its_exit_codes() {
        Cli::command().debug_assert();
        let help = Cli::command().render_long_help().to_string();
        for code in ["0    done", "1    ", "2    ", "3    ", "130  interrupted"] {
            assert!(help.contains(code), "{code:?} in\n{help}");
        }
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{} says what it does", command.get_name());
        }
    }

    #[test]
    fn global_flags_stand_before_and_behind_the_command() {
        for line in ["graftwerk -C x --json build a b -j 3", "graftwerk build a b --json -j3 -C x"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert!(cli.global.json && cli.global.directory == Some("x".into()));
            let Command::Build(b) = cli.command else { panic!("{line}") };
            assert_eq!((b.nodes, b.jobs.map(NonZeroUsize::get)), (vec!["a".into(), "b".into()], Some(3)));
        }
    }

    #[test]
    fn every_example_of_the_help_is_a_command_line() {
        let mut seen = 0;
        for command in Cli::command().get_subcommands() {
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in examples.lines().filter_map(|l| l.strip_prefix("  graftwerk ")) {
                // Behind two spaces stands what it does, behind a bar or an angle what the shell does.
                let line = line.split("  ").next().unwrap().split(['|', '>']).next().unwrap().trim();
                let words = line.split(' ').map(|w| w.trim_matches('\''));
                let parsed = Cli::try_parse_from(std::iter::once("graftwerk").chain(words));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                seen += 1;
            }
        }
        assert!(seen > 18, "only {seen} examples");
    }

    #[test]
    fn wrong_usage_exits_2() {
        for line in
            ["graftwerk buidl", "graftwerk build -j 0", "graftwerk path", "graftwerk -q -v status", "graftwerk why a b"]
        {
            let e = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(e.exit_code(), 2, "{line}");
        }
        assert_eq!(Cli::try_parse_from(["graftwerk", "--help"]).unwrap_err().exit_code(), 0);
    }
}
