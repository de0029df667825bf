package server

import "testing"

// TestTrainingWithoutMemoryIsReportedOnce: until models are trained again, failures of training give one line.
func TestTrainingWithoutMemoryIsReportedOnce(t *testing.T) {
	var state trained
	lines := 0
	turn := func(generations, failures uint64) {
		var lacks bool
		if state, lacks = state.then(generations, failures); lacks {
			lines++
		}
	}
	turn(1, 0)
	for f := range uint64(50) {
		turn(1, f)
	}
	if lines != 1 {
		t.Errorf("%d lines about 50 failures, want 1", lines)
	}
	turn(2, 49)
	turn(2, 49)
	if lines != 1 {
		t.Errorf("%d lines after models were trained, want 1", lines)
	}
	turn(2, 50)
	turn(2, 51)
	if lines != 2 {
		t.Errorf("%d lines after memory lacked once more, want 2", lines)
	}
}
