package clock

import (
	"testing"
	"time"
)

// TestNowRuns: time goes on, at the pace of the monotonic clock when the machine is awake.
func TestNowRuns(t *testing.T) {
	mono, boot := time.Now(), Now()
	time.Sleep(20 * time.Millisecond)
	boot2, passed := Now(), time.Since(mono)
	if got := boot2 - boot; got < 20*time.Millisecond || got > passed {
		t.Errorf("%v passed by CLOCK_BOOTTIME, %v by the monotonic clock", got, passed)
	}
}

// TestFastFollowsNow: at any moment Fast lies within its bound of Now.
func TestFastFollowsNow(t *testing.T) {
	for _, c := range []struct {
		name   string
		source Source
		slip   time.Duration
	}{{"fast", Fast, 0}, {"inferred", infer, slip}} {
		if c.name == "fast" && function == 0 {
			c.slip = slip
		}
		for range 2000 {
			before, fast := Now(), c.source()
			after := Now()
			if fast < before-2*c.slip || fast > after+c.slip {
				t.Fatalf("%s: %v between %v and %v", c.name, fast, before, after)
			}
		}
	}
}

// inferring makes Fast and Start do without the kernel's function for a test.
func inferring(t *testing.T) {
	f := function
	function = 0
	t.Cleanup(func() {
		function = f
		last.Store(nil)
	})
}

// TestFastSeesASleep: a machine that slept since the reading shows as a wall
// clock that went further than the monotonic one. A clock that was set, or a
// second that has passed, makes a new reading too.
func TestFastSeesASleep(t *testing.T) {
	for _, c := range []struct {
		mono, wall time.Duration
		want       bool
	}{
		{0, 0, true},
		{500 * time.Millisecond, 500*time.Millisecond + 300*time.Microsecond, true},
		{3 * time.Millisecond, 40 * time.Second, false},
		{3 * time.Millisecond, 5 * time.Millisecond, false},
		{3 * time.Millisecond, -time.Hour, false},
		{time.Second, time.Second, false},
		{-1, -1, false},
	} {
		if got := inStep(c.mono, c.wall); got != c.want {
			t.Errorf("%v by the monotonic clock, %v by the wall clock: in step %v, want %v", c.mono, c.wall, got, c.want)
		}
	}
	// infer asks again if its reading is out of step: this one's wall and
	// monotonic time are both two seconds back, and its own time is wrong.
	back := time.Now().Add(-2 * syncEvery)
	last.Store(&reading{mono: back.Sub(base), wallNano: back.UnixNano(), boot: 0})
	before := Now()
	if got := infer(); got < before-slip {
		t.Errorf("inferred %v, Now was %v", got, before)
	}
}

// TestMarksBesideASleep: an age is never too small, but for the error of Fast, and right again after the
// first one that follows a sleep.
func TestMarksBesideASleep(t *testing.T) {
	inferring(t)
	const slept = 40 * time.Second
	now := time.Now()
	last.Store(&reading{mono: now.Sub(base), wallNano: now.UnixNano() - int64(slept), boot: Now() - slept})
	m := Start()
	if age := m.Age(); age < slept-slip || age > slept+within(now) {
		t.Errorf("the age of a moment before a sleep of %v is %v", slept, age)
	}
	if awake := m.Awake(); awake < -slip || awake > within(now) {
		t.Errorf("awake for %v", awake)
	}
	if age := Start().Age(); age > within(now) {
		t.Errorf("the next age is %v", age)
	}
}

// within bounds what is measured since a moment.
func within(t time.Time) time.Duration { return time.Since(t) + time.Second }

// TestMarkBeforeASleep: a sleep counts in the age of a mark, and not in the time for which the machine was
// awake since. The mark's place in time stands for a moment before a sleep.
func TestMarkBeforeASleep(t *testing.T) {
	const slept = 40 * time.Second
	now := time.Now()
	m := Start()
	m.boot, m.ahead = m.boot-slept, m.ahead-slept
	if age := m.Age(); age < slept-slip || age > slept+within(now) {
		t.Errorf("the age of a moment before a sleep of %v is %v", slept, age)
	}
	if awake := m.Awake(); awake < -slip || awake > within(now) {
		t.Errorf("awake for %v", awake)
	}
	m = Start()
	time.Sleep(20 * time.Millisecond)
	if awake := m.Awake(); awake < 20*time.Millisecond-slip || awake > m.Age()+slip {
		t.Errorf("awake for %v of %v", awake, m.Age())
	}
}

func TestFastAllocatesNothing(t *testing.T) {
	Fast()
	if n := testing.AllocsPerRun(100, func() { _ = Start().Age() }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}

func BenchmarkFast(b *testing.B) {
	for b.Loop() {
		Fast()
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		Start()
	}
}
