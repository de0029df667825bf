package testaddr

import (
	"net"
	"strconv"
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

// TestNew: ports are successive, and none is in two answers.
func TestNew(t *testing.T) {
	seen := map[int]bool{}
	for range lastPort - firstPort { // the counter passes its end; few calls come that far
		addrs, err := New(3)
		if err != nil {
			t.Fatal(err)
		}
		var first int
		for i, addr := range addrs {
			_, text, err := net.SplitHostPort(addr)
			if err != nil {
				t.Fatal(err)
			}
			port, _ := strconv.Atoi(text)
			if i == 0 {
				first = port
			}
			if port != first+i || port < firstPort || port >= lastPort {
				t.Fatalf("ports of %v", addrs)
			}
			if seen[port] {
				if len(seen) < (lastPort-firstPort)*9/10 { // a few ports may be taken
					t.Fatalf("port %d comes again after %d others", port, len(seen))
				}
				return // once around
			}
			seen[port] = true
		}
	}
}
