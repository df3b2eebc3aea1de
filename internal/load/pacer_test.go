package load

import (
	"context"
	"sync"
	"testing"
	"time"
)

func TestPacerKeepsToItsScheduleWhateverTheCallersDo(t *testing.T) {
	t.Parallel()
	pacer := NewPacer(1000, 100)
	var mu sync.Mutex
	due := map[time.Time]int{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				at, ok := pacer.Wait(t.Context())
				if !ok {
					return
				}
				if early := time.Until(at); early > 0 {
					t.Errorf("handed out %s early", early)
				}
				mu.Lock()
				due[at]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(due) != 100 {
		t.Fatalf("%d different due times, want 100", len(due))
	}
	for i := range 100 {
		if at := pacer.start.Add(time.Duration(i) * time.Millisecond); due[at] != 1 {
			t.Errorf("send %d was handed out %d times, want once", i, due[at])
		}
	}
}

func TestBurstPacerSendsABurstAtOnceAtTheSameRate(t *testing.T) {
	t.Parallel()
	pacer := NewBurstPacer(1000, 12, 5)
	for i, ms := range []int{0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 10, 10} {
		due, ok := pacer.Wait(t.Context())
		if got := due.Sub(pacer.start).Milliseconds(); !ok || got != int64(ms) {
			t.Errorf("send %d is due after %d ms, want %d", i, got, ms)
		}
	}
	if _, ok := pacer.Wait(t.Context()); ok {
		t.Error("went on beyond its count")
	}
}

func TestPacerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	pacer := NewPacer(1.0/3600, 0) // one an hour
	if _, ok := pacer.Wait(ctx); !ok {
		t.Fatal("the first send is due at once")
	}
	ended := make(chan bool)
	go func() {
		_, ok := pacer.Wait(ctx)
		ended <- ok
	}()
	cancel()
	if <-ended {
		t.Error("a send was handed out after the end of the context")
	}
}

func TestPacerWithoutRateDoesNotWait(t *testing.T) {
	t.Parallel()
	pacer := NewPacer(0, 3)
	for range 3 {
		if _, ok := pacer.Wait(t.Context()); !ok {
			t.Fatal("ended before its count")
		}
	}
	if _, ok := pacer.Wait(t.Context()); ok {
		t.Error("went on beyond its count")
	}
}
