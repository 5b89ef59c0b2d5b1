//! Every error a caller can see, as one closed list. The code is stable: clients branch on it (RFC 9457, `type`).

/// What went wrong, for programs; the text beside it says what to do, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// No credential, or one that is unknown or revoked.
    Unauthorized,
    /// A known credential without the right to do this.
    Forbidden,
    /// Nobody can log in to this installation.
    LoginsOff,
    /// The publishing application is disabled.
    ApplicationDisabled,
    /// Unknown, or belonging to another tenant: the two are not told apart.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The name is already taken within its tenant (or, for a tenant, in this installation).
    NameTaken,
    /// As many of these as there may be.
    LimitReached,
    /// The idempotency key was used before with another type, content type or body.
    IdempotencyConflict,
    /// Only a dead letter can be sent again.
    NotDeadLettered,
    /// The dead letter cannot be sent again: its endpoint or its body is gone.
    NotRetryable,
    /// The endpoint is disabled; enable it first.
    EndpointDisabled,
    /// The operator's registry declares the endpoint, and it alone changes it.
    EndpointApproved,
    /// The tenant's endpoints come from the operator's registry alone.
    ApprovedOnly,
    /// The signing key before the last rotation is still promised to receivers.
    OverlapRunning,
    /// An endpoint names the credential.
    CredentialInUse,
    /// The replay was executed before.
    ReplayExecuted,
    /// The preview of the replay is older than it may be.
    ReplayExpired,
    /// The replay has ended, or was cancelled.
    ReplayOver,
    /// The e-mail address belongs to a user, of whichever tenant.
    EmailTaken,
    /// The tenant would be left without an owner.
    LastOwner,
    /// The request cannot be read as what it claims to be: headers, query or path.
    BadRequest,
    /// The body is larger than its limit.
    BodyTooLarge,
    /// The event alone is larger than the tenant's quota: it would never be taken.
    LargerThanQuota,
    /// The content type is not one this operation takes.
    UnsupportedMediaType,
    /// The body is not valid UTF-8 JSON, or nested too deeply.
    InvalidJson,
    /// The body is JSON, but a field is missing, unknown or out of bounds.
    InvalidField,
    /// The body did not arrive in time.
    RequestTimeout,
    /// Too many requests of this kind in a short time.
    RateLimited,
    /// The tenant has used up what it may publish in an hour, or has as many open deliveries as it may have.
    QuotaExceeded,
    /// Too much work in hand; try again shortly.
    Overloaded,
    /// The database cannot be reached or did not answer in time; whether the work was done may be unknown.
    Unavailable,
    /// A defect of Postrider.
    Internal,
}

impl Code {
    /// Every code, for documentation and tests.
    pub const ALL: &[Self] = &[
        Self::Unauthorized,
        Self::Forbidden,
        Self::LoginsOff,
        Self::ApplicationDisabled,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::NameTaken,
        Self::LimitReached,
        Self::IdempotencyConflict,
        Self::NotDeadLettered,
        Self::NotRetryable,
        Self::EndpointDisabled,
        Self::EndpointApproved,
        Self::ApprovedOnly,
        Self::OverlapRunning,
        Self::CredentialInUse,
        Self::ReplayExecuted,
        Self::ReplayExpired,
        Self::ReplayOver,
        Self::EmailTaken,
        Self::LastOwner,
        Self::BadRequest,
        Self::BodyTooLarge,
        Self::LargerThanQuota,
        Self::UnsupportedMediaType,
        Self::InvalidJson,
        Self::InvalidField,
        Self::RequestTimeout,
        Self::RateLimited,
        Self::QuotaExceeded,
        Self::Overloaded,
        Self::Unavailable,
        Self::Internal,
    ];

