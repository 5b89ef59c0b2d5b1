-- Letters that a replay left as they are, since the registry no longer lists their application for their endpoint.

ALTER TABLE postrider.replays ADD COLUMN not_listed integer NOT NULL DEFAULT 0;
ALTER TABLE postrider.replay_endpoints ADD COLUMN not_listed integer NOT NULL DEFAULT 0;
-- Whoever cancels a replay writes its totals down.
GRANT UPDATE (not_listed) ON postrider.replays TO postrider_tenant;
