//! What people do meanwhile: they disable, enable and delete endpoints, rotate keys, set quotas, and send dead letters
//! again, one or many; each in a transaction whose statements pass the gate like all others.

use futures::future::BoxFuture;
use postrider_core::{
    id::{DeliveryId, ReplayId, SigningKeyId},
    quota::Settings,
    signature::Algorithm,
};
use postrider_store::{
    edit,
    endpoints::{self, DisabledReason},
    replay::{self, Filter, NewReplay, Status},
    retry,
    signing_keys::NewSigningKey,
    tenants,
};
use sqlx::PgTransaction;

use crate::{
    habits, model,
    run::{PEOPLE, Run, Stop},
};

#[derive(Debug, Clone, Copy)]
enum Deed {
    Toggle,
    Rotate,
    Retry,
    Preview,
    Execute,
    Cancel,
    Delete,
    Limit,
}

impl Run<'_> {
    /// Somebody does something that there is reason for.
    pub(crate) fn somebody_acts(&mut self) -> Result<(), Stop> {
        let habits = self.model.habits;
        let has = |is: bool, weight: usize| if is { weight } else { 0 };
        let has_dead = self.witness.ended.values().any(|ended| !ended.is_delivered);
        let has_previews = !self.witness.replays.that_are(&[Status::Previewed]).is_empty();
        let has_open = has_previews || !self.witness.replays.that_are(&[Status::Running]).is_empty();
        let deeds = [
            (3, Deed::Toggle),
            (2, Deed::Rotate),
            (has(has_dead, 3), Deed::Retry),
            (has(habits.replays && has_dead, 4), Deed::Preview),
            (has(has_previews, 12), Deed::Execute),
            (has(has_open, 2), Deed::Cancel),
            (has(habits.deletes, 1), Deed::Delete),
            (has(habits.changes_limits, 4), Deed::Limit),
        ];
        match self.chance.weighted(&deeds).unwrap_or(Deed::Rotate) {
            Deed::Toggle => {
                let number = self.chance.below(self.model.endpoints.len());
                let is_enabled = !self.chance.one_in(3);
                self.set_enabled(number, is_enabled)
            }
            Deed::Rotate => self.rotate(),
            Deed::Retry => self.retry(),
            Deed::Preview => self.preview(),
            Deed::Execute => self.execute(),
            Deed::Cancel => self.cancel(),
            Deed::Delete => self.delete(),
            Deed::Limit => self.limit(),
        }
    }

    pub(crate) fn set_enabled(&mut self, number: usize, is_enabled: bool) -> Result<(), Stop> {
        let (tenant, id) = (self.model.tenant, self.model.endpoints[number].id);
        let word = if is_enabled { "enables" } else { "disables" };
        self.trace.line(format_args!("somebody {word} {}", self.model.endpoints[number].path));
        self.trace.count(format!("somebody {word} an endpoint"));
        let reason = (!is_enabled).then_some(DisabledReason::Requested);
        self.change(move |transaction| {
            Box::pin(async move { endpoints::set_disabled(transaction, tenant, id, reason).await.is_ok() })
        })
    }

    fn rotate(&mut self) -> Result<(), Stop> {
        let number = self.chance.below(self.model.endpoints.len());
        let key = SigningKeyId::from_uuid(self.chance.uuid());
        let (sealed_secret, verifying) = model::fresh_secret(self.model.tenant, key, &mut self.chance);
        let (tenant, endpoint) = (self.model.tenant, &mut self.model.endpoints[number]);
        endpoint.keys.insert(key, verifying);
        let (id, overlap_s) = (endpoint.id, self.chance.pick(&[0, 60]));
        self.trace.line(format_args!("somebody rotates the key of {}", endpoint.path));
        self.trace.count("somebody rotates a key");
        self.change(move |transaction| {
            Box::pin(async move {
                let algorithm = Algorithm::HmacSha256;
                let new = NewSigningKey { id: key, algorithm, sealed_secret: &sealed_secret };
                endpoints::rotate_secret(transaction, tenant, id, new, overlap_s).await.is_ok()
            })
        })
    }

    fn delete(&mut self) -> Result<(), Stop> {
        let (tenant, number) = (self.model.tenant, self.chance.below(self.model.endpoints.len()));
        let endpoint = &self.model.endpoints[number];
        let id = endpoint.id;
        self.trace.line(format_args!("somebody deletes {}", endpoint.path));
        self.trace.count("somebody deletes an endpoint");
        self.change(move |transaction| {
            Box::pin(async move { endpoints::delete(transaction, tenant, id).await.is_ok() })
        })
    }

    /// Somebody gives the tenant other quotas, or none.
    fn limit(&mut self) -> Result<(), Stop> {
        let tenant = self.model.tenant;
        let limits =
            if self.chance.one_in(4) { Settings::default() } else { habits::tight(&mut self.chance) };
        let Settings { hourly_events, hourly_bytes, open_deliveries, .. } = limits;
        self.trace.line(format_args!(
            "somebody sets quotas: {hourly_events:?} events, {hourly_bytes:?} bytes, {open_deliveries:?} open"
        ));
        self.trace.count("somebody sets quotas");
        self.change(move |transaction| {
            Box::pin(async move {
                tenants::lock_limits(transaction, tenant).await.is_ok()
                    && tenants::set_limits(transaction, tenant, &limits, false).await.is_ok()
            })
        })
    }

    /// Somebody sends a dead letter again.
    fn retry(&mut self) -> Result<(), Stop> {
        let dead = self.witness.ended.iter().filter(|(_, ended)| !ended.is_delivered);
        let dead: Vec<DeliveryId> = dead.map(|(delivery, _)| *delivery).collect();
        let (tenant, delivery) = (self.model.tenant, self.chance.pick(&dead));
        *self.witness.retries.entry(delivery).or_default() += 1;
        let name = self.trace.name(delivery);
        self.trace.line(format_args!("somebody sends {name} again"));
        self.trace.count("somebody sends a dead letter again");
        self.change(move |transaction| {
            Box::pin(async move { retry::retry(transaction, tenant, delivery).await.is_ok() })
        })
    }

    /// Somebody asks which dead letters there are: all, those of one endpoint, or the first few.
    pub(crate) fn preview(&mut self) -> Result<(), Stop> {
        let (tenant, id) = (self.model.tenant, ReplayId::from_uuid(self.chance.uuid()));
        let number = self.chance.below(self.model.endpoints.len());
        let endpoint = self.chance.one_in(3).then(|| self.model.endpoints[number].name.clone());
        let most = self.chance.pick(&[replay::MAX_LETTERS, replay::MAX_LETTERS, 2]);
        self.replays.push(id);
        let whose = endpoint.as_deref().unwrap_or("all endpoints");
        self.trace.line(format_args!("somebody previews r{}: {whose}, {most} at most", self.replays.len()));
        self.trace.count("somebody previews a replay");
        let endpoint = endpoint.map(|name| name.parse().expect("a name"));
        let filter = Filter { endpoint, ..Filter::default() };
        self.change(move |transaction| {
            Box::pin(async move {
                let new = NewReplay { id, filter: &filter, filter_text: "{}", most };
                replay::preview(transaction, tenant, new, 1).await.is_ok()
            })
        })
    }

    pub(crate) fn execute(&mut self) -> Result<(), Stop> {
        let previews = self.witness.replays.that_are(&[Status::Previewed]);
        let (tenant, id) = (self.model.tenant, self.chance.pick(&previews));
        self.trace.line(format_args!("somebody executes r{}", self.number_of(id)));
        self.trace.count("somebody executes a replay");
        self.change(move |transaction| {
            Box::pin(async move { replay::execute(transaction, tenant, id).await.is_ok() })
        })
    }

    fn cancel(&mut self) -> Result<(), Stop> {
        let open = self.witness.replays.that_are(&[Status::Previewed, Status::Running]);
        let (tenant, id) = (self.model.tenant, self.chance.pick(&open));
        self.trace.line(format_args!("somebody cancels r{}", self.number_of(id)));
        self.trace.count("somebody cancels a replay");
        self.change(move |transaction| {
            Box::pin(async move { replay::cancel(transaction, tenant, id).await.is_ok() })
        })
    }

    fn number_of(&self, id: ReplayId) -> usize {
        self.replays.iter().position(|known| *known == id).map_or(0, |place| place + 1)
    }

    /// A change in a transaction of its own, which is committed if it comes to `true`.
    fn change(
        &mut self,
        change: impl for<'t> FnOnce(&'t mut PgTransaction<'static>) -> BoxFuture<'t, bool> + Send + 'static,
    ) -> Result<(), Stop> {
        if let Some(people) = self.processes.get(&PEOPLE) {
            let pool = people.pool.clone();
            people.spawn(async move {
                let Ok(mut transaction) = edit::begin(&pool).await else { return };
                if change(&mut transaction).await {
                    let _ = transaction.commit().await;
                }
            });
        }
        self.touch(PEOPLE)
    }
}
