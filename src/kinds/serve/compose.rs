//! The compose file's text.
//!
//! It is JSON in the part that YAML shares with it: every string in double quotes, so that `yes`, `0755` and `~` stay
//! strings; lists as lists, so that nothing is split by a shell. `$` of a declared value is doubled, because Compose
//! takes a single one for a variable, and drops what it does not know with no more than a warning.

use super::inputs::Placed;
use super::seat::Seat;

/// The content of `seat.env`.
///
/// Where a folder to be mounted is missing, some versions of Compose let the engine create it. A missing `env_file`
/// stops every version before that; the tree being closed, what lies beside this file is there if this file is.
pub(super) const GUARD: &str = "\
# Nothing is set here. compose.yaml names this file so that Compose stops where GRAFTWERK_SEAT is not this folder,
# instead of having empty folders created and served.
";

const AT: &str = "${GRAFTWERK_SEAT:?set GRAFTWERK_SEAT to the folder that holds this file}";

enum Node {
    Text(String),
    Int(i64),
    Bool(bool),
    List(Vec<Node>),
    Map(Vec<(&'static str, Node)>),
}

/// The compose file of a seat.
pub(super) fn text(seat: &Seat, placed: &[Placed]) -> String {
    let mut service = vec![("image", declared(&seat.image))];
    if let Some(entrypoint) = &seat.entrypoint {
        service.push(("entrypoint", list(entrypoint)));
    }
    if !seat.args.is_empty() {
        service.push(("command", list(&seat.args)));
    }
    service.push(("env_file", Node::List(vec![Node::Text(format!("{AT}/seat.env"))])));
    if !seat.env.is_empty() {
        let lines = seat.env.iter().map(|(name, value)| declared(&format!("{name}={value}")));
        service.push(("environment", Node::List(lines.collect())));
    }
    service.push(("volumes", Node::List(placed.iter().map(volume).collect())));
    if !seat.ports.is_empty() {
        service.push(("ports", list(&seat.ports)));
    }
    if seat.gpus > 0 {
        service.push(("deploy", gpus(seat.gpus)));
    }
    let words = [
        ("shm_size", &seat.shm_size),
        ("ipc", &seat.ipc),
        ("network_mode", &seat.network_mode),
        ("user", &seat.user),
        ("restart", &seat.restart),
    ];
    for (key, value) in words {
        if let Some(value) = value {
            service.push((key, declared(value)));
        }
    }
    if let Some(h) = &seat.health {
        let check = vec![
            ("test", list(&h.test)),
            ("interval", declared(&h.interval)),
            ("timeout", declared(&h.timeout)),
            ("retries", Node::Int(h.retries)),
            ("start_period", declared(&h.start_period)),
        ];
        service.push(("healthcheck", Node::Map(check)));
    }
    if let Some(name) = &seat.name {
        service.push(("labels", Node::Map(vec![("graftwerk.served-name", declared(name))])));
    }
    let file = Node::Map(vec![("services", Node::Map(vec![("seat", Node::Map(service))]))]);
    let mut out = String::new();
    file.write(&mut out, 0);
    out.push('\n');
    out
}

// The long form: a `:` in a path splits nothing, and the engine creates nothing on the host.
fn volume(placed: &Placed) -> Node {
    Node::Map(vec![
        ("type", Node::Text("bind".to_owned())),
        ("source", Node::Text(format!("{AT}/{}", dollars(&placed.at)))),
        ("target", declared(&placed.target)),
        ("read_only", Node::Bool(true)),
    ])
}

// Which GPUs is never part of a seat. One id that is a list: the engine hands it on as it is, so that one variable can
// name several.
fn gpus(number: i64) -> Node {
    let which = if number == 1 { "the GPU of this seat, such as 0" } else { "the GPUs of this seat, such as 0,1" };
    let ids = format!("${{GRAFTWERK_GPUS:?set GRAFTWERK_GPUS to {which} ({number} in all)}}");
    let device = Node::Map(vec![
        ("driver", Node::Text("nvidia".to_owned())),
        ("device_ids", Node::List(vec![Node::Text(ids)])),
        ("capabilities", Node::List(vec![Node::Text("gpu".to_owned())])),
    ]);
    let devices = Node::Map(vec![("devices", Node::List(vec![device]))]);
    Node::Map(vec![("resources", Node::Map(vec![("reservations", devices)]))])
}

fn list(items: &[String]) -> Node {
    Node::List(items.iter().map(|s| declared(s)).collect())
}

fn declared(text: &str) -> Node {
    Node::Text(dollars(text))
}

fn dollars(text: &str) -> String {
    text.replace('$', "$$")
}

impl Node {
    fn write(&self, out: &mut String, depth: usize) {
        match self {
            Node::Text(s) => quote(s, out),
            Node::Int(i) => out.push_str(&i.to_string()),
            Node::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Node::List(items) if items.is_empty() => out.push_str("[]"),
            Node::List(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    line(out, i > 0, depth + 1);
                    item.write(out, depth + 1);
                }
                line(out, false, depth);
                out.push(']');
            }
            Node::Map(entries) => {
                out.push('{');
                for (i, (key, value)) in entries.iter().enumerate() {
                    line(out, i > 0, depth + 1);
                    quote(key, out);
                    out.push_str(": ");
                    value.write(out, depth + 1);
                }
                line(out, false, depth);
                out.push('}');
            }
        }
    }
}

fn line(out: &mut String, comma: bool, depth: usize) {
    if comma {
        out.push(',');
    }
    out.push('\n');
    for _ in 0..depth {
        out.push_str("  ");
    }
}

/// Writes a string that JSON and YAML read alike.
///
/// Escaped besides what JSON demands: DEL and the C1 controls (YAML readers refuse them raw), NEL, LS and PS (line breaks
/// to YAML), the byte-order mark and the two non-characters below U+10000. Characters above U+FFFF stay raw: JSON could
/// escape them only as surrogates, which YAML does not join.
fn quote(text: &str, out: &mut String) {
    use std::fmt::Write as _;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
