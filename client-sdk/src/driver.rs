//! The one task that comes back when the machine's time has come, and that begins connections.

use std::sync::Arc;

use tokio::time::sleep_until;

use crate::machine::Input;
use crate::session;
use crate::shell::Shell;
use crate::state::ClientState;

/// Drives the machine until the task is cut short.
pub(crate) async fn drive(state: Arc<ClientState>) {
    loop {
        let (dials, next) = state.with_shell(Shell::take_work);
        for dial in dials {
            let (state, token) = (Arc::clone(&state), state.token.clone());
            let task = session::run(Arc::clone(&state), dial);
            state.tasks.spawn(token.run_until_cancelled_owned(task));
        }
        let time = async {
            match next {
                Some(at) => sleep_until(state.clock.instant(at)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = time => state.handle(Input::Timeout),
            () = state.hurry.notified() => {}
        }
    }
}
