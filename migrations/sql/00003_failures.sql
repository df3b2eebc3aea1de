-- +goose Up
-- +goose StatementBegin
-- What could not be published, and what became of it: a record for each row that
-- was refused, beside the outbox table, which stays as the service made it.
--
-- No foreign key to the outbox table: a check of it would lock rows that writers
-- and relays work on, and the history of a row must outlive the row. event_id is
-- kept because an id alone does not say which event it was once the service has
-- emptied its table and begun to count anew.
--
-- attempts and next_attempt_at stand here and not in the relay's memory, so that
-- several relays and one that was restarted agree on them.
CREATE TABLE IF NOT EXISTS public.outbox_relay_failure (
    row_id          bigint      PRIMARY KEY,
    event_id        uuid        NOT NULL,
    topic           text        NOT NULL,
    partition_key   text        NOT NULL,
    kind            text        NOT NULL,
    code            text        NOT NULL,
    error           text        NOT NULL,
    attempts        integer     NOT NULL,
    first_failed_at timestamptz NOT NULL DEFAULT now(),
    last_failed_at  timestamptz NOT NULL DEFAULT now(),
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    -- waiting: it is tried again at next_attempt_at. parked: it waits for an
    -- operator. dead_lettered: it stands in the dead-letter topic. discarded: an
    -- operator gave it up. The last two are history.
    state           text        NOT NULL CHECK (state IN ('waiting', 'parked', 'dead_lettered', 'discarded')),
    reason          text,
    -- When an operator last changed it, and as which user of the database.
    changed_at      timestamptz,
    changed_by      text
);
-- +goose StatementEnd

-- +goose StatementBegin
-- What a relay steps over in each claim and what operators list. It stays as
-- small as what is open, however long the history grows.
CREATE INDEX IF NOT EXISTS outbox_relay_failure_open ON public.outbox_relay_failure (row_id)
    WHERE state IN ('waiting', 'parked');
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
-- Only an empty table is dropped: another one says which events were never
-- published and why, who gave them up, and which would be tried again.
DO $outbox_relay$
BEGIN
    IF pg_catalog.to_regclass('public.outbox_relay_failure') IS NULL THEN
        RETURN;
    END IF;
    LOCK TABLE public.outbox_relay_failure;
    IF EXISTS (SELECT FROM public.outbox_relay_failure) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'table ' || 'public.outbox_relay_failure' || ' holds the history of rows that could not be published, nothing was changed: keep a copy of it, empty it and try again';
    END IF;
    DROP TABLE public.outbox_relay_failure;
END
$outbox_relay$;
-- +goose StatementEnd
