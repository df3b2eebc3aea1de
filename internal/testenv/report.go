package testenv

import (
	"fmt"
	"testing"
)

// Report compares what arrived with what was inserted.
type Report struct {
	// Lost are the event ids that did not arrive.
	Lost []string
	// Unknown are the ids that arrived and were not inserted, such as those of
	// a transaction that was rolled back.
	Unknown []string
	// Duplicates counts the repeats of an event id.
	Duplicates int
	// Disorder describes each first delivery of an event whose sequence number
	// lies below one of the same key that came before it.
	Disorder []string
}

// Report compares the deliveries so far with the ids that were inserted.
func (c *Consumer) Report(inserted []string) Report { return Compare(c.Deliveries(), inserted) }

// Compare is Report for any deliveries, given in order of arrival.
func Compare(deliveries []Delivery, inserted []string) Report {
	var r Report
	expected := make(map[string]bool, len(inserted))
	for _, id := range inserted {
		expected[id] = true
	}
	type key struct{ topic, key string }
	highest := map[key]int{}
	seen := make(map[string]bool, len(inserted))
	for _, d := range deliveries {
		if seen[d.EventID] {
			r.Duplicates++
			continue
		}
		seen[d.EventID] = true
		if !expected[d.EventID] {
			r.Unknown = append(r.Unknown, d.EventID)
		}
		k := key{d.Topic, string(d.Key)}
		if d.Seq < highest[k] {
			r.Disorder = append(r.Disorder, fmt.Sprintf("key %q: %d came first after %d", d.Key, d.Seq, highest[k]))
		}
		highest[k] = max(highest[k], d.Seq)
	}
	for _, id := range inserted {
		if !seen[id] {
			r.Lost = append(r.Lost, id)
		}
	}
	return r
}

// CheckOnce fails the test unless every inserted event arrived once, nothing
// else did, and each key is in order.
func (c *Consumer) CheckOnce(tb testing.TB, inserted []string) {
	tb.Helper()
	r := c.Report(inserted)
	r.check(tb)
	if r.Duplicates > 0 {
		tb.Errorf("%d events were delivered more than once", r.Duplicates)
	}
}

// CheckAtLeastOnce is CheckOnce but for repeats, which it allows and returns
// the number of.
func (c *Consumer) CheckAtLeastOnce(tb testing.TB, inserted []string) (duplicates int) {
	tb.Helper()
	r := c.Report(inserted)
	r.check(tb)
	return r.Duplicates
}

func (r Report) check(tb testing.TB) {
	tb.Helper()
	for _, fault := range []struct {
		what  string
		found []string
	}{
		{"events were lost", r.Lost},
		{"events arrived that were not committed", r.Unknown},
		{"first deliveries were out of order", r.Disorder},
	} {
		if n := len(fault.found); n > 0 {
			tb.Errorf("%d %s: %q", n, fault.what, fault.found[:min(n, 5)])
		}
	}
}
