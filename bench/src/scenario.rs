//! What is measured: one file per row, each with `run`, which takes one measurement, and `bars`, which holds its medians
//! against what was promised.

mod bloat;
mod broker;
mod burst;
mod failing;
mod fanout;
mod hanging;
mod history;
mod idle;
mod limited;
mod neighbour;
mod open;
mod replaying;
mod split;
mod transaction;
mod workers;

use std::collections::BTreeMap;

use clap::ValueEnum;

use crate::{
    arguments::Arguments,
    ceiling::Ceilings,
    figures::Figures,
    load::generator::Pace,
    rate,
    site::{Shape, Site},
    stage::Stage,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Scenario {
    /// 50,000 events, 64 connections, one endpoint, as fast as they are taken
    Burst,
    /// The same with one process that accepts and one that delivers
    Split,
    /// The same with RabbitMQ
    Broker,
    /// The same with five endpoints that each get every event
    Fanout,
    /// The same for a tenant that has a rate and quotas, and stays below them
    Limited,
    /// 40 % of the burst's rate, by a timetable
    Open,
    /// One worker with 32 requests in flight at most and then two, with RabbitMQ and receivers that take 50 ms
    Workers,
    /// A process that has nothing to do
    Idle,
    /// A healthy endpoint beside 100,000 deliveries that wait for one that hangs, of another tenant
    Hanging,
    /// A healthy endpoint beside 1,000 of another tenant that fail at once
    Failing,
    /// A healthy endpoint beside a replay of 100,000 dead letters of another tenant
    Replaying,
    /// The burst with 5,000,000 finished deliveries in the tables
    History,
    /// What 1,000,000 deliveries leave of the queue's table and indexes
    Bloat,
    /// 500 events per second under a transaction that stays open for ten minutes
    Transaction,
}

/// Everything that measurements share.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) arguments: Arguments,
    pub(crate) stage: Stage,
    /// Of each round; the last is the current one's.
    pub(crate) ceilings: Vec<Ceilings>,
    pub(crate) found: BTreeMap<Scenario, Vec<Figures>>,
}

/// One promise, and what came of it.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) what: &'static str,
    /// `None`: not measured this time.
    pub(crate) found: Option<f64>,
    pub(crate) bound: Bound,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Scenario {
    /// Whether it is measured in every round, beside that round's ceilings; the others come after the last round.
    pub(crate) const fn is_repeated(self) -> bool {
        match self {
            Self::Burst | Self::Split | Self::Broker | Self::Fanout | Self::Limited => true,
            Self::Open
            | Self::Workers
            | Self::Idle
            | Self::Hanging
            | Self::Failing
            | Self::Replaying
            | Self::History
            | Self::Bloat
            | Self::Transaction => false,
        }
    }

    /// Whether its figures mean something only beside those of the burst.
    pub(crate) const fn needs_burst(self) -> bool {
        match self {
            Self::Split | Self::Broker | Self::Fanout | Self::Limited | Self::Open => true,
            Self::Burst
            | Self::Workers
            | Self::Idle
            | Self::Hanging
            | Self::Failing
            | Self::Replaying
            | Self::History
            | Self::Bloat
            | Self::Transaction => false,
        }
    }

    /// One measurement; of rows that repeat themselves, all.
    pub(crate) async fn run(self, bench: &mut Bench) -> anyhow::Result<Vec<Figures>> {
        let figures = match self {
            Self::Burst => burst::run(bench).await,
            Self::Split => split::run(bench).await,
            Self::Broker => broker::run(bench).await,
            Self::Fanout => fanout::run(bench).await,
            Self::Limited => limited::run(bench).await,
            Self::Open => open::run(bench).await,
            Self::Idle => idle::run(bench).await,
            Self::Bloat => bloat::run(bench).await,
            Self::Transaction => transaction::run(bench).await,
            Self::Workers => return workers::run(bench).await,
            Self::Hanging => return neighbour::repeat(bench, hanging::run).await,
            Self::Failing => return neighbour::repeat(bench, failing::run).await,
            Self::Replaying => return neighbour::repeat(bench, replaying::run).await,
            Self::History => return history::run(bench).await,
        };
        Ok(vec![figures?])
    }

    pub(crate) fn bars(self, figures: &Figures) -> Vec<Bar> {
        match self {
            Self::Burst => burst::bars(figures),
            Self::Split => split::bars(figures),
            Self::Broker => broker::bars(figures),
            Self::Fanout => fanout::bars(figures),
            Self::Limited => limited::bars(figures),
            Self::Open => open::bars(figures),
            Self::Workers => workers::bars(figures),
            Self::Idle => idle::bars(figures),
            Self::Hanging | Self::Failing | Self::Replaying => neighbour::bars(figures),
            Self::History => history::bars(figures),
            Self::Bloat => bloat::bars(figures),
            Self::Transaction => transaction::bars(figures),
        }
    }

    /// The row's name, and what its ratio is a ratio to.
    pub(crate) const fn titles(self) -> (&'static str, &'static str) {
        match self {
            Self::Burst => ("burst, 1 endpoint", "C"),
            Self::Split => ("burst, `api` + `worker`", "burst"),
            Self::Broker => ("burst, RabbitMQ", "burst"),
            Self::Fanout => ("burst, 5 endpoints", "burst"),
            Self::Limited => ("burst with limits", "burst"),
            Self::Open => ("open loop", "burst"),
            Self::Workers => ("two workers", "one worker"),
            Self::Idle => ("idle", ""),
            Self::Hanging => ("beside one that hangs", "p99 alone"),
            Self::Failing => ("beside many that fail", "p99 alone"),
            Self::Replaying => ("beside a replay", "p99 alone"),
            Self::History => ("burst on a long history", "burst on none"),
            Self::Bloat => ("queue after a long burst", "its size at first"),
            Self::Transaction => ("open transaction", "p99 before it"),
        }
    }
}

impl Bench {
    /// Opens a site, takes one measurement there, and closes it.
    async fn measure(&mut self, shape: Shape, pace: Pace) -> anyhow::Result<Figures> {
        let mut site = Site::open(&mut self.stage, shape).await?;
        let mut figures = site.measure(&self.stage, shape.events, pace).await?;
        figures.database_ms = Some(site.close(&mut self.stage, self.arguments.statements).await?);
        Ok(figures)
    }

    /// The burst of the same round.
    fn newest_burst_per_second(&self) -> Option<f64> {
        self.found.get(&Scenario::Burst)?.last()?.per_second
    }

    fn median_burst_per_second(&self) -> Option<f64> {
        let bursts = self.found.get(&Scenario::Burst)?;
        rate::median(bursts.iter().filter_map(|figures| figures.per_second))
    }
}

impl Bar {
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.found.map(|found| match self.bound {
            Bound::AtLeast(bound) => found >= bound,
            Bound::AtMost(bound) => found <= bound,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_on_its_own_side() {
        for (found, bound, expected) in [
            (Some(0.5), Bound::AtLeast(0.5), Some(true)),
            (Some(0.49), Bound::AtLeast(0.5), Some(false)),
            (Some(26.0), Bound::AtMost(25.0), Some(false)),
            (None, Bound::AtMost(25.0), None),
        ] {
            assert_eq!(Bar { what: "", found, bound }.is_met(), expected, "{found:?} {bound:?}");
        }
    }
}
