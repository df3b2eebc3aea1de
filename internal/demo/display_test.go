package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestDisplay(t *testing.T) {
	t.Parallel()
	record := &kgo.Record{Key: []byte("customer-0001"), Value: []byte(`{"item":"teapot"}`), Partition: 2, Offset: 7}
	width := func() int { return 60 }
	for _, tt := range []struct {
		name  string
		width func() int
		show  func(*Display)
		want  []string
		lack  []string
	}{
		{
			"elsewhere than in a terminal, a line is a line", nil,
			func(d *Display) { d.progress("one"); d.progress("two"); d.finish() },
			[]string{"one\ntwo\n"},
			[]string{"\r", "\x1b"},
		},
		{
			"elsewhere than in a terminal, no events are shown", nil,
			func(d *Display) { d.event(record, time.Millisecond) },
			nil,
			[]string{"customer"},
		},
		{
			"in a terminal the line changes in place", width,
			func(d *Display) { d.progress("one"); d.progress("two"); d.finish() },
			[]string{"\r\x1b[Kone\r\x1b[Ktwo\n"},
			nil,
		},
		{
			"an event goes above the line", width,
			func(d *Display) { d.progress("one"); d.event(record, 1500*time.Microsecond) },
			[]string{"1.50 ms  partition 2@7", "customer-0001", "\none"},
			nil,
		},
		{
			"not every event is shown", width,
			func(d *Display) {
				d.event(record, 0)
				d.nextEvent = time.Now().Add(time.Hour)
				d.event(&kgo.Record{Key: []byte("customer-0002")}, 0)
			},
			[]string{"customer-0001"},
			[]string{"customer-0002"},
		},
		{
			"no line is as long as the terminal is wide", width,
			func(d *Display) { d.progress(strings.Repeat("é", 60)) },
			[]string{strings.Repeat("é", 59)},
			[]string{strings.Repeat("é", 60)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			tt.show(&Display{Out: &out, Width: tt.width})
			for _, text := range tt.want {
				if !strings.Contains(out.String(), text) {
					t.Errorf("output %q lacks %q", out.String(), text)
				}
			}
			for _, text := range tt.lack {
				if strings.Contains(out.String(), text) {
					t.Errorf("output %q has %q", out.String(), text)
				}
			}
		})
	}
}
