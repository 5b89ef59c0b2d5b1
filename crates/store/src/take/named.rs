//! Take what a message names: each row by its key, if it is still as the message says.

use std::time::Duration;

use postrider_core::{
    delivery::{InFlight, Run},
    queue::Pointer,
};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Claimed, Lease, content};
use crate::{error::Error, row};

/// What came of asking for the deliveries that messages name. Those that are in neither list are not as the messages say
/// any more, or are somebody else's at this moment.
#[derive(Debug, Default)]
pub struct Named {
    /// With the place of the pointer in the request.
    pub claimed: Vec<(usize, Claimed)>,
    /// Scheduled, but not due for so long.
    pub early: Vec<(usize, Duration)>,
}

/// Claims the named deliveries that are pending or due. Rows that another process is claiming are skipped, and so are
/// disabled endpoints and deliveries past their deadline.
pub async fn take_named(
    connection: &mut PgConnection,
    pointers: &[Pointer],
    lease: Lease,
) -> Result<Named, Error> {
    // Sorted as every statement that locks several queue rows.
    let mut sorted: Vec<(i32, &Pointer)> = (0..).zip(pointers).collect();
    sorted.sort_unstable_by_key(|(_, pointer)| (pointer.tenant_id, pointer.delivery_id));
    let places: Vec<i32> = sorted.iter().map(|(place, _)| *place).collect();
    let tenants: Vec<Uuid> = sorted.iter().map(|(_, pointer)| pointer.tenant_id.as_uuid()).collect();
    let deliveries: Vec<Uuid> = sorted.iter().map(|(_, pointer)| pointer.delivery_id.as_uuid()).collect();
    // No row has a number beyond the column's, so what a stranger wrote finds none.
    let numbers: Vec<i32> =
        sorted.iter().map(|(_, pointer)| i32::try_from(pointer.attempt_number).unwrap_or(-1)).collect();
    let rows = sqlx::query_file!(
        "src/take/named.sql",
        &places,
        &tenants,
        &deliveries,
        &numbers,
        lease.owner.as_uuid(),
        lease.token.as_uuid(),
        lease.hard_limit.as_secs_f64(),
    )
    .fetch_all(connection)
    .await?;
    let mut named = Named::default();
    for found in rows {
        let place = row::number("place", found.place)?;
        if let Some(seconds) = found.wait_seconds {
            named.early.push((place, Duration::try_from_secs_f64(seconds).unwrap_or_default()));
            continue;
        }
        let run = Run {
            id: row::present("delivery_id", found.delivery_id)?.into(),
            attempt_number: row::number(
                "attempt_number",
                row::present("attempt_number", found.attempt_number)?,
            )?,
            tries: row::number("tries", row::present("tries", found.tries)?)?,
            deadline: row::present("deadline_at", found.deadline_at)?,
        };
        let claimed = Claimed {
            tenant_id: row::present("tenant_id", found.tenant_id)?.into(),
            delivery: InFlight { run, token: lease.token },
            endpoint_id: row::present("endpoint_id", found.endpoint_id)?.into(),
            endpoint_version: row::present("version", found.version)?,
            signing_key_id: row::present("signing_key_id", found.signing_key_id)?.into(),
            accepted_at: row::present("accepted_at", found.accepted_at)?,
            claimed_at: found.claimed_at,
            pending_since: row::present("pending_since", found.pending_since)?,
            content: content(found.event_type, found.content_type, found.trace_id, found.body)?,
        };
        named.claimed.push((place, claimed));
    }
    Ok(named)
}
