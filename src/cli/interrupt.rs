//! Ctrl-C: the first asks the build to stop cleanly, the second ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cli::terminal::Terminal;

/// A flag that is set when the user, or the system, asks this process to stop. Where signals can't be watched, the
/// flag is never set, and a signal ends the program as usual: what lies in the store is whole at every moment.
pub(crate) fn watch(terminal: Terminal) -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let watcher = std::thread::Builder::new().name("signals".to_owned());
    // Without a thread there is no clean stop, but everything else works.
    let _ = watcher.spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut int), Ok(mut term)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) else {
                return;
            };
            loop {
                tokio::select! {
                    _ = int.recv() => {}
                    _ = term.recv() => {}
                }
                if set.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
                terminal.say("stopping: what is running is ended cleanly; once more to leave at once\n");
            }
        });
    });
    flag
}
