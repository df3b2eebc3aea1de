// Package bench measures a relay from the outside: how long an event takes from
// its INSERT to a consumer, how fast a backlog is published, and what the
// doorbell costs the writers. It holds benchmarks only.
//
//	go test -run '^$' -bench . ./bench
//
// Everything runs in one process (but for the relay of Adaptive, which has its
// own) and on the machine at hand: writers, relay, consumer, a real Postgres
// started for the run (with fsync, as in production) and an in-memory Kafka.
// DATABASE_URL and KAFKA_BROKERS name servers to use in their place; each
// benchmark makes a database and topics of its own there and removes them. For a
// real broker without one at hand:
//
//	go run ./internal/cmd/withenv -kafka -- go test -run '^$' -bench . ./bench
//
// (Not with -postgres: that one runs without fsync.)
//
// # What is measured
//
//   - Latency/rate=N: N single-row commits a second on 16 connections, in an
//     open loop, for BENCH_SECONDS after a second of warm-up. p50-ms, p99-ms and
//     p999-ms run from just before the INSERT to the consumer. behind-ms is by
//     how much the most delayed INSERT missed its time: if it comes near the
//     percentiles, the machine was the limit and not the relay.
//   - Adaptive/load=L/notify=M: latency, the relay's transactions/s, and the CPU of
//     relay and Postgres, in each mode of the doorbell at each load. See
//     BenchmarkAdaptive.
//   - Drain/workers=N and Drain/relays=N: events/s over a backlog of
//     BENCH_DRAIN_ROWS rows, from the start of the relays to the mark of the last
//     row. relays=N are so many with two workers each.
//   - PinnedHorizon: whether drain and latency stay what they were while a
//     snapshot is held open. See BenchmarkPinnedHorizon.
//   - Fairness: what a frozen relay or slow acknowledgements on some keys do to
//     all others. See BenchmarkFairness.
//   - Parked/parked=N: the mean time of a claim, and latency at 200 events/s,
//     behind so many parked rows at the head.
//   - MissingTopic/missing=M: latency of four topics beside a fifth that is there,
//     and that is missing.
//   - Oversized/policy=P: latency of 200 events/s beside one that their topic does
//     not take. See BenchmarkOversized.
//   - Start: the first event, and the new ones, of a relay that starts before a
//     backlog in a large table. See BenchmarkStart.
//   - Writers/...: commits/s of BENCH_WRITERS connections that write without
//     pause. Each case is measured in slices that alternate with slices on an
//     equal table without trigger, so that both see the same machine; compare
//     %-of-no-trigger before any absolute figure. See BenchmarkWriters for the
//     cases. Passes of 5 s scatter by ten percent; BENCH_SECONDS=20 by three.
//
// A benchmark fails when an event is lost, repeated or out of order for its
// key. None asserts a time.
//
// # Settings
//
//   - BENCH_SECONDS: length of one pass, 5; that of Adaptive, 1.
//   - BENCH_LOADS: the loads of Adaptive, 200; a list for the whole picture is
//     idle,held,10,50,100,200,500,1000,5000,burst.
//   - BENCH_DRAIN_ROWS: rows of the backlog, 100000.
//   - BENCH_PAYLOAD_BYTES: approximate size of a payload, 128.
//   - BENCH_WRITERS: connections of Writers, 64.
//   - BENCH_PINNED_ROWS, BENCH_PINNED_RATE: events of PinnedHorizon, 20000, and
//     how many of them come a second, 2000. The drain gets slower with the number;
//     200000 shows whether it is bounded.
//   - BENCH_FROZEN_ROWS: how many rows the frozen relay of Fairness holds, 5000, or
//     a list, as in 500,5000,20000.
//   - BENCH_REMOVAL_RATE: rows/s that Removal removes, 20000.
//   - BENCH_START_WAITING, BENCH_START_PUBLISHED: rows of Start, 20000 and 100000.
//   - RELAY_... and KAFKA_...: the relay's own settings, so that any of them can
//     be put to the test, as in RELAY_NOTIFY=always.
//
// # Comparing
//
// A pass is long enough for one to be a result; -count repeats it for benchstat.
// All benchmarks together take about three minutes each time, so that more than
// three need a longer -timeout.
//
//	go test -run '^$' -bench Latency -count 6 ./bench > before.txt
//	RELAY_BELL_POLL=3ms go test -run '^$' -bench Latency -count 6 ./bench > after.txt
//	benchstat before.txt after.txt
//
// The usual flags work: with -cpuprofile the profile holds the relay together
// with the load and, unless KAFKA_BROKERS is set, the in-memory Kafka.
package bench
