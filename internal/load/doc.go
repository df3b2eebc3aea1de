// Package load writes events to an outbox table at a steady rate and checks
// what comes out of Kafka: that each committed event arrived, how often, in
// which order, and how long it took. The demo and the benchmarks share it, so
// that their figures mean the same.
//
// A Writer commits events and enters them in a Ledger; a Consumer reads the
// topics and strikes them off; the Ledger's Report holds the verdict.
package load
