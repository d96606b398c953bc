//! The command line: the only module that prints.
//!
//! stdout has the answer (with `--json` one object), stderr what happens meanwhile and what is wrong. On a terminal
//! there are bars and colours, in a pipe there are lines. One file a command.

mod args;
mod attest;
mod build;
mod completions;
mod diagnostics;
mod diff;
mod doctor;
mod examples;
mod exit;
mod export;
mod gc;
mod graph;
mod heat;
mod html;
mod import;
mod init;
mod interrupt;
mod log;
mod path;
mod pin;
mod plan;
mod repair;
mod roots;
mod schema;
mod screen;
mod shell;
mod show;
mod status;
mod terminal;
mod update;
mod verify;
mod why;
mod window;
mod words;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command};
use shell::Shell;

/// Runs the command line of this process to its end; gives the exit code that `--help` documents.
pub fn main() -> ExitCode {
    // clap prints help to stdout with 0, and wrong usage to stderr with 2.
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let shell = Shell::new(&cli.global);
    let ended = match &cli.command {
        Command::Init(a) => init::run(&shell, a),
        Command::Build(a) => build::run(&shell, a),
        Command::Plan(a) => plan::run(&shell, a),
        Command::Status(a) => status::run(&shell, a),
        Command::Why(a) => why::run(&shell, a),
        Command::Show(a) => show::run(&shell, a),
        Command::Log(a) => log::run(&shell, a),
        Command::Path(a) => path::run(&shell, a),
        Command::Update(a) => update::run(&shell, a),
        Command::Pin(a) => pin::run(&shell, a),
        Command::Gc(a) => gc::run(&shell, a),
        Command::Roots(a) => roots::run(&shell, a),
        Command::Graph(a) => graph::run(&shell, a),
        Command::Doctor => doctor::run(&shell),
        Command::Schema => schema::run(&shell),
        Command::Completions(a) => completions::run(&shell, a),
        Command::Diff(a) => diff::run(&shell, a),
        Command::Attest(a) => attest::run(&shell, a),
        Command::Verify(a) => verify::run(&shell, a),
        Command::Export(a) => export::run(&shell, a),
        Command::Import(a) => import::run(&shell, a),
        Command::Repair(a) => repair::run(&shell, a),
        Command::Window(a) => window::run(&shell, a),
    };
    match ended.unwrap_or_else(|e| shell.fail(&e)) {
        exit::Exit::Done if terminal::answer_lost() || shell.went_wrong_beside() => exit::Exit::Failed.into(),
        exit => exit.into(),
    }
}
