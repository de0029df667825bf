package testaddr

import (
	"net"
	"testing"
)

// TestFree: addresses differ, and one can listen at all of them.
func TestFree(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		addr := Free(t)
		if seen[addr] {
			t.Fatalf("%s comes twice", addr)
		}
		seen[addr] = true
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}
