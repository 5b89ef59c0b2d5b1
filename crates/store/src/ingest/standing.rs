//! What is known of events that may be over a quota: whether they store anything at all, and whether their quotas are the
//! newest.

use sqlx::PgConnection;
use uuid::Uuid;

use super::Item;
use crate::error::Error;

/// What was found out of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Fresh,
    /// Its key exists: it stores nothing.
    Repeat,
    /// Its plan is out of date, and with it maybe its quotas.
    Stale,
}

/// Looks items up. A statement of its own, after the tenants' rows were locked: its snapshot shows whatever was stored for
/// them before, and nothing more is stored for them meanwhile.
pub(super) async fn standings(
    connection: &mut PgConnection,
    items: &[Item<'_>],
) -> Result<Vec<Standing>, Error> {
    let routings = || items.iter().map(|item| item.routing);
    let keys = || items.iter().map(|item| item.event.key.as_ref());
    let places: Vec<i32> = (0..).take(items.len()).collect();
    let tenants: Vec<Uuid> = routings().map(|routing| routing.tenant_id.as_uuid()).collect();
    let applications: Vec<Uuid> = routings().map(|routing| routing.application_id.as_uuid()).collect();
    let versions: Vec<i64> = routings().map(|routing| routing.version).collect();
    let key_spaces: Vec<Option<i16>> = keys().map(|key| key.map(|(space, _)| space.number())).collect();
    let names: Vec<Option<&str>> = keys().map(|key| key.map(|(_, key)| key.as_str())).collect();
    let rows = sqlx::query!(
        r#"SELECT asked.place AS "place!", k.is_taken IS NOT NULL AS "is_repeat!"
             FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::bigint[], $5::smallint[], $6::text[])
                      AS asked (place, tenant_id, application_id, version, key_space, idempotency_key)
            -- One look into the index each: a plain join is hashed while a table is young, and reads all of it.
            CROSS JOIN LATERAL (
                  SELECT FROM postrider.applications
                   WHERE tenant_id = asked.tenant_id AND application_id = asked.application_id
                     AND routing_version = asked.version AND enabled
                   LIMIT 1) AS a
             LEFT JOIN LATERAL (
                  SELECT true AS is_taken FROM postrider.idempotency_keys
                   WHERE application_id = asked.application_id AND key_space = asked.key_space
                     AND idempotency_key = asked.idempotency_key
                   LIMIT 1) AS k ON true"#,
        &places,
        &tenants,
        &applications,
        &versions,
        &key_spaces as _,
        &names as _,
    )
    .fetch_all(connection)
    .await?;
    let mut standings = vec![Standing::Stale; items.len()];
    for row in rows {
        if let Some(slot) = usize::try_from(row.place).ok().and_then(|place| standings.get_mut(place)) {
            *slot = if row.is_repeat { Standing::Repeat } else { Standing::Fresh };
        }
    }
    Ok(standings)
}
