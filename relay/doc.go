// Package relay publishes the rows of a transactional outbox to Kafka.
//
// A service inserts its business rows and one outbox row per domain event in
// one Postgres transaction. A Relay, in a process of its own or embedded in
// one, claims those rows, publishes them and marks them. Nothing is published
// that was not committed, nothing committed is lost, and each event arrives at
// least once; a consumer drops repeats by the header x-event-id.
//
// The main job is three steps, each in a file of its name:
//
//	claim    lock unpublished rows in id order, skipping what others hold
//	publish  hand them to an idempotent producer and wait for all acks
//	mark     set published_at and commit
//
// # Order
//
// Of each partition key, a relay publishes only an unbroken run from the first
// row that its snapshot shows unpublished, and a row is marked only after Kafka
// acknowledged it. A row that somebody else holds, or that failed, ends its key
// for this round. So relays may be frozen, killed and resumed in the middle of
// anything: they can repeat events, never let one overtake another of its key.
//
// Order means the order of transactions that follow each other. There is none
// to keep between transactions that run at the same time, for a sequence with
// CACHE above 1, for ids drawn before the aggregate is locked, and for one key
// on two topics.
package relay
