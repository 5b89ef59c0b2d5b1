//! What people do meanwhile: they disable and enable endpoints, rotate keys and send dead letters again, each in a
//! transaction whose statements pass the gate like all others.

use postrider_core::{
    id::{DeliveryId, SigningKeyId},
    signature::Algorithm,
};
use postrider_store::{
    edit,
    endpoints::{self, DisabledReason},
    retry,
    signing_keys::NewSigningKey,
};

use crate::{
    model,
    run::{PEOPLE, Run, Stop},
};

impl Run<'_> {
    pub(crate) fn set_enabled(&mut self, number: usize, is_enabled: bool) -> Result<(), Stop> {
        let (tenant, id) = (self.model.tenant, self.model.endpoints[number].id);
        let word = if is_enabled { "enables" } else { "disables" };
        self.trace.line(format_args!("somebody {word} {}", self.model.endpoints[number].path));
        self.trace.count(format!("somebody {word} an endpoint"));
        let reason = (!is_enabled).then_some(DisabledReason::Requested);
        if let Some(people) = self.processes.get(&PEOPLE) {
            let pool = people.pool.clone();
            people.spawn(async move {
                let Ok(mut transaction) = edit::begin(&pool).await else { return };
                if endpoints::set_disabled(&mut transaction, tenant, id, reason).await.is_ok() {
                    let _ = transaction.commit().await;
                }
            });
        }
        self.touch(PEOPLE)
    }

    pub(crate) fn rotate(&mut self) -> Result<(), Stop> {
        let number = self.chance.below(self.model.endpoints.len());
        let key = SigningKeyId::from_uuid(self.chance.uuid());
        let (sealed_secret, verifying) = model::fresh_secret(self.model.tenant, key, &mut self.chance);
        let (tenant, endpoint) = (self.model.tenant, &mut self.model.endpoints[number]);
        endpoint.keys.insert(key, verifying);
        let (id, overlap_s) = (endpoint.id, self.chance.pick(&[0, 60]));
        self.trace.line(format_args!("somebody rotates the key of {}", endpoint.path));
        self.trace.count("somebody rotates a key");
        if let Some(people) = self.processes.get(&PEOPLE) {
            let pool = people.pool.clone();
            people.spawn(async move {
                let Ok(mut transaction) = edit::begin(&pool).await else { return };
                let algorithm = Algorithm::HmacSha256;
                let new = NewSigningKey { id: key, algorithm, sealed_secret: &sealed_secret };
                if endpoints::rotate_secret(&mut transaction, tenant, id, new, overlap_s).await.is_ok() {
                    let _ = transaction.commit().await;
                }
            });
        }
        self.touch(PEOPLE)
    }

    /// Somebody sends a dead letter again.
    pub(crate) fn replay(&mut self) -> Result<(), Stop> {
        let dead: Vec<DeliveryId> = self
            .witness
            .ended
            .iter()
            .filter(|(_, ended)| !ended.is_delivered)
            .map(|(delivery, _)| *delivery)
            .collect();
        let (tenant, delivery) = (self.model.tenant, self.chance.pick(&dead));
        *self.witness.replays.entry(delivery).or_default() += 1;
        let name = self.trace.name(delivery);
        self.trace.line(format_args!("somebody sends {name} again"));
        self.trace.count("somebody sends a dead letter again");
        if let Some(people) = self.processes.get(&PEOPLE) {
            let pool = people.pool.clone();
            people.spawn(async move {
                let Ok(mut transaction) = edit::begin(&pool).await else { return };
                if retry::retry(&mut transaction, tenant, delivery).await.is_ok() {
                    let _ = transaction.commit().await;
                }
            });
        }
        self.touch(PEOPLE)
    }
}
