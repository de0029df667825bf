package cluster

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A thread keeps its policy and niceness, and asks for short turns if the
// kernel knows of them.
func TestShortSlices(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Skipf("no scheduling attributes here: %v", err)
	}
	shortSlices()
	after, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if after.Policy != before.Policy || after.Nice != before.Nice || after.Flags != before.Flags {
		t.Errorf("policy, niceness, flags were %d, %d, %#x and are %d, %d, %#x",
			before.Policy, before.Nice, before.Flags, after.Policy, after.Nice, after.Flags)
	}
	switch {
	case before.Runtime == 0 || before.Policy != unix.SCHED_NORMAL:
		t.Logf("one length of turns for all: this kernel or this process's policy has no other")
	case after.Runtime != uint64(serverSlice):
		t.Errorf("turns of %d ns, want %d", after.Runtime, serverSlice)
	}
}