    /// The stable identifier, as it stands in the `code` member.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::LoginsOff => "logins_off",
            Self::ApplicationDisabled => "application_disabled",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::NameTaken => "name_taken",
            Self::LimitReached => "limit_reached",
            Self::IdempotencyConflict => "idempotency_conflict",
            Self::NotDeadLettered => "not_dead_lettered",
            Self::NotRetryable => "not_retryable",
            Self::EndpointDisabled => "endpoint_disabled",
            Self::EndpointApproved => "endpoint_approved",
            Self::ApprovedOnly => "approved_only",
            Self::OverlapRunning => "overlap_running",
            Self::CredentialInUse => "credential_in_use",
            Self::ReplayExecuted => "replay_executed",
            Self::ReplayExpired => "replay_expired",
            Self::ReplayOver => "replay_over",
            Self::EmailTaken => "email_taken",
            Self::LastOwner => "last_owner",
            Self::BadRequest => "bad_request",
            Self::BodyTooLarge => "body_too_large",
            Self::LargerThanQuota => "larger_than_quota",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::InvalidJson => "invalid_json",
            Self::InvalidField => "invalid_field",
            Self::RequestTimeout => "request_timeout",
            Self::RateLimited => "rate_limited",
            Self::QuotaExceeded => "quota_exceeded",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }

    /// The HTTP status that goes with it.
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden | Self::ApprovedOnly | Self::ApplicationDisabled | Self::LoginsOff => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::NameTaken
            | Self::IdempotencyConflict
            | Self::NotDeadLettered
            | Self::NotRetryable
            | Self::LimitReached
            | Self::EndpointDisabled
            | Self::EndpointApproved
            | Self::OverlapRunning
            | Self::CredentialInUse
            | Self::ReplayExecuted
            | Self::ReplayExpired
            | Self::ReplayOver
            | Self::EmailTaken
            | Self::LastOwner => 409,
            Self::BodyTooLarge | Self::LargerThanQuota => 413,
            Self::UnsupportedMediaType => 415,
            Self::InvalidJson | Self::InvalidField => 422,
            Self::RateLimited | Self::QuotaExceeded => 429,
            Self::Internal => 500,
            Self::Overloaded | Self::Unavailable => 503,
        }
    }

    /// A short summary that does not change from one occurrence to the next.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Unauthorized => "A valid credential is required",
            Self::Forbidden => "This credential may not do that",
            Self::LoginsOff => "Nobody can log in here",
            Self::ApplicationDisabled => "The application is disabled",
            Self::NotFound => "Not found",
            Self::MethodNotAllowed => "Method not allowed",
            Self::NameTaken => "The name is taken",
            Self::LimitReached => "There are as many as there may be",
            Self::IdempotencyConflict => "The idempotency key belongs to another event",
            Self::NotDeadLettered => "The delivery is not a dead letter",
            Self::NotRetryable => "The delivery cannot be sent again",
            Self::EndpointDisabled => "The endpoint is disabled",
            Self::EndpointApproved => "The endpoint is declared by the registry",
            Self::ApprovedOnly => "Only the registry makes endpoints here",
            Self::OverlapRunning => "The overlap of the last rotation still runs",
            Self::CredentialInUse => "An endpoint names the credential",
            Self::ReplayExecuted => "The replay was executed before",
            Self::ReplayExpired => "The preview has expired",
            Self::ReplayOver => "The replay is over",
            Self::EmailTaken => "The e-mail address is taken",
            Self::LastOwner => "A tenant keeps an owner",
            Self::BadRequest => "The request is malformed",
            Self::BodyTooLarge => "The body is too large",
            Self::LargerThanQuota => "The event is larger than a quota",
            Self::UnsupportedMediaType => "The content type is not supported",
            Self::InvalidJson => "The body is not acceptable JSON",
            Self::InvalidField => "A field is not acceptable",
            Self::RequestTimeout => "The request took too long to arrive",
            Self::RateLimited => "Too many requests in a short time",
            Self::QuotaExceeded => "The tenant's quota is used up",
            Self::Overloaded => "Too much work in hand",
            Self::Unavailable => "A dependency is unavailable",
            Self::Internal => "Internal error",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_distinct_and_their_statuses_are_errors() {
        let codes: HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), Code::ALL.len());
        assert!(Code::ALL.iter().all(|code| (400..600).contains(&code.status())));
    }
}
