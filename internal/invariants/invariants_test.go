package invariants

import "testing"

// panics reports whether f panicked.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func TestAssertionsFollowTheBuildTag(t *testing.T) {
	if got := panics(func() { Failf("broken: %d", 1) }); got != Enabled {
		t.Errorf("Failf panicked: %v, want %v", got, Enabled)
	}
}
