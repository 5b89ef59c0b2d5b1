//! Expire: open deliveries past their deadline become dead letters. Leased rows are left to whoever holds them.
//!
//! Few rows ever get here: a retry that would pass the deadline is judged when the attempt ends. What is left waited too
//! long in a backlog or behind a disabled endpoint, so no index is spent on it and the caller paces the passes.

use postrider_core::{queue::Pointer, retry::DeadReason};
use sqlx::{Connection as _, PgConnection};

use crate::{
    error::Error,
    outbox::{self, Audience},
    row,
};

/// Ends at most `limit` deliveries; the answer counts them.
pub async fn expire(connection: &mut PgConnection, audience: Audience, limit: u16) -> Result<usize, Error> {
    match audience {
        Audience::Nobody => Ok(end(connection, limit).await?.len()),
        Audience::Broker => {
            let mut transaction = connection.begin().await?;
            let ended = end(&mut transaction, limit).await?;
            let dead = ended.iter().map(|pointer| (*pointer, DeadReason::DeadlinePassed));
            outbox::mirror(&mut transaction, audience, dead).await?;
            transaction.commit().await?;
            Ok(ended.len())
        }
    }
}

async fn end(connection: &mut PgConnection, limit: u16) -> Result<Vec<Pointer>, Error> {
    let ended = sqlx::query!(
        r#"
        WITH late AS MATERIALIZED (
            SELECT ctid AS location FROM postrider.delivery_queue
             WHERE deadline_at <= now() AND state IN ('pending', 'scheduled', 'held')
             ORDER BY tenant_id, delivery_id
             LIMIT $1
               FOR UPDATE SKIP LOCKED
        ), ended AS (
            DELETE FROM postrider.delivery_queue q USING late
             WHERE q.ctid = late.location
            RETURNING q.*
        )
        INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
               signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
        SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
               signing_key_id, accepted_at, now(), 'dead_lettered', 'deadline_passed', attempt_number
          FROM ended
        RETURNING tenant_id, delivery_id, endpoint_id, attempt_number
        "#,
        i64::from(limit),
    )
    .fetch_all(connection)
    .await?;
    let pointers = ended.into_iter().map(|ended| {
        Ok(Pointer {
            tenant_id: ended.tenant_id.into(),
            endpoint_id: ended.endpoint_id.into(),
            delivery_id: ended.delivery_id.into(),
            attempt_number: row::number("attempt_number", ended.attempt_number)?,
        })
    });
    Ok(pointers.collect::<Result<_, sqlx::Error>>()?)
}
