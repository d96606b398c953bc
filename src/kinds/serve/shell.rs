//! Arguments and environment as a shell script.

use super::seat::Seat;

/// A word that a POSIX shell reads back as exactly `text`.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The script `launch.sh`: runs what it is given (or the declared entry point) with the seat's arguments and environment.
pub(super) fn launch_script(seat: &Seat) -> String {
    let mut s = String::from(
        "#!/bin/sh\n\
         # The environment and the launch arguments of this seat, for an engine that is started without Compose:\n\
         #\n\
         #     launch.sh vllm serve\n\
         #\n\
         # The model and the mounted files must stand where compose.yaml puts them.\n",
    );
    for (name, value) in &seat.env {
        s.push_str(&format!("export {name}={}\n", quote(value)));
    }
    match &seat.entrypoint {
        Some(words) => {
            let words: Vec<String> = words.iter().map(|w| quote(w)).collect();
            s.push_str(&format!("[ $# -gt 0 ] || set -- {}\n", words.join(" ")));
        }
        None => s.push_str("[ $# -gt 0 ] || { echo \"usage: $0 PROGRAM [ARGUMENT...]\" >&2; exit 2; }\n"),
    }
    s.push_str("exec \"$@\"");
    for arg in &seat.args {
        s.push_str(" \\\n    ");
        s.push_str(&quote(arg));
    }
    s.push('\n');
    s
}
