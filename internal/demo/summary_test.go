package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	report := load.Report{
		Counts:     load.Counts{Committed: 4, Consumed: 3, Duplicates: 2, OutOfOrder: 1},
		Lost:       1,
		FromCommit: []time.Duration{1 * time.Millisecond, 2 * time.Millisecond, 9876 * time.Microsecond},
		FromInsert: []time.Duration{3 * time.Millisecond, 4 * time.Millisecond, 12 * time.Millisecond},
	}
	summary := summarize(report, 4, 50*time.Millisecond)
	var json, text, late strings.Builder
	if err := summary.WriteJSON(&json); err != nil {
		t.Fatal(err)
	}
	want := `{"published":4,"consumed":3,"lost":1,"duplicates":2,"out_of_order":1,"p50_ms":2,"p99_ms":9.88}` + "\n"
	if json.String() != want {
		t.Errorf("JSON %s, want %s", json.String(), want)
	}
	if err := summary.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"published            4", "lost                 1", "p50 2.00 ms   p99 9.88 ms", "p50 4.00 ms   p99 12.00 ms"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("text lacks %q:\n%s", part, text.String())
		}
	}
	if err := summarize(report, 4, 3*time.Second).WriteText(&late); err != nil {
		t.Fatal(err)
	}
	if hint := "fell behind by up to 3s"; !strings.Contains(late.String(), hint) || strings.Contains(text.String(), "fell behind") {
		t.Errorf("a writer that is late, and only that, is mentioned; got\n%s%s", text.String(), late.String())
	}
}
