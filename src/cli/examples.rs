//! Examples for the help of each command.

pub(super) const BUILD: &str = "\
Examples:
  graftwerk build                         everything
  graftwerk build seat-a -j 2             one node and what it needs, two steps at once
  graftwerk build 'quant-*'               every node whose name matches
  graftwerk build graft+ --keep-going     a node and all that depends on it, past failures";

pub(super) const STATUS: &str = "\
Examples:
  graftwerk status                        every node
  graftwerk status '+seat-a' -v           one node and what it needs, with full digests and paths";

pub(super) const DRAW: &str = "\
Examples:
  graftwerk graph | dot -Tpng > g.png     with Graphviz
  graftwerk graph --format svg > g.svg    without it
  graftwerk graph seat-a --format mermaid one node and what it needs, for a Markdown page";

pub(super) const COMPLETIONS: &str = "\
Examples:
  graftwerk completions bash > /etc/bash_completion.d/graftwerk
  graftwerk completions zsh > ~/.zfunc/_graftwerk";

pub(super) const SHOW: &str = "\
Examples:
  graftwerk show quant-a                  recipe, runs, files
  graftwerk show b3:77d0                  whatever has an ID that begins so";

pub(super) const DIFF: &str = "\
Examples:
  graftwerk diff finetune quant-a         a quant against what it was made from
  graftwerk diff quant-a@1 quant-a@2      what a rebuild changed
  graftwerk diff ./theirs ./ours --files  two folders that no graph knows
  graftwerk diff graft-a quant-a --html report.html
                                          a page with a map of the layers
  graftwerk diff b3:77d0 b3:91c4 --json   for programs";

pub(super) const UPDATE: &str = "\
Examples:
  graftwerk update                        looks at every source, byte by byte
  graftwerk update base                   at one of them";

pub(super) const PLAN: &str = "\
Examples:
  graftwerk plan                          what would run, why, and how long it took last time
  graftwerk plan --json | jq .steps       the same for programs
  graftwerk plan --locked                 refuses where a source is not what graph.lock says";

pub(super) const INIT: &str = "\
Examples:
  graftwerk init                          a seat: graft, quant, splice, check, serve
  graftwerk init quantise -C new          two finetunes in four bits, in the folder `new`";

pub(super) const PIN: &str = "\
Examples:
  graftwerk pin quant-a                   the tree that is used now stays the one that is used
  graftwerk pin quant-a b3:77d0           another one of its trees
  graftwerk pin quant-a --remove";

pub(super) const ATTEST: &str = "\
Examples:
  graftwerk attest quant-a --key key.pem --out quant-a.intoto.json
  graftwerk attest quant-a --key key.pem --oms --out quant-a.sig
  graftwerk verify quant-a --key key.pub --signature quant-a.sig";

pub(crate) const EXPORT: &str = "\
Examples:
  graftwerk export quant-a quant-copy
  graftwerk export quant-a --archive quant-a.tar.zst
  graftwerk export seat-a quant-a --archive - | ssh node-2 graftwerk import -";

pub(crate) const IMPORT: &str = "\
Examples:
  graftwerk import quant-a.tar.zst
  graftwerk import quant-a.tar.zst --store /data/store";

pub(super) const GC: &str = "\
Examples:
  graftwerk gc --dry-run                  what would be freed, and what it takes to make it again
  graftwerk gc --older-than 30d           only what was made longer ago
  graftwerk gc --keep 1 --max-size 200G   down to 200 GiB, but the newest of each node stay
  graftwerk gc --explain quant-a          what keeps it";

pub(super) const ROOTS: &str = "\
Examples:
  graftwerk roots                         every project, link, seat and running process
  graftwerk roots --forget ../old         lets go of a project that is gone";

pub(super) const WINDOW: &str = "\
Examples:
  graftwerk window status                 which containers are stopped, for which step, since when
  graftwerk window restore                brings back what a crash left stopped
  graftwerk window status --json | jq .windows

Exit codes:
  0    nothing is left open by a crash; with restore: everything is back
  1    something is left open; with restore: something did not come back
  130  interrupted: what was stopped is started, and nobody waited until it was healthy";
