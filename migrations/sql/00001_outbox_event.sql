-- +goose Up
-- +goose StatementBegin
-- A table that the service made itself is left exactly as it is, which CREATE
-- TABLE IF NOT EXISTS alone cannot promise for the index behind it.
DO $outbox_relay$
BEGIN
    BEGIN
        CREATE TABLE public.outbox_event (
            id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            event_id       uuid         NOT NULL UNIQUE,
            aggregate_type text         NOT NULL,
            aggregate_id   text         NOT NULL,
            event_type     text         NOT NULL,
            payload        jsonb        NOT NULL,
            topic          text         NOT NULL,
            partition_key  text         NOT NULL,
            created_at     timestamptz  NOT NULL DEFAULT now(),
            published_at   timestamptz
        );
    EXCEPTION WHEN duplicate_table THEN
        RETURN;
    END;
    CREATE INDEX ix_outbox_event_unpublished ON public.outbox_event (id) WHERE published_at IS NULL;
END
$outbox_relay$;
-- +goose StatementEnd

-- +goose Down
-- The table stays: its rows are the service's.
