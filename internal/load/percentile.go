package load

import (
	"math"
	"slices"
	"time"
)

// Percentiles returns the exact percentiles ps (0 to 100) of samples, by
// nearest rank: each is a value that was measured, never an interpolation. It
// leaves samples as they are, and returns zeros when there are none.
func Percentiles(samples []time.Duration, ps ...float64) []time.Duration {
	values := make([]time.Duration, len(ps))
	if len(samples) == 0 {
		return values
	}
	sorted := slices.Sorted(slices.Values(samples))
	for i, p := range ps {
		rank := int(math.Ceil(p / 100 * float64(len(sorted))))
		values[i] = sorted[min(max(rank, 1), len(sorted))-1]
	}
	return values
}
