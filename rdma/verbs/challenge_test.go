package verbs

import (
	"testing"
	"time"
)

// TestChallenges: a challenge is for one client and one endpoint, and for a while.
func TestChallenges(t *testing.T) {
	one, other := newChallenger(), newChallenger()
	time.Sleep(time.Millisecond) // stamps are not 0
	a, b := [16]byte{1}, [16]byte{2}
	stamp, nonce := one.challenge(a)
	if !one.open(stamp) || one.nonce(a, stamp) != nonce {
		t.Error("a challenge is not known again")
	}
	if one.nonce(b, stamp) == nonce || one.nonce(a, stamp+1) == nonce || other.nonce(a, stamp) == nonce {
		t.Error("another client, time or endpoint has the same nonce")
	}
	one.start = one.start.Add(-challengeTime / 2)
	if !one.open(stamp) {
		t.Errorf("a challenge is closed %v later", challengeTime/2)
	}
	one.start = one.start.Add(-challengeTime)
	if one.open(stamp) {
		t.Errorf("a challenge is open %v later", challengeTime*3/2)
	}
	for _, never := range []uint64{0, uint64(time.Since(one.start)) + uint64(time.Hour), 1<<64 - 1} {
		if one.open(never) {
			t.Errorf("a challenge that was not made yet, %d, is open", never)
		}
	}
}
