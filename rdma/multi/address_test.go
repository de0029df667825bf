package multi

import (
	"errors"
	"testing"

	"drtmx/rdma"
)

func TestParseAddress(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Address
	}{
		{"tcp:a:1", Address{TCP: "a:1"}},
		{"shm:/d/s0.sock", Address{Shm: "/d/s0.sock"}},
		{"verbs:a:1+tcp:b:2+shm:/d/s", Address{Verbs: "a:1", TCP: "b:2", Shm: "/d/s"}},
		{"verbs:a:1", Address{Verbs: "a:1"}},
		{"tcp:[::1]:1+shm:/d+tcp:x/s0.sock", Address{TCP: "[::1]:1", Shm: "/d+tcp:x/s0.sock"}},
	} {
		a, err := ParseAddress(c.in)
		if err != nil || a != c.want || a.String() != c.in {
			t.Errorf("%s: %+v, %v", c.in, a, err)
		}
		var again Address
		for _, p := range a.Parts() {
			again.Add(p.Fabric, p.Addr)
			again.Add(p.Fabric, "the first one stays")
		}
		if again != a {
			t.Errorf("%s: of its parts %+v", c.in, again)
		}
	}
	if a, err := ParseAddress("/d/s0.sock"); err != nil || a.Shm != "/d/s0.sock" {
		t.Errorf("a socket alone: %+v, %v", a, err)
	}
	if a, err := ParseAddress("[::1]:7000"); err != nil || a.TCP != "[::1]:7000" {
		t.Errorf("host and port alone: %+v, %v", a, err)
	}
	for _, in := range []string{"", "tcp:a:1+verbs:a:1", "verbs:a:1+x", "tcp:a:1+tcp:b:1", "tcp:a:1+shm:tcp:b", "verbs:", "tcp:", "tcp:a", "tcp:a:1+", "tcp:a:1+shm:", "tcp:a:1+/d", "shm:", "shm:tcp:a:1"} {
		if a, err := ParseAddress(in); !errors.Is(err, rdma.ErrAddress) {
			t.Errorf("%q: %+v, %v", in, a, err)
		}
	}
}

// An address that is accepted has the same meaning when it is written and
// parsed again.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"tcp:a:1+shm:/d/s0.sock", "shm:@x", "[::1]:7", "verbs:a:1+tcp:b:2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err != nil {
			if !errors.Is(err, rdma.ErrAddress) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if again, err := ParseAddress(a.String()); err != nil || again != a {
			t.Errorf("%q: %+v, then %+v, %v", s, a, again, err)
		}
	})
}
