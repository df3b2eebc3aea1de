package main

import (
	"context"
	"os"
	"strings"
)

const (
	// naiveArgument makes this program the naive relay itself.
	naiveArgument = "naive"

	// naiveTrigger is the plain one: every commit notifies.
	naiveTrigger = `
CREATE FUNCTION public.naive_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_notify('` + naiveChannel + `', '');
	RETURN NULL;
END $$;
CREATE TRIGGER naive_notify AFTER INSERT ON public.outbox_event
	FOR EACH STATEMENT EXECUTE FUNCTION public.naive_notify()`
	naiveChannel = "naive_outbox"
)

// naive is the relay that everybody writes first, or with notify off the same
// loop without a trigger.
type naive struct {
	program
	notify bool
}

func newNaive(notify bool) *naive {
	return &naive{
		program: program{
			args: func(*stage) []string { return []string{"/proc/self/exe", naiveArgument} },
			env: func(s *stage) []string {
				env := []string{"DATABASE_URL=" + s.databaseURL, "KAFKA_BROKERS=" + strings.Join(s.brokers, ",")}
				if notify {
					env = append(env, "NAIVE_CHANNEL="+naiveChannel)
				}
				return env
			},
		},
		notify: notify,
	}
}

func (n *naive) prepare(ctx context.Context, s *stage) error {
	if err := s.dropTrigger(ctx); err != nil || !n.notify {
		return err
	}
	return s.exec(ctx, naiveTrigger)
}

func (n *naive) settings() string {
	if n.notify {
		return "A trigger that notifies on every commit; one worker: claim 50 rows with plain `FOR UPDATE SKIP LOCKED`, produce them and wait (acks=all, idempotent, no linger), mark, commit; again at once after a full claim, else wait for a notification, at most 500 ms.\n"
	}
	return "The loop of the naive relay without trigger and `LISTEN`: after a claim that was not full it waits for 500 ms.\n"
}

// naiveEnvironment is what its process is told.
func naiveEnvironment() naiveRelay {
	return naiveRelay{
		databaseURL: os.Getenv("DATABASE_URL"),
		brokers:     strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		channel:     os.Getenv("NAIVE_CHANNEL"),
	}
}
