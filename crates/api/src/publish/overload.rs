//! Publishers are refused while too much waits to be sent.
//!
//! Invariant: who is refused has stored nothing, and spent nothing of its rate. What is asked lies in memory.

use postrider_core::{id::TenantId, overload::Excess, problem::Code};
use postrider_store::backlog::Refusal;

use crate::{problem::Problem, state::State};

/// When to try again, in seconds: what waits is counted every second, and less often where there is much of it.
const RETRY_AFTER_SECONDS: u32 = 10;

/// # Errors
/// `503` where the tenant has more waiting to be sent than its share, or where so much waits for the broker that nobody is
/// taken.
pub(crate) fn require_room(tenant_id: TenantId, state: &State) -> Result<(), Problem> {
    let Some(refusal) = state.gate.refusal(tenant_id) else { return Ok(()) };
    metrics::counter!("postrider_events_over_backlog_total").increment(1);
    let what = match refusal {
        Refusal::Tenant(Excess { waiting, share }) => format!(
            "Too many deliveries wait to be sent, and {waiting} of them are this tenant's, whose share is {share}"
        ),
        Refusal::Everybody { waiting } => format!("Too many deliveries wait for the broker: {waiting}"),
    };
    let detail = format!(
        "{what}. Nothing was stored; send it again after the time in `Retry-After`, with the same Idempotency-Key if it \
         has one."
    );
    Err(Problem::new(Code::Overloaded, detail).retry_after(RETRY_AFTER_SECONDS))
}
