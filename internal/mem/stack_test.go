package mem

import "testing"

// TestPrefetchOfStacks: a hint about memory that is not there does nothing: no fault
// ends the process, which is what the test is for, and nothing is allocated. Whether a
// hint has brought anything into a cache cannot be seen.
func TestPrefetchOfStacks(t *testing.T) {
	done := make(chan Depth)
	go func() { done <- Here() }()
	gone := <-done // the stack of a goroutine that has ended
	object := &[7]uint64{}
	if n := testing.AllocsPerRun(10, func() {
		for _, d := range []Depth{0, 8, gone, Here(), 1 << 46, ^Depth(0)} {
			d.Prefetch(3<<10, 1<<9)
		}
		PrefetchObject(object)
	}); n != 0 {
		t.Errorf("hints allocate %v times", n)
	}
}
