//! Which credential an endpoint's requests carry. Whoever may point an endpoint somewhere could have a secret sent there,
//! so only an owner, who may change credentials, says which endpoint gets one.

use postrider_core::{
    credential::Credential,
    id::{CredentialId, TenantId},
    name::Name,
    problem::Code,
    role::Role,
    seal::{Context, Purpose},
};
use postrider_store::{credentials, edit::Edit, endpoints::Settings};

use super::headers::{self, Owner};
use crate::{authenticate::Management, change::Change, problem::Problem, state::State};

const FIELD: &str = "credential";

/// Looks up the credential that a change names, and keeps it as it is. Call it before the endpoint is locked.
///
/// # Errors
/// `403` for anybody but an owner who names one, `422` naming the field `credential` where there is none of that name, and
/// `url` where the change does not say for which URL: a developer may have changed it since the owner looked.
pub(super) async fn find(
    change: Change<Name>,
    names_url: bool,
    edit: &mut Edit,
    caller: &Management,
) -> Result<Change<CredentialId>, Problem> {
    let name = match change {
        Change::Keep => return Ok(Change::Keep),
        Change::Remove => return Ok(Change::Remove),
        Change::Set(name) => name,
    };
    if !caller.role.includes(Role::Owner) {
        return Err(Problem::new(
            Code::Forbidden,
            format!("The role `{}` may not give an endpoint a credential; it takes `owner`.", caller.role),
        ));
    }
    if !names_url {
        return Err(Problem::invalid_field(
            "url",
            "a credential is given for a URL: name it together with the credential, even if it stays as it is",
        ));
    }
    let found = credentials::share_by_name(edit, caller.tenant_id, &name).await?;
    let found = found.ok_or_else(|| Problem::invalid_field(FIELD, "this tenant has no such credential"))?;
    Ok(Change::Set(found.id))
}

/// Refuses to send a credential that was meant for one URL to another, even on the same host, which others may share: an
/// owner must name it again.
pub(super) fn require_named(
    change: &Change<Name>,
    current: Option<CredentialId>,
    is_elsewhere: bool,
) -> Result<(), Problem> {
    match change {
        Change::Keep if is_elsewhere && current.is_some() => Err(Problem::invalid_field(
            FIELD,
            "it was given for the URL before: an owner must name it again together with the new one, and null removes it",
        )),
        Change::Keep | Change::Remove | Change::Set(_) => Ok(()),
    }
}

/// Refuses settings whose custom headers set the one that the credential is sent in.
pub(super) async fn require_room(
    settings: &Settings,
    owner: Owner,
    edit: &mut Edit,
    state: &State,
) -> Result<(), Problem> {
    let (Some(id), true) = (settings.credential_id, settings.sealed_headers.is_some()) else { return Ok(()) };
    let Some(sealed) = credentials::get(&mut ***edit, owner.tenant_id, id).await? else { return Ok(()) };
    let credential = open(owner.tenant_id, &sealed, state)?;
    let header = credential.header_name();
    if headers::open(owner, settings.sealed_headers.as_deref(), state)?.contains(header) {
        return Err(Problem::invalid_field(
            FIELD,
            format!(
                "it is sent in the header `{header}`, which the endpoint sets itself; remove it there first"
            ),
        ));
    }
    Ok(())
}

fn open(tenant: TenantId, sealed: &credentials::Sealed, state: &State) -> Result<Credential, Problem> {
    let context = Context { purpose: Purpose::Credential, tenant, row: sealed.id.as_uuid() };
    let opened =
        state.keyring.open(&context, &sealed.sealed_value).map_err(|error| Problem::internal(&error))?;
    Credential::from_stored(&opened).map_err(|error| Problem::internal(&error))
}
