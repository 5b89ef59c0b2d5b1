//! What a tenant with quotas has used: what is stored is within them, and its row says what is stored.

use std::collections::BTreeMap;

use postrider_core::quota::Quotas;

use super::Breach;

const MINUTE_MICROS: i64 = 60_000_000;
const HOUR_MINUTES: i64 = 60;

/// Reads what [`Used::compare`] takes: the limits, what is open, the row, its minutes, and all events.
pub const USED: (&str, &str) = (
    "used",
    "
    SELECT 'limits', coalesce(hourly_events, 0)::text, coalesce(hourly_bytes, 0)::text,
           coalesce(open_deliveries, 0)::text, '' FROM postrider.tenants
    UNION ALL
    SELECT 'open', count(*)::text, '', '', '' FROM postrider.delivery_queue
    UNION ALL
    SELECT 'row', coalesce(open_at_most::text, ''), '', '', '' FROM postrider.tenant_usage
    UNION ALL
    SELECT 'minute', minute::text, event_count::text, byte_count::text, '' FROM postrider.tenant_usage
           CROSS JOIN LATERAL unnest(minutes, events, bytes) AS used (minute, event_count, byte_count)
    UNION ALL
    SELECT 'event', event_id::text, (extract(epoch FROM accepted_at) * 1000000)::bigint::text,
           octet_length(body)::text, delivery_count::text
      FROM postrider.events",
);

/// What was seen of the tenant's events, and under which quotas.
#[derive(Debug, Default)]
pub struct Used {
    events: BTreeMap<String, Event>,
    /// As the database had them last.
    pub quotas: Quotas,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    at_micros: i64,
    bytes: u64,
    deliveries: u64,
    /// The tenant had a quota when it was stored.
    is_counted: bool,
}

/// What the database says.
#[derive(Debug, Default)]
struct Said {
    quotas: Quotas,
    open: u64,
    open_at_most: Option<u64>,
    minutes: BTreeMap<i64, (u64, u64)>,
    /// Events that were not seen before.
    fresh: Vec<(String, Event)>,
}

impl Used {
    /// Compares what is stored with the quotas and with the tenant's row. Call it whenever events or limits may have
    /// changed, before they can change again.
    pub fn compare(&mut self, rows: &[Vec<String>], now_micros: i64) -> Result<(), Breach> {
        let said = self.read(rows)?;
        self.quotas = said.quotas;
        let is_counted = said.quotas.is_any();
        let newest = said.fresh.iter().map(|(_, event)| event.at_micros).max();
        let opened: u64 = said.fresh.iter().map(|(_, event)| event.deliveries).sum();
        for (id, event) in &said.fresh {
            self.events.insert(id.clone(), Event { is_counted, ..*event });
        }
        self.require_equal(&said.minutes, now_micros / MINUTE_MICROS)?;
        if let Some(open_at_most) = said.open_at_most.filter(|most| is_counted && *most < said.open) {
            return Err(Breach(format!("at most {open_at_most} should be open, but {} are", said.open)));
        }
        let Some(newest) = newest.filter(|_| is_counted) else { return Ok(()) };
        let over = |what: &str, used: u64, limit: Option<u64>| match limit {
            Some(limit) if used > limit => Err(Breach(format!("{used} {what}, {limit} may be"))),
            Some(_) | None => Ok(()),
        };
        let since = newest - HOUR_MINUTES * MINUTE_MICROS;
        let hour = || self.events.values().filter(|event| event.is_counted && event.at_micros > since);
        over("events were accepted in an hour", hour().map(|_| 1).sum(), said.quotas.hourly_events)?;
        over(
            "bytes were accepted in an hour",
            hour().map(|event| event.bytes).sum(),
            said.quotas.hourly_bytes,
        )?;
        if opened == 0 {
            return Ok(());
        }
        over("deliveries are open after more were accepted", said.open, said.quotas.open_deliveries)
    }

