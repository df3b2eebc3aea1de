package notify

import "time"

const (
	rateWindow  = 250 * time.Millisecond
	rateBuckets = 10
)

// rateMeter counts rows over the last 250 ms. A shorter window takes a burst
// of ten rows for a high rate; a longer one keeps writers notifying for as long
// after the rate has risen.
type rateMeter struct {
	buckets [rateBuckets]int
	last    int64 // index of the newest bucket, in bucket widths since the epoch
}

func (m *rateMeter) add(now time.Time, rows int) {
	m.advance(now)
	m.buckets[m.last%rateBuckets] += rows
}

// perSecond returns the rate over the window that ends now.
func (m *rateMeter) perSecond(now time.Time) float64 {
	m.advance(now)
	var sum int
	for _, n := range m.buckets {
		sum += n
	}
	return float64(sum) / rateWindow.Seconds()
}

func (m *rateMeter) advance(now time.Time) {
	bucket := now.UnixNano() / int64(rateWindow/rateBuckets)
	if bucket-m.last >= rateBuckets {
		m.buckets = [rateBuckets]int{}
	} else {
		for b := m.last + 1; b <= bucket; b++ {
			m.buckets[b%rateBuckets] = 0
		}
	}
	m.last = max(m.last, bucket)
}
