-- People who log in with an e-mail address and a password.

CREATE TABLE postrider.users (
    tenant_id          uuid NOT NULL REFERENCES postrider.tenants,
    user_id            uuid NOT NULL CONSTRAINT user_ids_are_unique UNIQUE,
    -- Unique over all tenants: somebody who logs in names no tenant. Its index serves the login.
    email              text NOT NULL CONSTRAINT emails_are_unique UNIQUE
        CONSTRAINT emails_are_in_lower_case CHECK (email = lower(email)),
    role               text NOT NULL CONSTRAINT user_role_is_known CHECK (role IN ('owner', 'developer', 'viewer')),
    enabled            boolean NOT NULL DEFAULT true,
    -- Argon2id with salt and parameters, as a PHC string.
    password_hash      text NOT NULL,
    -- Rises when the password is replaced and when the user is disabled: what was begun under an earlier one is over.
    credential_version bigint NOT NULL DEFAULT 1,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, user_id)
);

-- A tenant's requests set password hashes and never read one.
CALL postrider.wall('postrider.users',
    'SELECT (tenant_id, user_id, email, role, enabled, credential_version, created_at, updated_at), INSERT, UPDATE, DELETE');

-- Of revoked keys the newest stay listed; older ones go when another is issued.
GRANT DELETE ON postrider.management_keys TO postrider_tenant;

-- What those lock who issue or take away a tenant's credentials: how many there are, and that an owner is left, is
-- looked at under it.
CREATE FUNCTION postrider.credentials_lock_key(tenant uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended(tenant::text, 11) $$;
