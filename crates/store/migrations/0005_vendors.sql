-- Approved vendors: endpoints that the operator's registry declares, the credentials that endpoints name, and which
-- applications may address an approved endpoint.

CREATE TABLE postrider.credentials (
    tenant_id     uuid NOT NULL REFERENCES postrider.tenants,
    credential_id uuid NOT NULL CONSTRAINT credential_ids_are_unique UNIQUE,
    name          text NOT NULL,
    kind          text NOT NULL CONSTRAINT credential_kind_is_known
        CHECK (kind IN ('bearer', 'basic', 'header', 'oauth2_client_credentials')),
    -- Never read back; opened only to be sent.
    sealed_value  bytea NOT NULL,
    -- Rises with every change of this row, so that a cached copy can be told from the newest one.
    version       bigint NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, credential_id),
    CONSTRAINT credential_names_are_unique_in_a_tenant UNIQUE (tenant_id, name)
);
CALL postrider.wall('postrider.credentials', 'SELECT, INSERT, UPDATE, DELETE');

ALTER TABLE postrider.endpoints
    ADD COLUMN method           text NOT NULL DEFAULT 'POST' CONSTRAINT request_method_is_known
        CHECK (method IN ('POST', 'PUT', 'PATCH')),
    -- Codes and ranges that count as success, sorted: `200-299,409`.
    ADD COLUMN success_codes    text NOT NULL DEFAULT '200-299' CONSTRAINT success_codes_are_codes_and_ranges
        CHECK (success_codes ~ '^[24][0-9]{2}(-[24][0-9]{2})?(,[24][0-9]{2}(-[24][0-9]{2})?)*$'),
    ADD COLUMN credential_id    uuid,
    -- Declared by the registry, under the version of it that last changed this endpoint.
    ADD COLUMN approved         boolean NOT NULL DEFAULT false,
    ADD COLUMN registry_version bigint,
    ADD COLUMN allows_query     boolean NOT NULL DEFAULT false,
    -- The URL's query, which may hold a vendor's secret, sealed; `url` stands without it. NULL = none.
    ADD COLUMN sealed_query     bytea,
    -- A deleted endpoint keeps its row, so that history can name it, and gives up its name and its secrets.
    ADD COLUMN deleted_at       timestamptz,
    -- Since when no delivery to a deleted endpoint is open any more; its signing secrets went with the last one.
    ADD COLUMN drained_at       timestamptz,
    ADD CONSTRAINT approval_comes_from_a_registry_version CHECK (approved = (registry_version IS NOT NULL)),
    ADD CONSTRAINT only_the_registry_allows_a_query CHECK (approved OR NOT allows_query),
    ADD CONSTRAINT a_query_is_allowed CHECK (allows_query OR sealed_query IS NULL),
    ADD CONSTRAINT a_deleted_endpoint_is_disabled CHECK (deleted_at IS NULL OR NOT enabled),
    ADD CONSTRAINT only_deleted_endpoints_drain CHECK (drained_at IS NULL OR deleted_at IS NOT NULL),
    ADD CONSTRAINT an_endpoint_names_a_known_credential
        FOREIGN KEY (tenant_id, credential_id) REFERENCES postrider.credentials,
    DROP CONSTRAINT endpoint_names_are_unique_in_a_tenant;

-- Serves reads by name, and keeps the names of endpoints that are there apart.
CREATE UNIQUE INDEX endpoint_names_are_unique_in_a_tenant ON postrider.endpoints (tenant_id, name)
    WHERE deleted_at IS NULL;
-- Serves the history of a name: deliveries to endpoints that had it and were deleted.
CREATE INDEX endpoints_deleted_by_name ON postrider.endpoints (tenant_id, name) WHERE deleted_at IS NOT NULL;
-- Serves `discard`: deleted endpoints whose deliveries are still to be ended.
CREATE INDEX endpoints_to_drain ON postrider.endpoints (endpoint_id)
    WHERE deleted_at IS NOT NULL AND drained_at IS NULL;

-- NULL once the endpoint is deleted and no delivery to it is open: nothing is signed with it any more, and history only
-- names the key.
ALTER TABLE postrider.signing_keys ALTER COLUMN sealed_secret DROP NOT NULL;
-- Serves `drain`: the secrets of one endpoint.
CREATE INDEX signing_keys_by_endpoint ON postrider.signing_keys (tenant_id, endpoint_id) WHERE sealed_secret IS NOT NULL;

-- Serves the foreign key: is a credential still in use?
CREATE INDEX endpoints_by_credential ON postrider.endpoints (tenant_id, credential_id)
    WHERE credential_id IS NOT NULL;

-- Who may address an approved endpoint.
CREATE TABLE postrider.endpoint_applications (
    tenant_id      uuid NOT NULL,
    endpoint_id    uuid NOT NULL,
    application_id uuid NOT NULL,
    -- Serves the registry and changes of an endpoint: which applications may address it?
    PRIMARY KEY (tenant_id, endpoint_id, application_id),
    CONSTRAINT an_addressed_endpoint_exists FOREIGN KEY (tenant_id, endpoint_id) REFERENCES postrider.endpoints,
    CONSTRAINT an_addressing_application_exists
        FOREIGN KEY (tenant_id, application_id) REFERENCES postrider.applications
);
-- Serves notifications: which endpoints may one application address?
CREATE INDEX endpoint_applications_by_application ON postrider.endpoint_applications (application_id);
CALL postrider.wall('postrider.endpoint_applications', 'SELECT, DELETE');

-- What the registry declared, version after version. Append only, so no foreign key: like the audit log it outlives
-- what it is about.
CREATE TABLE postrider.registry_versions (
    tenant_id     uuid NOT NULL,
    version       bigint NOT NULL CONSTRAINT registry_versions_count_from_one CHECK (version >= 1),
    -- The tenant's part of the file in one spelling, without secrets: header values and queries are left out.
    document      text NOT NULL,
    document_hash bytea NOT NULL CONSTRAINT a_document_hash_has_32_bytes CHECK (octet_length(document_hash) = 32),
    -- Who applied it, as the audit log names them.
    applied_by    text NOT NULL,
    applied_at    timestamptz NOT NULL DEFAULT now(),
    -- Serves the newest version, read backwards.
    PRIMARY KEY (tenant_id, version)
);
CREATE TRIGGER the_registry_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON postrider.registry_versions
    FOR EACH STATEMENT EXECUTE FUNCTION postrider.refuse_change();
CALL postrider.wall('postrider.registry_versions', 'SELECT');

-- The registry version that the endpoint had when it was asked; NULL where it was not an approved one, or where that is
-- not known.
ALTER TABLE postrider.attempts ADD COLUMN registry_version bigint;
