//! Broker epochs: as long as a broker keeps its queues, their messages are believed to be there. Once they are lost,
//! every delivery that was open then is announced once more.
//!
//! Invariant: a delivery is announced anew at most once per epoch, however many processes take part: the row that says how far
//! they are is held while a portion is announced.

use std::time::Duration;

use postrider_core::queue::{Bucket, Pointer, Route};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::{error::Error, outbox, row};

/// The epoch that the database knows; `None` before the first broker.
pub async fn current(connection: &mut PgConnection) -> Result<Option<Uuid>, Error> {
    Ok(sqlx::query_scalar!("SELECT epoch FROM postrider.broker").fetch_optional(connection).await?)
}

/// Begins an epoch, if the one that the caller knows is still the newest. Answers with the one that is.
pub async fn begin(connection: &mut PgConnection, known: Option<Uuid>, next: Uuid) -> Result<Uuid, Error> {
    let begun = sqlx::query_scalar!(
        "INSERT INTO postrider.broker AS b (epoch) VALUES ($2)
             ON CONFLICT (only_row) DO UPDATE
             SET epoch = excluded.epoch, begun_at = now(), swept_tenant = NULL, swept_delivery = NULL, swept_at = NULL
           WHERE b.epoch = $1
         RETURNING epoch",
        known,
        next,
    )
    .fetch_optional(&mut *connection)
    .await?;
    match begun {
        Some(epoch) => Ok(epoch),
        None => Ok(current(connection).await?.unwrap_or(next)),
    }
}

/// Announces a portion of the deliveries that were open when the epoch began. The answer counts them; `None`: all are, or
/// another process is at it.
pub async fn sweep(connection: &mut PgConnection, limit: u16) -> Result<Option<usize>, Error> {
    let mut transaction = connection.begin().await?;
    let broker = sqlx::query!(
        r#"SELECT begun_at, coalesce(swept_tenant, '00000000-0000-0000-0000-000000000000') AS "tenant!",
                  coalesce(swept_delivery, '00000000-0000-0000-0000-000000000000') AS "delivery!"
             FROM postrider.broker WHERE swept_at IS NULL FOR UPDATE SKIP LOCKED"#
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(broker) = broker else {
        // Dropped, it would stay open until the connection is used again.
        transaction.rollback().await?;
        return Ok(None);
    };
    let rows = sqlx::query!(
        r#"SELECT tenant_id, delivery_id, endpoint_id, attempt_number, state,
                  greatest(extract(epoch FROM due_at - now())::float8, 0) AS wait_seconds
             FROM postrider.delivery_queue
            WHERE (tenant_id, delivery_id) > ($1, $2) AND accepted_at <= $3
            ORDER BY tenant_id, delivery_id
            LIMIT $4"#,
        broker.tenant,
        broker.delivery,
        broker.begun_at,
        i64::from(limit),
    )
    .fetch_all(&mut *transaction)
    .await?;
    let is_full = rows.len() == usize::from(limit);
    let (mut ready, mut later) = (Vec::new(), Vec::new());
    for found in &rows {
        let pointer = Pointer {
            tenant_id: found.tenant_id.into(),
            endpoint_id: found.endpoint_id.into(),
            delivery_id: found.delivery_id.into(),
            attempt_number: row::number("attempt_number", found.attempt_number)?,
        };
        match (found.state.as_str(), found.wait_seconds) {
            ("pending", _) => ready.push(pointer),
            ("scheduled", Some(seconds)) => {
                later.push((Bucket::for_wait(Duration::from_secs_f64(seconds)), pointer));
            }
            // In flight: its owner tells what comes of it. Held: whoever enables its endpoint.
            _ => {}
        }
    }
    let announced = ready.len() + later.len();
    let mut messages: Vec<outbox::Message> = outbox::messages(Route::Ready, &ready, None).collect();
    messages.extend(outbox::waiting(&later));
    outbox::add(&mut transaction, &messages).await?;
    let last = rows.last().map(|last| (last.tenant_id, last.delivery_id));
    sqlx::query!(
        "UPDATE postrider.broker
            SET swept_tenant = coalesce($1, swept_tenant), swept_delivery = coalesce($2, swept_delivery),
                swept_at = CASE WHEN $3 THEN NULL ELSE now() END",
        last.map(|(tenant, _)| tenant),
        last.map(|(_, delivery)| delivery),
        is_full,
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Some(announced))
}
