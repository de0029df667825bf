package invariants

import "testing"

// panics reports whether f panicked.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func TestAssertionsFollowTheBuildTag(t *testing.T) {
	if panics(func() { Check(true, "holds") }) {
		t.Error("Check(true) panicked")
	}
	if got := panics(func() { Check(false, "broken") }); got != Enabled {
		t.Errorf("Check(false) panicked: %v, want %v", got, Enabled)
	}
	if got := panics(func() { Failf("broken: %d", 1) }); got != Enabled {
		t.Errorf("Failf panicked: %v, want %v", got, Enabled)
	}
}
