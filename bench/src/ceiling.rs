//! What this machine could do at best, measured beside the product and in the same run.
//!
//! | | |
//! |---|---|
//! | H | requests per second from the generator straight to the sink |
//! | S | events per second whose rows are written and settled by bare SQL in the best batches |
//! | C | 1 / (2/H + 1/S): the rate at which only the unavoidable work would be done: two exchanges and the rows |

mod http;
mod sql;

pub(crate) use http::requests_per_second;
pub(crate) use sql::{Method, best_method, events_per_second};

/// The ceilings of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ceilings {
    /// H.
    pub(crate) requests_per_second: f64,
    /// S.
    pub(crate) events_per_second: f64,
}

impl Ceilings {
    /// C.
    pub(crate) fn combined_per_second(self) -> f64 {
        1.0 / (2.0 / self.requests_per_second + 1.0 / self.events_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_combined_ceiling_spends_two_requests_and_one_event() {
        let ceilings = Ceilings { requests_per_second: 50_000.0, events_per_second: 20_000.0 };
        assert!((ceilings.combined_per_second() - 11_111.1).abs() < 0.1);
    }
}
