-- What a tenant with quotas has open is counted without holding its row, however much that is: what is opened meanwhile is
-- told by the difference.

ALTER TABLE postrider.tenant_usage
    -- Deliveries opened so far, by events and by sending again, as far as anybody wrote it down. Never lowered.
    ADD COLUMN opened bigint NOT NULL DEFAULT 0,
    -- Rises whenever the quotas are changed: while there was none nobody wrote down what was opened, so a count from before
    -- says nothing any more.
    ADD COLUMN changes bigint NOT NULL DEFAULT 0;
GRANT UPDATE (opened) ON postrider.tenant_usage TO postrider_tenant;
