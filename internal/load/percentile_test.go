package load

import (
	"slices"
	"testing"
	"time"
)

func TestPercentilesAreMeasuredValuesByNearestRank(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i) // not in order
	}
	for _, tt := range []struct {
		name    string
		samples []time.Duration
		want    []time.Duration
	}{
		{"no samples give zeros", nil, []time.Duration{0, 0, 0, 0}},
		{"one sample is every percentile", []time.Duration{7}, []time.Duration{7, 7, 7, 7}},
		{"of two, the median is the lower", []time.Duration{9, 3}, []time.Duration{3, 3, 9, 9}},
		{"of a hundred, the rank is the percentile", hundred, []time.Duration{1, 50, 99, 100}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := slices.Clone(tt.samples)
			if got := Percentiles(tt.samples, 0, 50, 99, 100); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if !slices.Equal(before, tt.samples) {
				t.Error("the samples were sorted in place")
			}
		})
	}
}
