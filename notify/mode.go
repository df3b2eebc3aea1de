package notify

// Mode says when writers ring the bell.
type Mode string

const (
	// Adaptive holds the bell's key only while the relay sleeps: writers
	// notify then, and cost nothing while the relay is awake.
	Adaptive Mode = "adaptive"
	// Always holds the key throughout: every commit notifies, as in a plain
	// LISTEN/NOTIFY relay.
	Always Mode = "always"
	// Off never takes the key: no commit notifies and the relay polls. For
	// writers that use PREPARE TRANSACTION, which refuses a transaction that
	// notified, for synchronous standbys, and for writers with a short
	// lock_timeout, since a notifying COMMIT waits for a cluster-wide lock.
	Off Mode = "off"
)

// Modes are all the modes there are.
var Modes = []Mode{Adaptive, Always, Off}
