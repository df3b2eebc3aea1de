package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// Summary is the result of a run.
type Summary struct {
	// Published rows were marked by the relay, Consumed events arrived in
	// Kafka at least once, Duplicates counts what arrived again.
	Published  int `json:"published"`
	Consumed   int `json:"consumed"`
	Lost       int `json:"lost"`
	Duplicates int `json:"duplicates"`
	OutOfOrder int `json:"out_of_order"`
	// P50 and P99 are latencies from commit to consumer, in milliseconds.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`

	insertP50, insertP99 float64
	behind               time.Duration
}

func summarize(report load.Report, published int, behind time.Duration) Summary {
	commit, insert := load.Percentiles(report.FromCommit, 50, 99), load.Percentiles(report.FromInsert, 50, 99)
	return Summary{
		Published:  published,
		Consumed:   report.Consumed,
		Lost:       report.Lost,
		Duplicates: report.Duplicates,
		OutOfOrder: report.OutOfOrder,
		P50:        milliseconds(commit[0]),
		P99:        milliseconds(commit[1]),
		insertP50:  milliseconds(insert[0]),
		insertP99:  milliseconds(insert[1]),
		behind:     behind,
	}
}

// Broken tells whether the relay broke its contract. Duplicates do not: they
// are what at-least-once delivery allows.
func (s Summary) Broken() bool { return s.Lost > 0 || s.OutOfOrder > 0 }

// WriteJSON writes the summary as one line.
func (s Summary) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// WriteText writes the summary for people.
func (s Summary) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, `
  published     %8d   rows the relay marked
  consumed      %8d   events that arrived in Kafka
  lost          %8d
  duplicates    %8d
  out of order  %8d

  commit to consumer              p50 %.2f ms   p99 %.2f ms
  start of the order to consumer  p50 %.2f ms   p99 %.2f ms
`, s.Published, s.Consumed, s.Lost, s.Duplicates, s.OutOfOrder, s.P50, s.P99, s.insertP50, s.insertP99)
	// Latencies of a machine that could not even write in time say little
	// about the relay.
	if err == nil && s.behind > 100*time.Millisecond {
		_, err = fmt.Fprintf(w, "  The writer fell behind by up to %s: this machine does not carry that rate.\n", s.behind.Round(time.Millisecond))
	}
	return err
}

// milliseconds keeps two decimals.
func milliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(10*time.Microsecond)) / 100
}
