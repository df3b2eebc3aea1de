// Command peers measures this relay beside Debezium, a naive relay and a poller,
// one after the other on the same servers, and writes a report with plots.
//
//	make bench-peers
//
// It starts a real Postgres (with fsync), a real Kafka and, for Debezium, Kafka
// Connect; that needs Linux, Java 17 and Maven, which downloads some 100 MB of
// jars on the first use. DATABASE_URL (its role a superuser's, its server with
// wal_level=logical) and KAFKA_BROKERS name servers to use instead. Whatever it
// starts ends with it, and it leaves databases and topics as they were.
//
// Each contender gets a new database and goes through the same: warm-up, rest,
// latency at each rate, writers without pause, backlog. A rehearsal of all of it
// with the naive relay comes first and does not count. The report says how each
// is measured. A contender that ends, or that lets nothing out for a minute,
// fails the run; the error names its log, which is then kept.
//
// # Settings
//
//   - PEERS: the contenders, in their order: none (the writers alone), relay,
//     debezium-500, debezium-10, debezium-1 (by poll.interval.ms), naive, poller.
//     The default is all of them.
//   - PEERS_SECONDS: length of each measurement, 15.
//   - PEERS_RATES: events a second, 100,500,1000,5000. The bell changes its state
//     between 100 and 500; at 100 a wake is all that counts, at 5,000 throughput.
//   - PEERS_DRAIN_ROWS: rows of the backlog, 300000.
//   - PEERS_WARMUP: events beforehand, 30000.
//   - PEERS_WRITERS: connections that write without pause, 64.
//   - PEERS_PAYLOAD_BYTES: approximate size of a payload, 128.
//   - PEERS_JVM: options of Debezium's JVM, -Xms64m,-Xmx256m,-XX:+UseSerialGC.
//   - PEERS_OUT: folder of the report, docs/bench.
//   - RELAY_...: settings of this relay, but for RELAY_LISTEN_URL.
//
// A full run takes about 20 minutes. One of two minutes, to see that
// everything works, whose figures mean little:
//
//	PEERS=relay,debezium-10 PEERS_SECONDS=3 PEERS_DRAIN_ROWS=5000 PEERS_WARMUP=3000 PEERS_OUT=peers make bench-peers
package main
