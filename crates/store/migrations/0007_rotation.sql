-- Replacing the installation's own secrets: the key that seals, and the pepper that tokens are hashed with.

ALTER TABLE postrider.installation
    -- Which key seals: every process must hold it. NULL until the first process of this version has started.
    ADD COLUMN encryption_key_id           bytea CONSTRAINT an_encryption_key_id_has_4_bytes
        CHECK (octet_length(encryption_key_id) = 4),
    -- The pepper of the generation before, while tokens may still be stored under it; NULL = no rotation is under way.
    ADD COLUMN previous_pepper_fingerprint bytea CONSTRAINT a_previous_pepper_fingerprint_has_8_bytes
        CHECK (octet_length(previous_pepper_fingerprint) = 8),
    -- The pepper of the generation to come, as soon as a process has started with it: all must have the same.
    ADD COLUMN next_pepper_fingerprint     bytea CONSTRAINT a_next_pepper_fingerprint_has_8_bytes
        CHECK (octet_length(next_pepper_fingerprint) = 8),
    ADD CONSTRAINT one_pepper_is_replaced_at_a_time
        CHECK (previous_pepper_fingerprint IS NULL OR next_pepper_fingerprint IS NULL);

-- The generation that tokens are stored under now. A tenant's request may not read the installation's row itself.
CREATE FUNCTION postrider.pepper_generation() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT coalesce((SELECT pepper_generation FROM postrider.installation), 1)
$$;

-- Under which pepper the hash beside it was made.
ALTER TABLE postrider.management_keys
    ADD COLUMN pepper_generation integer NOT NULL DEFAULT postrider.pepper_generation();
ALTER TABLE postrider.applications
    ADD COLUMN pepper_generation integer NOT NULL DEFAULT postrider.pepper_generation();

-- What those lock who store a token (shared) or replace the pepper (exclusively).
CREATE FUNCTION postrider.pepper_lock_key() RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended('pepper', 7) $$;

-- Which hash of a new token is stored, of those that a process made: the one under the installation's pepper, else the
-- one under the pepper before, while that still counts. The lock is held until the end of the transaction, so that a
-- rotation cannot end between this look and the commit; and each statement here has a snapshot of its own.
CREATE FUNCTION postrider.token_hash_to_store(generations integer[], fingerprints bytea[], hashes bytea[])
RETURNS TABLE (token_hash bytea, pepper_generation integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(postrider.pepper_lock_key());
    RETURN QUERY
        SELECT made.hash, made.generation
          FROM unnest(generations, fingerprints, hashes) WITH ORDINALITY AS made (generation, fingerprint, hash, place)
          LEFT JOIN postrider.installation AS i ON true
         WHERE i.is_the_only_row IS NULL
            OR made.fingerprint = i.pepper_fingerprint OR made.fingerprint = i.previous_pepper_fingerprint
         ORDER BY (made.fingerprint = i.pepper_fingerprint) DESC, made.place
         LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this process does not hold the pepper that tokens are stored under: start it with the pepper of generation %',
            postrider.pepper_generation();
    END IF;
END
$$;
