//! Pages of a list, newest first: `?limit=` and `?cursor=` in, `{"data":[…],"nextCursor":…}` out.
//!
//! A cursor is the id of the last entry shown, packed so that callers do not build on its shape. Ids never change
//! and sort by time, so a page stays right while newer entries arrive.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use postrider_core::problem::Code;
use postrider_store::page::Slice;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::problem::Problem;

/// Entries on a page unless the caller says otherwise.
pub const DEFAULT_LIMIT: u16 = 50;
/// Most entries on a page.
pub const MAX_LIMIT: u16 = 250;

/// Which page of a list is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    limit: u16,
    before: Option<Uuid>,
}

/// A page of a list, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    data: Vec<T>,
    /// Where the next page begins; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// Which page of a list without filters is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Entries on a page, 50 unless given.
    #[param(minimum = 1, maximum = 250)]
    limit: Option<u16>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

impl TryFrom<Wanted> for Page {
    type Error = Problem;

    fn try_from(wanted: Wanted) -> Result<Self, Problem> {
        Self::parse(wanted.limit, wanted.cursor.as_deref())
    }
}

impl Page {
    /// # Errors
    /// `400` when the limit is out of bounds or the cursor is not one of ours.
    pub fn parse(limit: Option<u16>, cursor: Option<&str>) -> Result<Self, Problem> {
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Problem::new(
                Code::BadRequest,
                format!("`limit` is a number from 1 to {MAX_LIMIT}."),
            ));
        }
        let before = cursor.map(decode).transpose()?;
        Ok(Self { limit, before })
    }

    /// What to ask the database for: one row more than is shown, which tells whether there is another page.
    pub fn slice(&self) -> Slice {
        Slice { before: self.before, rows: i64::from(self.limit) + 1 }
    }

    /// Turns the rows asked for into the answer. `id` is what the list is ordered by.
    pub fn list<R, T>(&self, mut rows: Vec<R>, id: impl Fn(&R) -> Uuid, show: impl FnMut(R) -> T) -> List<T> {
        let limit = usize::from(self.limit);
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next_cursor =
            rows.last().filter(|_| has_more).map(|row| BASE64_URL_SAFE_NO_PAD.encode(id(row).as_bytes()));
        List { data: rows.into_iter().map(show).collect(), next_cursor }
    }
}

fn decode(cursor: &str) -> Result<Uuid, Problem> {
    BASE64_URL_SAFE_NO_PAD.decode(cursor).ok().and_then(|bytes| Uuid::from_slice(&bytes).ok()).ok_or_else(
        || {
            Problem::new(
                Code::BadRequest,
                "`cursor` is not one of ours: pass `nextCursor` of the page before.",
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_without_gap() {
        let ids: Vec<Uuid> = (0..5).rev().map(Uuid::from_u128).collect();
        let mut seen = Vec::new();
        let mut cursor = None;
        loop {
            let page = Page::parse(Some(2), cursor.as_deref()).expect("page");
            let slice = page.slice();
            let rows: Vec<Uuid> = ids
                .iter()
                .copied()
                .filter(|id| slice.before.is_none_or(|before| *id < before))
                .take(usize::try_from(slice.rows).expect("small"))
                .collect();
            let list = page.list(rows, |id| *id, |id| id);
            seen.extend(list.data);
            cursor = list.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, ids);
    }

    #[test]
    fn limits_and_foreign_cursors_are_refused() {
        for (limit, cursor, expected) in [
            (None, None, true),
            (Some(1), None, true),
            (Some(MAX_LIMIT), None, true),
            (Some(0), None, false),
            (Some(MAX_LIMIT + 1), None, false),
            (None, Some("AAAAAAAAAAAAAAAAAAAAAA"), true),
            (None, Some("AAAA"), false),
            (None, Some("evt_1"), false),
            (None, Some(""), false),
        ] {
            assert_eq!(Page::parse(limit, cursor).is_ok(), expected, "{limit:?} {cursor:?}");
        }
    }
}