    /// The row counts each minute as it is stored, and has none forgotten that still counts.
    fn require_equal(&self, minutes: &BTreeMap<i64, (u64, u64)>, running: i64) -> Result<(), Breach> {
        let mut stored: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
        for event in self.events.values().filter(|event| event.is_counted) {
            let (events, bytes) = stored.entry(event.at_micros / MINUTE_MICROS).or_default();
            (*events, *bytes) = (*events + 1, *bytes + event.bytes);
        }
        stored.retain(|minute, _| *minute >= running - HOUR_MINUTES || minutes.contains_key(minute));
        if stored == *minutes {
            return Ok(());
        }
        Err(Breach(format!(
            "the quotas' row counts {minutes:?} (minute: events, bytes), but stored are {stored:?}"
        )))
    }

    fn read(&self, rows: &[Vec<String>]) -> Result<Said, Breach> {
        let mut said = Said::default();
        for row in rows {
            let odd = || Breach(format!("an odd row: {row:?}"));
            let [kind, first, second, third, fourth] = row.as_slice() else { return Err(odd()) };
            let number = |text: &String| text.parse::<u64>().map_err(|_| odd());
            let limit = |text: &String| number(text).map(|limit| Some(limit).filter(|limit| *limit > 0));
            match kind.as_str() {
                "limits" => {
                    said.quotas = Quotas {
                        hourly_events: limit(first)?,
                        hourly_bytes: limit(second)?,
                        open_deliveries: limit(third)?,
                    };
                }
                "open" => said.open = number(first)?,
                "row" => said.open_at_most = first.parse().ok(),
                "minute" => {
                    let minute = first.parse().map_err(|_| odd())?;
                    said.minutes.insert(minute, (number(second)?, number(third)?));
                }
                "event" if self.events.contains_key(first) => {}
                "event" => {
                    let at_micros = second.parse().map_err(|_| odd())?;
                    let (bytes, deliveries) = (number(third)?, number(fourth)?);
                    let event = Event { at_micros, bytes, deliveries, is_counted: false };
                    said.fresh.push((first.clone(), event));
                }
                _ => return Err(odd()),
            }
        }
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::Used;

    /// Minute 100, in microseconds.
    const NOW: i64 = 6_000_000_000;

    fn rows(text: &str) -> Vec<Vec<String>> {
        let columns = |line: &str| {
            let mut columns: Vec<String> =
                line.split_whitespace().map(|word| word.replace('-', "")).collect();
            columns.resize(5, String::new());
            columns
        };
        text.split(',').map(columns).collect()
    }

    #[test]
    fn what_is_stored_is_within_the_quotas_and_in_the_row() {
        for (said, breach) in [
            (
                "limits 2 0 0, open 9, row -, minute 100 2 9, event a 6000000000 4 1, event b 6000000001 5 1",
                None,
            ),
            (
                "limits 1 0 0, open 9, row -, minute 100 2 9, event a 6000000000 4 1, event b 6000000001 5 1",
                Some("2 events were accepted in an hour, 1 may be"),
            ),
            (
                "limits 0 8 0, open 0, row -, minute 100 2 9, event a 6000000000 4 0, event b 6000000001 5 0",
                Some("9 bytes were accepted in an hour, 8 may be"),
            ),
            (
                "limits 0 0 2, open 3, row 3, minute 100 1 4, event a 6000000000 4 1",
                Some("3 deliveries are open after more were accepted, 2 may be"),
            ),
            ("limits 0 0 2, open 3, row 3, minute 100 1 4, event a 6000000000 4 0", None),
            ("limits 0 0 9, open 3, row 2", Some("at most 2 should be open, but 3 are")),
            ("limits 0 0 0, open 3, row 2, event a 6000000000 4 1", None),
            (
                "limits 9 0 0, open 1, row -, event a 6000000000 4 1",
                Some("the quotas' row counts {} (minute: events, bytes), but stored are {100: (1, 4)}"),
            ),
        ] {
            let found = Used::default().compare(&rows(said), NOW).err().map(|breach| breach.0);
            assert_eq!(found.as_deref(), breach, "{said}");
        }
    }
}
