//! Every kind of edit, to be made one after the other.

use postrider_core::id::TenantId;
use postrider_store::{
    applications,
    edit::Error,
    endpoints::{self, DisabledReason},
    subscriptions::{self, Changes},
};
use sqlx::PgTransaction;

use crate::resources::{World, create_endpoint, hashes, key, subscribe};

/// Every edit there is, on the endpoint `warehouse`, its subscription or the application `orders`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Edit {
    DisableApplication,
    RotateToken,
    CreateEndpoint,
    UpdateEndpoint,
    DisableEndpoint,
    RotateSecret,
    CreateSubscription,
    UpdateSubscription,
    DeleteSubscription,
}

impl Edit {
    pub(crate) const ALL: [Self; 9] = [
        Self::DisableApplication,
        Self::RotateToken,
        Self::CreateEndpoint,
        Self::UpdateEndpoint,
        Self::DisableEndpoint,
        Self::RotateSecret,
        Self::CreateSubscription,
        Self::UpdateSubscription,
        Self::DeleteSubscription,
    ];

    /// Makes the edit as a tenant.
    pub(crate) async fn make(self, world: &World, tenant_id: TenantId) -> Result<(), Error> {
        let mut transaction = world.begin().await;
        self.apply(world, tenant_id, &mut transaction).await?;
        transaction.commit().await.map_err(Error::from)
    }

    /// The same, not yet committed.
    pub(crate) async fn apply(
        self,
        world: &World,
        tenant_id: TenantId,
        transaction: &mut PgTransaction<'_>,
    ) -> Result<(), Error> {
        let (orders, warehouse) = (world.orders.id, world.warehouse.id);
        match self {
            Self::DisableApplication => {
                applications::set_enabled(transaction, tenant_id, orders, false).await.map(drop)
            }
            Self::RotateToken => {
                applications::rotate_token(transaction, tenant_id, orders, &hashes()).await.map(drop)
            }
            Self::CreateEndpoint => create_endpoint(transaction, tenant_id, "archive").await,
            Self::UpdateEndpoint => {
                let settings = endpoints::Settings::new("https://example.org/".to_owned());
                endpoints::update(transaction, tenant_id, warehouse, &settings, None).await.map(drop)
            }
            Self::DisableEndpoint => {
                let reason = Some(DisabledReason::Requested);
                endpoints::set_disabled(transaction, tenant_id, warehouse, reason).await.map(drop)
            }
            Self::RotateSecret => {
                endpoints::rotate_secret(transaction, tenant_id, warehouse, key(), 60).await.map(drop)
            }
            Self::CreateSubscription => subscribe(transaction, tenant_id, world.billing.id, warehouse).await,
            Self::UpdateSubscription => {
                let (subscription, changes) = (world.subscription().await, Changes::default());
                subscriptions::update(transaction, tenant_id, &subscription, changes).await.map(drop)
            }
            Self::DeleteSubscription => {
                let subscription = world.subscription().await;
                subscriptions::delete(transaction, tenant_id, &subscription).await
            }
        }
    }
}
